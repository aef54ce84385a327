"""Answers of another kernel: a small one is whole or none, a larger one and a stream begin at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import httpx2
import pytest
from starlette.types import Message

from ramet.services.cluster.forward import WHOLE_BYTES, ForwardedResponse, Forwarder, Unreachable

HEAD = "HTTP/1.1 201 Created\r\nX-Mark: one\r\nX-Mark: two\r\nContent-Length: {}\r\n\r\n"


@asynccontextmanager
async def answering(head: str, body: bytes, *, ends: bool) -> AsyncGenerator[str]:
    """Serve one answer on a port, and then close the connection, or keep it; yield the address."""
    is_over = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head.encode() + body)
        if not ends:
            await is_over.wait()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        is_over.set()


async def ask(forwarder: Forwarder, address: str, method: str = "POST") -> ForwardedResponse:
    """Send a request to the address."""
    return await forwarder._send(httpx2.Request(method, f"{address}/v1/agents"), "two", address)


async def passed_on(response: ForwardedResponse) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    """Return the status, the headers and the body that a client would get."""
    messages: list[Message] = []

    async def send(message: Message) -> None:
        messages.append(message)

    await response._transfer(send)
    start, *pieces = messages
    return start["status"], list(start["headers"]), b"".join(piece["body"] for piece in pieces)


@pytest.fixture
async def forwarder() -> AsyncGenerator[Forwarder]:
    """Provide connections that are closed afterwards."""
    found = Forwarder()
    yield found
    await found.close()


@pytest.mark.parametrize("sent", [0, 1, 99])
async def test_a_small_answer_that_breaks_off_is_no_answer(forwarder: Forwarder, sent: int) -> None:
    """A kernel was killed behind the headers: the client is told that (502), and does not get a part of an answer."""
    async with answering(HEAD.format(100), b"x" * sent, ends=True) as address:
        with pytest.raises(Unreachable) as caught:
            await ask(forwarder, address)
    assert caught.value.was_sent


async def test_a_small_answer_is_passed_on_unchanged(forwarder: Forwarder) -> None:
    """Status, headers in their order, and body."""
    async with answering(HEAD.format(3), b"abc", ends=False) as address:
        response = await ask(forwarder, address)
        assert await passed_on(response) == (
            201,
            [(b"x-mark", b"one"), (b"x-mark", b"two"), (b"content-length", b"3")],
            b"abc",
        )
        await response.close()


async def test_an_answer_to_head_has_a_length_and_no_body(forwarder: Forwarder) -> None:
    """Nothing is waited for."""
    async with answering(HEAD.format(100), b"", ends=False) as address:
        response = await ask(forwarder, address, "HEAD")
        assert (response.status, response.header("content-length"), await response.read()) == (201, "100", b"")


@pytest.mark.parametrize("head", [HEAD.format(WHOLE_BYTES + 1), "HTTP/1.1 200 OK\r\n\r\n"])
async def test_a_large_answer_and_a_stream_begin_at_once(forwarder: Forwarder, head: str) -> None:
    """The other kernel has sent no more than a part, and goes on later."""
    async with answering(head, b"a part", ends=False) as address:
        response = await ask(forwarder, address)
        assert response.status in (200, 201)
        await response.close()
