"""The machine's side of a connection: dial the kernel, and dial again after a break, until the line has ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from ramet.core.errors import InvalidValue, ProtocolError
from ramet.isolation.transport import certificates
from ramet.isolation.transport.join_token import KEY_HEADER, POD_HEADER, JoinToken
from ramet.isolation.transport.resuming import LineTimeouts, ResumingLine
from ramet.isolation.transport.tls import TlsStream
from ramet.isolation.transport.websocket import WebSocketTransport
from ramet.wire.websocket import check_answer, request


@dataclass(frozen=True, kw_only=True)
class Backoff:
    """The wait before the next attempt: up to `first_s`, doubled each time, never more than `most_s`."""

    first_s: float = 0.1
    most_s: float = 3.0
    try_s: float = 10.0  #: how long one attempt may take

    def wait_s(self, tries: int) -> float:
        """Return a random part of the current wait, at least half, so that many machines do not dial at once."""
        part = 0.5 + int.from_bytes(os.urandom(2), "big") / 2**17
        return part * min(self.most_s, self.first_s * float(2 ** min(tries, 20)))


_PATIENCE, _BACKOFF = LineTimeouts(), Backoff()


def check(token: JoinToken) -> None:
    """Raise InvalidValue for a join token that cannot be used."""
    _Dialler(token, _BACKOFF)


@contextlib.asynccontextmanager
async def open_dialer(
    token: JoinToken, *, patience: LineTimeouts = _PATIENCE, backoff: Backoff = _BACKOFF
) -> AsyncIterator[ResumingLine]:
    """Provide a line to the kernel that sent the join token. A background task dials as often as needed.

    Raises InvalidValue for a join token that cannot be used.
    """
    dialler = _Dialler(token, backoff)
    line = ResumingLine(patience=patience)
    task = asyncio.get_running_loop().create_task(dialler.run(line))
    try:
        yield line
    finally:
        await line.close()
        task.cancel()
        await asyncio.wait((task,))
        if not task.cancelled():
            task.result()


class _Dialler:
    def __init__(self, invitation: JoinToken, backoff: Backoff) -> None:
        url = urlsplit(invitation.url)
        try:
            port = 443 if url.port is None else url.port
        except ValueError:
            port = 0
        if url.scheme != "wss" or not url.hostname or not port or url.username or url.query or url.fragment:
            raise InvalidValue("url", invitation.url, "wss://host:port/path")
        self._host, self._port, self._authority = url.hostname, port, url.netloc
        self._path, self._pod, self._backoff = url.path or "/", invitation.pod, backoff
        self._key = invitation.key
        try:
            self._context = certificates.client_context(invitation.ca)
        except (ssl.SSLError, ValueError):
            raise InvalidValue("ca", "what is in ca.crt", "a certificate in PEM") from None

    async def run(self, line: ResumingLine) -> None:
        """Dial until the line has ended."""
        attempts = 0
        while not line.has_ended:
            with contextlib.suppress(OSError, ProtocolError, EOFError):  # of one connection; the next one may succeed
                async with asyncio.timeout(self._backoff.try_s):
                    transport = await self._connect()
                greetings = line.connections
                await line.carry(transport)
                if line.connections > greetings:
                    attempts = 0
            if not line.has_ended:
                await asyncio.sleep(self._backoff.wait_s(attempts))
                attempts += 1

    async def _connect(self) -> WebSocketTransport:
        """Connect once. Raises OSError, ProtocolError, EOFError."""
        reader, writer = await asyncio.open_connection(self._host, self._port)
        stream = TlsStream(reader, writer, self._context, server_hostname=self._host)
        try:
            await stream.shake_hands()
            nonce = os.urandom(16)
            key = {"Authorization": f"Bearer {self._key}", POD_HEADER: self._pod}
            stream.put(request(self._authority, self._path, nonce, key))
            head = await stream.read_head()
            check_answer(head, nonce)
            if not (next_key := head.headers.get(KEY_HEADER)):
                raise ProtocolError("the kernel sent no key for the next connection")
            self._key = next_key
            return WebSocketTransport(stream, is_server=False)
        except BaseException:
            stream.abort()
            raise
