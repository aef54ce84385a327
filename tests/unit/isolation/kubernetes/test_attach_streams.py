"""Tests of attach streams that a server of the API's wire format breaks at any moment."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from ramet.isolation.kubernetes.api.client import Api
from ramet.isolation.kubernetes.api.errors import Unreachable
from ramet.isolation.kubernetes.connect.attach import AttachConnection
from ramet.isolation.kubernetes.connect.packets import pack
from ramet.wire.frames import Frame
from tests.support.lines import first_packet

#: Appended to the key of a handshake, by RFC 6455, section 1.3.
ACCEPT_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
STDOUT = b"\x01"
BREAKS: dict[str, Callable[[asyncio.StreamWriter], object]] = {
    "half closed": lambda writer: writer.write_eof(),
    "reset": lambda writer: writer.transport.abort(),
    "a frame with a reserved bit": lambda writer: writer.write(b"\xf2\x01x"),
}


class AttachServer:
    """A server that accepts the first `accepted` attach streams, and breaks each after the client's first bytes."""

    def __init__(self, break_stream: Callable[[asyncio.StreamWriter], object], accepted: int) -> None:
        self._break_stream, self._accepted = break_stream, accepted
        self._served = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection until the client ends it."""
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            key = re.search(rb"(?i)sec-websocket-key: *(\S+)", head)
            if key is None or self._accepted == 0:
                return writer.transport.abort()
            self._accepted -= 1
            accept = base64.b64encode(hashlib.sha1(key[1] + ACCEPT_GUID, usedforsecurity=False).digest())
            writer.write(
                b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                b"Sec-WebSocket-Protocol: v4.channel.k8s.io\r\nSec-WebSocket-Accept: " + accept + b"\r\n\r\n"
            )
            message = STDOUT + pack(1, first_packet())
            writer.write(b"\x82" + bytes([len(message)]) + message)
            await reader.read(1)
            self._break_stream(writer)
            while await reader.read(1 << 16):
                pass
        writer.transport.abort()


@contextlib.asynccontextmanager
async def open_api(
    folder: Path, break_stream: Callable[[asyncio.StreamWriter], object], accepted: int
) -> AsyncIterator[Api]:
    """Open the client of a server that breaks streams."""
    server = await asyncio.start_server(AttachServer(break_stream, accepted).serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text(
        json.dumps(
            {
                "clusters": [{"name": "c", "cluster": {"server": url}}],
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                "users": [{"name": "u", "user": {}}],
                "current-context": "x",
            }
        )
    )
    api = Api("agents", kubeconfig)
    try:
        yield api
    finally:
        await api.close()
        server.close()


async def _write_until_broken(api: Api) -> None:
    async with api.attach("pod") as stream:

        async def write() -> None:
            while True:
                await stream.send(b"some words")
                await asyncio.sleep(0)

        async def read() -> None:
            while True:
                await stream.receive()

        tasks = asyncio.ensure_future(write()), asyncio.ensure_future(read())
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for each in tasks:
            if not each.cancelled():
                each.result()


@pytest.mark.parametrize("kind", BREAKS)
async def test_a_broken_stream_is_unreachable(tmp_path: Path, kind: str) -> None:
    """A write while the client closes the stream fails as a read does, and no message quotes the data."""
    async with open_api(tmp_path, BREAKS[kind], accepted=20) as api:
        for _ in range(20):
            with pytest.raises(Unreachable) as problem:
                await _write_until_broken(api)
            assert "some words" not in str(problem.value)


@pytest.mark.parametrize("kind", BREAKS)
async def test_a_line_ends_when_no_stream_can_be_opened_again(tmp_path: Path, kind: str) -> None:
    """The reader of the line gets the reason after the patience, while frames are sent without a pause."""
    async with open_api(tmp_path, BREAKS[kind], accepted=1) as api:
        connection = AttachConnection(api, "pod", 0.5, set())
        sending = asyncio.ensure_future(_send_frames(connection))
        try:
            async with asyncio.timeout(60):
                with pytest.raises(ConnectionAbortedError, match=r"no connection to the pod for 0\.5 s"):
                    await connection.line.receive()
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            await connection.close()


async def _send_frames(connection: AttachConnection) -> None:
    while True:
        await connection.line.send(Frame(b"{}", b""))


async def test_an_unexpected_error_ends_the_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A defect of the client is the reason of the line's end, and is logged; nothing waits for it."""

    def fail(*arguments: object) -> None:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(Api, "attach", fail)
    async with open_api(tmp_path, BREAKS["reset"], accepted=0) as api:
        connection = AttachConnection(api, "pod", 60, set())
        async with asyncio.timeout(30):
            with pytest.raises(ConnectionAbortedError, match="ZeroDivisionError: a defect"):
                await connection.line.receive()
        await connection.close()
