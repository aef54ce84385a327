"""What stands in the place of an agent that is not open: it could not be opened again, or waits for values."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, NoReturn

from ramet.core.errors import Gone
from ramet.core.outcome import ErrorInfo
from ramet.services.errors import ValuesMissing


class Departed:
    """A `Served` that has ended, and says why: Gone to whoever wants something of it."""

    def __init__(self, run: str, isolation: str, error: ErrorInfo) -> None:
        self.run, self.isolation, self.error = run, isolation, error
        self.ended: asyncio.Future[ErrorInfo | None] = asyncio.get_running_loop().create_future()
        self.ended.set_result(error)

    def turn(self, body: bytes, format: str) -> AsyncIterator[bytes]:
        """Raises Gone."""
        self._refuse()

    async def interrupt(self) -> None:
        """There is nothing to interrupt."""

    async def control(self, operation: Any) -> Any:
        """Raises Gone."""
        self._refuse()

    async def history(self) -> Sequence[Mapping[str, Any]]:
        """Raises Gone."""
        self._refuse()

    async def mail(self, text: str) -> None:
        """Raises Gone."""
        self._refuse()

    def spent(self) -> Mapping[str, float]:
        """What it used was counted when it ended."""
        return {}

    async def close(self, reason: str) -> None:
        """There is nothing to close."""

    def _refuse(self) -> NoReturn:
        raise Gone(f"{self.error.type}: {self.error.message}")


class Waiting(Departed):
    """A `Served` that is not open until its values are supplied: ValuesMissing to whoever wants something of it."""

    def __init__(self, run: str, isolation: str, missing: ValuesMissing, held: Mapping[str, float]) -> None:
        self.run, self.isolation, self.missing, self._held = run, isolation, missing, held
        self.ended = asyncio.get_running_loop().create_future()
        self.ended.set_exception(missing)
        self.ended.exception()  # Retrieved, so that asyncio logs nothing when nobody asks.

    def spent(self) -> Mapping[str, float]:
        """All that it held, once it has a run: nobody knows how much of that is used up."""
        return self._held if self.run else {}

    def _refuse(self) -> NoReturn:
        raise ValuesMissing(self.missing.path, self.missing.missing)
