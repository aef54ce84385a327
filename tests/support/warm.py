"""Programs that are forked from a process with their imports: a tenth of the processor time of a cold start.

For sweeps that kill the same program at each of many moments. Each program is a process with its own end, as if Python
had been started for it; only the imports are done. Other tests show that a program starts cold.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pathlib
import signal
import socket
import struct
import subprocess
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Iterator, Mapping
from typing import IO

import pytest

ROOT = pathlib.Path(__file__).parents[2]
#: What a program may be: its imports, and what is imported only once it works.
MODULES = (
    "cloudpickle",
    "langchain_core.tracers.langchain",
    "langchain_openai",
    "langsmith.run_helpers",
    "psycopg",
    "ramet.agent.composition.graph",
    "ramet.agent.composition.steps",
    "ramet.cli.operate.gc",
    "ramet.cli.operate.ps",
    "ramet.cli.main",
    "ramet.cli.operate.logs",
    "ramet.cli.commands.schedule",
    "ramet.cli.operate.control",
    "ramet.cli.operate.approvals",
    "ramet.cli.resumption",
    "ramet.cli.run",
    "ramet.host.runtime",
    "ramet.host.schedules.loop",
    "ramet.host.session",
    "ramet.models.scripted.model",
    "ramet.spawn.sandbox.executor",
    "ramet.store.postgres.store",
    "ramet.store.sqlite.store",
)
_NUMBER = struct.Struct("=i")


class Forked:
    """A program that `Warm` started, with the part of `asyncio.subprocess.Process` that tests use."""

    def __init__(
        self, pid: int, news: socket.socket, stdout: asyncio.StreamReader | None, stderr: asyncio.StreamReader | None
    ) -> None:
        self.pid, self.stdout, self.stderr = pid, stdout, stderr
        self.returncode: int | None = None
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        self._news = news  # Open until it has ended: a test that leaves the program behind leaves this as well.
        self._loop.add_reader(news, self._end)

    async def wait(self) -> int:
        """Wait for the end, and return the exit code; a negative one is the number of a signal."""
        await self._over.wait()
        assert self.returncode is not None
        return self.returncode

    def kill(self) -> None:
        """Send SIGKILL, if the program lives."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def _end(self) -> None:
        data = self._news.recv(_NUMBER.size)
        assert data, "who started it has died"
        (self.returncode,) = _NUMBER.unpack(data)
        self._loop.remove_reader(self._news)
        self._news.close()
        self._over.set()


class Warm:
    """The process that forks programs. It ends with this process, even by SIGKILL; its programs do not."""

    def __init__(self) -> None:
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.warming", str(theirs.fileno()), *MODULES],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C is for the tests
            )

    def close(self) -> None:
        """End the process."""
        self._orders.close()
        self._process.wait()

    async def start(
        self,
        program: str | pathlib.Path,
        *arguments: str,
        cwd: pathlib.Path | None = None,
        env: Mapping[str, str] | None = None,
        stdout: int = DEVNULL,
        stderr: int | IO[str] | None = None,
    ) -> Forked:
        """Fork a program: a file, or a module by its name. It has its own session, and an empty stdin."""
        loop = asyncio.get_running_loop()
        order = {
            "program": str(program),
            "is_module": isinstance(program, str),
            "arguments": arguments,
            "cwd": str(cwd or pathlib.Path.cwd()),
            "env": dict(os.environ if env is None else env),
        }
        readers = list[asyncio.StreamReader | None]()
        news, theirs = socket.socketpair()
        with contextlib.ExitStack() as passed:
            passed.enter_context(theirs)
            nothing = os.open(os.devnull, os.O_RDWR)
            passed.callback(os.close, nothing)
            outs = list[int]()
            for stream in (stdout, 2 if stderr is None else stderr):
                reader, out = await _open_pipe() if stream == PIPE else (None, -1)
                readers.append(reader)
                if reader is not None:
                    passed.callback(os.close, out)
                else:
                    out = nothing if stream == DEVNULL else stream if isinstance(stream, int) else stream.fileno()
                outs.append(out)
            fds = [theirs.fileno(), nothing, *outs]
            socket.send_fds(self._orders, [json.dumps(order).encode()], fds)
        news.setblocking(False)
        (pid,) = _NUMBER.unpack(await loop.sock_recv(news, _NUMBER.size))
        return Forked(pid, news, *readers)


async def _open_pipe() -> tuple[asyncio.StreamReader, int]:
    reads, writes = os.pipe()
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(reads, "rb"))
    return reader, writes


_shared: list[Warm] = []
_asked: list[Warm] = []


def current_starter() -> Warm | None:
    """Return the process that this test's module requests with `usefixtures("warm")`; None means a cold start."""
    return _asked[-1] if _asked else None


@pytest.fixture(scope="module")
def warm(pytestconfig: pytest.Config) -> Iterator[Warm]:
    """The process from which programs of this module's tests start warm. All modules share one process."""
    if not _shared:
        _shared.append(Warm())
        pytestconfig.add_cleanup(lambda: _shared.pop().close())
    _asked.append(_shared[0])
    try:
        yield _shared[0]
    finally:
        _asked.pop()
