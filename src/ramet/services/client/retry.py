"""Repeating of broken reads, a few times in a row: reading changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Final

from ramet.core.errors import Gone, ProtocolError, RametError
from ramet.services.client.errors import error_of, is_away
from ramet.wire.sse import ServerSentEvent

_MOST: Final = 5
_TRY_S: Final = 0.05  #: doubled from try to try
_AWAY_S: Final = 1.0  #: the value of `Retry-After` in servers' answers


class Lost(Gone):
    """No server answers, or the answer ended too early. An answer that an object is gone is a different error."""


class RetryingReader:
    """The retries of one reader."""

    def __init__(self) -> None:
        self._failure_count = 0

    def reset(self) -> None:
        """Reset the count of failures, since data was received."""
        self._failure_count = 0

    async def wait_to_retry(self, error: RametError) -> None:
        """Pause before another attempt; raises `error` if there is to be none."""
        is_lost = isinstance(error, Lost)
        if self._failure_count >= _MOST or not (is_lost or is_away(error)):
            raise error
        await asyncio.sleep(_TRY_S * 2**self._failure_count if is_lost else _AWAY_S)
        self._failure_count += 1


async def follow_changes(
    ask: Callable[[str], AsyncGenerator[ServerSentEvent]], after: str
) -> AsyncGenerator[ServerSentEvent]:
    """Yield the messages of the feed of changes after a cursor. `ask` returns the messages after any cursor."""
    reader = RetryingReader()
    while True:
        error: RametError = Lost(f"the changes were interrupted after cursor {after!r}")
        try:
            async with aclosing(ask(after)) as messages:
                async for each in messages:
                    if each.event == "error":
                        error = error_of(each.data, 0)
                        break
                    if each.event == "changes":
                        after = each.id or after
                        reader.reset()
                        yield each
        except RametError as problem:
            error = problem
        await reader.wait_to_retry(error)


async def follow_events(
    ask: Callable[[int], AsyncGenerator[ServerSentEvent]], after: int
) -> AsyncGenerator[tuple[int, bytes]]:
    """Yield all events after a cursor, each with its own cursor. `ask` returns the events after any cursor."""
    reader = RetryingReader()
    while True:
        error: RametError
        try:
            async with aclosing(ask(after)) as events:
                async for each in events:
                    match each.event:
                        case "event":
                            after = number_of(each.id)
                            reader.reset()
                            yield after, each.data
                        case "error":
                            error = error_of(each.data, 0)
                            break
                        case "done":
                            return
                else:
                    error = Lost(f"the events were interrupted after cursor {after}")
        except RametError as problem:
            error = problem
        await reader.wait_to_retry(error)


def number_of(text: str) -> int:
    """Return the number of an event. Raises ProtocolError."""
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise ProtocolError(f"an event without a number: {text[:80]!r}")
    return int(text)
