"""Placeholders for an agent that is not open: it could not be opened again, or waits for values."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, NoReturn

from ramet.core.errors import Gone
from ramet.core.outcome import ErrorInfo
from ramet.services.errors import ValuesMissing


class EndedAgent:
    """A `RunningAgent` that has ended with an error, and raises Gone for every request."""

    def __init__(self, run: str, isolation: str, error: ErrorInfo) -> None:
        self.run, self.isolation, self.error = run, isolation, error
        self.end: asyncio.Future[ErrorInfo | None] = asyncio.get_running_loop().create_future()
        self.end.set_result(error)

    def turn(self, body: bytes, format: str) -> AsyncIterator[bytes]:
        self._refuse()

    async def interrupt(self) -> None: ...

    async def control(self, operation: Any) -> Any:
        self._refuse()

    async def history(self) -> Sequence[Mapping[str, Any]]:
        self._refuse()

    async def mail(self, text: str) -> None:
        self._refuse()

    def usage(self) -> Mapping[str, float]:
        """Return nothing: the use was counted when the agent ended."""
        return {}

    async def close(self, reason: str) -> None: ...

    def _refuse(self) -> NoReturn:
        raise Gone(f"{self.error.type}: {self.error.message}")


class WaitingAgent(EndedAgent):
    """A `RunningAgent` that is not open until its values are supplied, and raises ValuesMissing for every request."""

    def __init__(self, run: str, isolation: str, missing: ValuesMissing, reserved_amounts: Mapping[str, float]) -> None:
        self.run, self.isolation, self.missing, self._reserved_amounts = run, isolation, missing, reserved_amounts
        self.end = asyncio.get_running_loop().create_future()
        self.end.set_exception(missing)
        self.end.exception()  # Mark as retrieved, so that asyncio logs nothing.

    def usage(self) -> Mapping[str, float]:
        """Return all that the agent held, if it has a run: how much of that was used is unknown."""
        return self._reserved_amounts if self.run else {}

    def _refuse(self) -> NoReturn:
        raise ValuesMissing(self.missing.path, self.missing.missing)
