"""A network between two programs that a test can break: a relay passes on all that they send."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator


class Relay:
    """A relay of connections to an address. `cut` breaks them, `hush` makes them silent, and `mend` ends both."""

    def __init__(self, host: str, port: int) -> None:
        self._there = host, port
        self._is_cut = self._is_closed = False
        self._flows = asyncio.Event()
        self._flows.set()
        self.port = 0  #: where it listens, once it does
        self.refused = 0  #: connections that found it cut
        self._open = set[asyncio.StreamWriter]()
        self._tasks = set[asyncio.Task[None]]()

    def cut(self) -> None:
        """Break all open connections, and refuse new ones."""
        self._is_cut = True
        for each in self._open:
            each.transport.abort()

    def hush(self) -> None:
        """Pass nothing on, without an error."""
        self._flows.clear()

    def mend(self) -> None:
        """Pass connections on again: silent connections continue where they were, and broken ones stay broken."""
        self._is_cut = False
        self._flows.set()

    def meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a new connection."""
        if self._is_closed:
            return writer.transport.abort()
        self._open.add(writer)
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """End all connections, and those that come later."""
        self._is_closed = True
        for each in self._tasks:
            each.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._open:  # A task that was cancelled before it began closes nothing.
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = [writer]
        try:
            if self._is_cut:
                self.refused += 1
                return
            await self._flows.wait()
            with contextlib.suppress(OSError):
                back, on = await asyncio.open_connection(*self._there)
                ends.append(on)
                self._open.add(on)
                await asyncio.gather(self._pass(reader, on), self._pass(back, writer), return_exceptions=True)
        finally:
            for each in ends:
                each.transport.abort()
                self._open.discard(each)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            await self._flows.wait()
            writer.write(data)
            await writer.drain()
        writer.transport.abort()


@contextlib.asynccontextmanager
async def open_relay(host: str, port: int, *, at: str = "127.0.0.1") -> AsyncIterator[Relay]:
    """Open a relay to an address, which listens at an address of this machine."""
    relay, loop = Relay(host, port), asyncio.get_running_loop()
    server = await asyncio.start_server(relay.meet, at, 0)
    relay.port = server.sockets[0].getsockname()[1]
    try:
        yield relay
    finally:
        # asyncio loses a connection that it has accepted, but not served, when the server is closed.
        for each in server.sockets:
            loop.remove_reader(each)
        await asyncio.sleep(0)
        server.close()
        await relay.close()
        await server.wait_closed()
