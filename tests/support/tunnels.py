"""Clients and servers at the two ends of a tunnel through the proxy."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
import ssl
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Awaitable, Callable

from ramet.host.egress.connection import ProxyDecision, ProxyLimits, RunProxy
from ramet.host.egress.proxy import Proxy
from tests.support.waiting import alive, eventually

Speak = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send all bytes back, until their end."""
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()


@contextlib.asynccontextmanager
async def server(speak: Speak = echo, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """Run a server on the loopback, which closes each connection when `speak` returns; yield its port."""
    tasks: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        with contextlib.suppress(ConnectionError, asyncio.CancelledError, ssl.SSLError):
            await speak(reader, writer)
        writer.close()
        with contextlib.suppress(ConnectionError, asyncio.CancelledError, ssl.SSLError):
            await writer.wait_closed()

    listening = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=tls)
    try:
        yield listening.sockets[0].getsockname()[1]
    finally:
        listening.close()
        for task in tuple(tasks):
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await listening.wait_closed()


class Client:
    """A connection to a proxy."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def ask(self, target: str, *, first: bytes = b"") -> int:
        """Request a tunnel; return the status. A refusal is read to its end."""
        self.writer.write(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode() + first)
        return await self.status()

    async def status(self) -> int:
        """Return the status of the answer."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        status = int(head.split()[1])
        if status != 200:
            await self.rest()
        return status

    async def send(self, data: bytes) -> None:
        """Send all bytes."""
        self.writer.write(data)
        await self.writer.drain()

    async def rest(self) -> bytes:
        """Return the bytes until the other side ends or breaks the connection."""
        data = b""
        with contextlib.suppress(ConnectionError):
            while piece := await self.reader.read(65536):
                data += piece
        return data


@contextlib.asynccontextmanager
async def client(path: pathlib.Path) -> AsyncIterator[Client]:
    """Open a connection to the proxy at `path`."""
    reader, writer = await asyncio.open_unix_connection(path)
    try:
        yield Client(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


class OpenProxy:
    """The proxy of a run: its path, and its decisions."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self.events: list[ProxyDecision] = []
        self.door: RunProxy

    async def ask(self, target: str) -> int:
        """Return the status that a new connection gets for `target`."""
        async with client(self.path) as asking:
            return await asking.ask(target)


class ProxyHarness:
    """The proxies of runs. Their host names lead where `names` says, and the proxies close with the block."""

    def __init__(
        self,
        folder: pathlib.Path,
        *,
        names: dict[str, list[str]] | None = None,
        private: tuple[str, ...] = (),
        limits: ProxyLimits | None = None,
        max_connections: int | None = None,
    ) -> None:
        self.names = names or {}
        self.looked_up: list[str] = []
        self._folder, self._count = folder, 0
        self.proxy = Proxy(
            lookup=self._look_up, private_networks=private, limits=limits, max_connections=max_connections
        )

    def _look_up(self, host: str, port: int) -> list[str]:
        self.looked_up.append(host)
        return self.names[host]

    async def open(self, *endpoints: str) -> OpenProxy:
        """Open a proxy for one run."""
        self._count += 1
        opened = OpenProxy(self._folder / f"{self._count}.sock")
        opened.door = await self.proxy.open(opened.path, endpoints, owner=None, on_event=opened.events.append)
        return opened

    async def __aenter__(self) -> ProxyHarness:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.proxy.close()


class Relay:
    """A relay in its own process, made as a sandbox makes it. `process` is the parent that it must not outlive."""

    _SCRIPT = """
import os, sys
from ramet.guest import proxy_forwarder as relay
os.open(os.devnull, os.O_RDONLY)  # as a sandbox holds its channel
listener, parent = relay.listen(0), os.getpid()
if not os.fork():
    if not os.fork():
        print(listener.getsockname()[1], os.getpid(), flush=True)
        relay.serve(listener, sys.argv[1], parent=parent)
    os._exit(0)
os.wait()
sys.stdin.read()
"""

    def __init__(self, unix_path: pathlib.Path, *, has_pidfd: bool = True) -> None:
        self._unix_path = unix_path
        self._script = self._SCRIPT if has_pidfd else f"import os; del os.pidfd_open\n{self._SCRIPT}"
        self.port = self.pid = 0
        self.process: asyncio.subprocess.Process

    async def __aenter__(self) -> Relay:
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", self._script, str(self._unix_path), stdin=PIPE, stdout=PIPE
        )
        assert self.process.stdout is not None
        self.port, self.pid = map(int, (await self.process.stdout.readline()).split())
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.end_parent()
        await eventually(lambda: not alive(self.pid))

    async def end_parent(self) -> None:
        """End the parent, which the relay must not outlive."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        await self.process.wait()

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        """Open a connection to the port of the relay."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            yield Client(reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
