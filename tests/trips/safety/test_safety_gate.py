"""AC-S3-11, NEG-12: a call is intended, voted on and decided before it runs. An unreachable part means no."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from ramet.concurrency.clock import FakeClock
from ramet.core.errors import StoreFailed
from ramet.core.events import (
    ApprovalAsked,
    Event,
    IntentionDecided,
    IntentionRecorded,
    ToolEnded,
    ToolStarted,
    decode,
)
from ramet.core.outcome import Status
from ramet.core.safety import SafetyPolicy, Vote, VoterAnswer
from ramet.host.runtime import AgentRuntime
from ramet.host.safety.gate import SafetyGate
from ramet.host.safety.policies import POLICY as KIND
from ramet.host.safety.policies import SafetyPolicies
from ramet.host.session import Session
from ramet.models.scripted.model import ScriptedModel
from ramet.store.contract import Entry, Store
from ramet.store.memory import MemoryStore
from ramet.store.sqlite.store import SqliteStore
from tests.support.waiting import eventually
from tests.trips.kits.safety import ALL, ASK, DELETE, LOOK, POLICY, REASON, Deeds, Says, intended
from tests.trips.kits.sessions import answers, background, fork, fresh, is_valid, kept, of_kind


async def recorded_events(store: Store) -> list[Event]:
    """Return every event of a journal, in the order in which it was written."""
    return [decode(each.data) for each in await store.read(limit=10_000)]


# ---- intention, vote, decision, output


async def test_ac_s3_11_a_safe_call_runs_and_a_dangerous_one_is_aborted(tmp_path: Path) -> None:
    """The journal has intention, decision and output in this order.

    An aborted call never began, and its model reads why.
    """
    deeds = Deeds()
    async with AgentRuntime(store=SqliteStore(tmp_path / "journal.db")) as runtime:
        model = ScriptedModel([[LOOK, DELETE], "Understood."])
        handle = await runtime.spawn(model_agent(model), "Go.", tools=deeds.tools, gate=SafetyGate(POLICY))
        result = await handle.result()
        assert runtime.journal is not None
        events = await recorded_events(runtime.journal.store)

    assert (result.value, deeds.done) == ("Understood.", ["look a"])
    decisions = [
        (type(each).__name__, each.call_id)
        for each in events
        if isinstance(each, IntentionRecorded | IntentionDecided | ToolStarted | ToolEnded)
    ]
    assert decisions == [
        ("IntentionRecorded", "c-look"),
        ("IntentionDecided", "c-look"),
        ("ToolStarted", "c-look"),
        ("ToolEnded", "c-look"),
        ("IntentionRecorded", "c-delete"),
        ("IntentionDecided", "c-delete"),
        ("ToolEnded", "c-delete"),
    ]
    yes, no = of_kind(events, IntentionDecided)
    first, second = of_kind(events, IntentionRecorded)
    assert (yes.committed, yes.intention, first.args) == (True, first.seq, {"path": "a"})
    assert (no.committed, no.intention, no.reason) == (False, second.seq, f"rules: {REASON}")
    assert no.votes == (Vote(voter="rules", verdict="deny", reason=REASON),)
    tool_end = of_kind(events, ToolEnded)[1]
    assert (tool_end.status, REASON in tool_end.preview) == ("denied", True)
    assert REASON in answers(handle.run.context.history)["c-delete"]
    assert is_valid(handle.run.context.history)
    assert handle.run.context.usage.tool_calls == 1


def model_agent(model: ScriptedModel) -> Any:
    """Return an agent of that model."""
    from ramet.agent.definition import Agent

    return Agent(name="main", model=model)


async def test_a_session_without_a_gate_records_no_intentions() -> None:
    """A session without a gate pays nothing for it."""
    deeds = Deeds()
    async with Session(ScriptedModel([[LOOK, DELETE], "Done."]), deeds.tools) as session:
        await session.ask("Go.")
        assert intended(kept(session)) == []
    assert deeds.done == ["look a", "delete a"]


async def test_children_and_forks_have_their_parents_gate() -> None:
    """Fresh, forked and background children have the gate at any depth."""
    deeds = Deeds()
    script: dict[str, list[Any]] = {
        "toil below": [DELETE, "below done"],
        "toil": [fresh("toil below", "low"), DELETE, "toil done"],
        "copy it": [DELETE, "copy done"],
        "go beside": [DELETE, "beside done"],
        "": [[fresh("toil", "mid"), fork("copy it", "twin"), background("go beside", "aside")], "all done", "heard"],
    }
    async with Session(ScriptedModel(script), deeds.tools, gate=SafetyGate(POLICY)) as session:
        await session.ask("Go.")
        await eventually(lambda: len([each for each in intended(kept(session)) if "delete aborted" in each]) == 4)
        assert {each for each in intended(kept(session)) if "delete" in each} == {
            f"main/{path} delete aborted" for path in ("mid", "mid/low", "twin", "aside")
        }
    assert deeds.done == []


async def test_the_gate_votes_on_the_call_that_runs() -> None:
    """A hook rewrites the call before the vote, and a voter cannot change the call."""
    deeds, meddler = Deeds(), Says(VoterAnswer("allow"))

    def rewrite(payload: dict[str, Any]) -> dict[str, Any]:
        return {"hookSpecificOutput": {"hookEventName": "PreToolUse", "updatedInput": {"path": "b"}}}

    async def vote(intention: IntentionRecorded, policy: SafetyPolicy) -> VoterAnswer:
        intention.args["path"] = "c"
        return VoterAnswer("allow")

    meddler.vote = vote  # type: ignore[method-assign]
    hooks = {"PreToolUse": [{"matcher": "look", "hooks": [rewrite]}]}
    gate = SafetyGate(ALL, [meddler])
    async with Session(ScriptedModel([LOOK, "Done."]), deeds.tools, hooks=hooks, gate=gate) as session:
        await session.ask("Go.")
        assert [each.args for each in of_kind(kept(session), IntentionRecorded)] == [{"path": "b"}]
    assert deeds.done == ["look b"]


@pytest.mark.parametrize("word", [True, False])
async def test_an_ask_rule_of_the_gate_asks_a_person(word: bool) -> None:
    """The call commits only after an approval, and the answer is among the votes."""
    deeds = Deeds()
    model = ScriptedModel([DELETE, "Done."])
    async with Session(model, deeds.tools, gate=SafetyGate(ASK), approver=lambda _: word) as session:
        await session.ask("Go.")
        (decision,) = of_kind(kept(session), IntentionDecided)
        (question,) = of_kind(kept(session), ApprovalAsked)

    assert (decision.committed, deeds.done) == (word, ["delete a"] if word else [])
    assert [(vote.voter, vote.verdict) for vote in decision.votes] == [
        ("rules", "ask"),
        ("person", "allow" if word else "deny"),
    ]
    assert (question.question, question.call_id, question.args) == ("rules: Really?", "c-delete", {"path": "a"})


async def test_no_voter_is_asked_after_a_rule_denies() -> None:
    """The rules come first, so a denied call costs no model request."""
    deeds, second = Deeds(), Says(VoterAnswer("allow"))
    async with Session(ScriptedModel([DELETE, "Done."]), deeds.tools, gate=SafetyGate(POLICY, [second])) as session:
        await session.ask("Go.")
    assert (second.asked, deeds.done) == ([], [])


async def test_a_run_that_is_stopped_during_a_vote_leaves_an_aborted_intention() -> None:
    """The call does not run, and its intention does not stay open."""
    deeds, slow = Deeds(), Says(None)
    async with Session(ScriptedModel([LOOK, "Done."]), deeds.tools, gate=SafetyGate(ALL, [slow])) as session:
        asking = asyncio.ensure_future(session.ask("Go."))
        await slow.is_asked.wait()
        await session.interrupt("enough")
        assert (await asking).status is Status.CANCELLED
        assert intended(kept(session)) == ["main look aborted"]
    assert deeds.done == []


# ---- NEG-12: unreachable is blocked


@pytest.mark.parametrize(
    ("what", "why"),
    [
        (ConnectionError("it is gone"), "it is gone"),
        (SystemExit(0), "SystemExit"),
        (StoreFailed("there", "full"), "full"),
        (True, "not a valid answer"),
        ("allow", "not a valid answer"),
        (("allow", ""), "not a valid answer"),
        (VoterAnswer("yes"), "not a valid answer"),  # type: ignore[arg-type]  # that is the point
        (VoterAnswer("allow", reason=None), "not a valid answer"),  # type: ignore[arg-type]
    ],
    ids=["gone", "exit", "its-store", "true", "word", "tuple", "other-word", "no-reason"],
)
async def test_neg_12_a_voter_without_a_valid_vote_denies(what: Any, why: str) -> None:
    """A voter that raises or answers nonsense blocks the call, with a recorded reason. The run continues."""
    deeds = Deeds()
    gate = SafetyGate(ALL, [Says(what)])
    async with Session(ScriptedModel([LOOK, "I may not."]), deeds.tools, gate=gate) as session:
        result = await session.ask("Go.")
        (decision,) = of_kind(kept(session), IntentionDecided)

    assert (result.value, deeds.done, decision.committed) == ("I may not.", [], False)
    assert why in decision.reason
    assert [vote.verdict for vote in decision.votes] == ["allow", "deny"]


async def test_neg_12_a_voter_that_hangs_denies_at_its_timeout() -> None:
    """The runtime's clock measures the timeout."""
    deeds, clock, slow = Deeds(), FakeClock(), Says(None)
    runtime = AgentRuntime(clock=clock)
    gate = SafetyGate(ALL, [slow], timeout_s=7)
    async with runtime, Session(ScriptedModel([LOOK, "I may not."]), deeds.tools, gate=gate, runtime=runtime) as talk:
        asking = asyncio.ensure_future(talk.ask("Go."))
        await slow.is_asked.wait()
        await clock.advance(6.9)
        assert intended(kept(talk)) == ["main look open"]
        await clock.advance(1)
        assert (await asking).value == "I may not."
        (decision,) = of_kind(kept(talk), IntentionDecided)

    assert (deeds.done, "not done within 7 s" in decision.reason) == ([], True)


