"""The safety gate and sandboxes: a guest asks before its call, and a guest that does not ask fails."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from langchain_core.messages import ToolMessage

from ramet.agent.definition import Agent
from ramet.core.errors import StoreFailed
from ramet.core.events import IntentionDecided, IntentionRecorded, MessageRecorded, ToolEnded, ToolStarted
from ramet.core.outcome import Result, Status
from ramet.core.safety import Rule, SafetyPolicy, VoterAnswer
from ramet.host.runtime import AgentRuntime
from ramet.host.safety.gate import SafetyGate
from ramet.host.safety.inspection import passages
from ramet.host.session import Session
from ramet.models.messages import encode
from ramet.models.scripted.dialogue import Call
from ramet.models.scripted.model import ScriptedModel
from ramet.spawn.lifecycle import turn
from ramet.store.contract import Entry
from ramet.store.memory import MemoryStore
from ramet.tools.workspace import workspace_tools
from ramet.wire.guest_protocol.guest_to_host import Done, ProposeCall
from tests.support.guests import Guests, guests
from tests.trips.isolation.test_hostile_guests import FORGED_IDENTITY, Attack, Guest, run_hostile_guest
from tests.trips.kits.guest_loops import GuestLoops
from tests.trips.kits.safety import ALLOW_ALL, FixedVoter, intention_outcomes
from tests.trips.kits.sessions import has_no_reservation, of_kind, session_events

RULES = (
    Rule(tool="Bash", args={"command": "*rm *"}, verdict="deny", reason="nobody deletes here"),
    Rule(tool="Bash", args={"command": "echo asked*"}, verdict="ask", reason="Really?"),
)
POLICY = SafetyPolicy(rules=RULES, otherwise="allow")
both = pytest.mark.parametrize("backend", ["bwrap", "local"])


def shell(command: str, id: str) -> Call:
    """Return a call of the shell."""
    return Call("Bash", {"command": command}, id=id)


@both
async def test_ac_s3_11_every_agent_in_a_sandbox_asks_before_its_call(
    tmp_path: pathlib.Path, backend: Literal["bwrap", "local"]
) -> None:
    """The gate decides for a child's own child: one call runs, one is denied, and one asks a person."""
    (tmp_path / "kept.txt").write_text("kept")
    calls = [shell("echo safe", "c1"), shell("rm -rf kept.txt", "c2"), shell("echo asked", "c3")]
    script: dict[str, list[Any]] = {
        "Go.": [Call("Agent", {"subagent_type": "worker", "prompt": "delegate", "name": "one"}), "all done"],
        "delegate": [Call("Agent", {"subagent_type": "worker", "prompt": "the rest", "name": "two"}), "delegated"],
        "the rest": [calls, "rest done"],
    }
    session = Session(
        ScriptedModel(script),
        workspace_tools(),
        agents=[Agent(name="worker", description="Works", instructions="Work.")],
        cwd=tmp_path,
        backend=backend,
        gate=SafetyGate(POLICY),
        approver=lambda pending: pending.path == "main/one/two",
    )
    async with session:
        assert (await session.ask("Go.")).value == "all done"
        events = session_events(session)

    assert intention_outcomes(events) == [
        "main Agent committed",
        "main/one Agent committed",
        "main/one/two Bash committed",
        "main/one/two Bash aborted",
        "main/one/two Bash committed",
    ]
    child_events = [each for each in events if each.path == "main/one/two"]
    order = [
        (type(each).__name__, each.call_id)
        for each in child_events
        if isinstance(each, IntentionRecorded | IntentionDecided | ToolStarted | ToolEnded)
    ]
    full = ["IntentionRecorded", "IntentionDecided", "ToolStarted", "ToolEnded"]
    for call in ("c1", "c3"):
        assert [kind for kind, id in order if id == call] == full
    assert [kind for kind, id in order if id == "c2"] == [*full[:2], "ToolEnded"]
    tool_ends = {each.call_id: (each.status, each.preview) for each in of_kind(child_events, ToolEnded)}
    assert tool_ends["c1"] == ("ok", "safe\n[exit code 0]")
    assert tool_ends["c2"] == ("denied", "Blocked by the safety gate: rules: nobody deletes here")
    assert (tmp_path / "kept.txt").read_text() == "kept"


async def test_a_sandboxed_root_has_its_gate(tmp_path: pathlib.Path) -> None:
    """`start_agent` gives the root of a tree its gate."""
    agent = Agent(
        name="worker", model=ScriptedModel([shell("rm x", "c1"), "I may not."]), tools=tuple(workspace_tools())
    )
    async with AgentRuntime(backend="local") as runtime:
        handle = await runtime.start_agent(agent, prompt="Go.", gate=SafetyGate(POLICY))
        events = [event async for event in handle.events()]
        assert (await handle.result()).output == "I may not."
    assert intention_outcomes(events) == ["main Bash aborted"]
    assert not of_kind(events, ToolStarted)


async def test_only_a_gated_sandbox_has_passages(tmp_path: pathlib.Path) -> None:
    """Two agents do the same. After a restart, only the outputs of the one with a gate are listed."""
    runs: list[str] = []
    async with AgentRuntime(tmp_path, backend="local") as runtime:
        for gate in (SafetyGate(ALLOW_ALL), None):
            model = ScriptedModel([shell("echo safe", "c1"), "done"])
            worker = Agent(name="worker", model=model, tools=tuple(workspace_tools()))
            handle = await runtime.start_agent(worker, prompt="Go.", gate=gate)
            assert (await handle.result()).output == "done"
            runs.append(handle.id)
    async with AgentRuntime(tmp_path, backend="local") as runtime:
        entries = (await passages(await runtime.open_store())).entries

    assert [(each.kind, each.event.run) for each in entries] == [
        ("intention", runs[0]),
        ("decision", runs[0]),
        ("output", runs[0]),
    ]


