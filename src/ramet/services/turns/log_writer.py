"""What turns say, on its way to readers: written down before anybody has it, all together that has come meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from ramet.core.errors import RametError
from ramet.services.turns.log import TurnLog
from ramet.services.turns.turn import Turn

_MOST_BYTES: Final = 1024 * 1024  #: that a turn may say before they are written


class TurnWriter:
    """Writes what the turns of one agent say into their log, if they have one, and shows it then, until `end`.

    `failed` is told why nothing more can be written.
    """

    def __init__(self, log: TurnLog | None, name: str, failed: Callable[[RametError], None]) -> None:
        self._log = log
        self._name, self._failed = name, failed
        self._unkept: dict[Turn, None] = {}  #: turns of which there are chunks to be written
        self._writing: asyncio.Task[None] | None = None
        self._room = asyncio.Event()
        self._has_ended = False

    def has_said(self, turn: Turn) -> None:
        """Have what a turn said put on record, then shown; together with what is said meanwhile."""
        self._unkept[turn] = None
        self._go_on()

    async def room(self, turn: Turn) -> None:
        """Wait while much of what a turn said is not on record yet."""
        while sum(len(each.body) for each in turn.unkept) > _MOST_BYTES and not self._has_ended:
            self._room.clear()
            await self._room.wait()

    async def idle(self) -> None:
        """Return once nothing is being written."""
        while self._writing is not None:
            await asyncio.wait({self._writing})

    def let_go(self) -> None:
        """Write no more: what was said, and what comes, is shown at once."""
        self._log = None
        self._go_on()

    def end(self) -> None:
        """Write no more, and show no more. Idempotent."""
        self._has_ended = True
        self._room.set()

    def _go_on(self) -> None:
        if self._unkept and self._writing is None and not self._has_ended:
            self._writing = asyncio.create_task(self._write(), name=self._name)

    async def _write(self) -> None:
        try:
            while self._unkept and not self._has_ended:
                turn = next(iter(self._unkept))
                del self._unkept[turn]
                chunks, turn.unkept = turn.unkept, []
                if self._log is not None:
                    await self._log.said(turn.place, chunks)
                turn.show(chunks)
                self._room.set()
        except RametError as problem:
            self._failed(problem)
        finally:
            self._writing = None