async def test_neg_12_a_blocking_voter_does_not_block_the_runtime() -> None:
    """A synchronous voter runs in a thread. After its timeout it has denied, and its late answer does not count."""
    deeds, clock, question_asked, free = Deeds(), FakeClock(), threading.Event(), threading.Event()

    class Blocks:
        name = "blocks"

        def vote(self, intention: IntentionRecorded, policy: SafetyPolicy) -> VoterAnswer:
            question_asked.set()
            free.wait()
            return VoterAnswer("allow")

    runtime = AgentRuntime(clock=clock)
    gate, model = SafetyGate(ALL, [Blocks()], timeout_s=7), ScriptedModel([LOOK, "I may not.", LOOK, "Done."])
    async with runtime, Session(model, deeds.tools, gate=gate, runtime=runtime) as talk:
        asking = asyncio.ensure_future(talk.ask("Go."))
        await eventually(question_asked.is_set)
        await clock.advance(7)
        assert ((await asking).value, deeds.done) == ("I may not.", [])
        free.set()
        assert ((await talk.ask("Again.")).value, deeds.done) == ("Done.", ["look a"])


async def missing(store: Store) -> None:
    """Leave the store without a policy of that name."""


async def nonsense(store: Store) -> None:
    """Store a policy that is not valid."""
    await store.put(KIND, "house", b'{"rules": "none"}')


