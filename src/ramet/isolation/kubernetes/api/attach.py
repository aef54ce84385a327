"""The streams of a pod's container, through the API server."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from ramet.isolation.kubernetes.api.errors import Forbidden, NotYet, Unreachable, message_of
from ramet.isolation.kubernetes.api.manifest import CONTAINER

if TYPE_CHECKING:
    import httpx2
    from httpx2.websockets import AsyncWebSocketSession

_SUBPROTOCOL = "v4.channel.k8s.io"
_PIECE = 32 * 1024  #: bytes of one message to an attached container
_MAX_MESSAGE = 1 << 20
_MESSAGES = 16  #: received messages that wait for a reader


@asynccontextmanager
async def open_attach_stream(
    http: httpx2.AsyncClient, namespace: str, pod: str, *, outputs: bool
) -> AsyncIterator[AttachStream]:
    out = "true" if outputs else "false"
    try:
        async with http.websocket(
            f"/api/v1/namespaces/{namespace}/pods/{pod}/attach",
            params={"container": CONTAINER, "stdin": "true", "stdout": out, "stderr": out},
            subprotocols=[_SUBPROTOCOL],
            max_message_size_bytes=_MAX_MESSAGE,
            queue_size=_MESSAGES,
            keepalive_ping_interval_seconds=None,  # The protocol on this stream sends its own keepalive packets.
        ) as socket:
            yield AttachStream(socket)
    except BaseException as error:
        raise _cause_of(error) from error


class AttachStream:
    """The streams of an attached container.

    Channels are numbered: 0 to 2 as file descriptors; 3 carries the end of the attachment.
    """

    def __init__(self, socket: AsyncWebSocketSession) -> None:
        self._socket = socket

    async def send(self, data: bytes) -> None:
        """Write to the container's standard input. Raises Unreachable at the end of the stream."""
        with _translate_errors():
            for at in range(0, len(data), _PIECE):
                await self._socket.send_bytes(b"\0" + data[at : at + _PIECE])

    async def receive(self) -> tuple[int, bytes]:
        """Return the channel and the data of the next message. Raises Unreachable at the end of the stream."""
        with _translate_errors():
            message = await self._socket.receive_bytes()
        return (message[0], message[1:]) if message else (0, b"")


@contextlib.contextmanager
def _translate_errors() -> Iterator[None]:
    try:
        yield
    except _broken_stream_errors() as error:
        raise _unreachable(error) from error


def _cause_of(error: BaseException) -> BaseException:
    """Translate the error of a stream that failed or broke; return any other error unchanged."""
    from httpx2.websockets import WebSocketUpgradeError

    while isinstance(error, BaseExceptionGroup):  # The client's task group wraps what its body raises.
        error = error.exceptions[0]
    if isinstance(error, WebSocketUpgradeError):
        code = error.response.status_code
        if code in (401, 403):
            return Forbidden(f"this kernel may not attach to pods here (HTTP {code})")
        return NotYet(f"the API refuses the attach stream: HTTP {code}")
    if isinstance(error, _broken_stream_errors()) and not isinstance(error, TimeoutError):
        return _unreachable(error)
    return error


def _unreachable(error: Exception) -> Unreachable:
    from wsproto.utilities import ProtocolError

    # The message of a ProtocolError quotes the data that was not sent.
    reason = "its other end has closed it" if isinstance(error, ProtocolError) else message_of(error)
    return Unreachable(f"the attach stream has ended: {reason}")


def _broken_stream_errors() -> tuple[type[Exception], ...]:
    """Return the errors that the client raises for a stream that broke or violates the protocol."""
    import anyio
    import httpx2
    from httpx2.websockets import HTTPXWSException
    from wsproto.utilities import ProtocolError

    # ProtocolError: also of a write while the client closes a stream whose other end is gone.
    return HTTPXWSException, httpx2.HTTPError, OSError, anyio.EndOfStream, anyio.ClosedResourceError, ProtocolError
