"""Several `ramet serve` on one PostgreSQL database, each a process with its own folder and name."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, contextmanager
from urllib.parse import quote

import psycopg
import pytest

from ramet.services.client.client import Client
from tests.support import postgres
from tests.support.postgres import Server, fresh_schema
from tests.support.serve_process import ROOT, plugin

TOKEN = "op_all_kernels_have_the_same_one"
ENTRY_POINTS = """\
[ramet.agent_types]
echo = tests.support.echo_agents:EchoType
slow = tests.support.slow_agents:SlowType
slow-function = tests.support.slow_functions:SlowFunctions

[ramet.backends]
outliving = tests.support.outliving:OutlivingBackend
"""


class Kernel:
    """A process of `ramet serve`. `url` is known once it listens."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: pathlib.Path) -> None:
        self.name, self.process, self._log = name, process, log
        self._url = ""

    @property
    def url(self) -> str:
        """Return the address at which the kernel listens; wait until it does."""
        if not self._url:
            assert self.process.stdout is not None
            words = self.process.stdout.readline().decode().split()
            assert words, self.log_text
            self._url = next(word for word in words if word.startswith("http://"))
        return self._url

    @property
    def log_text(self) -> str:
        """Return what the kernel has logged."""
        return self._log.read_text()

    def kill(self) -> None:
        """Kill the kernel, as a crash of its machine does."""
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """Kill the kernel if it runs, and close its pipe."""
        if self.process.poll() is None:
            self.kill()
        if self.process.stdout is not None:
            self.process.stdout.close()


class Kernels:
    """The kernels of one database. `begin` adds one, also with the name of a kernel that has ended."""

    def __init__(self, folder: pathlib.Path, dsn: str) -> None:
        self._folder, self.dsn = folder, dsn
        self.all: list[Kernel] = []
        plugin(folder, ENTRY_POINTS)

    def begin(self, name: str, token: str = TOKEN, *, module: str = "ramet", **settings: str) -> Kernel:
        """Start a kernel, which may not listen yet. `settings` are its environment, by default local sandboxes."""
        folder = self._folder / name
        folder.mkdir(exist_ok=True)
        env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(self._folder / "plugin"), str(ROOT)]),
            "RAMET_STORE": self.dsn,
            "RAMET_OPERATOR_TOKEN": token,
            **(settings or {"RAMET_BACKEND": "local"}),
        }
        options = ["--dir", str(folder), "--listen", "127.0.0.1:0", "--kernel", name]
        with (folder / "stderr").open("a") as errors:
            command = [sys.executable, "-m", module, "serve", *options]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, env=env)
        self.all.append(Kernel(name, process, folder / "stderr"))
        return self.all[-1]

    def client(self, kernel: Kernel) -> Client:
        """Return a client with the operator's key, which is not open yet."""
        return Client(kernel.url, TOKEN)

    def end_session(self, name: str) -> None:
        """Let the database end the sessions of a kernel, as it does when a machine is lost."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            query = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name LIKE %s"
            assert connection.execute(query, [f"ramet {name} pid %"]).fetchall()

    def close(self) -> None:
        """Kill the kernels that still run."""
        for each in self.all:
            each.close()


@contextmanager
def kernels(server: Server, folder: pathlib.Path) -> Iterator[Kernels]:
    """Make a database for kernels of its own, none at first. The database is removed in the end."""
    name = fresh_schema()
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
    host = server.dsn.split()[0].removeprefix("host=")
    all = Kernels(folder, f"postgresql:///{name}?host={quote(host, safe='')}&user=ramet")
    try:
        yield all
    finally:
        all.close()
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@pytest.fixture
def all_kernels(tmp_path: pathlib.Path, stores: str) -> Iterator[Kernels]:
    """The kernels of this test: none at first."""
    with kernels(postgres.running(), tmp_path) as found:
        yield found


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    """A stack that closes clients in the end."""
    async with AsyncExitStack() as found:
        yield found
