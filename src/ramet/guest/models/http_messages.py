"""HTTP/1.1 messages of the endpoint for models: requests are parsed strictly, replies are written in chunks.

What is not accepted has no second meaning here: two lengths, a length beside chunks, folded lines, other methods of
transfer, a target that is no path.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

#: Bytes of the first line and the headers; number of headers; bytes of a body.
MAX_HEAD_BYTES, MAX_HEADERS, MAX_BODY_BYTES = 64 * 1024, 100, 32 * 1024 * 1024
_MAX_CHUNK_LINE: Final = 1024
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_REQUEST_LINE: Final = re.compile(r"([A-Z]{1,20}) (/[\x21-\x7e]*) HTTP/1\.([01])")
_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_CHUNK_LINE: Final = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;[^\r\n]*)?")
_PHRASES: Final = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 429: "Too Many Requests"}


class HttpError(Exception):
    """A request that cannot be answered otherwise; its connection is closed."""

    def __init__(self, status: int, reason: str) -> None:
        self.status, self.reason = status, reason
        super().__init__(f"{status}: {reason}")


class RequestHead(NamedTuple):
    """The first line and the headers of a request."""

    method: str
    path: str
    query: str
    is_1_0: bool
    headers: Mapping[str, str]  #: by name in lower case

    @property
    def keeps_alive(self) -> bool:
        """Return whether another request may follow on the connection."""
        options = {each.strip() for each in self.headers.get("connection", "").lower().split(",")}
        return "keep-alive" in options if self.is_1_0 else "close" not in options


async def read_head(reader: asyncio.StreamReader) -> RequestHead | None:
    """Read the head of the next request; None at the end of the connection. Raises HttpError."""
    try:
        data = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as end:
        if end.partial.strip():
            raise HttpError(400, "the request ends in its head") from None
        return None
    except asyncio.LimitOverrunError:
        raise HttpError(431, f"the head has more than {MAX_HEAD_BYTES} bytes") from None
    lines = data[:-4].decode("latin-1").split("\r\n")
    while lines and not lines[0]:  # Empty lines before a request are allowed.
        del lines[0]
    match = _REQUEST_LINE.fullmatch(lines[0]) if lines else None
    if match is None:
        raise HttpError(400, "the first line is not a request for a path in HTTP/1.1")
    if len(lines) - 1 > MAX_HEADERS:
        raise HttpError(431, f"there are more than {MAX_HEADERS} headers")
    path, _, query = match[2].partition("?")
    return RequestHead(match[1], path, query, match[3] == "0", _parse_headers(lines[1:]))


def _parse_headers(lines: Iterable[str]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        value = value.strip(" \t")
        if not colon or _TOKEN.fullmatch(name) is None or _VALUE.fullmatch(value) is None:
            raise HttpError(400, "a header is malformed")
        name = name.lower()
        headers[name] = f"{headers[name]}, {value}" if name in headers else value  # Two lengths are no number then.
    return headers


async def read_body(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: RequestHead, *, max_bytes: int = MAX_BODY_BYTES
) -> bytes:
    """Read the body of a request, of a known length or in chunks. Raises HttpError."""
    length, encoding = head.headers.get("content-length"), head.headers.get("transfer-encoding")
    if encoding is not None and (length is not None or head.is_1_0 or encoding.lower() != "chunked"):
        raise HttpError(400, "transfer-encoding: only chunked is accepted, without content-length")
    if length is None and encoding is None:
        return b""
    if length is not None and (not length.isascii() or not length.isdigit() or len(length) > 15):
        raise HttpError(400, "content-length: a number is expected")
    if length is not None and int(length) > max_bytes:
        raise HttpError(413, f"the body has more than {max_bytes} bytes")
    if (expected := head.headers.get("expect")) is not None:
        if expected.lower() != "100-continue":
            raise HttpError(417, "expect: only 100-continue is accepted")
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    try:
        return await reader.readexactly(int(length)) if length is not None else await _read_chunks(reader, max_bytes)
    except asyncio.IncompleteReadError:
        raise HttpError(400, "the request ends in its body") from None
    except asyncio.LimitOverrunError:
        raise HttpError(400, "a line between chunks is too long") from None


async def _read_chunks(reader: asyncio.StreamReader, max_bytes: int) -> bytes:
    body = bytearray()
    while True:
        line = await reader.readuntil(b"\r\n")
        match = _CHUNK_LINE.fullmatch(line[:-2]) if len(line) <= _MAX_CHUNK_LINE else None
        if match is None:
            raise HttpError(400, "the length of a chunk is malformed")
        size = int(match[1], 16)
        if len(body) + size > max_bytes:
            raise HttpError(413, f"the body has more than {max_bytes} bytes")
        if not size:
            break
        body += await reader.readexactly(size)
        if await reader.readexactly(2) != b"\r\n":
            raise HttpError(400, "a chunk does not end where it should")
    for _ in range(MAX_HEADERS):  # Trailers say nothing here.
        if await reader.readuntil(b"\r\n") == b"\r\n":
            return bytes(body)
    raise HttpError(400, "there are too many trailers")


def encode_head(status: int, headers: Iterable[tuple[str, str]]) -> bytes:
    """Return the head of a reply. Its headers are those of the host, which has checked them."""
    lines = [f"HTTP/1.1 {status} {_PHRASES.get(status, 'Reply')}", *(f"{name}: {value}" for name, value in headers)]
    return "\r\n".join((*lines, "", "")).encode("latin-1", "replace")


def encode_chunk(data: bytes) -> bytes:
    """Return a part of a body as a chunk. The empty one ends the body."""
    return b"%x\r\n%b\r\n" % (len(data), data)
