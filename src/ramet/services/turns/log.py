"""The record of the turns of one agent: requests and answers, so that another kernel can continue both.

A chunk is recorded before any reader receives it. A reader that continues at another kernel finds the same chunks under
the same numbers, and later chunks have the next numbers. The record of a turn is removed when the turn is forgotten.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from ramet.core.errors import Bug, Conflict, RametError
from ramet.services.contract import Chunk
from ramet.services.errors import TakenOver
from ramet.services.turns.turn import OnLeave, Turn
from ramet.store.contract import Document, Store

_log = logging.getLogger("ramet.services")
REQUEST_KIND, CHUNKS_KIND = "turn", "said"
_DIGITS: Final = 12
_MOST_BYTES: Final = 1024 * 1024  #: bytes of a turn that may wait to be recorded


class RequestedTurn(Struct, frozen=True, kw_only=True, array_like=True):
    """A turn as requested. When it `began`, the agent had recorded the number of turns in `taken`."""

    place: int  #: its position in the order of the agent's turns
    id: str
    format: str
    on_leave: OnLeave
    body: bytes
    began: bool = False
    taken: int = 0
    by: str = ""  #: the hash of the requesting key, or OPERATOR; "" in records of older versions


class _StoredChunk(Struct, frozen=True, array_like=True):
    kind: str
    body: bytes


class LoggedTurn(Struct, frozen=True):
    """A turn as recorded; an ended turn has a last chunk that is not of the kind "chunk"."""

    request: RequestedTurn
    chunks: Sequence[Chunk]


class TurnLog:
    """The record of the turns of one agent, whose tree is `run`: only the kernel that has the tree writes it.

    Writing raises TakenOver and OwnedElsewhere if another kernel has taken over, and StoreFailed.
    """

    def __init__(self, store: Store, agent: str, run: str) -> None:
        self._store, self._agent, self._run = store, agent, run or None
        self._versions: dict[int, int] = {}
        self._pieces: dict[int, list[int]] = {}  #: the first chunk number of each recorded piece, by turn

    async def record_request(self, turn: RequestedTurn) -> None:
        """Record that a turn was requested, or that it begins."""
        data = msgspec.msgpack.encode(turn)
        version = self._versions.get(turn.place, 0)
        self._versions[turn.place] = await self._put(REQUEST_KIND, self._key(turn.place), data, version)

    async def record_chunks(self, position: int, chunks: Sequence[Chunk]) -> None:
        data = msgspec.msgpack.encode([_StoredChunk(each.kind, each.body) for each in chunks])
        key = self._key(position, chunks[0].number)
        await self._put(CHUNKS_KIND, key, data, 0)
        self._pieces.setdefault(position, []).append(chunks[0].number)

    async def forget(self, position: int) -> None:
        """Remove all records of a turn; a missing turn is no error."""
        for number in self._pieces.pop(position, ()):
            await self._store.delete(CHUNKS_KIND, self._key(position, number))
        self._versions.pop(position, None)
        await self._store.delete(REQUEST_KIND, self._key(position))

    async def read(self) -> list[LoggedTurn]:
        """Return all recorded turns, in their order. Raises Damaged for an invalid record."""
        chunks: dict[int, list[Chunk]] = {}
        pieces = [(each, *_numbers(each.key)) for each in await self._list(CHUNKS_KIND)]
        requests = []
        for each in await self._list(REQUEST_KIND):
            turn = each.decode(RequestedTurn, msgspec.msgpack.decode)
            self._versions[turn.place] = each.version
            requests.append(turn)
        ids = {turn.place: turn.id for turn in requests}
        for document, position, first in pieces:
            if position not in ids:  # The removal of this turn was interrupted.
                await self._store.delete(CHUNKS_KIND, document.key)
                continue
            self._pieces.setdefault(position, []).append(first)
            stored = document.decode(list[_StoredChunk], msgspec.msgpack.decode)
            chunks.setdefault(position, []).extend(
                Chunk(ids[position], first + offset, each.kind, each.body)  # type: ignore[arg-type]  # one of the three
                for offset, each in enumerate(stored)
            )
        return [LoggedTurn(turn, chunks.get(turn.place, [])) for turn in requests]

    async def _put(self, kind: str, key: str, data: bytes, expected: int) -> int:
        try:
            return (await self._store.put(kind, key, data, expected=expected, tree=self._run)).version
        except Conflict:
            raise TakenOver("agent", self._agent) from None

    async def _list(self, kind: str) -> list[Document]:
        return await self._store.list(kind, prefix=f"{self._agent}/")

    def _key(self, position: int, number: int | None = None) -> str:
        key = f"{self._agent}/{position:0{_DIGITS}d}"
        return key if number is None else f"{key}/{number:0{_DIGITS}d}"


class TurnWriter:
    """A writer that records the chunks of one agent's turns, if the agent has a log, and then shows them, until
    `close`. All chunks that wait are recorded together.

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
        except Exception as problem:  # A defect. Without an error, the readers of the turns would wait forever.
            _log.exception("the turns of an agent can no longer be recorded")
            self._on_failure(Bug(f"{type(problem).__name__}: {problem}"))
        finally:
            self._write_task = None


def _numbers(key: str) -> tuple[int, int]:
    position, first = key.split("/")[-2:]
    return int(position), int(first)
