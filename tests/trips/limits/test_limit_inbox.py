"""The inbox lists runs that pause at limits: an approval adds exactly what lets them go on, a denial refuses."""

from __future__ import annotations

import asyncio
import pathlib
from functools import partial

import pytest
from langchain_core.messages import BaseMessage, ToolMessage

from ramet import workspace_tools
from ramet.agent.definition import Agent
from ramet.core.errors import BudgetExceeded, Unknown
from ramet.core.events import BudgetRefused, Event, LimitPaused, LimitsRaised, Notice, RunEnded
from ramet.core.limits import Amount, Limits
from ramet.core.outcome import Status
from ramet.core.policy.policy import Policy
from ramet.host.approvals import Pending
from ramet.host.runtime import AgentRuntime
from ramet.host.session import Session
from ramet.models.scripted.dialogue import Call, ReplyStep
from ramet.models.scripted.model import ScriptedModel
from ramet.store.memory import MemoryStore
from ramet.tools.spawn_request import SpawnRequest
from tests.support.cut_journals import cut_behind
from tests.support.waiting import eventually
from tests.trips.kits.pausing import noting, open_gate, paused, pausing, states
from tests.trips.kits.sessions import has_no_reservation, of_kind, run_of, session_events


def only(session: Session) -> Pending:
    """Return the only entry of a session's inbox."""
    (entry,) = session.approvals.pending
    return entry


async def test_an_approval_lets_exactly_the_refused_request_go_on() -> None:
    """The entry says what is asked and left, whose limit it is, the cost so far, and the smallest raise."""
    model = ScriptedModel(noting(9))
    async with Session(model, [open_gate().tool], limits=pausing(model_calls=2)) as session:
        turn = asyncio.create_task(session.ask("go"))
        handle = await paused(session)
        entry = only(session)
        assert (entry.kind, entry.run, entry.path, entry.agent) == ("limit", handle.id, "main", "main")
        assert (entry.tool, entry.args, entry.usage.model_calls) == ("", {}, 2)
        limit = entry.limit
        assert limit is not None
        assert (limit.resource, limit.asked, limit.left, limit.scope) == ("model_calls", 1, 0, "main")
        assert (limit.scope_run, limit.amount) == (handle.id, 1)
        assert limit.command == f"ramet raise {handle.id} --calls 1"

        session.approvals.answer(entry.id, True)
        await eventually(lambda: len(model.requests) == 3 and states(session) == {"main": "paused"})
        later = only(session)
        assert later.id != entry.id
        session.approvals.answer(entry.id, True)  # Once.
        assert only(session) == later
        assert [(each.add, each.key) for each in of_kind(session_events(session), LimitsRaised)] == [
            ({"model_calls": 1}, entry.id)
        ]
        with pytest.raises(Unknown):
            session.approvals.answer(entry.id, False)
        await session.cancel()
        await turn
        assert session.approvals.pending == ()
        with pytest.raises(Unknown):
            session.approvals.answer(later.id, True)


async def test_a_denied_request_ends_the_turn_as_a_limit_that_ends_does() -> None:
    """No last answer is asked for, the refusal is recorded with the reason, and the next turn may pause again."""
    model = ScriptedModel(noting(9))
    async with Session(model, [open_gate().tool], limits=pausing(model_calls=1)) as session:
        turn = asyncio.create_task(session.ask("go"))
        await paused(session)
        first = only(session)
        session.approvals.answer(first.id, False, "too dear")
        result = await turn
        assert (result.status, result.error and result.error.scope) == (Status.BUDGET_EXHAUSTED, "main")
        assert len(model.requests) == 1
        assert session.approvals.pending == ()
        events = session_events(session)
        assert {each.scope for each in of_kind(events, BudgetRefused)} == {"main"}
        assert len(of_kind(events, LimitPaused)) == 1
        assert any("too dear" in each.text for each in of_kind(events, Notice))
        assert has_no_reservation(session)

        turn = asyncio.create_task(session.ask("again"))
        await paused(session)
        session.approvals.answer(only(session).id, True)
        await eventually(lambda: len(model.requests) == 2)
        await session.cancel()
        await turn


