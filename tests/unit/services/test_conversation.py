"""Turns of one agent: in order, bounded, read by many readers, and never lost silently."""

from __future__ import annotations

import asyncio
import json
import pathlib
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import pytest

from ramet.concurrency.clock import FakeClock
from ramet.core.errors import BusyError, Gone, InvalidValue, Unknown
from ramet.core.outcome import ErrorInfo
from ramet.host.runtime import AgentRuntime
from ramet.services.contract import AgentSpec, Chunk
from ramet.services.errors import BodyTooLarge, Missed
from ramet.services.turns.queue import TurnLimits, TurnQueue
from ramet.services.turns.turn import CHUNK_BYTES, Batch, Turn
from ramet.wire.sse import encode
from tests.support.echo_agents import Echo, EchoInfo
from tests.support.turns import chunks_of
from tests.support.waiting import eventually


def opening() -> AgentSpec:
    """Return the spec of an agent that needs nothing."""
    return AgentSpec("agent-1", "echo", "team/echo", EchoInfo(), AgentRuntime(), pathlib.Path())


Talking = Callable[..., TurnQueue]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def agent() -> Echo:
    return Echo(opening())


@pytest.fixture
async def new_queue(agent: Echo, clock: FakeClock) -> AsyncIterator[Talking]:
    """Return a function that makes turn queues; close them at the end."""
    queues: list[TurnQueue] = []

    def make(running_agent: Any = agent, **limits: Any) -> TurnQueue:
        queues.append(TurnQueue(running_agent, clock, TurnLimits(**limits)))
        return queues[-1]

    yield make
    for each in queues:
        await each.close()


async def read(turn: Turn, after: int = 0) -> list[Chunk]:
    """Read a turn to its end."""
    return [chunk async for chunk in chunks_of(turn, after)]


async def append_all(chunks: AsyncIterator[Chunk], to: list[Chunk]) -> None:
    async for chunk in chunks:
        to.append(chunk)


def bodies_of(chunks: list[Chunk]) -> list[bytes]:
    return [chunk.body for chunk in chunks if chunk.kind == "chunk"]


def problem(chunks: list[Chunk]) -> Any:
    """Return the problem of the error chunk at the end."""
    assert chunks[-1].kind == "error"
    assert [chunk.kind for chunk in chunks[:-1]] == ["chunk"] * (len(chunks) - 1)
    return json.loads(chunks[-1].body)


