"""`ramet serve` as a process, and requests of a team's key over HTTP."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

import httpx2

from tests.support import scripted_tool_types
from tests.support.acceptance_types import ENTRY_POINTS
from tests.support.serve_process import ROOT, plugin
from tests.support.serving import short_folder


class TeamClient:
    """An HTTP client with the key of one team, the operator's key, and the folder of the server."""

    def __init__(self, folder: pathlib.Path, http: httpx2.Client, key: str = "") -> None:
        """Make the team, unless `key` is the key that it has."""
        self.folder, self._http, self.key = folder, http, key
        self.operator = (folder / ".ramet" / "operator-token").read_text().strip()
        if not key:
            made = self.ask("POST", "/v1/teams", self.operator, json={"name": "crew", "resources": {"agents": 8}})
            self.key = made.raise_for_status().json()["key"]

    def ask(self, method: str, path: str, key: str, **options: Any) -> httpx2.Response:
        """Send one request with a key."""
        return self._http.request(method, path, headers={"authorization": f"Bearer {key}"}, **options)

    def spawn(self, name: str, agent_type: str = "shell", **fields: Any) -> httpx2.Response:
        """Ask for an agent with the team's key."""
        asked = {"team": "crew", "name": name, "agent_type": agent_type, **fields}
        return self.ask("POST", "/v1/agents", self.key, json=asked)

    def say(self, spawned: Mapping[str, Any], text: str) -> str:
        """Return the whole answer of an agent to one message."""
        body = {"model": "any", "messages": [{"role": "user", "content": text}]}
        answer = self.ask("POST", "/v1/chat/completions", spawned["nonce"], json=body).raise_for_status()
        return str(answer.json()["choices"][0]["message"]["content"])


class ServeProcess:
    """A running `ramet serve`, which ends with the block. It logs into a file of its folder."""

    def __init__(self, folder: pathlib.Path, *options: str, **env: str) -> None:
        path = os.pathsep.join([str(folder / "plugin"), str(ROOT)])
        self._log = folder / "serve.log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "ramet", "serve", "--dir", str(folder), *options],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "PYTHONPATH": path, **env},
            )

    def __enter__(self) -> Self:
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            self._process.communicate()
            raise RuntimeError(self._log.read_text())
        return self

    def kill(self) -> None:
        """Kill the server with SIGKILL."""
        self._process.kill()
        self._process.wait()

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.communicate()


@contextmanager
def team_client(folder: pathlib.Path, key: str = "") -> Iterator[TeamClient]:
    """Open a client of the server in a folder, with the key of its one team. Makes the team if `key` is empty."""
    transport = httpx2.HTTPTransport(uds=str(folder / ".ramet" / "serve.sock"))
    with httpx2.Client(transport=transport, base_url="http://ramet", timeout=180) as http:
        yield TeamClient(folder, http, key)


@contextmanager
def serve_team(settings: Mapping[str, Any] | None = None, *options: str, **env: str) -> Iterator[TeamClient]:
    """Run a server with these settings in its `ramet.yaml`, an obedient agent type `shell`, and one team."""
    with short_folder() as folder:
        plugin(folder, ENTRY_POINTS + scripted_tool_types.ENTRY_POINTS)
        file = folder / "ramet.yaml"
        file.write_text(json.dumps(settings or {}))
        with ServeProcess(folder, "--config", str(file), *options, **env), team_client(folder) as client:
            yield client
