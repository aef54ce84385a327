"""The main program of a sandbox that has one server of the Model Context Protocol, and no agent."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress
from pathlib import Path

from ramet.core.errors import Aborted
from ramet.core.mcp.server_entry import as_server
from ramet.guest.async_channel import AsyncChannel
from ramet.guest.mcp.server_processes import run_server
from ramet.wire.guest_protocol.guest_to_host import Done
from ramet.wire.guest_protocol.host_to_guest import IncomingMail, StartMcpServer


def serve(channel: socket.socket, start: StartMcpServer) -> None:
    """Run the server until the host stops it, or has ended. `channel` is connected, and its first frame was read."""
    asyncio.run(_serve(channel, start))


class _Stop:
    """The listener of a channel at which only a stop comes in."""

    def __init__(self) -> None:
        self.has_come = asyncio.Event()

    def mail(self, mail: IncomingMail, text: str) -> None:
        """Drop it: there is no agent here."""

    def stop(self, reason: str) -> None:
        self.has_come.set()


async def _serve(channel: socket.socket, start: StartMcpServer) -> None:
    stop = _Stop()
    link = AsyncChannel(stop)
    await link.open(channel)
    try:
        server = asyncio.create_task(run_server(link, as_server(start.server), dict(os.environ), Path.cwd()))
        stopping = asyncio.create_task(stop.has_come.wait())
        await asyncio.wait((server, stopping), return_when=asyncio.FIRST_COMPLETED)
        for task in (server, stopping):
            task.cancel()
        await asyncio.wait((server, stopping))
        with suppress(Aborted):
            link.send(Done(ok=True))
            await link.flush()
    finally:
        await link.close()
