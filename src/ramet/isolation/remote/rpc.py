"""Questions to a machine, each with one answer."""

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

#: What a machine may have a kernel raise: an agent there that was cancelled, say, cancels nothing here.
_TOLD = (Gone, InvalidValue, IsolationUnavailable, SandboxFailed)


def told(error: ErrorInfo, fields: Mapping[str, Any]) -> Exception:
    """The error that a machine tells, if it is one that a sandbox may have; else SandboxFailed."""
    if error.type == "TimeoutError":
        return TimeoutError(clean(error.message[:1000]))
    found = decode_error(error, fields)
    return found if isinstance(found, _TOLD) else SandboxFailed(str(found))


def converted(value: Any, kind: Any) -> Any:
    """What was answered, as what it should be. Raises SandboxFailed."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise SandboxFailed(f"its machine does not answer what was asked: {error}") from None


class PendingRequests:
    """Who waits for an answer, and what was asked and is no longer waited for."""

    def __init__(self, post: Post) -> None:
        self._post = post
        self._numbers = itertools.count(1)
        self._open: dict[int, asyncio.Future[tuple[Answer, bytes]]] = {}
        self._failed: RametError | None = None

    async def ask(self, word: Callable[[int], NodeMessage]) -> tuple[Answer, bytes]:
        """What is answered to a word with that number. Raises the error that is answered, or SandboxFailed."""
        if self._failed is not None:
            raise self._failed.with_traceback(None)  # It would keep every frame that asked in vain.
        number = next(self._numbers)
        future = self._open[number] = asyncio.get_running_loop().create_future()
        self._post(word(number), b"")
        answer, body = await future
        if answer.error is not None:
            raise told(answer.error, answer.fields)
        return answer, body

    def answer(self, answer: Answer, body: bytes) -> None:
        """Pass it on. Raises ProtocolError if nobody asked."""
        future = self._open.pop(answer.ask, None)
        if future is None:
            raise ProtocolError(f"an answer to what nobody asked: {answer.ask}")
        if not future.done():
            future.set_result((answer, body))

    def fail(self, error: RametError) -> None:
        """Nobody will answer any more."""
        self._failed = error
        for future in self._open.values():
            if not future.done():
                future.set_exception(error)
        self._open.clear()
