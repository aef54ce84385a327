"""HTTP requests of programs are read whole and strictly, however their bytes are cut."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.guest.models.http_messages import (
    MAX_BODY_BYTES,
    MAX_HEAD_BYTES,
    HttpError,
    RequestHead,
    encode_chunk,
    encode_head,
    read_body,
    read_head,
)


@asynccontextmanager
async def connection() -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter, asyncio.StreamWriter]]:
    """Yield the endpoint's streams of a connection, and the program's writer."""
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours, limit=MAX_HEAD_BYTES)
    _, program = await asyncio.open_connection(sock=theirs)
    try:
        yield reader, writer, program
    finally:
        for each in (writer, program):
            each.close()
            await each.wait_closed()


async def parse(*pieces: bytes) -> tuple[RequestHead | None, bytes]:
    """Return head and body of a request that comes in these pieces."""
    async with connection() as (reader, writer, program):

        async def send() -> None:
            for piece in pieces:
                program.write(piece)
                await program.drain()
                await asyncio.sleep(0)
            program.write_eof()

        async def receive() -> tuple[RequestHead | None, bytes]:
            head = await read_head(reader)
            return head, await read_body(reader, writer, head) if head is not None else b""

        _, found = await asyncio.gather(send(), receive())
        return found


async def status_of(data: bytes) -> int:
    """Return the status with which a request is refused."""
    with pytest.raises(HttpError) as refused:
        await parse(data)
    return refused.value.status


async def test_a_request_is_read() -> None:
    head, body = await parse(b"POST /a/b?c=d&e HTTP/1.1\r\nX-One: 1\r\nx-one:  2 \r\nContent-Length: 3\r\n\r\nabc")

    assert head is not None
    assert (head.method, head.path, head.query, body) == ("POST", "/a/b", "c=d&e", b"abc")
    assert head.headers == {"x-one": "1, 2", "content-length": "3"}
    assert head.keeps_alive


async def test_chunks_with_extensions_and_trailers_are_read() -> None:
    data = b"POST / HTTP/1.1\r\nTransfer-Encoding: Chunked\r\n\r\n3;x=y\r\nabc\r\nA \r\n0123456789\r\n0\r\nx: y\r\n\r\n"

    _, body = await parse(data)

    assert body == b"abc0123456789"


@pytest.mark.parametrize(
    ("first", "keeps"),
    [
        (b"GET / HTTP/1.1\r\n", True),
        (b"GET / HTTP/1.1\r\nconnection: Close\r\n", False),
        (b"GET / HTTP/1.0\r\n", False),
        (b"GET / HTTP/1.0\r\nconnection: keep-alive\r\n", True),
    ],
)
async def test_a_connection_is_kept_as_its_version_says(first: bytes, keeps: bool) -> None:
    head, _ = await parse(first + b"\r\n")

    assert head is not None
    assert head.keeps_alive is keeps


async def test_a_connection_that_ends_has_no_request() -> None:
    assert await parse() == (None, b"")


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET / HTTP/2\r\n\r\n", 400),
        (b"GET  / HTTP/1.1\r\n\r\n", 400),
        (b"get / HTTP/1.1\r\n\r\n", 400),
        (b"GET http://x/ HTTP/1.1\r\n\r\n", 400),
        (b"GET /\xff HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\na: b\r\n folded\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\na : b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\na: b\nc: d\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\na: b\0\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n", 400),
        (b"\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\na: " + b"b" * MAX_HEAD_BYTES + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n", 431),
        (b"POST / HTTP/1.1\r\ncontent-length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\ncontent-length: 1_0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\ncontent-length: 5, 5\r\n\r\nabcde", 400),
        (b"POST / HTTP/1.1\r\ncontent-length: 5\r\ncontent-length: 5\r\n\r\nabcde", 400),
        (b"POST / HTTP/1.1\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\ncontent-length: 5\r\n\r\nabc", 400),
        (b"POST / HTTP/1.1\r\ncontent-length: 5\r\nexpect: other\r\n\r\nabcde", 417),
        (b"POST / HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % (MAX_BODY_BYTES + 1), 413),
        (b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n" % (MAX_BODY_BYTES + 1), 413),
        (b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nfffffffff\r\n", 400),
        (b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n-1\r\n", 400),
        (b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n3;" + b"a" * 2_000 + b"\r\nabc\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n" + b"a: b\r\n" * 200 + b"\r\n", 400),
    ],
)
async def test_what_could_be_read_in_two_ways_is_refused(data: bytes, status: int) -> None:
    assert await status_of(data) == status


@given(cuts=st.lists(st.integers(0, 120), max_size=8), is_chunked=st.booleans())
async def test_a_request_does_not_depend_on_the_cuts(cuts: list[int], is_chunked: bool) -> None:
    if is_chunked:
        data = b"POST /x HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n5\r\nabcde\r\n5\r\nfghij\r\n0\r\n\r\n"
    else:
        data = b"POST /x HTTP/1.1\r\ncontent-length: 10\r\n\r\nabcdefghij"
    at = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})

    _, body = await parse(*(data[begin:end] for begin, end in itertools.pairwise(at)))

    assert body == b"abcdefghij"


@given(data=st.binary(max_size=200))
async def test_any_bytes_are_a_request_or_refused(data: bytes) -> None:
    with contextlib.suppress(HttpError):
        await parse(data)


def test_a_reply_is_written_in_chunks() -> None:
    assert encode_head(200, [("a", "b")]) == b"HTTP/1.1 200 OK\r\na: b\r\n\r\n"
    assert encode_chunk(b"x" * 17) == b"11\r\n" + b"x" * 17 + b"\r\n"
    assert encode_chunk(b"") == b"0\r\n\r\n"
