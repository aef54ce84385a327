"""Several `ramet serve` on one PostgreSQL database, each a process with a folder and a name of its own."""

from __future__ import annotations

import asyncio
import os
import pathlib
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import quote

import psycopg

import ramet
from ramet.services.client.client import Client
from tests.support.postgres import Server, fresh_schema
from tests.support.serve_process import ROOT, plugin

TOKEN = "op_all_kernels_have_the_same_one"
ENTRY_POINTS = """\
[ramet.agent_types]
echo = tests.support.echo_agents:EchoType
slow = tests.support.slow_agents:SlowType
"""


class Kernel:
    """One of them: a process, and a client of it with the operator's key."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, client: Client, url: str) -> None:
        self.name, self.process, self.client, self.url = name, process, client, url

    async def kill(self) -> None:
        """As a machine that crashes would."""
        self.process.kill()
        await self.process.wait()

    async def end(self) -> int:
        """As it is ended in a rolling restart; its status."""
        self.process.send_signal(signal.SIGTERM)
        return await self.process.wait()


class Kernels:
    """All of them on one database. `start` adds one, also of a name that one had that is gone."""

    def __init__(self, folder: pathlib.Path, dsn: str) -> None:
        self._folder, self._dsn = folder, dsn
        self._all: list[Kernel] = []

    async def start(self, name: str, token: str = TOKEN) -> Kernel:
        """Until it says that it listens."""
        folder = self._folder / name
        folder.mkdir(exist_ok=True)
        if not (self._folder / "plugin").exists():
            plugin(self._folder, ENTRY_POINTS)
        env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(self._folder / "plugin"), str(ROOT)]),
            "RAMET_STORE": self._dsn,
            "RAMET_OPERATOR_TOKEN": token,
        }
        options = ["--dir", str(folder), "--listen", "127.0.0.1:0", "--kernel", name, "--backend", "local"]
        with (folder / "stderr").open("a") as errors:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "ramet", "serve", *options, stdout=asyncio.subprocess.PIPE, stderr=errors, env=env
            )
        assert process.stdout is not None
        line = (await process.stdout.readline()).decode()
        assert "ramet serves" in line, (folder / "stderr").read_text()
        url = next(word for word in line.split() if word.startswith("http://"))
        client = await ramet.connect(url, token).__aenter__()
        self._all.append(Kernel(name, process, client, url))
        return self._all[-1]

    def said(self, name: str) -> str:
        """What one of them has logged."""
        return (self._folder / name / "stderr").read_text()

    async def close(self) -> None:
        """Kill those that are left."""
        for each in self._all:
            if each.process.returncode is None:
                each.process.kill()
            await each.process.wait()
            await each.client.__aexit__()


@asynccontextmanager
async def kernels(server: Server, folder: pathlib.Path) -> AsyncIterator[Kernels]:
    """None at first; the database is theirs alone, and goes with them."""
    name = fresh_schema()
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
    host = server.dsn.split()[0].removeprefix("host=")
    all = Kernels(folder, f"postgresql:///{name}?host={quote(host, safe='')}&user=ramet")
    try:
        yield all
    finally:
        await all.close()
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')
