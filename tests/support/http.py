"""A minimal HTTP/1.1 server for real clients: keep-alive, one handler, and connections that break off on demand."""

from __future__ import annotations

import asyncio
import contextlib
import json
import urllib.parse
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Request:
    """An HTTP request with a parsed body."""

    method: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any]


class Answer:
    """An answer to a request: a whole one, or a stream of pieces that may break off."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.broken = False  #: nothing more can follow on this connection
        self.pieces_of: Callable[[str], Iterable[str]] = lambda event: (event,)  #: how a server-sent event is sent

    async def send(self, status: int, body: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        """Send one whole answer in JSON."""
        await self.send_text(status, json.dumps(body), {"content-type": "application/json", **(headers or {})})

    async def send_text(self, status: int, text: str, headers: dict[str, str]) -> None:
        """Send one whole answer of any content type, or of none."""
        await self.send_bytes(status, text.encode(), headers)

    async def send_bytes(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        """Send one whole answer of bytes."""
        self._head(status, {"content-length": str(len(data)), **headers})
        self._writer.write(data)
        await self._writer.drain()

    async def start_stream(self) -> None:
        """Send the head of a stream of server-sent events."""
        self._head(200, {"content-type": "text/event-stream", "transfer-encoding": "chunked"})

    async def event(self, data: dict[str, Any] | str, name: str | None = None) -> None:
        """Send one server-sent event."""
        text = data if isinstance(data, str) else json.dumps(data)
        for piece in self.pieces_of((f"event: {name}\n" if name else "") + f"data: {text}\n\n"):
            await self.piece(piece)

    async def piece(self, text: str) -> None:
        """Send a piece of a stream."""
        encoded = text.encode()
        self._writer.write(f"{len(encoded):x}\r\n".encode() + encoded + b"\r\n")
        await self._writer.drain()

    async def end_stream(self) -> None:
        """End the stream in the regular way."""
        self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()

    def break_off(self) -> None:
        """Break the connection, as a cut cable does."""
        self.broken = True
        self._writer.transport.abort()

    async def start_body(self, length: int) -> None:
        """Send the head of an answer of so many bytes. The bytes may never come."""
        self._head(200, {"content-type": "application/json", "content-length": str(length)})
        await self._writer.drain()

    async def client_gone(self) -> None:
        """Return once the client has closed its end."""
        self.broken = True
        with contextlib.suppress(ConnectionError):
            while await self._reader.read(4096):
                pass

    def _head(self, status: int, headers: dict[str, str]) -> None:
        lines = [f"HTTP/1.1 {status} -", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
        self._writer.write("\r\n".join(lines).encode())


Handler = Callable[[Request, Answer], Awaitable[None]]


@contextlib.asynccontextmanager
async def serve(handler: Handler) -> AsyncIterator[str]:
    """Serve on a free port of this machine; yield the address. All connections are closed in the end."""
    connections: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        task.add_done_callback(connections.discard)
        try:
            await _converse(reader, writer, handler)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                await writer.wait_closed()

    server = await asyncio.start_server(connected, "127.0.0.1", 0, backlog=4096, limit=2**24)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in tuple(connections):
            task.cancel()
        if connections:
            await asyncio.wait(connections)
        await server.wait_closed()


def _parsed(body: bytes, headers: dict[str, str]) -> dict[str, Any]:
    if headers.get("content-type") == "application/x-www-form-urlencoded":
        return dict(urllib.parse.parse_qsl(body.decode()))
    found: dict[str, Any] = json.loads(body) if body else {}
    return found


async def _converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handler: Handler) -> None:
    while True:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, path, _ = head[0].split(" ", 2)
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        answer = Answer(reader, writer)
        await handler(Request(method, path, headers, _parsed(body, headers)), answer)
        if answer.broken:
            return
