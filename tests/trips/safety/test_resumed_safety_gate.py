"""The safety gate after a kill: an undecided call is voted on again, and no tree loses its gate."""

from __future__ import annotations

import asyncio
import pathlib
from typing import Any

import pytest

from ramet.core.errors import DefinitionMissing
from ramet.core.events import ApprovalAsked, Event, ToolStarted, decode
from ramet.core.outcome import Status
from ramet.core.safety import SafetyPolicy
from ramet.host.runtime import AgentRuntime
from ramet.host.safety.gate import SafetyGate
from ramet.spawn.handle import Handle
from ramet.store.memory import MemoryStore
from tests.support.store_addresses import run_program_until_killed, store_at
from tests.trips.kits.safety import intention_outcomes
from tests.trips.kits.sessions import answers, of_kind
from tests.trips.programs.safety_gate import ALLOWS, ASKS, Second, model, payer, tools

PROGRAM = pathlib.Path(__file__).parents[1] / "programs" / "safety_gate.py"


@pytest.fixture
def store_address(tmp_path: pathlib.Path) -> str:
    """The address of the journal's store."""
    return f"sqlite {tmp_path / 'journal.db'}"


async def recorded_events(store_address: str) -> list[Event]:
    """Return every event of the journal."""
    store = await store_at(store_address).open()
    try:
        return [decode(each.data) for each in await store.read(limit=10_000)]
    finally:
        await store.close()


async def resume_tree(runtime: AgentRuntime, folder: pathlib.Path, gate: SafetyGate | None) -> Handle:
    """Resume the tree that the killed process left."""
    (handle,) = await runtime.resume(llm=model(), tools=tools(folder), agents=[payer()], gate=gate)
    return handle


def effects(folder: pathlib.Path) -> list[str]:
    """Return the tool calls that took effect."""
    file = folder / "effects"
    return file.read_text().split() if file.exists() else []


@pytest.mark.parametrize(
    ("kill_point", "remaining"),
    [("voting", ["main pay open"]), ("committed", ["main pay committed"])],
    ids=["voting", "committed"],
)
async def test_a_call_that_had_not_started_is_voted_on_again(
    store_address: str, tmp_path: pathlib.Path, kill_point: str, remaining: list[str]
) -> None:
    """An open intention is not assumed to be committed.

    A committed call that never started is voted on again, because the policy may differ.

    The call runs once. Without the gate, the tree does not resume.
    """
    await run_program_until_killed(PROGRAM, store_address, tmp_path, kill_point)
    assert (intention_outcomes(await recorded_events(store_address)), effects(tmp_path)) == (remaining, [])

    async with AgentRuntime(store=store_at(store_address)) as runtime:
        with pytest.raises(DefinitionMissing, match="safety gate"):
            await resume_tree(runtime, tmp_path, None)
        handle = await resume_tree(runtime, tmp_path, SafetyGate(ALLOWS, [Second()]))
        assert (await handle.result()).value == "it is settled"

    assert effects(tmp_path) == ["pay"]
    events = await recorded_events(store_address)
    assert intention_outcomes(events) == [*remaining, "main pay committed"]
    assert len(of_kind(events, ToolStarted)) == 1


async def test_the_current_gate_decides_after_a_kill(store_address: str, tmp_path: pathlib.Path) -> None:
    """A commit of the killed process, before its call started, does not count under a stricter gate."""
    await run_program_until_killed(PROGRAM, store_address, tmp_path, "committed")
    async with AgentRuntime(store=store_at(store_address)) as runtime:
        handle = await resume_tree(runtime, tmp_path, SafetyGate(SafetyPolicy()))
        assert (await handle.result()).status is Status.COMPLETED
    assert effects(tmp_path) == []


async def test_a_call_that_had_started_is_reported_as_interrupted(store_address: str, tmp_path: pathlib.Path) -> None:
    """The call was committed and has no recorded output, so it is neither voted on nor run again."""
    await run_program_until_killed(PROGRAM, store_address, tmp_path, "running")
    async with AgentRuntime(store=store_at(store_address)) as runtime:
        handle = await resume_tree(runtime, tmp_path, SafetyGate(ALLOWS, [Second()]))
        await handle.result()
        assert "Whether it took effect is not known" in answers(handle.run.context.history)["c1"]

    assert effects(tmp_path) == ["pay"]
    assert intention_outcomes(await recorded_events(store_address)) == ["main pay committed"]


async def test_a_question_of_the_gate_survives_a_kill(store_address: str, tmp_path: pathlib.Path) -> None:
    """The question keeps its id: the person is asked once, and answers once."""
    await run_program_until_killed(PROGRAM, store_address, tmp_path, "asking")
    async with AgentRuntime(store=store_at(store_address)) as runtime:
        handle = await resume_tree(runtime, tmp_path, SafetyGate(ASKS, [Second()]))
        (pending,) = runtime.trees[handle.id].inbox.pending
        runtime.trees[handle.id].inbox.answer(pending.id, True)
        async with asyncio.timeout(180):
            await handle.result()

    assert effects(tmp_path) == ["pay"]
    events = await recorded_events(store_address)
    assert [each.approval_id for each in of_kind(events, ApprovalAsked)] == [pending.id]
    assert intention_outcomes(events) == ["main pay open", "main pay committed"]


async def test_a_fork_of_a_recorded_run_requires_its_gate(store_address: str, tmp_path: pathlib.Path) -> None:
    """A fork from the journal is refused without the gate, and gated with it."""
    await run_program_until_killed(PROGRAM, store_address, tmp_path, "voting")
    async with AgentRuntime(store=store_at(store_address)) as runtime:
        (run,) = {each.run for each in await events_of(runtime)}
        with pytest.raises(DefinitionMissing, match="safety gate"):
            await runtime.fork(run, "Again.", llm=model(), tools=tools(tmp_path), agents=[payer()])
        gate = SafetyGate(SafetyPolicy())
        handle = await runtime.fork(run, "Again.", llm=model(), tools=tools(tmp_path), agents=[payer()], gate=gate)
        assert handle.run.context.safety is gate
        await handle.result()
    assert effects(tmp_path) == []


@pytest.mark.parametrize("store", [MemoryStore, lambda: None], ids=["journal", "none"])
async def test_a_fork_of_a_tree_in_this_process_has_its_gate(tmp_path: pathlib.Path, store: Any) -> None:
    """The caller need not supply the gate again."""
    gate = SafetyGate(SafetyPolicy())
    async with AgentRuntime(store=store()) as runtime:
        first = await runtime.spawn(payer(), "Go.", tools=tools(tmp_path), gate=gate)
        await first.result()
        second = await runtime.fork(first.id, "Again.", llm=model(), tools=tools(tmp_path), agents=[payer()])
        assert second.run.context.safety is gate
        await second.result()
    assert effects(tmp_path) == []


async def events_of(runtime: AgentRuntime) -> list[Event]:
    """Return every event of a runtime's journal."""
    return [decode(each.data) for each in await (await runtime.open_store()).read()]