class FloodingEcho(Echo):
    """An agent that sends so many bytes in pieces, without waiting for anything."""

    def __init__(self, size: int, piece: int) -> None:
        super().__init__(opening())
        self.size, self.piece = size, piece

    async def turn(self, body: bytes, format: str) -> AsyncIterator[bytes]:
        if body == b"hello":
            yield body
            return
        for number in range(self.size // self.piece):
            yield number.to_bytes(8, "big") + bytes(self.piece - 8)


async def test_a_turn_is_chunks_numbered_from_1_and_then_done(new_queue: Talking) -> None:
    """AC-S3-5: The last number is that of the done chunk."""
    turn = new_queue().turn(b"one two three", "words")

    assert await read(turn) == [
        Chunk(turn.id, 1, "chunk", b"one"),
        Chunk(turn.id, 2, "chunk", b"two"),
        Chunk(turn.id, 3, "chunk", b"three"),
        Chunk(turn.id, 4, "done", b""),
    ]


async def test_an_error_is_the_last_chunk_after_the_text(new_queue: Talking) -> None:
    """AC-S3-5: The error is a problem document, and the next turn works."""
    conversation = new_queue()

    chunks = await read(conversation.turn(b"one fail two", "words"))

    assert bodies_of(chunks) == [b"one"]
    assert problem(chunks) == {
        "type": "urn:ramet:problem:model-failed",
        "title": "Model failed",
        "status": 502,
        "detail": "echo: it was told to",
        "model": "echo",
        "retryable": False,
        "retry_after_s": None,
    }
    assert bodies_of(await read(conversation.turn(b"again", "words"))) == [b"again"]


async def test_a_bug_of_an_agent_type_reveals_nothing_to_the_client(
    new_queue: Talking, caplog: pytest.LogCaptureFixture
) -> None:
    """The client learns that the turn failed; the operator's log has the reason."""

    class Broken(Echo):
        async def turn(self, body: bytes, format: str) -> AsyncIterator[bytes]:
            yield b"so far"
            raise KeyError("secret")

    chunks = await read(new_queue(Broken(opening())).turn(b"hello", "words"))

    assert bodies_of(chunks) == [b"so far"]
    assert problem(chunks)["status"] == 500
    assert b"secret" not in chunks[-1].body
    assert "secret" in caplog.text


async def test_turns_are_answered_one_at_a_time_in_their_order(new_queue: Talking, agent: Echo) -> None:
    """AC-S3-5: Turns that come during an active turn follow it, each with its own bytes and format."""
    conversation = new_queue()
    turns = [conversation.turn(b"wait %d" % number, format) for number, format in enumerate(("words", "letters") * 4)]
    readings = [asyncio.create_task(read(turn)) for turn in reversed(turns)]
    await eventually(lambda: agent.received_bodies)
    assert agent.received_bodies == [(b"wait 0", "words")]
    assert conversation.waiting == 7

    agent.go_on.set()
    answers = [bodies_of(chunks) for chunks in await asyncio.gather(*readings)]

    assert agent.received_bodies == [(b"wait %d" % n, "letters" if n % 2 else "words") for n in range(8)]
    assert answers == [[b"wait", b"%d" % number] for number in reversed(range(8))]


async def test_more_turns_than_may_wait_are_refused(new_queue: Talking, agent: Echo) -> None:
    """The error names the bound; the waiting turns are answered."""
    conversation = new_queue(waiting=2)
    turns = [conversation.turn(b"wait", "words") for _ in range(3)]

    with pytest.raises(BusyError, match="2 turns wait"):
        conversation.turn(b"hello", "words")

    agent.go_on.set()
    for turn in turns:
        assert bodies_of(await read(turn)) == [b"wait"]
    assert bodies_of(await read(conversation.turn(b"hello", "words"))) == [b"hello"]


async def test_waiting_turns_are_bounded_in_bytes(new_queue: Talking, agent: Echo) -> None:
    """Fewer turns may wait if their bodies are large."""
    conversation = new_queue(body_bytes=1_000, waiting_bytes=1_500)
    conversation.turn(b"wait", "words")
    conversation.turn(bytes(1_000), "words")

    with pytest.raises(BusyError, match="1500 bytes"):
        conversation.turn(bytes(501), "words")

    conversation.turn(bytes(500), "words")
    agent.go_on.set()


async def test_a_body_over_the_cap_is_refused_by_name(new_queue: Talking, agent: Echo) -> None:
    """The error gives the cap; a body at the cap is accepted."""
    conversation = new_queue(body_bytes=10)

    with pytest.raises(BodyTooLarge, match="at most 10 bytes") as refusal:
        conversation.turn(b"x" * 11, "words")

    assert (refusal.value.field, refusal.value.size, refusal.value.limit) == ("body", 11, 10)
    assert bodies_of(await read(conversation.turn(b"x" * 10, "words"))) == [b"x" * 10]


async def test_a_turn_without_readers_either_continues_or_is_interrupted(new_queue: Talking) -> None:
    """Any third choice is refused."""
    with pytest.raises(InvalidValue, match="go_on or interrupt"):
        new_queue().turn(b"hello", "words", "explode")  # type: ignore[arg-type]


async def test_several_readers_read_one_turn_from_any_number(new_queue: Talking, agent: Echo) -> None:
    """AC-S3-5: A reader that comes late gets the past chunks, then the new ones."""
    turn = new_queue().turn(b"a b wait c", "words")
    readers = [asyncio.create_task(read(turn))]
    await eventually(lambda: turn.readable_number == 2)
    readers += [asyncio.create_task(read(turn, after)) for after in (0, 1, 2)]
    agent.go_on.set()

    chunks = await asyncio.gather(*readers)

    assert bodies_of(chunks[0]) == [b"a", b"b", b"wait", b"c"]
    assert chunks[1] == chunks[0]
    assert chunks[2] == chunks[0][1:]
    assert chunks[3] == chunks[0][2:]
    assert await read(turn, 5) == []


async def test_readers_at_one_number_share_the_encoded_chunks(new_queue: Talking) -> None:
    """A hundred readers cost one encoding; a reader at a later number gets the rest."""
    turn = new_queue().turn(b"one two three", "words")
    await turn.wait_ended()

    async with aclosing(turn.batches()) as one, aclosing(turn.batches()) as two, aclosing(turn.batches(2)) as late:
        first, same, rest = [await anext(each) for each in (one, two, late)]

    assert first.events is same.events
    assert first.events.endswith(rest.events)
    assert [each.number for each in rest] == [3, 4]


@pytest.mark.parametrize("after", [-1, 3])
async def test_a_number_beyond_the_end_of_a_turn_is_refused(new_queue: Talking, after: int) -> None:
    """The number counts neither as the end nor as the beginning."""
    turn = new_queue().turn(b"hello", "words")
    await turn.wait_ended()

    with pytest.raises(InvalidValue, match="from 0 to 2"):
        chunks_of(turn, after)


async def test_a_turn_whose_reader_leaves_continues_and_can_be_read_again(new_queue: Talking, agent: Echo) -> None:
    """AC-S3-5: A client that lost its connection continues after its last chunk."""
    conversation = new_queue()
    turn = conversation.turn(b"a wait b", "words")
    async with aclosing(chunks_of(turn)) as chunks:
        first = await anext(chunks)
    agent.go_on.set()
    await turn.wait_ended()

    chunks_again = await read(conversation.get(first.turn), first.number)

    assert bodies_of(chunks_again) == [b"wait", b"b"]
    assert chunks_again[-1].kind == "done"
    assert agent.interrupts == 0


async def test_a_turn_can_be_interrupted_when_its_last_reader_leaves(new_queue: Talking, agent: Echo) -> None:
    """AC-S3-5: The interrupt comes after the last reader has left, not before; the next turn follows."""
    conversation = new_queue()
    turn = conversation.turn(b"a wait b", "words", "interrupt")
    following = conversation.turn(b"next", "words")
    stays = chunks_of(turn)
    async with aclosing(chunks_of(turn)) as chunks:
        await anext(stays)
        await anext(chunks)
    for _ in range(10):
        await asyncio.sleep(0)
    before = agent.interrupts

    await stays.aclose()
    await turn.wait_ended()

    assert (before, agent.interrupts) == (0, 1)
    assert problem(await read(turn))["type"] == "urn:ramet:problem:aborted"
    assert bodies_of(await read(following)) == [b"next"]


async def test_a_waiting_turn_whose_client_leaves_is_never_started(new_queue: Talking, agent: Echo) -> None:
    """The turn was asked to end with its client; the other turns keep their order."""
    conversation = new_queue()
    conversation.turn(b"wait", "words")
    turn = conversation.turn(b"mine", "words", "interrupt")
    last = conversation.turn(b"last", "words")
    reading = asyncio.create_task(read(turn))
    await eventually(lambda: agent.received_bodies)
    reading.cancel()
    await asyncio.wait({reading})
    assert turn.is_over
    assert conversation.waiting == 1

    agent.go_on.set()

    assert bodies_of(await read(last)) == [b"last"]
    assert [body for body, _ in agent.received_bodies] == [b"wait", b"last"]


async def test_a_turn_expires_after_its_retention_time(new_queue: Talking, clock: FakeClock) -> None:
    """A late reader gets Missed; the id of no turn is unknown."""
    conversation = new_queue(keep_s=60)
    turn = conversation.turn(b"hello", "words")
    await turn.wait_ended()
    await clock.advance(59)
    assert bodies_of(await read(conversation.get(turn.id))) == [b"hello"]

    await clock.advance(2)

    with pytest.raises(Missed, match="nothing of it is kept"):
        conversation.get(turn.id)
    assert conversation.kept_bytes == 0
    for id in (turn.id + "0", "turn-1", "", turn.id.replace("-", ":"), turn.id[:-1] + "²", turn.id[:-1] + "01"):
        with pytest.raises(Unknown):
            conversation.get(id)


async def test_only_the_last_turns_are_kept(new_queue: Talking) -> None:
    """The number of kept turns is bounded, however fast they follow each other."""
    conversation = new_queue(kept_turns=2)
    turns = [conversation.turn(b"%d" % number, "words") for number in range(4)]
    await turns[-1].wait_ended()

    for turn in turns[:2]:
        with pytest.raises(Missed):
            conversation.get(turn.id)
    assert [bodies_of(await read(conversation.get(turn.id))) for turn in turns[2:]] == [[b"2"], [b"3"]]


async def test_interrupting_ends_the_active_turn_and_no_other(new_queue: Talking, agent: Echo) -> None:
    """AC-S3-5: The text so far stays, the waiting turns follow, and a second interrupt has no effect."""
    conversation = new_queue()
    turn, following = (conversation.turn(body, "words") for body in (b"a wait", b"next"))
    await eventually(lambda: turn.readable_number == 1)

    assert all(await asyncio.gather(conversation.interrupt(), conversation.interrupt()))

    assert turn.is_over
    assert problem(await read(turn))["detail"] == "the turn was interrupted"
    assert bodies_of(await read(following)) == [b"next"]
    assert await conversation.interrupt() is False
    assert agent.interrupts == 1


async def test_an_interrupt_that_comes_too_late_changes_nothing(new_queue: Talking) -> None:
    """The agent has finished already, so that its whole answer is delivered."""
    answers: list[bool] = []

    def interrupt() -> None:
        with pytest.raises(StopIteration) as end:
            conversation.interrupt().send(None)
        answers.append(end.value.value)

    class Prompt(Echo):
        async def turn(self, body: bytes, format: str) -> AsyncIterator[bytes]:
            yield body
            asyncio.get_running_loop().call_soon(interrupt)

    prompt = Prompt(opening())
    conversation = new_queue(prompt)

    chunks = await read(conversation.turn(b"hello", "words"))

    assert [chunk.kind for chunk in chunks] == ["chunk", "done"]
    assert (answers, prompt.interrupts) == ([False], 0)


async def test_one_turn_of_several_can_be_interrupted(new_queue: Talking, agent: Echo) -> None:
    """The interrupt names a turn by id: a waiting turn is never started, and a finished turn stays as it is."""
    conversation = new_queue()
    first, second, third = (conversation.turn(body, "words") for body in (b"a wait", b"b", b"c wait"))
    await eventually(lambda: first.readable_number == 1)

    assert await conversation.interrupt(second.id)
    assert (first.is_over, second.is_over, conversation.waiting) == (False, True, 1)
    assert await conversation.interrupt(first.id)
    assert not await conversation.interrupt(first.id)

    assert bodies_of(await read(third)) == [b"c", b"wait"]
    assert [body for body, _ in agent.received_bodies] == [b"a wait", b"c wait"]
    assert agent.interrupts == 1
    with pytest.raises(Unknown):
        await conversation.interrupt("turn-1")


async def test_an_agent_that_ignores_an_interrupt_loses_its_turn(new_queue: Talking, clock: FakeClock) -> None:
    """The iteration is closed after the time limit, which interrupts a turn by contract."""

    class Deaf(Echo):
        has_left = False

        async def turn(self, body: bytes, format: str) -> AsyncIterator[bytes]:
            yield b"so far"
            try:
                await asyncio.Event().wait()
            finally:
                self.has_left = True

    deaf = Deaf(opening())
    conversation = new_queue(deaf, patience_s=5)
    turn = conversation.turn(b"hello", "words")
    await eventually(lambda: turn.readable_number == 1)
    interrupting = asyncio.create_task(conversation.interrupt())
    await eventually(lambda: clock.sleeping)

    await clock.advance(6)

    assert await interrupting
    assert deaf.has_left
    assert problem(await read(turn))["detail"] == "the turn was interrupted"


async def test_the_next_turn_does_not_get_the_interrupt_of_the_last(new_queue: Talking) -> None:
    """The next turn starts when the agent has finished its interrupt, though the turn ended before."""

    class Slow(Echo):
        interrupting = False

        async def turn(self, body: bytes, format: str) -> AsyncIterator[bytes]:
            assert not self.interrupting
            async for word in super().turn(body, format):
                yield word

        async def interrupt(self) -> None:
            self.interrupting = True
            self.go_on.set()
            await eventually(lambda: turn.is_over)
            self.interrupting = False

    conversation = new_queue(Slow(opening()))
    turn, following = (conversation.turn(body, "words") for body in (b"a wait", b"next"))
    await eventually(lambda: turn.readable_number == 1)

    assert await conversation.interrupt()

    assert [chunk.kind for chunk in await read(following)] == ["chunk", "done"]


async def test_closing_ends_every_turn_for_every_reader(new_queue: Talking) -> None:
    """The active turn and the waiting turns end with the reason.

    Later turns are refused; a second close has no effect.
    """
    conversation = new_queue()
    turns = [conversation.turn(body, "words") for body in (b"a wait", b"b", b"c")]
    readings = [asyncio.create_task(read(turn)) for turn in turns]
    await eventually(lambda: turns[0].readable_number == 1)

    await conversation.close("the server stops")
    await conversation.close()

    ends = [problem(chunks) for chunks in await asyncio.gather(*readings)]
    assert [end["detail"] for end in ends] == ["the server stops"] * 3
    with pytest.raises(Gone, match="the server stops"):
        conversation.turn(b"hello", "words")


async def test_the_death_of_an_agent_ends_its_active_turn_and_all_waiting_turns(new_queue: Talking) -> None:
    """AC-S3-10, for a reader: No reader waits for an agent that has ended."""
    conversation = new_queue()
    turns = [conversation.turn(body, "words") for body in (b"a die", b"b")]

    ends = [problem(await read(turn)) for turn in turns]

    assert ends[0]["detail"] == "echo: it died"
    assert ends[1] == {
        "type": "urn:ramet:problem:gone",
        "title": "Gone",
        "status": 410,
        "detail": "the agent has ended: it was told to (Crashed)",
    }
    with pytest.raises(Gone, match="it was told to"):
        conversation.turn(b"hello", "words")


async def test_a_turn_ends_with_its_agent_even_if_the_agent_type_hangs(new_queue: Talking, clock: FakeClock) -> None:
    """The turn is closed after the time limit, and its readers get the reason."""

    class Hanging(Echo):
        async def turn(self, body: bytes, format: str) -> AsyncIterator[bytes]:
            yield b"so far"
            await asyncio.Event().wait()

    agent = Hanging(opening())
    turn = new_queue(agent, patience_s=5).turn(b"hello", "words")
    await eventually(lambda: turn.readable_number == 1)
    agent.end.set_result(ErrorInfo(type="Crashed", message="killed by signal 9"))
    await eventually(lambda: clock.sleeping)

    await clock.advance(6)

    assert problem(await read(turn))["detail"] == "the agent has ended: killed by signal 9 (Crashed)"


async def test_a_turn_that_the_end_of_its_agent_cut_is_an_error(new_queue: Talking, agent: Echo) -> None:
    """The agent type ended the iteration as if the turn were complete."""
    turn = new_queue().turn(b"a wait", "words")
    await eventually(lambda: turn.readable_number == 1)

    await agent.close("killed")

    assert problem(await read(turn))["detail"] == "the agent has ended"


def test_a_batch_is_a_sequence_of_its_chunks() -> None:
    """A batch has the events of its chunks, of which the last one may be an error."""
    batch = Batch("t", 8, [b"a", b"b", b"{}"], "error")
    chunks = [Chunk("t", 8, "chunk", b"a"), Chunk("t", 9, "chunk", b"b"), Chunk("t", 10, "error", b"{}")]

    assert list(batch) == chunks == batch[:]
    assert (batch[0], batch[-1], batch[1:], batch.last) == (chunks[0], chunks[-1], chunks[1:], 10)
    assert batch.events == b"".join(encode(each.kind, each.body, f"t:{each.number}") for each in chunks)


async def test_a_slow_reader_delays_no_other_reader(new_queue: Talking) -> None:
    """AC-S3-12: While 10 MB pass, other readers and turns continue and memory is bounded.

    The slow reader gets Missed with the first number that is still there.
    """
    agent = FloodingEcho(10 * 1024 * 1024, 1_000)
    conversation = new_queue(agent, kept_bytes=1024 * 1024)
    tracemalloc.start()
    try:
        turn = conversation.turn(b"flood", "words")
        async with aclosing(chunks_of(turn)) as slow:
            first = await anext(slow)
            numbers = [chunk.number async for chunk in chunks_of(turn)]
            assert bodies_of(await read(conversation.turn(b"hello", "words"))) == [b"hello"]
            peak = tracemalloc.get_traced_memory()[1]
            rest: list[Chunk] = []
            with pytest.raises(Missed) as missed_error:
                await append_all(slow, rest)
    finally:
        tracemalloc.stop()

    assert numbers == list(range(1, turn.readable_number + 1))
    assert turn.readable_number == 10 * 1024 * 1024 // 1_000 + 1
    assert conversation.kept_bytes <= 1024 * 1024
    assert peak < 4 * 1024 * 1024
    assert [first.number, *(chunk.number for chunk in rest)] == list(range(1, len(rest) + 2))  # No gap before that.
    assert missed_error.value.first is not None
    assert (await read(turn, missed_error.value.first - 1))[0].number == missed_error.value.first


async def test_a_reader_of_dropped_chunks_gets_missed_at_once(new_queue: Talking) -> None:
    """A reader that asks for the beginning of a long answer does not get only its end."""
    conversation = new_queue(FloodingEcho(100_000, 1_000), kept_bytes=10 * (1_000 + CHUNK_BYTES))
    turn = conversation.turn(b"flood", "words")
    await turn.wait_ended()

    with pytest.raises(Missed, match="number 92"):
        chunks_of(turn)

    assert [chunk.number for chunk in await read(turn, 91)] == list(range(92, 102))


async def test_a_long_answer_drops_the_answers_before_it(new_queue: Talking) -> None:
    """One bound holds for all turns together; the oldest chunks go first."""
    conversation = new_queue(FloodingEcho(100_000, 1_000), kept_bytes=50_000)
    turns = [conversation.turn(body, "words") for body in (b"hello", b"flood", b"hello")]
    await turns[-1].wait_ended()

    with pytest.raises(Missed):
        chunks_of(conversation.get(turns[0].id))

    assert bodies_of(await read(turns[2])) == [b"hello"]
    assert conversation.kept_bytes <= 50_000


async def test_a_chunk_larger_than_the_buffer_ends_its_turn(new_queue: Talking) -> None:
    """The host does not split chunks, since it does not know their format."""
    conversation = new_queue(FloodingEcho(20_000, 10_000), kept_bytes=5_000)

    chunks = await read(conversation.turn(b"flood", "words"))

    assert problem(chunks)["status"] == 413
    assert bodies_of(await read(conversation.turn(b"hello", "words"))) == [b"hello"]


async def test_a_turn_of_many_small_chunks_is_bounded_too(new_queue: Talking) -> None:
    """The overhead of each chunk counts."""
    conversation = new_queue(FloodingEcho(80_000, 8), kept_bytes=100_000)
    turn = conversation.turn(b"flood", "words")
    await turn.wait_ended()

    assert len(await read(turn, turn.readable_number - 300)) == 300
    with pytest.raises(Missed):
        chunks_of(turn, turn.readable_number - 100_000 // CHUNK_BYTES - 1)
