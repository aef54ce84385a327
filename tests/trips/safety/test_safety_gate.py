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
from tests.trips.kits.safety import (
    ALLOW_ALL,
    ASK_BEFORE_DELETE,
    DELETE_CALL,
    LOOK_CALL,
    POLICY,
    REASON,
    FixedVoter,
    RecordingTools,
    intention_outcomes,
)
from tests.trips.kits.sessions import (
    answers,
    background_call,
    fork_call,
    is_valid,
    of_kind,
    session_events,
    specialist_call,
)


async def recorded_events(store: Store) -> list[Event]:
    """Return every event of a journal, in the order in which it was written."""
    return [decode(each.data) for each in await store.read(limit=10_000)]


# ---- intention, vote, decision, output


async def test_ac_s3_11_a_safe_call_runs_and_a_dangerous_one_is_aborted(tmp_path: Path) -> None:
    """The journal has intention, decision and output in this order.

    An aborted call never began, and its model reads why.
    """
    recording = RecordingTools()
    async with AgentRuntime(store=SqliteStore(tmp_path / "journal.db")) as runtime:
        model = ScriptedModel([[LOOK_CALL, DELETE_CALL], "Understood."])
        handle = await runtime.spawn(model_agent(model), "Go.", tools=recording.tools, gate=SafetyGate(POLICY))
        result = await handle.result()
        assert runtime.journal is not None
        events = await recorded_events(runtime.journal.store)

    assert (result.value, recording.calls) == ("Understood.", ["look a"])
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
    recording = RecordingTools()
    async with Session(ScriptedModel([[LOOK_CALL, DELETE_CALL], "Done."]), recording.tools) as session:
        await session.ask("Go.")
        assert intention_outcomes(session_events(session)) == []
    assert recording.calls == ["look a", "delete a"]


async def test_children_and_forks_have_their_parents_gate() -> None:
    """Fresh, forked and background children have the gate at any depth."""
    recording = RecordingTools()
    script: dict[str, list[Any]] = {
        "toil below": [DELETE_CALL, "below done"],
        "toil": [specialist_call("toil below", "low"), DELETE_CALL, "toil done"],
        "copy it": [DELETE_CALL, "copy done"],
        "go beside": [DELETE_CALL, "beside done"],
        "": [
            [specialist_call("toil", "mid"), fork_call("copy it", "twin"), background_call("go beside", "aside")],
            "all done",
            "heard",
        ],
    }
    async with Session(ScriptedModel(script), recording.tools, gate=SafetyGate(POLICY)) as session:
        await session.ask("Go.")
        await eventually(
            lambda: len([each for each in intention_outcomes(session_events(session)) if "delete aborted" in each]) == 4
        )
        assert {each for each in intention_outcomes(session_events(session)) if "delete" in each} == {
            f"main/{path} delete aborted" for path in ("mid", "mid/low", "twin", "aside")
        }
    assert recording.calls == []


async def test_the_gate_votes_on_the_call_that_runs() -> None:
    """A hook rewrites the call before the vote, and a voter cannot change the call."""
    recording, meddler = RecordingTools(), FixedVoter(VoterAnswer("allow"))

    def rewrite(payload: dict[str, Any]) -> dict[str, Any]:
        return {"hookSpecificOutput": {"hookEventName": "PreToolUse", "updatedInput": {"path": "b"}}}

    async def vote(intention: IntentionRecorded, policy: SafetyPolicy) -> VoterAnswer:
        intention.args["path"] = "c"
        return VoterAnswer("allow")

    meddler.vote = vote  # type: ignore[method-assign]
    hooks = {"PreToolUse": [{"matcher": "look", "hooks": [rewrite]}]}
    gate = SafetyGate(ALLOW_ALL, [meddler])
    async with Session(ScriptedModel([LOOK_CALL, "Done."]), recording.tools, hooks=hooks, gate=gate) as session:
        await session.ask("Go.")
        assert [each.args for each in of_kind(session_events(session), IntentionRecorded)] == [{"path": "b"}]
    assert recording.calls == ["look b"]


@pytest.mark.parametrize("word", [True, False])
async def test_an_ask_rule_of_the_gate_asks_a_person(word: bool) -> None:
    """The call commits only after an approval, and the answer is among the votes."""
    recording = RecordingTools()
    model = ScriptedModel([DELETE_CALL, "Done."])
    async with Session(model, recording.tools, gate=SafetyGate(ASK_BEFORE_DELETE), approver=lambda _: word) as session:
        await session.ask("Go.")
        (decision,) = of_kind(session_events(session), IntentionDecided)
        (question,) = of_kind(session_events(session), ApprovalAsked)

    assert (decision.committed, recording.calls) == (word, ["delete a"] if word else [])
    assert [(vote.voter, vote.verdict) for vote in decision.votes] == [
        ("rules", "ask"),
        ("person", "allow" if word else "deny"),
    ]
    assert (question.question, question.call_id, question.args) == ("rules: Really?", "c-delete", {"path": "a"})


async def test_no_voter_is_asked_after_a_rule_denies() -> None:
    """The rules come first, so a denied call costs no model request."""
    recording, second = RecordingTools(), FixedVoter(VoterAnswer("allow"))
    async with Session(
        ScriptedModel([DELETE_CALL, "Done."]), recording.tools, gate=SafetyGate(POLICY, [second])
    ) as session:
        await session.ask("Go.")
    assert (second.intentions, recording.calls) == ([], [])


