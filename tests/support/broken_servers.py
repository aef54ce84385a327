"""Loopback addresses at which a request fails, each with its own fault."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

Fault = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Broken:
    """A server with one fault."""

    address: str  #: host and port
    connections: int = 0  #: that it has accepted


async def closes_at_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Close the connection as soon as it is accepted."""


async def closes_after_the_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Read the request, and close the connection without an answer."""
    await _request(reader)


async def resets_in_the_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send the head of an answer and nothing of its body, then reset the connection."""
    await _request(reader)
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n{")
    await writer.drain()
    linger = struct.pack("ii", 1, 0)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)


async def speaks_no_tls(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer in plain HTTP whatever comes."""
    await reader.read(1)
    writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
    await writer.drain()


async def answers_a_page(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer with a page for people: status 200, without a reply that a client can read."""
    await _request(reader)
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 6\r\n\r\n<html>")
    await writer.drain()


async def _request(reader: asyncio.StreamReader) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            await reader.readexactly(int(line.partition(b":")[2]))


@contextlib.asynccontextmanager
async def broken(fault: Fault) -> AsyncIterator[Broken]:
    """Serve on a free port of this machine, with this fault."""
    made: list[Broken] = []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        made[0].connections += 1
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await fault(reader, writer)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    made.append(Broken(f"127.0.0.1:{server.sockets[0].getsockname()[1]}"))
    async with server:
        yield made[0]
