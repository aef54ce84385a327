"""One turn of an agent: its answer in chunks, which any number of readers read, each at its own pace.

Chunks are kept in a buffer that all turns of one agent share. The agent never waits for a reader, and a reader never
for another one: where it is full the oldest chunks go, and whoever wanted them is told `Missed`. Nobody is ever
given less without being told.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, nullcontext
from functools import cached_property
from typing import Literal

from ramet.core.errors import InvalidValue, NotYours, OutputTooLarge, RametError
from ramet.services.contract import Chunk
from ramet.services.errors import Missed, Withdrawn
from ramet.services.problems import to_problem
from ramet.services.turns.grants import Grant
from ramet.wire.sse import encode

#: What becomes of a turn when its last reader leaves before its end.
OnLeave = Literal["go_on", "interrupt"]
ON_LEAVE: tuple[OnLeave, ...] = ("go_on", "interrupt")

CHUNK_BYTES = 250  #: that a chunk takes beside its body
BATCH = 256  #: chunks that a reader gets at once


class ReplayBuffer:
    """Room for the chunks of all turns of one agent: `limit` bytes, what holds them together included."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._turns: deque[Turn] = deque()  #: that may have chunks here, in the order of their first ones

    def put(self, turn: Turn, size: int) -> None:
        """Make room for a chunk that this turn has just got: the oldest go."""
        if not self._turns or self._turns[-1] is not turn:
            self._turns.append(turn)
        self.used += size
        while self.used > self.limit:
            dropped = self._turns[0].drop_oldest()
            self.used -= dropped
            if not dropped:
                self._turns.popleft()

    def remove(self, turn: Turn) -> None:
        """Drop all chunks of a turn."""
        while dropped := turn.drop_oldest():
            self.used -= dropped
        if turn in self._turns:
            self._turns.remove(turn)


class Batch(list[Chunk]):
    """Chunks that follow each other, for all readers who are at the same place."""

    @cached_property
    def events(self) -> bytes:
        """They as server-sent events."""
        return b"".join([encode(each.kind, each.body, f"{each.turn}:{each.number}") for each in self])