async def closed(store: Store) -> None:
    """Close the store."""
    await store.close()


@pytest.mark.parametrize("harm", [missing, nonsense, closed])
async def test_neg_12_an_unreadable_policy_blocks_the_call(harm: Any) -> None:
    """The intention is recorded with no policy version and aborted, and no voter is asked."""
    deeds, second, store = Deeds(), Says(VoterAnswer("allow")), await MemoryStore().open()
    await harm(store)
    gate = SafetyGate(SafetyPolicies(store).named("house"), [second])
    async with Session(ScriptedModel([LOOK, "I may not."]), deeds.tools, gate=gate) as session:
        await session.ask("Go.")
        (intention,) = of_kind(kept(session), IntentionRecorded)
        (decision,) = of_kind(kept(session), IntentionDecided)

    assert (deeds.done, second.asked, decision.votes) == ([], [], ())
    assert (intention.policy, intention.version) == ("house", 0)
    assert (decision.committed, "'house' cannot be read" in decision.reason) == (False, True)


class Full(MemoryStore):
    """A store whose disk is full when an event of one type is to be written."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self._kind = kind

    def append(self, entry: Entry) -> int:
        if entry.type == self._kind:
            raise StoreFailed("disk", "no space is left")
        return super().append(entry)


@pytest.mark.parametrize("kind", ["intention_recorded", "intention_decided"])
async def test_neg_12_an_unwritable_journal_blocks_the_call(kind: str) -> None:
    """The tool does not run, and the run fails. Without a recorded intention, no voter is asked."""
    deeds, second = Deeds(), Says(VoterAnswer("allow"))
    runtime = AgentRuntime(store=Full(kind))
    gate = SafetyGate(ALL, [second])
    async with runtime, Session(ScriptedModel([LOOK, "Done."]), deeds.tools, gate=gate, runtime=runtime) as session:
        result = await session.ask("Go.")

    assert (result.status, deeds.done) == (Status.FAILED, [])
    assert result.error is not None
    assert result.error.type == "StoreFailed"
    assert len(second.asked) == (kind == "intention_decided")
