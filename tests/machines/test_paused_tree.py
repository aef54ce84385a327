"""Pauses, raises, cuts and cancels in a real tree with few slots, little room and small limits.

The acts come in any order and between any two turns of the event loop. The oracle knows only which calls of a tool are
under way, who was paused, and how much was granted.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from langchain_core.messages import BaseMessage

from ramet.core.errors import BudgetExceeded, InvalidValue, SpawnRefused
from ramet.core.lifecycle import State
from ramet.core.limits import Limits, SpawnLimits
from ramet.core.outcome import Result, Status
from ramet.host.session import Session
from ramet.models.scripted.dialogue import Call, ReplyStep
from ramet.models.scripted.model import ScriptedModel
from ramet.spawn.run import Run
from ramet.tools.context import current
from ramet.tools.spawn_request import SpawnRequest
from tests.trips.kits.sessions import (
    GENERAL_PURPOSE,
    async_tool,
    brief_of,
    has_no_reservation,
    open_tree_of,
    specialist_call,
)

#: Turns of the loop after which nothing moves any more without an act.
IDLE_TURNS = 100
#: A plan is a list of replies, and a reply a list of calls: "gate", or the plan of a child that its caller waits for.
PLANS: list[Any] = [
    [["gate"]],
    [["gate"], ["gate"]],
    [["gate", "gate"]],
    [[[["gate"]]], ["gate"]],
    [["gate", [["gate"]]], [[["gate"]], [["gate"]]]],
    [[[[[["gate"]]], ["gate"]]]],
]
indexes = st.integers(0, 11)


def reply(messages: list[BaseMessage]) -> ReplyStep:
    """Reply as the plan in the run's prompt says."""
    plan, done = json.loads(brief_of(messages)), sum(message.type == "ai" for message in messages)
    if done >= len(plan):
        return "done"
    return [Call("gate", {}) if each == "gate" else specialist_call(json.dumps(each)) for each in plan[done]]


