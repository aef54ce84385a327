"""`ramet mcp install` with the real npm, and a registry of this test: what a hostile project and package achieve."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ramet.cli.main import main
from tests.agents.install import write_npm
from tests.support.agent_programs import MCP_SERVERS, node


class Registry(ThreadingHTTPServer):
    """A registry of npm with one package, whose installation runs a program."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.archive = b""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def publish(self, text: str, script: str) -> None:
        """Replace the content of the only version."""
        package = {"name": "one", "version": "1.0.0", "bin": "cli.js", "scripts": {"postinstall": script}}
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as archive:
            for name, data in (("package.json", json.dumps(package)), ("cli.js", text)):
                member = tarfile.TarInfo(f"package/{name}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data.encode()))
        self.archive = packed.getvalue()

    def listing(self) -> dict[str, Any]:
        """Return what npm reads about the package."""
        digest = base64.b64encode(hashlib.sha512(self.archive).digest()).decode()
        version = {
            "name": "one",
            "version": "1.0.0",
            "bin": {"one": "cli.js"},
            "hasInstallScript": True,
            "dist": {"tarball": f"{self.url}/one/-/one-1.0.0.tgz", "integrity": f"sha512-{digest}"},
        }
        return {"name": "one", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}


class _Handler(BaseHTTPRequestHandler):
    server: Registry

    def do_GET(self) -> None:
        body = self.server.archive if "/-/" in self.path else json.dumps(self.server.listing()).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


@pytest.fixture
def registry() -> Iterator[Registry]:
    with Registry() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.agents(MCP_SERVERS)
def test_npm_runs_no_code_and_reads_no_settings_of_a_project(
    tmp_path: Path, registry: Registry, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A package's script does not run, a project chooses no registry, and another content than the locked one fails."""
    project, programs, ran = tmp_path / "project", tmp_path / "bin", tmp_path / "ran"
    project.mkdir()
    programs.mkdir()
    monkeypatch.chdir(project)
    variables = {
        "PATH": f"{write_npm(programs)}{os.pathsep}{node().parent}{os.pathsep}/usr/bin:/bin",
        "npm_config_registry": registry.url,
        "npm_config_cache": str(tmp_path / "npm"),
        "npm_config_fetch_retries": "0",
        "RAMET_HOME": str(tmp_path / "home"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    (project / ".mcp.json").write_text(json.dumps({"mcpServers": {"one": {"command": "npx", "args": ["-y", "one"]}}}))
    (project / ".npmrc").write_text("ignore-scripts=false\nnode-options=--require=./hook.js\nomit=\n")
    (project / "hook.js").write_text(f"require('fs').writeFileSync({json.dumps(str(ran))}, '')")
    (project / "package.json").write_text(json.dumps({"scripts": {"preinstall": f"touch {ran}"}}))
    registry.publish("console.log(1)", f"touch {ran}")
    assert main(["trust", str(project)]) == 0
    capsys.readouterr()

    assert main(["mcp", "install"]) == 0
    assert capsys.readouterr().err.splitlines()[-1] == "one: one 1.0.0, 1 package"
    [installed] = (tmp_path / "cache" / "ramet" / "mcp").iterdir()
    assert (installed / "tree" / "node_modules" / "one" / "cli.js").read_text() == "console.log(1)"
    assert not ran.exists()
    lock = (project / ".mcp.lock.json").read_text()
    assert "127.0.0.1" not in lock

    registry.publish("console.log(2)", f"touch {ran}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    monkeypatch.setenv("npm_config_cache", str(tmp_path / "npm2"))
    assert main(["mcp", "install"]) == 1
    *_, line = capsys.readouterr().err.splitlines()
    assert "the package 'one' is not installed: of the lock, one 1.0.0: the registry has another content" in line
    assert list((tmp_path / "other" / "ramet" / "mcp").iterdir()) == []
    assert (project / ".mcp.lock.json").read_text() == lock
    assert not ran.exists()
