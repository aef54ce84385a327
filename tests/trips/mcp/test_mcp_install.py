"""`ramet mcp install` with the real pip, and servers that start from what it installed.

The index is a folder of this test. Packages of npm, and real registries: `tests/agents/test_mcp_packages.py`.
"""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
import signal
import socket
import sys

import pytest

import ramet
from ramet.cli.main import main
from ramet.host.mcp.installed_packages import InstalledPackages
from ramet.models.scripted.dialogue import Call
from tests.support.wheels import source_package, wheel
from tests.trips.kits.isolated import BackendName, usual_backend
from tests.trips.kits.mcp import PROGRAMS

backend = usual_backend
SERVER = (PROGRAMS / "plain.py").read_text()
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
WORK = Call("mcp__one__work", {})


@pytest.fixture
def index(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Return the folder that is pip's only index."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name, value in {"NO_INDEX": "1", "FIND_LINKS": str(folder), "CONFIG_FILE": os.devnull}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    return folder


@pytest.fixture
def project(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Return a folder with a server that starts with uvx, which the user works in and has not trusted."""
    folder = tmp_path / "project"
    folder.mkdir()
    servers = {"one": {"command": "uvx", "args": ["one", "changes"]}, "plain": {"command": "python3"}}
    (folder / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))
    monkeypatch.chdir(folder)
    monkeypatch.setenv("RAMET_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


async def use(folder: pathlib.Path, backend: BackendName) -> str:
    """Return what the agent of a session in the project gets of its server, or why it was not started."""
    user = ramet.Agent(
        name="user",
        description="Uses a server",
        mcp=[{"name": "one", "command": "uvx", "args": ["one", "changes"]}],
        tools=None,
        policy=ramet.Policy(memory_mb=512),
    )
    begin = [Call("Agent", {"subagent_type": "user", "prompt": "Play."})]
    model = ramet.ScriptedModel(script={"Begin!": [*begin, "Done."], "Play.": [WORK, "Played."]})
    async with ramet.Session(model, agents=[user], cwd=folder, backend=backend, unattended=True) as session:
        await session.ask("Begin!")
        answers = [str(each.text) for each in session.messages if each.type == "tool"]
        if answers != ["Played."]:
            return answers[0]
        history = session.handle("main/1").run.context.history
        return "".join(each.text for each in history if each.type == "tool")


async def test_a_package_is_installed_once_and_used_as_it_was_locked(
    tmp_path: pathlib.Path,
    index: pathlib.Path,
    project: pathlib.Path,
    backend: BackendName,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No code of a project or a package runs in the host, and only what the lock names starts."""
    ran = tmp_path / "ran"
    runs = f"import pathlib; pathlib.Path({str(ran)!r}).touch()\n"
    for module in ("pip", "venv", "sitecustomize"):  # which a client would import from the folder of the user
        (project / f"{module}.py").write_text(runs)
    wheel(index, "one", "1.0", SERVER, program="main", needs="helper")
    wheel(index, "helper", "2.0", "")
    source_package(index, "one", "2.0", runs)  # newer, and installed by a program of its own

    def install(*words: str) -> tuple[int, list[str]]:
        status = main(["mcp", "install", *words])
        return status, capsys.readouterr().err.splitlines()

    command = "ramet mcp install one"
    status, [line] = install("one")
    assert (status, "nothing is installed: it was never trusted" in line) == (1, True)
    assert "'uvx one changes' is not accepted" in (refused := await use(project, backend))
    assert command in refused
    assert main(["trust", str(project)]) == 0
    capsys.readouterr()

    assert install() == (
        0,
        ["one: looking for one and what it needs, in pypi", "one: one 1.0, 2 packages"],
    )
    lock = json.loads((project / ".mcp.lock.json").read_text())
    assert list(lock["commands"]) == ["pypi:one"]
    assert {name: each["version"] for name, each in lock["commands"]["pypi:one"]["pypi"].items()} == {
        "one": "1.0",
        "helper": "2.0",
    }
    assert str(index) not in json.dumps(lock)
    assert await use(project, backend) == "worked as of 2025-11-25"
    assert not ran.exists()

    # Files that changed do not start in another process. What replaces them is what the lock names, or nothing.
    packages = tmp_path / "cache" / "ramet" / "mcp"
    [folder] = packages.iterdir()
    next(folder.glob("tree/lib/*/site-packages/one.py")).write_text(f"{runs}{SERVER}")
    monkeypatch.setattr(InstalledPackages, "_checked", set())
    assert f"none whose installed files have changed: {command}" in await use(project, backend)
    wheel(index, "one", "1.0", SERVER + runs, program="main", needs="helper")
    status, lines = install("one")
    assert (status, len(lines)) == (1, 2), lines
    assert "'one' is not installed: of the lock, one 1.0: ERROR: THESE PACKAGES DO NOT MATCH" in lines[1]
    assert list(packages.iterdir()) == [folder]

    (project / ".mcp.lock.json").write_text(json.dumps({"version": 1, "commands": {"pypi:one": {"pypi": {}}}}))
    status, [line] = install("one")
    assert (status, "what it would run has changed since it was trusted" in line) == (1, True)


async def test_an_interrupted_installation_leaves_nothing(
    tmp_path: pathlib.Path, project: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C ends the client of the registry, and no file of the package is left."""
    assert main(["trust", str(project)]) == 0
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.setblocking(False)
        for name, value in {
            "INDEX_URL": f"http://127.0.0.1:{silent.getsockname()[1]}/simple",
            "CONFIG_FILE": os.devnull,
            "FIND_LINKS": "",
        }.items():
            monkeypatch.setenv(f"PIP_{name}", value)
        pins = {"one": {"version": "1.0", "sha256": "0" * 64}}
        lock = {"version": 1, "commands": {"pypi:one": {"pypi": pins, "python": PYTHON}}}
        (project / ".mcp.lock.json").write_text(json.dumps(lock))
        assert main(["trust", str(project)]) == 0
        installing = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "ramet", "mcp", "install", "one", cwd=project, stderr=asyncio.subprocess.PIPE
        )
        asked, _ = await asyncio.get_running_loop().sock_accept(silent)
        with asked:
            packages = tmp_path / "cache" / "ramet" / "mcp"
            assert [each.name.startswith(".new-") for each in packages.iterdir()] == [True]
            installing.send_signal(signal.SIGINT)
            _, printed = await installing.communicate()
            assert (installing.returncode, b"Traceback" in printed) == (130, False), printed
            async with asyncio.timeout(180):
                while await asyncio.get_running_loop().sock_recv(asked, 1 << 16):
                    pass
        assert list(packages.iterdir()) == []
