"""The turns of an agent: the answer of each in chunks, for any number of readers, each at its own speed.

All turns of one agent share a buffer for their chunks. The agent never waits for a reader, and a reader never waits for
another reader. When the buffer is full, the oldest chunks are dropped, and a reader that needs them receives `Missed`.
No reader misses chunks without this error.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import cached_property
from typing import Final, Literal, overload

from ramet.concurrency.clock import Clock
from ramet.core.errors import InvalidValue, NotYours, OutputTooLarge, RametError
from ramet.services.contract import Chunk, ChunkKind
from ramet.services.errors import Missed, Withdrawn
from ramet.services.problems import to_problem
from ramet.services.teams.agents import AgentAccess
from ramet.wire.sse import encode, encode_numbered

#: The treatment of a turn when its last reader leaves before its end.
OnLeave = Literal["go_on", "interrupt"]
ON_LEAVE: tuple[OnLeave, ...] = ("go_on", "interrupt")

CHUNK_BYTES = 250  #: bytes of a chunk in addition to its body
BATCH = 256  #: chunks that a reader receives at a time


class KeptTurns:
    """The turns of one agent that can be read: waiting, running and recently ended turns, by their ids.

    A turn is forgotten `keep_s` after its end, or when `ended_limit` newer turns have ended; `on_forget` is called with
    it. After `stop`, no turn is forgotten because of its time. The chunks of all turns have at most `limit_bytes`,
    including the overhead of each chunk.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        limit_bytes: int,
        ended_limit: int,
        keep_s: float,
        name: str,
        on_forget: Callable[[Turn], None],
    ) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._clock, self._ended_limit, self._keep_s = clock, ended_limit, keep_s
        self._name, self._on_forget = name, on_forget
        self._turns: dict[str, Turn] = {}
        self._turns_with_chunks: deque[Turn] = deque()  #: at least these, in the order of their first chunks
        self._ended_turns: deque[tuple[Turn, float]] = deque()  #: ended turns, with the time at which each is forgotten
        self._forget_task: asyncio.Task[None] | None = None
        self._is_closed = False

    def __iter__(self) -> Iterator[Turn]:
        return iter(self._turns.values())

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(self._turns)

    def find(self, id: str) -> Turn | None:
        return self._turns.get(id)

    def add(self, turn: Turn) -> None:
        self._turns[turn.id] = turn

    def count(self, turn: Turn, size: int) -> None:
        """Count new chunks of a turn, and drop the oldest chunks until all fit."""
        if not self._turns_with_chunks or self._turns_with_chunks[-1] is not turn:
            self._turns_with_chunks.append(turn)
        self.used_bytes += size
        while self.used_bytes > self.limit_bytes:
            dropped_bytes = self._turns_with_chunks[0].drop_oldest()
            self.used_bytes -= dropped_bytes
            if not dropped_bytes:
                self._turns_with_chunks.popleft()

    def mark_ended(self, turn: Turn) -> None:
        self._ended_turns.append((turn, self._clock.monotonic() + self._keep_s))
        while len(self._ended_turns) > self._ended_limit:
            self._forget_oldest()
        if self._forget_task is None and not self._is_closed:
            self._forget_task = asyncio.create_task(self._forget(), name=self._name)

    def stop(self) -> None:
        """Stop forgetting turns because of their time: no client requests ended turns any more. Idempotent."""
        self._is_closed = True
        if self._forget_task is not None:
            self._forget_task.cancel()

    async def close(self) -> None:
        """Stop, and wait until the forgetting task has ended. Idempotent."""
        self.stop()
        if self._forget_task is not None:
            await asyncio.wait({self._forget_task})

    async def _forget(self) -> None:
        """Forget each ended turn when its time is over, until there is none."""
        try:
            while self._ended_turns:
                await self._clock.sleep(self._ended_turns[0][1] - self._clock.monotonic())
                while self._ended_turns and self._ended_turns[0][1] <= self._clock.monotonic() + 0.001:
                    self._forget_oldest()
        finally:
            self._forget_task = None

    def _forget_oldest(self) -> None:
        turn, _ = self._ended_turns.popleft()
        del self._turns[turn.id]
        while dropped_bytes := turn.drop_oldest():
            self.used_bytes -= dropped_bytes
        if turn in self._turns_with_chunks:
            self._turns_with_chunks.remove(turn)
        self._on_forget(turn)


