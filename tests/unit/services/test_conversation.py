"""Turns of one agent: in order, bounded, read by many, and none of them lost without a word."""

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
from ramet.services.turns.turn import CHUNK_BYTES, Turn
from tests.support.echo_agents import Echo, EchoInfo
from tests.support.waiting import eventually


def opening() -> AgentSpec:
    """Of an agent that needs nothing of it."""
    return AgentSpec("agent-1", "echo", "team/echo", EchoInfo(), AgentRuntime(), pathlib.Path())


Talking = Callable[..., TurnQueue]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def agent() -> Echo:
    return Echo(opening())


@pytest.fixture
async def talking(agent: Echo, clock: FakeClock) -> AsyncIterator[Talking]:
    """Makes conversations, and closes them."""
    made: list[TurnQueue] = []

    def make(served: Any = agent, **limits: Any) -> TurnQueue:
        made.append(TurnQueue(served, clock, TurnLimits(**limits)))
        return made[-1]

    yield make
    for each in made:
        await each.close()


async def read(turn: Turn, after: int = 0) -> list[Chunk]:
    """A turn to its end."""
    return [chunk async for chunk in turn.read(after)]


async def append_all(chunks: AsyncIterator[Chunk], to: list[Chunk]) -> None:
    async for chunk in chunks:
        to.append(chunk)


def said(chunks: list[Chunk]) -> list[bytes]:
    return [chunk.body for chunk in chunks if chunk.kind == "chunk"]


def problem(chunks: list[Chunk]) -> Any:
    """What the error chunk at the end says."""
    assert chunks[-1].kind == "error"
    assert [chunk.kind for chunk in chunks[:-1]] == ["chunk"] * (len(chunks) - 1)
    return json.loads(chunks[-1].body)


