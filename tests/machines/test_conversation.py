"""Turns are requested, answered, read, left, interrupted and forgotten in any order, between turns of the loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ramet.concurrency.clock import FakeClock
from ramet.core.errors import BusyError, Gone, ModelFailed
from ramet.core.outcome import ErrorInfo
from ramet.services.contract import Chunk
from ramet.services.errors import Missed
from ramet.services.turns.queue import TurnLimits, TurnQueue
from ramet.services.turns.turn import CHUNK_BYTES, OnLeave, Turn
from tests.support.turns import chunks_of

LIMITS = TurnLimits(waiting=3, kept_bytes=5 * CHUNK_BYTES, kept_turns=2, keep_s=10, patience_s=5)
indexes = st.integers(0, 11)


class Puppet:
    """Agent that follows orders, and obeys an interrupt only if it is not `deaf`."""

    run, isolation = "run", "none"

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.end: asyncio.Future[ErrorInfo | None] = loop.create_future()
        self.said: dict[bytes, list[bytes]] = {}
        self.begun: list[bytes] = []
        self.now: bytes | None = None
        self.orders: asyncio.Queue[str] = asyncio.Queue()
        self.deaf = False

    async def turn(self, body: bytes, format: str) -> AsyncIterator[bytes]:
        assert self.now is None, "two turns at a time"
        self.now, self.orders, self.said[body] = body, asyncio.Queue(), []
        self.begun.append(body)
        try:
            while (order := await self.orders.get()) != "finish":
                if order == "fail":
                    raise ModelFailed("puppet", "it was told to")
                self.said[body].append(order.encode())
                yield order.encode()
        finally:
            self.now = None

    async def interrupt(self) -> None:
        asked = self.now
        await asyncio.sleep(0)
        assert self.now in (asked, None), "an interrupt came to the wrong turn"
        if not self.deaf:
            self.orders.put_nowait("finish")

    async def control(self, operation: Any) -> Any: ...

    async def history(self) -> Sequence[Mapping[str, Any]]:
        return ()

    async def mail(self, text: str) -> None: ...

    def usage(self) -> Mapping[str, float]:
        return {}

    async def close(self, reason: str) -> None: ...


@dataclass(eq=False)
class Reader:
    """Reader of a turn from a chunk number on, with the chunks that it got."""

    turn: Turn
    after: int
    got: list[Chunk] = field(default_factory=list)
    missed: bool = False
    task: asyncio.Task[None] = field(init=False)

    async def read(self) -> None:
        try:
            async with contextlib.aclosing(chunks_of(self.turn, self.after)) as chunks:
                async for chunk in chunks:
                    self.got.append(chunk)
        except Missed:
            self.missed = True


class Talk(RuleBasedStateMachine):
    """Machine that moves the event loop only by a rule: acts between two turns of the loop meet in the next turn."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = FakeClock()
        self.puppet = Puppet(self.loop)
        self.conversation = TurnQueue(self.puppet, self.clock, LIMITS)
        self.asked: list[tuple[bytes, Turn]] = []
        self.readers: list[Reader] = []
        self.interrupts: list[asyncio.Task[bool]] = []
        self.is_closed = False

    def go_on(self) -> None:
        self.loop.call_soon(self.loop.stop)
        self.loop.run_forever()

    def do(self, work: Any) -> None:
        self.loop.run_until_complete(work)

    # --- what may happen ----------------------------------------------------------------------------------------------

    @rule(on_leave=st.sampled_from(("go_on", "interrupt")))
    def ask(self, on_leave: OnLeave) -> None:
        body = b"%d" % len(self.asked)
        is_full = self.conversation.waiting == LIMITS.waiting

        async def ask() -> Turn:
            return self.conversation.turn(body, "words", on_leave)

        try:
            turn = self.loop.run_until_complete(ask())
        except BusyError:
            assert is_full
        except Gone:
            assert self.is_closed
        else:
            assert not self.is_closed
            self.asked.append((body, turn))

    @precondition(lambda self: self.puppet.now is not None)
    @rule(order=st.sampled_from(("a", "b", "c" * CHUNK_BYTES, "fail", "finish")))
    def say(self, order: str) -> None:
        self.puppet.orders.put_nowait(order)

    @precondition(lambda self: self.asked)
    @rule(which=indexes, position=indexes)
    def read(self, which: int, position: int) -> None:
        _, turn = self.asked[-1 - which % len(self.asked)]
        reader = Reader(turn, min(position, turn.readable_number))
        reader.task = self.loop.create_task(reader.read())
        self.readers.append(reader)

    @precondition(lambda self: self.readers)
    @rule(which=indexes)
    def leave(self, which: int) -> None:
        self.readers[which % len(self.readers)].task.cancel()

    @rule(deaf=st.booleans())
    def interrupt(self, deaf: bool) -> None:
        self.puppet.deaf = deaf
        self.interrupts.append(self.loop.create_task(self.conversation.interrupt()))

    @precondition(lambda self: self.asked)
    @rule(which=indexes)
    def interrupt_one(self, which: int) -> None:
        _, turn = self.asked[-1 - which % len(self.asked)]
        if not turn.is_over:
            self.interrupts.append(self.loop.create_task(self.conversation.interrupt(turn.id)))

    @rule()
    def let_the_loop_turn(self) -> None:
        self.go_on()

    @rule(seconds=st.integers(0, 12))
    def wait(self, seconds: int) -> None:
        self.do(self.clock.advance(seconds))

    @precondition(lambda self: not self.is_closed)
    @rule()
    def end_the_agent(self) -> None:
        self.is_closed = True
        self.puppet.end.set_result(ErrorInfo(type="Crashed", message="it was told to"))

    # --- what holds ---------------------------------------------------------------------------------------------------

    @invariant()
    def queue_and_buffer_stay_bounded(self) -> None:
        assert self.conversation.waiting <= LIMITS.waiting
        assert 0 <= self.conversation.kept_bytes <= LIMITS.kept_bytes

    @invariant()
    def turns_begin_in_the_order_of_their_requests(self) -> None:
        numbers = [int(body) for body in self.puppet.begun]
        assert numbers == sorted(set(numbers))

    @invariant()
    def every_reader_reads_its_turn_without_gaps(self) -> None:
        bodies = {turn: body for body, turn in self.asked}
        for reader in self.readers:
            outputs = self.puppet.said.get(bodies[reader.turn], [])
            last = reader.got[-1:] if reader.got and reader.got[-1].kind != "chunk" else []
            whole = reader.got[: len(reader.got) - len(last)]
            assert [chunk.number for chunk in reader.got] == [reader.after + 1 + at for at in range(len(reader.got))]
            assert [chunk.body for chunk in whole] == outputs[reader.after : reader.after + len(whole)]
            if last:
                assert reader.after + len(whole) == len(outputs)
            task = reader.task
            if task.done() and not task.cancelled() and task.exception() is None:
                assert reader.missed or last or reader.after == reader.turn.readable_number

    def teardown(self) -> None:
        self.do(self.conversation.close())
        for task in (*self.interrupts, *(each.task for each in self.readers)):
            self.do(asyncio.wait({task}))
        for _ in range(20):
            self.go_on()
        assert all(turn.is_over for _, turn in self.asked)
        assert not asyncio.all_tasks(self.loop)
        self.every_reader_reads_its_turn_without_gaps()
        self.loop.close()


TestTalk = Talk.TestCase
