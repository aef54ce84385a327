"""A webhook endpoint on the loopback interface that fails on demand, and keeps what it has accepted."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from ssl import SSLContext
from typing import Any


@dataclass(frozen=True)
class Post:
    """A request as it came."""

    path: str
    fields: dict[str, str]
    data: bytes

    @property
    def body(self) -> dict[str, Any]:
        """Return the parsed body."""
        parsed: dict[str, Any] = json.loads(self.data)
        return parsed


#: Answers one request: returns a status, or handles the connection itself and returns None.
Answer = Callable[[Post, asyncio.StreamWriter], Awaitable[int | None]]


async def accept(post: Post, writer: asyncio.StreamWriter) -> int | None:
    """Accept a request."""
    return 204


@dataclass
class Receiver:
    """The endpoint. `answer` may be replaced at any time."""

    port: int = 0
    answer: Answer = accept
    tried: list[Post] = field(default_factory=list)
    accepted: list[Post] = field(default_factory=list)

    @property
    def url(self) -> str:
        """Return the URL of the endpoint."""
        return f"http://127.0.0.1:{self.port}/hook?key=1"

    @property
    def ids(self) -> list[str]:
        """Return the ids of the accepted notifications, each at its first acceptance."""
        return list(dict.fromkeys(each.fields["webhook-id"] for each in self.accepted))

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Handle one connection."""
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            try:
                lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                fields = dict(line.split(": ", 1) for line in lines[1:] if line)
                data = await reader.readexactly(int(fields["content-length"]))
                post = Post(lines[0].split()[1], fields, data)
                self.tried.append(post)
                status = await self.answer(post, writer)
                if status is not None:
                    if 200 <= status < 300:
                        self.accepted.append(post)
                    writer.write(f"HTTP/1.1 {status} said\r\ncontent-length: 0\r\n\r\n".encode())
                    await writer.drain()
            finally:
                writer.transport.abort()


@contextlib.asynccontextmanager
async def receiver(ssl: SSLContext | None = None) -> AsyncIterator[Receiver]:
    """Yield an endpoint that accepts everything until it is told otherwise."""
    made = Receiver()
    tasks = set[asyncio.Task[None]]()

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(made.handle(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(begin, "127.0.0.1", 0, ssl=ssl)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        for each in tasks:
            each.cancel()
        if tasks:
            await asyncio.wait(tasks)


def failing(times: int, status: int = 503) -> Answer:
    """Return an answer that refuses so many requests, and accepts the rest."""
    left = times

    async def answer(post: Post, writer: asyncio.StreamWriter) -> int | None:
        nonlocal left
        left -= 1
        return 204 if left < 0 else status

    return answer
