"""Requests to a machine, each with one answer."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from ramet.core.errors import Gone, InvalidValue, IsolationUnavailable, ProtocolError, RametError, SandboxFailed
from ramet.core.outcome import ErrorInfo
from ramet.isolation.remote.messages import Answer, NodeMessage
from ramet.isolation.remote.streams import Post
from ramet.wire.error_codec import clean, decode_error

#: The errors that a machine may raise in a kernel. For example, a cancelled agent there cancels nothing here.
_RAISED = (Gone, InvalidValue, IsolationUnavailable, SandboxFailed)


def decode_remote_error(error: ErrorInfo, fields: Mapping[str, Any]) -> Exception:
    """Convert a machine's error into an exception of an allowed type; else into SandboxFailed."""
    if error.type == "TimeoutError":
        return TimeoutError(clean(error.message[:1000]))
    decoded = decode_error(error, fields)
    return decoded if isinstance(decoded, _RAISED) else SandboxFailed(str(decoded))


def convert_value(value: Any, kind: Any) -> Any:
    """Convert the value of an answer into its expected type. Raises SandboxFailed."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise SandboxFailed(f"its machine does not answer the request: {error}") from None


class PendingRequests:
    """The requests without an answer, including those whose caller no longer waits."""

    def __init__(self, post: Post) -> None:
        self._post = post
        self._numbers = itertools.count(1)
        self._open: dict[int, asyncio.Future[tuple[Answer, bytes]]] = {}
        self._failure: RametError | None = None

    async def ask(self, make_message: Callable[[int], NodeMessage]) -> tuple[Answer, bytes]:
        """Send the message that `make_message` returns for a new number; return the answer and its body.

        Raises the answer's error, or SandboxFailed.
        """
        if self._failure is not None:
            raise self._failure.with_traceback(None)  # The traceback would keep the frames of every caller alive.
        number = next(self._numbers)
        future = self._open[number] = asyncio.get_running_loop().create_future()
        self._post(make_message(number), b"")
        answer, body = await future
        if answer.error is not None:
            raise decode_remote_error(answer.error, answer.fields)
        return answer, body

    def answer(self, answer: Answer, body: bytes) -> None:
        """Pass an answer to its caller. Raises ProtocolError if no request has that number."""
        future = self._open.pop(answer.ask, None)
        if future is None:
            raise ProtocolError(f"an answer to an unknown request: {answer.ask}")
        if not future.done():
            future.set_result((answer, body))

    def fail(self, error: RametError) -> None:
        """Fail all open and later requests with this error, because no more answers arrive."""
        self._failure = error
        for future in self._open.values():
            if not future.done():
                future.set_exception(error)
        self._open.clear()