class FullDiskStore(MemoryStore):
    """A store whose disk is full when a decision is to be written."""

    def append(self, entry: Entry) -> int:
        if entry.type == "intention_decided":
            raise StoreFailed("disk", "no space is left")
        return super().append(entry)


@pytest.fixture(scope="module")
def guest_source() -> Iterator[Guests]:
    """The process that guests are forked from."""
    with guests() as source:
        yield source


@pytest.fixture
def guest_loops(guest_source: Guests, monkeypatch: pytest.MonkeyPatch) -> GuestLoops:
    """Give every conversation of this test a guest, which may write where the test may."""
    guest_loop = GuestLoops(guest_source)
    monkeypatch.setattr(turn, "_converse", guest_loop.converse)
    return guest_loop


@pytest.mark.parametrize("store", [MemoryStore, FullDiskStore])
async def test_neg_12_an_unwritable_journal_blocks_a_sandboxed_call(
    store: type[MemoryStore], guest_loops: GuestLoops, tmp_path: pathlib.Path
) -> None:
    """The guest gets no decision, so its call never begins. With a writable journal, the call runs."""
    runtime = AgentRuntime(store=store())
    model = ScriptedModel([shell("touch done", "c1"), "tried"])
    async with (
        runtime,
        Session(model, workspace_tools(), cwd=tmp_path, runtime=runtime, gate=SafetyGate(ALLOW_ALL)) as session,
    ):
        result = await session.ask("Go.")

    assert len(guest_loops.guests) == 1
    assert result.status is (Status.FAILED if store is FullDiskStore else Status.COMPLETED)
    assert (tmp_path / "done").exists() is (store is not FullDiskStore)


# ---- a guest that lies

CALL = Call("Read", {"file_path": "note"}, id="c1")


async def attack_session(
    attack: Attack, folder: pathlib.Path, policy: SafetyPolicy = ALLOW_ALL
) -> tuple[Session, Result]:
    """Run a session with a gate whose root is a guest that attacks."""
    return await run_hostile_guest([CALL, "Done."], attack, folder, gate=SafetyGate(policy))


async def begins_without_a_word(guest: Guest) -> None:
    guest.begin("c1")


async def begins_while_it_is_voted_on(guest: Guest) -> None:
    guest.ask(ProposeCall, call_id="c1")
    guest.begin("c1")


async def begins_after_a_no(guest: Guest) -> None:
    guest.ask(ProposeCall, call_id="c1")
    await guest.answer()
    guest.begin("c1")


async def asks_twice(guest: Guest) -> None:
    guest.ask(ProposeCall, call_id="c1")
    guest.ask(ProposeCall, call_id="c1")


async def asks_about_another(guest: Guest) -> None:
    guest.ask(ProposeCall, call_id="c2")


async def has_an_output_of_nothing(guest: Guest) -> None:
    guest.tell(ToolEnded(**FORGED_IDENTITY, call_id="c1", tool="Read", status="ok"))


async def has_a_result_of_nothing(guest: Guest) -> None:
    guest.tell(
        MessageRecorded(**FORGED_IDENTITY, message=encode(ToolMessage("I read it", tool_call_id="c1", name="Read")))
    )


LIES = [
    begins_without_a_word,
    begins_while_it_is_voted_on,
    begins_after_a_no,
    asks_twice,
    asks_about_another,
    has_an_output_of_nothing,
    has_a_result_of_nothing,
]


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__)
async def test_a_guest_that_bypasses_the_gate_fails(lie: Attack, tmp_path: pathlib.Path) -> None:
    """The run ends, the journal has no start and no end of the call, and nothing stays reserved."""

    async def attack(guest: Guest) -> None:
        await guest.reply()
        await lie(guest)

    policy = SafetyPolicy() if lie is begins_after_a_no else ALLOW_ALL
    session, result = await attack_session(attack, tmp_path, policy)

    assert result.status is Status.FAILED
    assert result.error is not None
    assert result.error.type == "ProtocolError"
    assert not of_kind(session_events(session), ToolStarted)
    assert not of_kind(session_events(session), ToolEnded)
    assert has_no_reservation(session)


async def test_a_guest_without_a_gate_must_not_ask_one(tmp_path: pathlib.Path) -> None:
    """A guest that asks a gate that does not exist breaks the protocol."""

    async def attack(guest: Guest) -> None:
        await guest.reply()
        guest.ask(ProposeCall, call_id="c1")

    _, result = await run_hostile_guest([CALL, "Done."], attack, tmp_path)

    assert result.error is not None
    assert "no safety gate" in result.error.message


async def test_the_gate_votes_on_the_call_of_the_model(tmp_path: pathlib.Path) -> None:
    """Tool and arguments come from the model's reply. A denied call is not charged."""
    voter = FixedVoter(VoterAnswer("deny", "no"))

    async def attack(guest: Guest) -> None:
        await guest.reply()
        guest.ask(ProposeCall, call_id="c1")
        answer, _ = await guest.answer()
        assert b'"committed":false' in bytes(answer.data)
        await guest.reply()
        guest.say(Done(ok=True))

    session, result = await run_hostile_guest([CALL, "Done."], attack, tmp_path, gate=SafetyGate(ALLOW_ALL, [voter]))

    assert result.status is Status.COMPLETED
    (intention,) = voter.intentions
    assert (intention.tool, intention.args, intention.call_id) == ("Read", {"file_path": "note"}, "c1")
    assert session.usage.tool_calls == 0
    assert has_no_reservation(session)