class Batch(Sequence[Chunk]):
    """Consecutive chunks of a turn, for all readers at the same position."""

    def __init__(self, turn: str, first: int, bodies: Sequence[bytes], last_kind: ChunkKind) -> None:
        self._turn, self.first, self._bodies, self._last_kind = turn, first, bodies, last_kind

    def __len__(self) -> int:
        return len(self._bodies)

    @overload
    def __getitem__(self, index: int) -> Chunk: ...
    @overload
    def __getitem__(self, index: slice) -> list[Chunk]: ...
    def __getitem__(self, index: int | slice) -> Chunk | list[Chunk]:
        positions = range(len(self))[index]
        return self._chunk(positions) if isinstance(positions, int) else list(map(self._chunk, positions))

    @property
    def last(self) -> int:
        """The number of the last chunk."""
        return self.first + len(self) - 1

    @cached_property
    def events(self) -> bytes:
        if self._last_kind == "chunk":
            return encode_numbered("chunk", self._bodies, f"{self._turn}:", self.first)
        events = encode_numbered("chunk", self._bodies[:-1], f"{self._turn}:", self.first)
        return events + encode(self._last_kind, self._bodies[-1], f"{self._turn}:{self.last}")

    def _chunk(self, position: int) -> Chunk:
        kind = self._last_kind if position == len(self) - 1 else "chunk"
        return Chunk(self._turn, self.first + position, kind, self._bodies[position])


_NO_BATCH: Final = Batch("", 0, (), "chunk")


