"""The chunks of turns on their way to readers: recorded before they are shown, together with all chunks that wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from ramet.core.errors import RametError
from ramet.services.turns.log import TurnLog
from ramet.services.turns.turn import Turn

_MOST_BYTES: Final = 1024 * 1024  #: bytes of a turn that may wait to be recorded


class TurnWriter:
    """A writer that records the chunks of one agent's turns, if the agent has a log, and then shows them, until
    `close`.

    `on_failure` is called with the error if writing is no longer possible.
    """

    def __init__(self, log: TurnLog | None, name: str, on_failure: Callable[[RametError], None]) -> None:
        self._log = log
        self._name, self._on_failure = name, on_failure
        self._pending: dict[Turn, None] = {}  #: turns that have chunks to write
        self._write_task: asyncio.Task[None] | None = None
        self._has_space = asyncio.Event()
        self._has_ended = False

    def schedule(self, turn: Turn) -> None:
        """Record the waiting chunks of a turn, then show them; chunks that follow meanwhile are included."""
        self._pending[turn] = None
        self._start_writing()

    async def wait_for_space(self, turn: Turn) -> None:
        """Wait while too many bytes of a turn are not recorded yet."""
        while sum(len(each.body) for each in turn.unsaved_chunks) > _MOST_BYTES and not self._has_ended:
            self._has_space.clear()
            await self._has_space.wait()

    async def wait_idle(self) -> None:
        while self._write_task is not None:
            await asyncio.wait({self._write_task})

    def stop_recording(self) -> None:
        """Stop recording: present and later chunks are shown at once."""
        self._log = None
        self._start_writing()

    def close(self) -> None:
        """Stop recording and showing. Idempotent."""
        self._has_ended = True
        self._has_space.set()

    def _start_writing(self) -> None:
        if self._pending and self._write_task is None and not self._has_ended:
            self._write_task = asyncio.create_task(self._write(), name=self._name)

    async def _write(self) -> None:
        try:
            while self._pending and not self._has_ended:
                turn = next(iter(self._pending))
                del self._pending[turn]
                chunks, turn.unsaved_chunks = turn.unsaved_chunks, []
                if self._log is not None:
                    await self._log.record_chunks(turn.position, chunks)
                turn.publish(chunks)
                self._has_space.set()
        except RametError as problem:
            self._on_failure(problem)
        finally:
            self._write_task = None
