"""What breaks off while it is read is asked for again, a few times in a row: reading changes nothing."""

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
_AWAY_S: Final = 1.0  #: as servers say in `Retry-After`


class Lost(Gone):
    """No server answers, or none went on to the end; what a server says of what is gone is no such thing."""


class RetryingReader:
    """Those of one reader."""

    def __init__(self) -> None:
        self._failed = 0

    def heard(self) -> None:
        """Something came: what breaks off from now on is counted anew."""
        self._failed = 0

    async def again(self, broken: RametError) -> None:
        """Return after a pause if it is to be asked for once more; raises `broken` if not."""
        is_lost = isinstance(broken, Lost)
        if self._failed >= _MOST or not (is_lost or is_away(broken)):
            raise broken
        await asyncio.sleep(_TRY_S * 2**self._failed if is_lost else _AWAY_S)
        self._failed += 1


async def followed(
    ask: Callable[[int], AsyncGenerator[ServerSentEvent]], after: int
) -> AsyncGenerator[tuple[int, bytes]]:
    """Events behind a cursor until all were told, each with its own; `ask` gives those behind any."""
    tries = RetryingReader()
    while True:
        broken: RametError
        try:
            async with aclosing(ask(after)) as told:
                async for each in told:
                    match each.event:
                        case "event":
                            after = number_of(each.id)
                            tries.heard()
                            yield after, each.data
                        case "error":
                            broken = error_of(each.data, 0)
                            break
                        case "done":
                            return
                else:
                    broken = Lost(f"the events broke off behind cursor {after}")
        except RametError as problem:
            broken = problem
        await tries.again(broken)


def number_of(text: str) -> int:
    """The number of an event. Raises ProtocolError."""
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise ProtocolError(f"an event that is of no number: {text[:80]!r}")
    return int(text)
