"""Recorded turns: another kernel resumes requests and answers under the same numbers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence

import pytest

from ramet.concurrency.clock import SystemClock
from ramet.core.errors import Bug, Gone, ModelFailed
from ramet.core.outcome import ErrorInfo
from ramet.services.contract import Chunk, ResumableAgent
from ramet.services.errors import TakenOver
from ramet.services.turns.log import CHUNKS_KIND, REQUEST_KIND, TurnLog
from ramet.services.turns.queue import TurnQueue
from ramet.services.turns.turn import Turn
from ramet.store.memory import MemoryStore
from tests.support.turns import chunks_of
from tests.support.waiting import eventually


class CutAgent:
    """An agent that says each word of a body, and waits for `go` before `wait`. It cannot resume elsewhere."""

    run, isolation = "run-1", "none"

    def __init__(self, turn_count: int = 0) -> None:
        self.end: asyncio.Future[ErrorInfo | None] = asyncio.get_running_loop().create_future()
        self.go = asyncio.Event()
        self.turn_count = turn_count
        self.gone_on_with: list[tuple[int, Sequence[bytes]]] = []

    async def turn(self, body: bytes, format: str) -> AsyncIterator[bytes]:
        self.turn_count += 1
        async for word in self._words(body):
            yield word

    async def _words(self, body: bytes) -> AsyncIterator[bytes]:
        for word in body.split():
            if word == b"wait":
                await self.go.wait()
            if word == b"fail":
                raise ModelFailed("speaker", "it was told to")
            yield word

    async def interrupt(self) -> None:
        self.go.set()

    async def control(self, operation: object) -> None: ...

    async def history(self) -> Sequence[dict[str, object]]:
        return []

    async def mail(self, text: str) -> None: ...

    def usage(self) -> dict[str, float]:
        return {}

    async def close(self, reason: str) -> None: ...


class Speaker(CutAgent):
    """An agent that can resume after the words that were said."""

    @property
    def turns_taken(self) -> int:
        return self.turn_count

    @property
    def tree(self) -> str:
        return self.run

    @property
    def restarts_turn(self) -> bool:
        return False

    async def resume_turn(self, number: int, body: bytes, format: str, chunks: Sequence[bytes]) -> AsyncIterator[bytes]:
        self.gone_on_with.append((number, chunks))
        async for word in self._words(b" ".join(body.split()[len(chunks) :])):
            yield word


@pytest.fixture
async def store() -> AsyncIterator[MemoryStore]:
    """The store that both kernels share."""
    store = await MemoryStore().open()
    yield store
    await store.close()


def conversation(running_agent: CutAgent, store: MemoryStore) -> TurnQueue:
    return TurnQueue(running_agent, SystemClock(), log=TurnLog(store, "agent-1", running_agent.run))


async def restored_queue(running_agent: CutAgent, store: MemoryStore) -> TurnQueue:
    """Return the queue of turns as the next kernel restores it."""
    log = TurnLog(store, "agent-1", running_agent.run)
    turn_queue = TurnQueue(running_agent, SystemClock(), log=log)
    turn_queue.restore(await log.read())
    return turn_queue


async def read(turn: Turn, after: int = 0) -> list[Chunk]:
    return [chunk async for chunk in chunks_of(turn, after)]


def words(chunks: Sequence[Chunk]) -> list[tuple[int, str, bytes]]:
    return [(each.number, each.kind, b"" if each.kind == "error" else each.body) for each in chunks]


async def test_another_kernel_resumes_after_the_last_chunk_that_was_read(store: MemoryStore) -> None:
    """The active turn resumes, then the waiting turns in order; finished turns can be read there."""
    first = Speaker()
    turn_queue = conversation(first, store)
    turn = turn_queue.turn(b"all of it", "words")
    assert len(await read(turn)) == 4
    now, then = turn_queue.turn(b"one two wait three", "words"), turn_queue.turn(b"four", "words")
    await then.wait_recorded()
    await eventually(lambda: now.readable_number == 2)
    await turn_queue.drain(0.0)
    with pytest.raises(Gone):
        await read(now, 2)
    first.go.set()  # Its agent goes on until its process ends: that is on no record.
    await eventually(lambda: now.newest_number == 4)
    second = Speaker(first.turns_taken)
    after = await restored_queue(second, store)
    second.go.set()
    assert words(await read(after.get(turn.id), 3)) == [(4, "done", b"")]
    assert words(await read(after.get(now.id), 2)) == [(3, "chunk", b"wait"), (4, "chunk", b"three"), (5, "done", b"")]
    assert words(await read(after.get(then.id))) == [(1, "chunk", b"four"), (2, "done", b"")]
    assert second.gone_on_with == [(2, [b"one", b"two"])]
    await turn_queue.close()
    await after.close()


async def test_a_turn_of_an_agent_that_cannot_resume_ends_with_an_error(store: MemoryStore) -> None:
    """The turn is never done twice; the turn that waited behind it is answered."""
    first = CutAgent()
    assert not isinstance(first, ResumableAgent)
    turn_queue = conversation(first, store)
    now, then = turn_queue.turn(b"one wait two", "words"), turn_queue.turn(b"three", "words")
    await then.wait_recorded()
    await eventually(lambda: now.readable_number == 1)
    await turn_queue.drain(0.0)
    second = CutAgent()
    after = await restored_queue(second, store)
    assert [each.kind for each in await read(after.get(now.id), 1)] == ["error"]
    assert words(await read(after.get(then.id))) == [(1, "chunk", b"three"), (2, "done", b"")]
    assert second.turn_count == 1
    await turn_queue.close()
    await after.close()


@pytest.mark.parametrize("kind", [CutAgent, Speaker])
async def test_an_idle_conversation_is_left_at_once(store: MemoryStore, kind: type[CutAgent]) -> None:
    """Finished turns can be read at this kernel and at the next, whether or not the agent can resume."""
    turn_queue = conversation(kind(), store)
    turn = turn_queue.turn(b"one", "words")
    events_read = await read(turn)
    await eventually(lambda: turn_queue._answer_task is None)

    await turn_queue.drain(60.0)
    await turn_queue.drain(60.0)

    assert await read(turn) == events_read
    after = await restored_queue(kind(), store)
    assert words(await read(after.get(turn.id))) == words(events_read)
    await turn_queue.close()
    await after.close()


async def test_the_records_of_turns_are_removed_with_their_agent(store: MemoryStore) -> None:
    """An active turn gets an error at once."""
    running_agent = Speaker()
    turn_queue = conversation(running_agent, store)
    await read(turn_queue.turn(b"one", "words"))
    waits = turn_queue.turn(b"two wait three", "words")
    await eventually(lambda: waits.readable_number == 1)
    for kind in (REQUEST_KIND, CHUNKS_KIND):
        for each in await store.list(kind, prefix="agent-1/"):
            await store.delete(kind, each.key)
    running_agent.end.set_result(None)
    assert [each.kind for each in await read(waits)] == ["chunk", "error"], "its readers are told at once"
    await turn_queue.close()
    assert not [*await store.list(REQUEST_KIND), *await store.list(CHUNKS_KIND)]


async def test_a_kernel_that_was_overtaken_writes_no_more_chunks(store: MemoryStore) -> None:
    """Another kernel has written the next chunk: readers here get TakenOver and continue there."""
    running_agent = Speaker()
    turn_queue = conversation(running_agent, store)
    turn = turn_queue.turn(b"one wait two", "words")
    await eventually(lambda: turn.readable_number == 1)
    log = TurnLog(store, "agent-1", running_agent.run)
    await log.read()
    await log.record_chunks(turn.position, [Chunk(turn.id, 2, "chunk", b"another")])
    running_agent.go.set()
    with pytest.raises(TakenOver):
        await read(turn, 1)
    assert [each.body for each in (await log.read())[0].chunks] == [b"one", b"another"]
    await turn_queue.close()


async def test_a_failed_turn_reads_the_same_at_another_kernel(store: MemoryStore) -> None:
    """The error chunk is recorded like the others."""
    turn_queue = conversation(Speaker(), store)
    turn = turn_queue.turn(b"one fail", "words")
    events_read = await read(turn)
    chunks_again = await restored_queue(Speaker(), store)
    assert await read(chunks_again.get(turn.id)) == events_read
    assert events_read[-1].kind == "error"
    await turn_queue.close()
    await chunks_again.close()


async def test_a_waiting_turn_of_a_revoked_key_is_withdrawn_by_the_next_kernel(
    store: MemoryStore,
) -> None:
    """The first kernel was lost during a handover; the turn that had started continues."""
    first = Speaker()
    turn_queue = conversation(first, store)
    now, then = (turn_queue.turn(body, "words", by="old") for body in (b"one wait two", b"three"))
    by_other = turn_queue.turn(b"four", "words", by="other")
    await by_other.wait_recorded()
    await eventually(lambda: now.readable_number == 1)
    await turn_queue.drain(0.0)
    first.go.set()

    second = Speaker(first.turns_taken)
    log = TurnLog(store, "agent-1", second.run)
    after = TurnQueue(second, SystemClock(), log=log, has_right=lambda by: by == "other")
    after.restore(await log.read())
    second.go.set()

    assert words(await read(after.get(now.id)))[-1][1] == "done"
    (withdrawn,) = await read(after.get(then.id))
    assert (withdrawn.kind, json.loads(withdrawn.body)["type"]) == ("error", "urn:ramet:problem:withdrawn")
    assert words(await read(after.get(by_other.id))) == [(1, "chunk", b"four"), (2, "done", b"")]
    await turn_queue.close()
    await after.close()


async def test_the_readers_of_a_turn_that_cannot_be_recorded_get_an_error(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever error it is; the conversation does not continue in this kernel."""

    async def fail(self: TurnLog, position: int, chunks: Sequence[Chunk]) -> None:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(TurnLog, "record_chunks", fail)
    turn_queue = conversation(Speaker(), store)
    turn = turn_queue.turn(b"one two", "words")

    async with asyncio.timeout(60):
        with pytest.raises(Bug, match="a defect"):
            await read(turn)

    with pytest.raises(Gone, match="does not continue"):
        turn_queue.turn(b"three", "words")
    await turn_queue.close()