class Turn:
    """One turn: asked, answered in chunks, and over with a last one, of the kind `done` or `error`."""

    def __init__(
        self,
        id: str,
        body: bytes,
        format: str,
        on_leave: OnLeave,
        buffer: ReplayBuffer,
        on_left: Callable[[Turn], None],
        *,
        place: int = 0,
        by: str = "",
        keep: Callable[[Turn], None] | None = None,
    ) -> None:
        """With `keep`, which is told when there is something, chunks are read once they are on record: `show`."""
        self.place = place  #: in the order of its agent's turns
        self.id, self.format, self.on_leave = id, format, on_leave
        self.by = by  #: stands for the key that asked
        self.body = body  #: until it begins: then it is the agent's
        self.stopped: RametError | None = None  #: why it was stopped, if it was, by whoever did so
        self.is_over = False
        self.said = 0  #: number of its newest chunk
        self.last = 0  #: number of the newest one that can be read
        self.lost: RametError | None = None  #: why it is read no more here
        self.unkept: list[Chunk] = []  #: that are not on record yet
        self.recorded: asyncio.Future[None] | None = None  #: done when it is on record that it was asked for
        self.has_begun = keep is None  #: on record
        self.before: tuple[int, Sequence[bytes]] | None = None  #: of one that began elsewhere: `GoesOn.go_on`
        self._keep = keep
        self._kept: deque[Chunk] = deque()
        self._buffer, self._on_left = buffer, on_left
        self._readers = 0
        self._newest = Batch()  #: the one that was read last
        self._news = asyncio.Event()

    # ---- what the agent says

    def put(self, body: bytes) -> None:
        """Take the next chunk in, and wake who waits for it. Raises OutputTooLarge for one that fits into no buffer."""
        most = self._buffer.limit - CHUNK_BYTES
        if len(body) > most:
            raise OutputTooLarge("a chunk of an answer, in bytes", size=len(body), limit=most)
        self._put(Chunk(self.id, self.said + 1, "chunk", body))

    def end(self, error: BaseException | None) -> None:
        """Say how it ended, for good; idempotent."""
        if self.is_over:
            return
        self.is_over, self.body = True, b""
        if error is None:
            self._put(Chunk(self.id, self.said + 1, "done", b""))
        else:
            self._put(Chunk(self.id, self.said + 1, "error", to_problem(error).encode()))

    def restore(self, chunks: Sequence[Chunk]) -> None:
        """Have what was said of it before, elsewhere."""
        self.said = chunks[-1].number if chunks else 0
        self.is_over = bool(chunks) and chunks[-1].kind != "chunk"
        if self.is_over:
            self.body = b""
        self.show(chunks)

    def show(self, chunks: Sequence[Chunk]) -> None:
        """Let chunks be read, which are the next ones."""
        for chunk in chunks:
            self.last = chunk.number
            self._kept.append(chunk)
            self._buffer.put(self, _size(chunk))
        self._news.set()

    def lose(self, why: RametError) -> None:
        """Have every reader break off, since it goes on elsewhere; not of one that can be read to its end."""
        if not (self.is_over and self.last == self.said):
            self.lost, self.is_over = why, True
            self._news.set()

    def drop_oldest(self) -> int:
        """Keep the oldest chunk no longer; the bytes that this frees, 0 if there is none. For the buffer."""
        return _size(self._kept.popleft()) if self._kept else 0

    def _put(self, chunk: Chunk) -> None:
        self.said = chunk.number
        if self._keep is None:
            self.show([chunk])
        else:
            self.unkept.append(chunk)
            self._keep(self)

    async def _more(self) -> None:
        """Wait for what comes. Whoever does so has read all: those that have not are on their way already."""
        self._news.clear()
        await self._news.wait()

    # ---- who reads it

    async def on_record(self) -> None:
        """Return once it survives its kernel, where turns do. Raises StoreFailed, OwnedElsewhere, TakenOver."""
        if self.recorded is not None:
            await asyncio.shield(self.recorded)

    def read(self, after: int = 0, grant: Grant | None = None) -> AsyncGenerator[Chunk]:
        """The chunks behind this number, then those that come, until the last; see `batches`."""
        return _one_by_one(self.batches(after, grant))

    def batches(self, after: int = 0, grant: Grant | None = None) -> AsyncGenerator[Batch]:
        """The same, as many at once as are there: for whoever writes them to a socket.

        With a `grant` of the reader's key, the iteration raises NotYours as soon as the key has lost the right, and
        Withdrawn if the turn was withdrawn at that.

        Raises InvalidValue for a number that the turn has not come to, and Missed for chunks that are kept no more:
        at once, or from the iteration when a reader is too slow. To stop reading, close it (`aclosing`).
        """
        if not 0 <= after <= self.last:
            raise InvalidValue("after", after, f"a number from 0 to {self.last}, that of the newest chunk")
        self._check(after)
        return self._batches(after, grant)

    async def over(self) -> None:
        """Return when it is over."""
        while not (self.is_over and self.last == self.said):
            if self.lost is not None:
                return
            await self._more()

    async def _batches(self, after: int, grant: Grant | None) -> AsyncGenerator[Batch]:
        self._readers += 1
        try:
            with grant.watched(self._news.set) if grant is not None else nullcontext():
                while self.lost is not None or not (self.is_over and after == self.said):
                    if self.lost is not None:
                        raise self.lost
                    if grant is not None:
                        self._check_right(grant)
                    if after == self.last:
                        await self._more()
                        continue
                    self._check(after)
                    batch = self._behind(after)
                    after = batch[-1].number
                    yield batch
        finally:
            self._readers -= 1
            if not self._readers:
                self._newest = Batch()
            if not self._readers and not self.is_over and self.on_leave == "interrupt":
                self._on_left(self)

    def _behind(self, after: int) -> Batch:
        """What is kept behind this number, or a part of it. Readers keep together, so it is mostly what one has got."""
        if not self._newest or self._newest[0].number != after + 1:
            start = after - (self.last - len(self._kept))
            self._newest = Batch(self._kept[at] for at in range(start, min(start + BATCH, len(self._kept))))
        return self._newest

    def _check_right(self, grant: Grant) -> None:
        """See that whoever reads may still do so."""
        try:
            grant.check()
        except NotYours:
            if isinstance(self.stopped, Withdrawn):
                raise self.stopped from None
            raise

    def _check(self, after: int) -> None:
        """See that what comes behind this number is still there."""
        if after < self.last - len(self._kept):
            raise Missed(self.id, after=after, first=self._kept[0].number if self._kept else None)


async def _one_by_one(batches: AsyncGenerator[Batch]) -> AsyncGenerator[Chunk]:
    async with aclosing(batches):
        async for batch in batches:
            for chunk in batch:
                yield chunk


def _size(chunk: Chunk) -> int:
    return len(chunk.body) + CHUNK_BYTES