class Flood(Echo):
    """Says so many bytes, in pieces, as fast as it can, never waiting for anything."""

    def __init__(self, size: int, piece: int) -> None:
        super().__init__(opening())
        self.size, self.piece = size, piece

    async def turn(self, body: bytes, format: str) -> AsyncIterator[bytes]:
        if body == b"hello":
            yield body
            return
        for number in range(self.size // self.piece):
            yield number.to_bytes(8, "big") + bytes(self.piece - 8)


async def test_a_turn_is_chunks_numbered_from_1_and_then_done(talking: Talking) -> None:
    """AC-S3-5."""
    turn = talking().turn(b"one two three", "words")

    assert await read(turn) == [
        Chunk(turn.id, 1, "chunk", b"one"),
        Chunk(turn.id, 2, "chunk", b"two"),
        Chunk(turn.id, 3, "chunk", b"three"),
        Chunk(turn.id, 4, "done", b""),
    ]


async def test_an_error_is_the_last_chunk_after_what_was_said(talking: Talking) -> None:
    """AC-S3-5."""
    conversation = talking()

    chunks = await read(conversation.turn(b"one fail two", "words"))

    assert said(chunks) == [b"one"]
    assert problem(chunks) == {
        "type": "urn:ramet:problem:model-failed",
        "title": "Model failed",
        "status": 502,
        "detail": "echo: it was told to",
        "model": "echo",
        "retryable": False,
        "retry_after_s": None,
    }
    assert said(await read(conversation.turn(b"again", "words"))) == [b"again"]


async def test_a_bug_of_an_agent_type_says_nothing_of_the_inside(
    talking: Talking, caplog: pytest.LogCaptureFixture
) -> None:
    """The client hears that it failed, the operator's log why."""

    class Broken(Echo):
        async def turn(self, body: bytes, format: str) -> AsyncIterator[bytes]:
            yield b"so far"
            raise KeyError("secret")

    chunks = await read(talking(Broken(opening())).turn(b"hello", "words"))

    assert said(chunks) == [b"so far"]
    assert problem(chunks)["status"] == 500
    assert b"secret" not in chunks[-1].body
    assert "secret" in caplog.text


async def test_turns_are_answered_one_at_a_time_in_their_order(talking: Talking, agent: Echo) -> None:
    """AC-S3-5: those that came while another was under way follow it, each byte for byte and in its own format."""
    conversation = talking()
    turns = [conversation.turn(b"wait %d" % number, format) for number, format in enumerate(("words", "letters") * 4)]
    readings = [asyncio.create_task(read(turn)) for turn in reversed(turns)]
    await eventually(lambda: agent.heard)
    assert agent.heard == [(b"wait 0", "words")]
    assert conversation.waiting == 7

    agent.go_on.set()
    answers = [said(chunks) for chunks in await asyncio.gather(*readings)]

    assert agent.heard == [(b"wait %d" % n, "letters" if n % 2 else "words") for n in range(8)]
    assert answers == [[b"wait", b"%d" % number] for number in reversed(range(8))]


async def test_more_than_may_wait_are_refused_and_nothing_else_happens(talking: Talking, agent: Echo) -> None:
    """The bound is named; those that wait are answered."""
    conversation = talking(waiting=2)
    turns = [conversation.turn(b"wait", "words") for _ in range(3)]

    with pytest.raises(BusyError, match="2 turns wait"):
        conversation.turn(b"hello", "words")

    agent.go_on.set()
    for turn in turns:
        assert said(await read(turn)) == [b"wait"]
    assert said(await read(conversation.turn(b"hello", "words"))) == [b"hello"]


async def test_what_waits_is_bounded_in_bytes(talking: Talking, agent: Echo) -> None:
    """Of few large bodies fewer wait."""
    conversation = talking(body_bytes=1_000, waiting_bytes=1_500)
    conversation.turn(b"wait", "words")
    conversation.turn(bytes(1_000), "words")

    with pytest.raises(BusyError, match="1500 bytes"):
        conversation.turn(bytes(501), "words")

    conversation.turn(bytes(500), "words")
    agent.go_on.set()


async def test_a_body_over_the_cap_is_refused_by_name(talking: Talking, agent: Echo) -> None:
    """The error says the cap; one byte less is taken."""
    conversation = talking(body_bytes=10)

    with pytest.raises(BodyTooLarge, match="at most 10 bytes") as refusal:
        conversation.turn(b"x" * 11, "words")

    assert (refusal.value.field, refusal.value.size, refusal.value.limit) == ("body", 11, 10)
    assert said(await read(conversation.turn(b"x" * 10, "words"))) == [b"x" * 10]


async def test_what_becomes_of_a_left_turn_is_one_of_two_things(talking: Talking) -> None:
    """A third is refused."""
    with pytest.raises(InvalidValue, match="go_on or interrupt"):
        talking().turn(b"hello", "words", "explode")  # type: ignore[arg-type]


async def test_several_readers_read_the_same_from_where_they_want(talking: Talking, agent: Echo) -> None:
    """AC-S3-5: one that comes in the middle gets what was said, then what comes."""
    turn = talking().turn(b"a b wait c", "words")
    readers = [asyncio.create_task(read(turn))]
    await eventually(lambda: turn.readable_number == 2)
    readers += [asyncio.create_task(read(turn, after)) for after in (0, 1, 2)]
    agent.go_on.set()

    chunks = await asyncio.gather(*readers)

    assert said(chunks[0]) == [b"a", b"b", b"wait", b"c"]
    assert chunks[1] == chunks[0]
    assert chunks[2] == chunks[0][1:]
    assert chunks[3] == chunks[0][2:]
    assert await read(turn, 5) == []


async def test_readers_at_the_same_place_share_what_is_sent_to_them(talking: Talking) -> None:
    """A hundred readers cost one encoding; who is at another place gets what is behind that."""
    turn = talking().turn(b"one two three", "words")
    await turn.wait_ended()

    async with aclosing(turn.batches()) as one, aclosing(turn.batches()) as two, aclosing(turn.batches(2)) as late:
        first, same, rest = [await anext(each) for each in (one, two, late)]

    assert first.events is same.events
    assert first.events.endswith(rest.events)
    assert [each.number for each in rest] == [3, 4]


@pytest.mark.parametrize("after", [-1, 3])
async def test_a_number_that_a_turn_has_not_come_to_is_refused(talking: Talking, after: int) -> None:
    """Not taken for its end, nor for its beginning."""
    turn = talking().turn(b"hello", "words")
    await turn.wait_ended()

    with pytest.raises(InvalidValue, match="from 0 to 2"):
        turn.read(after)


async def test_a_turn_whose_reader_goes_is_finished_and_read_again(talking: Talking, agent: Echo) -> None:
    """AC-S3-5: a client that lost its connection goes on behind what it has."""
    conversation = talking()
    turn = conversation.turn(b"a wait b", "words")
    async with aclosing(turn.read()) as chunks:
        first = await anext(chunks)
    agent.go_on.set()
    await turn.wait_ended()

    again = await read(conversation.get(first.turn), first.number)

    assert said(again) == [b"wait", b"b"]
    assert again[-1].kind == "done"
    assert agent.interrupts == 0


async def test_a_turn_that_is_not_to_outlive_its_client_is_interrupted(talking: Talking, agent: Echo) -> None:
    """AC-S3-5: when the last of its readers has left, not before; the next turn follows."""
    conversation = talking()
    turn = conversation.turn(b"a wait b", "words", "interrupt")
    following = conversation.turn(b"next", "words")
    stays = turn.read()
    async with aclosing(turn.read()) as chunks:
        await anext(stays)
        await anext(chunks)
    for _ in range(10):
        await asyncio.sleep(0)
    before = agent.interrupts

    await stays.aclose()
    await turn.wait_ended()

    assert (before, agent.interrupts) == (0, 1)
    assert problem(await read(turn))["type"] == "urn:ramet:problem:aborted"
    assert said(await read(following)) == [b"next"]


async def test_a_waiting_turn_whose_client_goes_is_never_begun(talking: Talking, agent: Echo) -> None:
    """It was asked not to outlive its client; the others keep their order."""
    conversation = talking()
    conversation.turn(b"wait", "words")
    turn = conversation.turn(b"mine", "words", "interrupt")
    last = conversation.turn(b"last", "words")
    reading = asyncio.create_task(read(turn))
    await eventually(lambda: agent.heard)
    reading.cancel()
    await asyncio.wait({reading})
    assert turn.is_over
    assert conversation.waiting == 1

    agent.go_on.set()

    assert said(await read(last)) == [b"last"]
    assert [body for body, _ in agent.heard] == [b"wait", b"last"]


async def test_a_turn_is_kept_for_its_time_and_then_expires(talking: Talking, clock: FakeClock) -> None:
    """Who comes too late is told so; a turn that never was is unknown."""
    conversation = talking(keep_s=60)
    turn = conversation.turn(b"hello", "words")
    await turn.wait_ended()
    await clock.advance(59)
    assert said(await read(conversation.get(turn.id))) == [b"hello"]

    await clock.advance(2)

    with pytest.raises(Missed, match="nothing of it is kept"):
        conversation.get(turn.id)
    assert conversation.kept_bytes == 0
    for id in (turn.id + "0", "turn-1", "", turn.id.replace("-", ":"), turn.id[:-1] + "²", turn.id[:-1] + "01"):
        with pytest.raises(Unknown):
            conversation.get(id)


async def test_only_the_last_turns_are_kept(talking: Talking) -> None:
    """However soon they follow each other."""
    conversation = talking(kept_turns=2)
    turns = [conversation.turn(b"%d" % number, "words") for number in range(4)]
    await turns[-1].wait_ended()

    for turn in turns[:2]:
        with pytest.raises(Missed):
            conversation.get(turn.id)
    assert [said(await read(conversation.get(turn.id))) for turn in turns[2:]] == [[b"2"], [b"3"]]


async def test_interrupting_ends_the_turn_under_way_and_no_other(talking: Talking, agent: Echo) -> None:
    """AC-S3-5: what was said stands, those that wait follow, and again means nothing."""
    conversation = talking()
    turn, following = (conversation.turn(body, "words") for body in (b"a wait", b"next"))
    await eventually(lambda: turn.readable_number == 1)

    assert all(await asyncio.gather(conversation.interrupt(), conversation.interrupt()))

    assert turn.is_over
    assert problem(await read(turn))["detail"] == "the turn was interrupted"
    assert said(await read(following)) == [b"next"]
    assert await conversation.interrupt() is False
    assert agent.interrupts == 1


async def test_an_interrupt_that_comes_too_late_changes_nothing(talking: Talking) -> None:
    """The agent has come to its end, of which nobody has been told yet: what it said is whole."""
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
    conversation = talking(prompt)

    chunks = await read(conversation.turn(b"hello", "words"))

    assert [chunk.kind for chunk in chunks] == ["chunk", "done"]
    assert (answers, prompt.interrupts) == ([False], 0)


async def test_one_turn_of_several_can_be_interrupted(talking: Talking, agent: Echo) -> None:
    """By its id: one that waits is never begun, nobody else's is hit, and one that is over is left as it is."""
    conversation = talking()
    first, second, third = (conversation.turn(body, "words") for body in (b"a wait", b"b", b"c wait"))
    await eventually(lambda: first.readable_number == 1)

    assert await conversation.interrupt(second.id)
    assert (first.is_over, second.is_over, conversation.waiting) == (False, True, 1)
    assert await conversation.interrupt(first.id)
    assert not await conversation.interrupt(first.id)

    assert said(await read(third)) == [b"c", b"wait"]
    assert [body for body, _ in agent.heard] == [b"a wait", b"c wait"]
    assert agent.interrupts == 1
    with pytest.raises(Unknown):
        await conversation.interrupt("turn-1")


async def test_an_agent_that_does_not_hear_the_interrupt_is_left(talking: Talking, clock: FakeClock) -> None:
    """After its time the iteration is left, which is what the contract says interrupts a turn."""

    class Deaf(Echo):
        left = False

        async def turn(self, body: bytes, format: str) -> AsyncIterator[bytes]:
            yield b"so far"
            try:
                await asyncio.Event().wait()
            finally:
                self.left = True

    deaf = Deaf(opening())
    conversation = talking(deaf, patience_s=5)
    turn = conversation.turn(b"hello", "words")
    await eventually(lambda: turn.readable_number == 1)
    interrupting = asyncio.create_task(conversation.interrupt())
    await eventually(lambda: clock.sleeping)

    await clock.advance(6)

    assert await interrupting
    assert deaf.left
    assert problem(await read(turn))["detail"] == "the turn was interrupted"


async def test_the_next_turn_does_not_hear_the_interrupt_of_the_last(talking: Talking) -> None:
    """It begins when the agent has done with that, though the interrupted one ended before."""

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

    conversation = talking(Slow(opening()))
    turn, following = (conversation.turn(body, "words") for body in (b"a wait", b"next"))
    await eventually(lambda: turn.readable_number == 1)

    assert await conversation.interrupt()

    assert [chunk.kind for chunk in await read(following)] == ["chunk", "done"]


async def test_closing_ends_every_turn_for_every_reader(talking: Talking) -> None:
    """The one under way and those that wait; nothing can be asked any more, and again means nothing."""
    conversation = talking()
    turns = [conversation.turn(body, "words") for body in (b"a wait", b"b", b"c")]
    readings = [asyncio.create_task(read(turn)) for turn in turns]
    await eventually(lambda: turns[0].readable_number == 1)

    await conversation.close("the server stops")
    await conversation.close()

    ends = [problem(chunks) for chunks in await asyncio.gather(*readings)]
    assert [end["detail"] for end in ends] == ["the server stops"] * 3
    with pytest.raises(Gone, match="the server stops"):
        conversation.turn(b"hello", "words")


async def test_when_the_agent_dies_its_turn_says_why_and_the_others_end(talking: Talking) -> None:
    """AC-S3-10, seen by a reader: nobody waits for an agent that is not there."""
    conversation = talking()
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


async def test_a_turn_in_which_the_agent_ends_is_over_though_its_type_says_nothing(
    talking: Talking, clock: FakeClock
) -> None:
    """A turn that hangs in an agent that is not there any more is left; its readers are told."""

    class Hanging(Echo):
        async def turn(self, body: bytes, format: str) -> AsyncIterator[bytes]:
            yield b"so far"
            await asyncio.Event().wait()

    agent = Hanging(opening())
    turn = talking(agent, patience_s=5).turn(b"hello", "words")
    await eventually(lambda: turn.readable_number == 1)
    agent.ended.set_result(ErrorInfo(type="Crashed", message="killed by signal 9"))
    await eventually(lambda: clock.sleeping)

    await clock.advance(6)

    assert problem(await read(turn))["detail"] == "the agent has ended: killed by signal 9 (Crashed)"


async def test_a_turn_that_the_end_of_its_agent_cut_is_not_called_done(talking: Talking, agent: Echo) -> None:
    """Its type let the iteration end as if nothing were."""
    turn = talking().turn(b"a wait", "words")
    await eventually(lambda: turn.readable_number == 1)

    await agent.close("killed")

    assert problem(await read(turn))["detail"] == "the agent has ended"


async def test_a_reader_that_does_not_read_stalls_nobody(talking: Talking) -> None:
    """AC-S3-12: 10 MB go by; the agent goes on to its next turn, others read all, memory stays bounded, and the slow
    one is told that it missed something, and what is still there."""
    agent = Flood(10 * 1024 * 1024, 1_000)
    conversation = talking(agent, kept_bytes=1024 * 1024)
    tracemalloc.start()
    try:
        turn = conversation.turn(b"flood", "words")
        async with aclosing(turn.read()) as slow:
            first = await anext(slow)
            numbers = [chunk.number async for chunk in turn.read()]
            assert said(await read(conversation.turn(b"hello", "words"))) == [b"hello"]
            peak = tracemalloc.get_traced_memory()[1]
            rest: list[Chunk] = []
            with pytest.raises(Missed) as missed:
                await append_all(slow, rest)
    finally:
        tracemalloc.stop()

    assert numbers == list(range(1, turn.readable_number + 1))
    assert turn.readable_number == 10 * 1024 * 1024 // 1_000 + 1
    assert conversation.kept_bytes <= 1024 * 1024
    assert peak < 4 * 1024 * 1024
    assert [first.number, *(chunk.number for chunk in rest)] == list(range(1, len(rest) + 2))  # No gap before that.
    assert missed.value.first is not None
    assert (await read(turn, missed.value.first - 1))[0].number == missed.value.first


async def test_what_fell_out_of_the_buffer_is_missed_at_once(talking: Talking) -> None:
    """Who asks for the beginning of a long answer is not given its end."""
    conversation = talking(Flood(100_000, 1_000), kept_bytes=10 * (1_000 + CHUNK_BYTES))
    turn = conversation.turn(b"flood", "words")
    await turn.wait_ended()

    with pytest.raises(Missed, match="number 92"):
        turn.read()

    assert [chunk.number for chunk in await read(turn, 91)] == list(range(92, 102))


async def test_a_long_answer_drives_out_the_answers_before_it(talking: Talking) -> None:
    """The bound is for all turns together; the oldest go first."""
    conversation = talking(Flood(100_000, 1_000), kept_bytes=50_000)
    turns = [conversation.turn(body, "words") for body in (b"hello", b"flood", b"hello")]
    await turns[-1].wait_ended()

    with pytest.raises(Missed):
        conversation.get(turns[0].id).read()

    assert said(await read(turns[2])) == [b"hello"]
    assert conversation.kept_bytes <= 50_000


async def test_a_chunk_that_fits_into_no_buffer_ends_its_turn(talking: Talking) -> None:
    """It is not cut in pieces: the host does not know what it is."""
    conversation = talking(Flood(20_000, 10_000), kept_bytes=5_000)

    chunks = await read(conversation.turn(b"flood", "words"))

    assert problem(chunks)["status"] == 413
    assert said(await read(conversation.turn(b"hello", "words"))) == [b"hello"]


async def test_a_turn_of_nothing_but_small_pieces_is_bounded_too(talking: Talking) -> None:
    """What holds a chunk together counts."""
    conversation = talking(Flood(80_000, 8), kept_bytes=100_000)
    turn = conversation.turn(b"flood", "words")
    await turn.wait_ended()

    assert len(await read(turn, turn.readable_number - 300)) == 300
    with pytest.raises(Missed):
        turn.read(turn.readable_number - 100_000 // CHUNK_BYTES - 1)