async def test_the_calls_of_one_reply_are_one_entry() -> None:
    """One approval lets all of them run; one denial refuses all of them."""

    def reply(messages: list[BaseMessage]) -> ReplyStep:
        if isinstance(messages[-1], ToolMessage):
            return "done"
        return [Call("gate", {}), Call("gate", {}), Call("gate", {})]

    for allowed in (True, False):
        gate = open_gate()
        gate.tool.metadata = {"concurrency_safe": True}
        async with Session(ScriptedModel(reply), [gate.tool], limits=pausing(tool_calls=1)) as session:
            turn = asyncio.create_task(session.ask("go"))
            await paused(session)
            await eventually(lambda: len(run_of(session, "main").pauses.limit_waits) == 2)
            entry = only(session)
            assert entry.limit is not None
            assert (entry.limit.asked, entry.limit.amount) == (2, 2)
            session.approvals.answer(entry.id, allowed)
            result = await turn
            assert result.status is (Status.COMPLETED if allowed else Status.BUDGET_EXHAUSTED)
            assert result.usage.tool_calls == (3 if allowed else 1)
            assert len(of_kind(session_events(session), LimitPaused)) == 1
            assert has_no_reservation(session)


async def test_an_approval_lets_its_request_pass_those_before_it() -> None:
    """Only the child that was approved goes on, by one call; the others keep their order."""
    asked: list[str] = []

    def reply(messages: list[BaseMessage]) -> ReplyStep:
        asked.append(messages[-1].text)
        return "done"

    async with Session(ScriptedModel(reply), limits=pausing(model_calls=0)) as session:
        for number in range(3):
            await session.spawn(SpawnRequest(prompt=f"part {number}", mode="fresh", name=f"c{number}"))
            await paused(session, f"main/c{number}")
        entries = {str(each.path): each for each in session.approvals.pending}
        assert list(entries) == ["main/c0", "main/c1", "main/c2"]
        assert {each.limit.amount for each in entries.values() if each.limit is not None} == {1}
        session.approvals.answer(entries["main/c2"].id, True)
        await eventually(lambda: states(session)["main/c2"] == "completed")
        assert asked == ["part 2"]
        assert states(session)["main/c0"] == states(session)["main/c1"] == "paused"
        session.approvals.answer(entries["main/c1"].id, True)
        session.approvals.answer(entries["main/c0"].id, True)
        await eventually(lambda: len(asked) == 3)


async def test_a_scope_below_takes_the_amount_from_above_or_says_whose_limit_is_in_the_way() -> None:
    """A refused approval changes nothing, and can be repeated once the scope above has that much free."""
    agent = Agent(name="digger", description="Digs.", limits=Limits(model_calls=1))
    model = ScriptedModel({"": noting(3)})
    async with Session(model, [open_gate().tool], limits=pausing(model_calls=2)) as session:
        child = await session.spawn(SpawnRequest(prompt="dig", agent=agent, name="digger"))
        await paused(session, "main/digger")
        entry = only(session)
        assert entry.limit is not None
        assert (entry.limit.scope, entry.limit.scope_run) == ("main/digger", child.id)
        other = session.context.budget.reserve(Amount(model_calls=1))
        with pytest.raises(BudgetExceeded, match="budget of main:"):
            session.approvals.answer(entry.id, True)
        assert only(session).id == entry.id
        other.refund()
        session.approvals.answer(entry.id, True)
        await eventually(lambda: len(model.requests) == 2)


def _is_of(kind: type[Event], event: Event) -> bool:
    return isinstance(event, kind)


