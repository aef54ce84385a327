"""Parts of the safety gate: models that vote, policies that change while agents work, and views of past calls."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from langchain_core.messages import AIMessage

from ramet.core.errors import Conflict, InvalidValue, Unknown
from ramet.core.events import (
    IntentionDecided,
    IntentionRecorded,
    ToolEnded,
)
from ramet.core.safety import Rule, SafetyPolicy
from ramet.host.runtime import AgentRuntime
from ramet.host.safety.gate import SafetyGate
from ramet.host.safety.inspection import GateEventFilter, GateEventPage, follow, passages
from ramet.host.safety.policies import SafetyPolicies
from ramet.host.safety.voters import ModelVoter
from ramet.host.session import Session
from ramet.models.scripted.dialogue import Call
from ramet.models.scripted.model import ScriptedModel
from ramet.store.memory import MemoryStore
from ramet.store.sqlite.store import SqliteStore
from tests.trips.kits.safety import (
    ALLOW_ALL,
    DELETE_CALL,
    LOOK_CALL,
    POLICY,
    FixedVoter,
    RecordingTools,
    intention_outcomes,
)
from tests.trips.kits.sessions import of_kind, session_events, specialist_call

#: As somebody calls them who does not look at types.
GATE: Any = SafetyGate
FILTER: Any = GateEventFilter
SESSION: Any = Session


# ---- a model may vote


@pytest.mark.parametrize(
    ("answer", "is_committed"),
    [
        ('{"verdict": "allow", "reason": "harmless"}', True),
        (' {"verdict": "allow"}\n', True),
        ('{"verdict": "deny", "reason": "no"}', False),
        ('{"verdict": "ask"}', False),
        ("allow", False),
        ("", False),
        ('```json\n{"verdict": "allow"}\n```', False),
        ('{"verdict": "allow"} {"verdict": "allow"}', False),
        ('{"verdict": "ALLOW"}', False),
        ('{"verdict": "allow", "by": "me"}', False),
        ('["allow"]', False),
    ],
    ids=["yes", "spaces", "no", "ask", "word", "empty", "fence", "two", "upper", "more", "list"],
)
async def test_a_model_votes_only_with_one_exact_json_vote(answer: str, is_committed: bool) -> None:
    """Any other answer denies. The judge sees the call as data."""
    recording, judge = RecordingTools(), ScriptedModel([answer])
    gate = SafetyGate(ALLOW_ALL, [ModelVoter(judge, "Let nothing be lost.")])
    async with Session(ScriptedModel([LOOK_CALL, "Done."]), recording.tools, gate=gate, unattended=True) as session:
        await session.ask("Go.")
        assert intention_outcomes(session_events(session)) == [
            f"main look {'committed' if is_committed else 'aborted'}"
        ]
        assert session.usage.model_calls == 2

    system, human = judge.requests[0].messages
    assert system.text.startswith("Let nothing be lost.")
    assert msgspec.json.decode(str(human.content)) == {
        "agent": "main",
        "path": "main",
        "tool": "look",
        "args": {"path": "a"},
    }


async def test_a_model_that_calls_a_tool_has_not_voted() -> None:
    """The text of the same reply does not count."""
    call = {"name": "look", "args": {}, "id": "c"}
    voter = ModelVoter(ScriptedModel([AIMessage('{"verdict": "allow"}', tool_calls=[call])]), "Judge.")
    with pytest.raises(InvalidValue, match="answer"):
        await voter.vote(IntentionRecorded(root="r", run="r", path="main", agent="a", tool="look"), ALLOW_ALL)


# ---- policies


async def test_an_intention_names_the_policy_version_that_decides() -> None:
    """Policies change by compare-and-swap while agents work.

    The next call follows the new version, and old versions stay readable.
    """
    recording, store = RecordingTools(), await MemoryStore().open()
    policies = SafetyPolicies(store)
    assert (await policies.put("house", ALLOW_ALL, expected=0)).version == 1

    async def tighten(payload: dict[str, Any]) -> None:
        if recording.calls == ["delete a"]:
            await policies.put("house", POLICY, expected=1)

    gate = SafetyGate(policies.policy("house"))
    model = ScriptedModel([DELETE_CALL, Call("delete", {"path": "b"}), "Done."])
    async with Session(model, recording.tools, gate=gate, hooks={"PostToolUse": [tighten]}) as session:
        await session.ask("Go.")
        assert [(each.policy, each.version) for each in of_kind(session_events(session), IntentionRecorded)] == [
            ("house", 1),
            ("house", 2),
        ]
    assert recording.calls == ["delete a"]
    for expected in (0, 1, 3):
        with pytest.raises(Conflict):
            await policies.put("house", ALLOW_ALL, expected=expected)
    assert (await policies.get("house"))[1:] == (2, POLICY)
    assert (await policies.get("house", 1))[1:] == (1, ALLOW_ALL)
    with pytest.raises(Unknown):
        await policies.get("house", 3)
    await store.close()


async def test_one_of_many_concurrent_policy_changes_wins() -> None:
    """The other changes raise Conflict and change nothing."""
    policies = SafetyPolicies(await MemoryStore().open())
    tries = [policies.put("house", SafetyPolicy(rules=(Rule(verdict="ask"),) * n), expected=0) for n in range(8)]
    came = await asyncio.gather(*tries, return_exceptions=True)
    assert sum(isinstance(each, Conflict) for each in came) == 7
    assert (await policies.get("house")).version == 1


# ---- looking


async def test_passages_can_be_read_filtered_and_followed(tmp_path: Path) -> None:
    """Pages by cursor hold each passage once and in order, and a follower reads new passages as they come."""
    recording = RecordingTools()
    script: dict[str, list[Any]] = {
        "toil": [DELETE_CALL, "toil done"],
        "": [LOOK_CALL, specialist_call("toil", "mid"), "done", LOOK_CALL, "again"],
    }
    runtime = AgentRuntime(store=SqliteStore(tmp_path / "journal.db"))
    async with (
        runtime,
        Session(ScriptedModel(script), recording.tools, gate=SafetyGate(POLICY), runtime=runtime) as session,
    ):
        assert runtime.journal is not None
        await session.ask("Go.")
        store = runtime.journal.store
        page = await passages(store)
        kinds = [(each.kind, each.event.tool, each.event.path) for each in page.entries]
        assert kinds == [
            ("intention", "look", "main"),
            ("decision", "look", "main"),
            ("output", "look", "main"),
            ("intention", "Agent", "main"),
            ("decision", "Agent", "main"),
            ("intention", "delete", "main/mid"),
            ("decision", "delete", "main/mid"),
            ("output", "delete", "main/mid"),
            ("output", "Agent", "main"),
        ]
        assert not page.more

        pages: list[GateEventPage] = []
        after = 0
        while not pages or pages[-1].more:
            pages.append(await passages(store, after=after, limit=2))
            after = pages[-1].cursor
        assert tuple(each for page in pages for each in page.entries) == page.entries

        async def passage_names(**fields: Any) -> list[str]:
            page = await passages(store, GateEventFilter(**fields))
            return [f"{each.kind} {each.event.tool}" for each in page.entries]

        assert await passage_names(committed=False) == ["decision delete"]
        assert await passage_names(tool="l*", kinds=("intention",)) == ["intention look"]
        assert await passage_names(path="main/*", kinds=("output",)) == ["output delete"]
        assert await passage_names(run=session.id, kinds=("decision",)) == ["decision look", "decision Agent"]
        assert await passage_names(tree="run-of-nobody") == []

        following = follow(store, GateEventFilter(tree=session.id, tool="look", kinds=("decision",)), after=page.cursor)
        coming = asyncio.ensure_future(anext(following))
        await session.ask("Once more.")
        passage = await coming
        assert isinstance(passage.event, IntentionDecided)
        assert passage.event.committed
        await following.aclose()


async def test_a_call_that_met_no_gate_is_not_a_passage(tmp_path: Path) -> None:
    """Outputs of an agent without a gate are not listed, and neither are calls refused before the gate."""
    recording = RecordingTools()

    async def no_deletes(payload: dict[str, Any]) -> Any:
        return "deny" if payload["tool_name"] == "delete" else None

    script: list[Any] = [LOOK_CALL, Call("nothing", {}), DELETE_CALL, "Done."]
    hooks = {"PreToolUse": [no_deletes]}
    runtime = AgentRuntime(store=SqliteStore(tmp_path / "journal.db"))
    async with runtime:
        store = await runtime.open_store()
        async with Session(
            ScriptedModel([LOOK_CALL, "Done."]), recording.tools, runtime=runtime, unattended=True
        ) as session:
            await session.ask("Go.")
            assert (await passages(store)).entries == ()
            assert (await passages(store, GateEventFilter(tree=session.id, kinds=("output",)))).entries == ()
        async with Session(
            ScriptedModel(script),
            recording.tools,
            gate=SafetyGate(ALLOW_ALL),
            runtime=runtime,
            hooks=hooks,
            unattended=True,
        ) as session:
            await session.ask("Go.")
            assert [each.tool for each in of_kind(session_events(session), ToolEnded)] == ["look", "nothing", "delete"]
            page = await passages(store)

    assert recording.calls == ["look a", "look a"]
    assert [(each.kind, each.event.tool) for each in page.entries] == [
        ("intention", "look"),
        ("decision", "look"),
        ("output", "look"),
    ]


async def test_an_output_is_found_from_every_cursor_before_it(tmp_path: Path) -> None:
    """The call's intention may lie before the cursor. An output with a reused call id belongs to the newest call."""
    recording, is_denied = RecordingTools(), False

    async def only_once(payload: dict[str, Any]) -> Any:
        nonlocal is_denied
        decision, is_denied = ("deny" if is_denied else None), True
        return decision

    runtime = AgentRuntime(store=SqliteStore(tmp_path / "journal.db"))
    async with (
        runtime,
        Session(
            ScriptedModel([LOOK_CALL, LOOK_CALL, "Done."]),
            recording.tools,
            gate=SafetyGate(ALLOW_ALL),
            runtime=runtime,
            hooks={"PreToolUse": [only_once]},
            unattended=True,
        ) as session,
    ):
        await session.ask("Go.")
        store = await runtime.open_store()
        intention, decision, output = (await passages(store)).entries
        assert [each.status for each in of_kind(session_events(session), ToolEnded)] == ["ok", "denied"]
        for cursor in (intention.cursor, decision.cursor):
            for filter_ in (GateEventFilter(), GateEventFilter(run=session.id), GateEventFilter(tree=session.id)):
                page = await passages(store, filter_, after=cursor)
                assert [each for each in page.entries if each.kind == "output"] == [output]
        assert (await passages(store, after=output.cursor)).entries == ()
        following = follow(store, GateEventFilter(kinds=("output",)), after=decision.cursor)
        assert await anext(following) == output
        await following.aclose()


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        (lambda: GATE("house"), "policy"),
        (lambda: GATE(ALLOW_ALL, [object()]), "voters[0]"),
        (lambda: SafetyGate(ALLOW_ALL, [FixedVoter(1, "a"), FixedVoter(2, "a")]), "voters[1]"),
        (lambda: SafetyGate(ALLOW_ALL, [FixedVoter(1, "rules")]), "voters[0]"),
        (lambda: SafetyGate(ALLOW_ALL, timeout_s=0), "timeout_s"),
        (lambda: ModelVoter(ScriptedModel([]), " "), "instructions"),
        (lambda: FILTER(kinds=("votes",)), "kinds"),
        (lambda: SESSION(ScriptedModel([]), gate=POLICY), "gate"),
    ],
    ids=["policy", "voter", "twice", "rules", "time", "instructions", "kinds", "gate"],
)
async def test_an_invalid_gate_is_refused_when_it_is_made(wrong: Any, field: str) -> None:
    """The error comes before the first call, which an invalid gate could only block."""
    with pytest.raises(InvalidValue) as refusal:
        wrong()
    assert refusal.value.field == field