class PausedTree(RuleBasedStateMachine):
    """Machine that moves the event loop only by a rule."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.gates: list[tuple[str, asyncio.Future[None]]] = []  #: path of the run of each call of the tool
        self.paused: set[Run] = set()
        self.acts: list[asyncio.Task[None]] = []
        self.spawns: list[asyncio.Task[None]] = []
        self.results: list[asyncio.Task[Result]] = []
        self.cancelled: set[Run] = set()
        self.session: Session | None = None

    @initialize(
        running=st.integers(1, 3),
        children=st.integers(1, 3),
        runs=st.integers(2, 6),
        calls=st.integers(2, 12),
        agents=st.integers(0, 6),
        plan=st.sampled_from(PLANS),
    )
    def begin(self, running: int, children: int, runs: int, calls: int, agents: int, plan: Any) -> None:
        async def gate() -> str:
            """Wait."""
            future = asyncio.get_running_loop().create_future()
            self.gates.append((str(current().run.path), future))
            await future
            return "open"

        self.shape = SpawnLimits(running=running, children=children, runs=runs, depth=6)
        self.granted = {"model_calls": calls, "agents": agents}
        self.model = ScriptedModel(reply)
        self.session = Session(
            self.model,
            [async_tool(gate, concurrency_safe=True)],
            limits=Limits(model_calls=calls, agents=agents, at_limit="pause"),
            spawn_limits=self.shape,
        )
        self.loop.run_until_complete(self.session.start())
        self.register = open_tree_of(self.session).tree.register
        self.slots, self.admission = self.register.slots, self.register.admission
        self.turn_of_root = self.loop.create_task(self.session.ask(json.dumps(plan)))

    # --- what the oracle sees -----------------------------------------------------------------------------------------

    @property
    def living(self) -> list[Run]:
        return [] if self.session is None else list(self.register.living())

    @property
    def working(self) -> list[tuple[str, asyncio.Future[None]]]:
        """The calls of the tool that are under way."""
        return [each for each in self.gates if not each[1].done()]

    def is_covered(self, run: Run) -> bool:
        return any(each in self.paused and each.is_living for each in run.lineage())

    def pick(self, which: int) -> Run:
        return self.living[which % len(self.living)]

    def turn(self, times: int = 1) -> None:
        for _ in range(times):
            self.loop.call_soon(self.loop.stop)
            self.loop.run_forever()
            self.check_slots()

    def act(self, act: Coroutine[Any, Any, None]) -> None:
        """Begin an act, which happens in the next turn of the loop."""
        self.acts.append(self.loop.create_task(act))

    # --- what may happen ----------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.spawns) < 4)
    @rule(plan=st.sampled_from(PLANS), calls=st.none() | st.integers(0, 2))
    def spawn(self, plan: Any, calls: int | None) -> None:
        async def spawn() -> None:
            assert self.session is not None
            own = Limits() if calls is None else Limits(model_calls=calls, at_limit="pause")
            request = SpawnRequest(prompt=json.dumps(plan), subagent_type=GENERAL_PURPOSE, limits=own)
            try:
                handle = await self.session.spawn(request)
            except SpawnRefused as refusal:
                if refusal.limit in ("children", "runs"):
                    return  # Only runs that wait for a spawn could make room.
                raise
            self.results.append(self.loop.create_task(handle.result()))

        self.spawns.append(self.loop.create_task(spawn()))

    @precondition(lambda self: self.working)
    @rule(which=indexes)
    def end_call(self, which: int) -> None:
        """End one call of the tool."""
        self.working[which % len(self.working)][1].set_result(None)

    @precondition(lambda self: self.living)
    @rule(which=indexes, now=st.booleans())
    def pause(self, which: int, now: bool) -> None:
        assert self.session is not None
        run, handle = self.pick(which), self.session.handle(self.pick(which).info.id)

        async def pause() -> None:
            if run.is_living:
                self.paused.add(run)
                await handle.pause("wait", now=now)

        self.act(pause())

    @precondition(lambda self: self.paused)
    @rule(which=indexes)
    def resume(self, which: int) -> None:
        self.resume_run(sorted(self.paused, key=lambda run: run.path)[which % len(self.paused)])

    def resume_run(self, run: Run) -> None:
        assert self.session is not None
        handle = self.session.handle(run.info.id)

        async def resume() -> None:
            if run.is_living and run in self.paused:
                await handle.resume()
            self.paused.discard(run)

        self.act(resume())

    @precondition(lambda self: self.living)
    @rule(which=indexes, resource=st.sampled_from(["model_calls", "agents"]), amount=st.integers(1, 3))
    def raise_limits(self, which: int, resource: str, amount: int) -> None:
        run = self.pick(which)

        async def raise_limits() -> None:
            assert self.session is not None
            try:
                await self.session.handle(run.info.id).raise_limits(Limits(**{resource: amount}))  # type: ignore[arg-type]  # a whole number
            except (BudgetExceeded, InvalidValue):
                return  # The run above has not that much, or this one has no such limit of its own.
            if run.parent is None:
                self.granted[resource] += amount

        self.act(raise_limits())

    @precondition(lambda self: len(self.living) > 1)
    @rule(which=indexes)
    def cancel(self, which: int) -> None:
        run = self.living[1:][which % (len(self.living) - 1)]
        self.cancelled.add(run)

        async def cancel() -> None:
            assert self.session is not None
            await self.session.handle(run.info.id).cancel()

        self.act(cancel())

    @rule(times=st.sampled_from([1, 1, 2, 5, 20]))
    def some_turns(self, times: int) -> None:
        self.turn(times)

    @rule()
    def settle(self) -> None:
        """Check, once the loop is idle, that only runs with a call under way hold a slot; none waits without need."""
        self.turn(IDLE_TURNS)
        for each in self.acts:
            assert each.done(), "an act did not end"
            each.result()
        root = self.living[0]
        may_wait = self.is_covered(root) or root.pauses.limit_waits or self.admission.queue_length
        assert may_wait or all(each.done() for each in self.spawns), "a spawn waits without need"
        working = {path for path, _ in self.working}
        holding = {str(run.path) for run in self.living if run.context.slot.is_held}
        assert holding == working
        assert self.slots.in_use == len(working)
        assert not self.slots.queue_length or self.slots.in_use == self.shape.running, "a lost wake-up"
        if not self.slots.queue_length:  # Otherwise a spawn that found room may wait for the slot of its caller.
            assert self.admission.slot_count == len(self.living), "a spawn that waits holds room"
        is_full = len(self.living) >= self.shape.runs or any(self.is_full(run) for run in self.living)
        assert not self.admission.queue_length or is_full, "a spawn waits for room that is free"
        for run in self.living:
            if self.is_covered(run):
                is_in_line = run.state is State.STARTING and self.slots.queue_length
                assert run.state in (State.PAUSED, State.IDLE) or is_in_line or str(run.path) in working
            elif run.state is State.PAUSED:
                assert run.pauses.refusal is not None, "a pause that nobody asked for"

    def is_full(self, run: Run) -> bool:
        return sum(each.parent is run for each in self.living) >= self.shape.children

    # --- what holds at all times --------------------------------------------------------------------------------------

    @invariant()
    def slots_are_bounded(self) -> None:
        if self.session is not None:
            self.check_slots()

    def check_slots(self) -> None:
        """Check that no more runs work than there are slots, and that no paused one holds one."""
        assert self.shape.running is not None
        assert len({path for path, _ in self.working}) <= self.shape.running
        held = sum(run.context.slot.is_held for run in self.living)
        assert held <= self.slots.in_use <= self.shape.running
        assert not any(run.context.slot.is_held for run in self.living if run.state is State.PAUSED)
        assert len(self.model.requests) <= self.granted["model_calls"], "more requests than were granted"
        assert len(self.register.runs) - 1 <= self.granted["agents"], "more agents than were granted"
        assert len(self.living) <= self.admission.slot_count <= self.shape.runs

    def teardown(self) -> None:
        """Check that every run ends once all pauses end, all limits are raised, and all calls end."""
        if self.session is None:
            self.loop.close()
            return
        try:
            self.turn(IDLE_TURNS)
            for run in sorted(self.paused, key=lambda run: run.path):
                self.resume_run(run)
            self.raise_everything()
            for _ in range(200):
                self.turn(IDLE_TURNS)
                if self.turn_of_root.done() and len(self.living) == 1 and all(each.done() for each in self.spawns):
                    break
                for _, future in self.working:
                    future.set_result(None)
                if not self.working:
                    self.raise_everything()
            assert self.turn_of_root.done(), "a deadlock"
            assert len(self.living) == 1, "a deadlock"
            assert self.turn_of_root.result().status is Status.COMPLETED
            ended = [each.result().status for each in self.results]
            assert ended.count(Status.COMPLETED) >= len(ended) - len(self.cancelled)
            assert set(ended) <= {Status.COMPLETED, Status.CANCELLED}
            assert (self.slots.in_use, self.slots.queue_length) == (0, 0)
            assert has_no_reservation(self.session)
        finally:
            self.loop.run_until_complete(self.session.close())
            self.loop.close()

    def raise_everything(self) -> None:
        """Raise every limit so that nothing waits for more."""

        async def raise_limits(run: Run) -> None:
            assert self.session is not None
            is_root = run.parent is None
            more = Limits(model_calls=1_000, agents=1_000) if is_root else Limits(model_calls=20)
            try:
                await self.session.handle(run.info.id).raise_limits(more)
            except InvalidValue:
                return  # It has no limits of its own, or has ended.
            if is_root:
                self.granted = {resource: amount + 1_000 for resource, amount in self.granted.items()}

        self.act(raise_limits(self.living[0]))
        self.turn(IDLE_TURNS)
        for run in self.living[1:]:
            self.act(raise_limits(run))
        self.turn(IDLE_TURNS)


TestPausedTree = PausedTree.TestCase
TestPausedTree.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