async def stored_session(runtime: AgentRuntime) -> Session:
    """Return a session that pauses at its third request."""
    limits = pausing(model_calls=2)
    model = ScriptedModel(noting(9))
    return await Session(model, [open_gate().tool], runtime=runtime, limits=limits, session_id="talk").start()


async def test_a_run_that_was_killed_at_its_limit_is_the_same_entry_in_the_next_process() -> None:
    """An approval of the first process holds in the second; the entry of the second has the same id."""
    store = MemoryStore()
    async with AgentRuntime(store=store) as first:
        session = await Session(
            ScriptedModel(noting(9)),
            [open_gate().tool],
            runtime=first,
            limits=pausing(model_calls=2),
            session_id="talk",
        ).start()
        turn = asyncio.create_task(session.ask("go"))
        await paused(session)
        entry = only(session)
        session.approvals.answer(entry.id, True)
        await eventually(lambda: session.usage.model_calls == 3 and states(session) == {"main": "paused"})
        await session.cancel()
        await turn

    for last, calls in ((LimitPaused, 2), (LimitsRaised, 3)):
        cut = await cut_behind(store, partial(_is_of, last), 1)
        async with AgentRuntime(store=cut) as second:
            again = await Session.resume("talk", ScriptedModel(noting(9)), [open_gate().tool], runtime=second)
            await eventually(lambda: states(again) == {"main": "paused"})  # noqa: B023
            assert again.usage.model_calls == calls
            assert (only(again).id == entry.id) is (last is LimitPaused)
            again.approvals.answer(entry.id, True)
            await eventually(lambda: states(again) == {"main": "paused"} and again.usage.model_calls == 3)  # noqa: B023
            assert len(of_kind(session_events(again), LimitsRaised)) == (last is LimitPaused)


async def test_a_denial_that_was_recorded_holds_after_a_kill() -> None:
    """The next process refuses the request without asking again."""
    store = MemoryStore()
    async with AgentRuntime(store=store) as first:
        session = await Session(
            ScriptedModel(noting(9)),
            [open_gate().tool],
            runtime=first,
            limits=pausing(model_calls=2),
            session_id="talk",
        ).start()
        turn = asyncio.create_task(session.ask("go"))
        await paused(session)
        session.approvals.answer(only(session).id, False)
        await turn
    cut = await cut_behind(store, lambda event: isinstance(event, BudgetRefused), 1)
    model = ScriptedModel(noting(9))
    async with AgentRuntime(store=cut) as second:
        again = await Session.resume("talk", model, [open_gate().tool], runtime=second)
        await eventually(lambda: states(again) == {"main": "idle"})
        assert again.result is not None
        assert again.result.status is Status.BUDGET_EXHAUSTED
        assert model.requests == []
        assert len(of_kind(session_events(again), BudgetRefused)) >= 1
        assert again.approvals.pending == ()


@pytest.mark.parametrize("what", ["request", "calls"])
async def test_a_conversation_in_a_sandbox_that_gave_its_process_up_is_denied(
    tmp_path: pathlib.Path, what: str
) -> None:
    """The turn ends without another process, and nothing is held."""
    limits = pausing(model_calls=1) if what == "request" else pausing(tool_calls=1)
    calls = [Call("Glob", {"pattern": "a"}), Call("Glob", {"pattern": "b"})]
    model = ScriptedModel([calls[:1] if what == "request" else calls, "done"])
    async with AgentRuntime(tmp_path, backend="local") as runtime:
        session = await Session(
            model, workspace_tools(), runtime=runtime, root_policy=Policy(), unattended=True, limits=limits
        ).start()
        turn = asyncio.create_task(session.ask("Go."))
        await paused(session)
        session.approvals.answer(only(session).id, False)
        result = await turn
        assert result.status is Status.BUDGET_EXHAUSTED
        assert len(model.requests) == (1 if what == "request" else 2)  # A last word, which no limit of calls forbids.
        assert has_no_reservation(session)
        assert not of_kind(session_events(session), RunEnded)