class Turn:
    """A turn: a request, an answer in chunks, and a last chunk of the kind `done` or `error`."""

    def __init__(
        self,
        id: str,
        body: bytes,
        format: str,
        on_leave: OnLeave,
        kept_turns: KeptTurns,
        on_reader_gone: Callable[[Turn], None],
        *,
        position: int = 0,
        requester: str = "",
        on_chunk: Callable[[Turn], None] | None = None,
    ) -> None:
        """Create a turn.

        With `on_chunk`, new chunks are passed to it, and can be read once they are recorded: see `publish`.
        """
        self.position = position  #: its position in the order of its agent's turns
        self.id, self.format, self.on_leave = id, format, on_leave
        self.requester = requester  #: the hash of the requesting key, or OPERATOR
        self.body = body  #: empty once the turn has begun: then the agent has it
        self.stop_error: RametError | None = None  #: the reason, if it was stopped from outside
        self.is_over = False
        self.newest_number = 0  #: number of the newest chunk
        self.readable_number = 0  #: number of the newest chunk that can be read
        self.read_error: RametError | None = None  #: why it can no longer be read here
        self.unsaved_chunks: list[Chunk] = []  #: chunks that are not recorded yet
        self.record_task: asyncio.Future[None] | None = None  #: done when the request is recorded
        self.has_begun = on_chunk is None  #: whether its beginning is recorded
        self.resume_from: tuple[int, Sequence[bytes]] | None = None  #: for `ResumableAgent.resume_turn`
        self._on_chunk = on_chunk
        self._bodies: deque[bytes] = deque()  #: of the kept chunks; the last one has the number `readable_number`
        self._last_kind: ChunkKind = "chunk"  #: of the newest chunk that can be read
        self._kept_turns, self._on_reader_gone = kept_turns, on_reader_gone
        self._readers = 0
        self._newest = _NO_BATCH  #: the batch that was read last
        self._change_event = asyncio.Event()

    # ---- chunks of the agent

    def put(self, body: bytes) -> None:
        """Add the next chunk, and wake waiting readers. Raises OutputTooLarge for a chunk that exceeds the buffer."""
        size = len(body) + CHUNK_BYTES
        if size > self._kept_turns.limit_bytes:
            limit = self._kept_turns.limit_bytes - CHUNK_BYTES
            raise OutputTooLarge("a chunk of an answer, in bytes", size=len(body), limit=limit)
        if self._on_chunk is not None:
            self._record(Chunk(self.id, self.newest_number + 1, "chunk", body))
            return
        self.newest_number = self.readable_number = self.newest_number + 1
        self._bodies.append(body)
        self._kept_turns.count(self, size)
        self._change_event.set()

    def end(self, error: BaseException | None) -> None:
        """Add the last chunk, with the outcome; idempotent."""
        if self.is_over:
            return
        self.is_over, self.body = True, b""
        if error is None:
            chunk = Chunk(self.id, self.newest_number + 1, "done", b"")
        else:
            chunk = Chunk(self.id, self.newest_number + 1, "error", to_problem(error).encode())
        if self._on_chunk is not None:
            self._record(chunk)
        else:
            self.newest_number = chunk.number
            self.publish([chunk])

    def restore(self, chunks: Sequence[Chunk]) -> None:
        """Restore the chunks that another kernel recorded."""
        self.newest_number = chunks[-1].number if chunks else 0
        self.is_over = bool(chunks) and chunks[-1].kind != "chunk"
        if self.is_over:
            self.body = b""
        self.publish(chunks)

    def publish(self, chunks: Sequence[Chunk]) -> None:
        """Make the next chunks readable."""
        if chunks:
            self.readable_number, self._last_kind = chunks[-1].number, chunks[-1].kind
            bodies = [each.body for each in chunks]
            self._bodies.extend(bodies)
            self._kept_turns.count(self, sum(map(len, bodies)) + len(bodies) * CHUNK_BYTES)
            self._change_event.set()

    def fence(self, error: RametError) -> None:
        """End every reader with an error, because the turn continues elsewhere.

        A completely readable turn is not changed.
        """
        if not (self.is_over and self.readable_number == self.newest_number):
            self.read_error, self.is_over = error, True
            self._change_event.set()

    def drop_oldest(self) -> int:
        """Drop the oldest chunk. Return the freed bytes, 0 if there is no chunk. Only KeptTurns calls this."""
        return len(self._bodies.popleft()) + CHUNK_BYTES if self._bodies else 0

    def _record(self, chunk: Chunk) -> None:
        assert self._on_chunk is not None, "checked before"
        self.newest_number = chunk.number
        self.unsaved_chunks.append(chunk)
        self._on_chunk(self)

    async def _wait_changed(self) -> None:
        """Wait for news. Only a reader that has read everything waits; the others are not waiting."""
        self._change_event.clear()
        await self._change_event.wait()

    # ---- readers

    async def wait_recorded(self) -> None:
        """Wait until the turn survives its kernel, where turns do. Raises StoreFailed, OwnedElsewhere, TakenOver."""
        if self.record_task is not None:
            await asyncio.shield(self.record_task)

    def batches(self, after: int = 0, access: AgentAccess | None = None) -> AsyncGenerator[Batch]:
        """Yield the chunks after this number, then new chunks, until the last one, as many at a time as are available.

        With an `access` of the reader's key, the iteration raises NotYours as soon as the key has lost the right. It
        raises Withdrawn instead if the turn was withdrawn at that time. Raises InvalidValue for a number that the turn
        has not reached. Raises Missed for chunks that are not kept any more: at once, or from the iteration if a reader
        is too slow. To stop reading, close the generator (`aclosing`).
        """
        if not 0 <= after <= self.readable_number:
            raise InvalidValue("after", after, f"a number from 0 to {self.readable_number}, that of the newest chunk")
        self._check(after)
        return self._batches(after, access)

    async def wait_ended(self) -> None:
        """Wait until the turn has ended and can be read to its end, or is lost."""
        while not (self.is_over and self.readable_number == self.newest_number):
            if self.read_error is not None:
                return
            await self._wait_changed()

    async def _batches(self, after: int, access: AgentAccess | None) -> AsyncGenerator[Batch]:
        self._readers += 1
        try:
            with access.watch(self._change_event.set) if access is not None else nullcontext():
                while self.read_error is not None or not (self.is_over and after == self.newest_number):
                    if self.read_error is not None:
                        raise self.read_error
                    if access is not None:
                        self._check_right(access)
                    if after == self.readable_number:
                        await self._wait_changed()
                        continue
                    self._check(after)
                    batch = self._batch_after(after)
                    after = batch.last
                    yield batch
        finally:
            self._readers -= 1
            if not self._readers:
                self._newest = _NO_BATCH
            if not self._readers and not self.is_over and self.on_leave == "interrupt":
                self._on_reader_gone(self)

    def _batch_after(self, after: int) -> Batch:
        """Return the kept chunks after this number, or a part of them.

        The batch of the last reader is used again if it fits.
        """
        if self._newest.first != after + 1:
            start = after - (self.readable_number - len(self._bodies))
            stop = min(start + BATCH, len(self._bodies))
            last_kind = self._last_kind if stop == len(self._bodies) else "chunk"
            self._newest = Batch(self.id, after + 1, [self._bodies[at] for at in range(start, stop)], last_kind)
        return self._newest

    def _check_right(self, access: AgentAccess) -> None:
        try:
            access.check()
        except NotYours:
            if isinstance(self.stop_error, Withdrawn):
                raise self.stop_error from None
            raise

    def _check(self, after: int) -> None:
        """Check that the chunk after this number is still kept."""
        first = self.readable_number - len(self._bodies) + 1
        if after < first - 1:
            raise Missed(self.id, after=after, first=first if self._bodies else None)