async def test_a_run_that_is_stopped_during_a_vote_leaves_an_aborted_intention() -> None:
    """The call does not run, and its intention does not stay open."""
    recording, slow = RecordingTools(), FixedVoter(None)
    async with Session(
        ScriptedModel([LOOK_CALL, "Done."]), recording.tools, gate=SafetyGate(ALLOW_ALL, [slow])
    ) as session:
        asking = asyncio.ensure_future(session.ask("Go."))
        await slow.is_asked.wait()
        await session.interrupt("enough")
        assert (await asking).status is Status.CANCELLED
        assert intention_outcomes(session_events(session)) == ["main look aborted"]
    assert recording.calls == []


# ---- NEG-12: unreachable is blocked


@pytest.mark.parametrize(
    ("answer", "reason"),
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
async def test_neg_12_a_voter_without_a_valid_vote_denies(answer: Any, reason: str) -> None:
    """A voter that raises or answers nonsense blocks the call, with a recorded reason. The run continues."""
    recording = RecordingTools()
    gate = SafetyGate(ALLOW_ALL, [FixedVoter(answer)])
    async with Session(ScriptedModel([LOOK_CALL, "I may not."]), recording.tools, gate=gate) as session:
        result = await session.ask("Go.")
        (decision,) = of_kind(session_events(session), IntentionDecided)

    assert (result.value, recording.calls, decision.committed) == ("I may not.", [], False)
    assert reason in decision.reason
    assert [vote.verdict for vote in decision.votes] == ["allow", "deny"]


async def test_neg_12_a_voter_that_hangs_denies_at_its_timeout() -> None:
    """The runtime's clock measures the timeout."""
    recording, clock, slow = RecordingTools(), FakeClock(), FixedVoter(None)
    runtime = AgentRuntime(clock=clock)
    gate = SafetyGate(ALLOW_ALL, [slow], timeout_s=7)
    async with (
        runtime,
        Session(ScriptedModel([LOOK_CALL, "I may not."]), recording.tools, gate=gate, runtime=runtime) as session,
    ):
        asking = asyncio.ensure_future(session.ask("Go."))
        await slow.is_asked.wait()
        await clock.advance(6.9)
        assert intention_outcomes(session_events(session)) == ["main look open"]
        await clock.advance(1)
        assert (await asking).value == "I may not."
        (decision,) = of_kind(session_events(session), IntentionDecided)

    assert (recording.calls, "not done within 7 s" in decision.reason) == ([], True)


async def test_neg_12_a_blocking_voter_does_not_block_the_runtime() -> None:
    """A synchronous voter runs in a thread. After its timeout it has denied, and its late answer does not count."""
    recording, clock, question_asked, free = RecordingTools(), FakeClock(), threading.Event(), threading.Event()

    class Blocks:
        name = "blocks"

        def vote(self, intention: IntentionRecorded, policy: SafetyPolicy) -> VoterAnswer:
            question_asked.set()
            free.wait()
            return VoterAnswer("allow")

    runtime = AgentRuntime(clock=clock)
    gate, model = (
        SafetyGate(ALLOW_ALL, [Blocks()], timeout_s=7),
        ScriptedModel([LOOK_CALL, "I may not.", LOOK_CALL, "Done."]),
    )
    async with runtime, Session(model, recording.tools, gate=gate, runtime=runtime) as session:
        asking = asyncio.ensure_future(session.ask("Go."))
        await eventually(question_asked.is_set)
        await clock.advance(7)
        assert ((await asking).value, recording.calls) == ("I may not.", [])
        free.set()
        assert ((await session.ask("Again.")).value, recording.calls) == ("Done.", ["look a"])


async def leave_policy_missing(store: Store) -> None:
    """Leave the store without a policy of that name."""


async def store_invalid_policy(store: Store) -> None:
    """Store a policy that is not valid."""
    await store.put(KIND, "house", b'{"rules": "none"}')


async def close_store(store: Store) -> None:
    """Close the store."""
    await store.close()


@pytest.mark.parametrize("harm", [leave_policy_missing, store_invalid_policy, close_store])
async def test_neg_12_an_unreadable_policy_blocks_the_call(harm: Any) -> None:
    """The intention is recorded with no policy version and aborted, and no voter is asked."""
    recording, second, store = RecordingTools(), FixedVoter(VoterAnswer("allow")), await MemoryStore().open()
    await harm(store)
    gate = SafetyGate(SafetyPolicies(store).policy("house"), [second])
    async with Session(ScriptedModel([LOOK_CALL, "I may not."]), recording.tools, gate=gate) as session:
        await session.ask("Go.")
        (intention,) = of_kind(session_events(session), IntentionRecorded)
        (decision,) = of_kind(session_events(session), IntentionDecided)

    assert (recording.calls, second.intentions, decision.votes) == ([], [], ())
    assert (intention.policy, intention.version) == ("house", 0)
    assert (decision.committed, "'house' cannot be read" in decision.reason) == (False, True)


class FullDiskStore(MemoryStore):
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
    recording, second = RecordingTools(), FixedVoter(VoterAnswer("allow"))
    runtime = AgentRuntime(store=FullDiskStore(kind))
    gate = SafetyGate(ALLOW_ALL, [second])
    async with (
        runtime,
        Session(ScriptedModel([LOOK_CALL, "Done."]), recording.tools, gate=gate, runtime=runtime) as session,
    ):
        result = await session.ask("Go.")

    assert (result.status, recording.calls) == (Status.FAILED, [])
    assert result.error is not None
    assert result.error.type == "StoreFailed"
    assert len(second.intentions) == (kind == "intention_decided")
