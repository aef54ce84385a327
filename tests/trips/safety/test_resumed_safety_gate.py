"""The safety gate and processes that are killed: what was not decided is asked again, and no tree loses its gate."""

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
from tests.support.places import killed, store_at
from tests.support.warm import warm
from tests.trips.kits.safety import intended
from tests.trips.kits.sessions import answers, of_kind
from tests.trips.programs.safety_gate import ALLOWS, ASKS, Second, model, payer, tools

__all__ = ["warm"]  # a fixture is used by its name
pytestmark = pytest.mark.usefixtures("warm")

PROGRAM = pathlib.Path(__file__).parents[1] / "programs" / "safety_gate.py"


@pytest.fixture
def place(tmp_path: pathlib.Path) -> str:
    """Where the journal is."""
    return f"sqlite {tmp_path / 'journal.db'}"


async def on_record(place: str) -> list[Event]:
    """Every event of the journal."""
    store = await store_at(place).open()
    try:
        return [decode(each.data) for each in await store.read(limit=10_000)]
    finally:
        await store.close()


async def resumed(runtime: AgentRuntime, folder: pathlib.Path, gate: SafetyGate | None) -> Handle:
    """The tree that was left behind."""
    (handle,) = await runtime.resume(llm=model(), tools=tools(folder), agents=[payer()], gate=gate)
    return handle


def effects(folder: pathlib.Path) -> list[str]:
    """What was done so far."""
    file = folder / "effects"
    return file.read_text().split() if file.exists() else []


@pytest.mark.parametrize(
    ("when", "left"),
    [("voting", ["main pay open"]), ("committed", ["main pay committed"])],
    ids=["voting", "committed"],
)
async def test_what_had_not_begun_is_voted_on_again(
    place: str, tmp_path: pathlib.Path, when: str, left: list[str]
) -> None:
    """An open intention is not assumed; a committed one whose call never began is asked anew: its policy may be other.

    It runs once. Without the gate the tree does not go on.
    """
    await killed(PROGRAM, place, tmp_path, when)
    assert (intended(await on_record(place)), effects(tmp_path)) == (left, [])

    async with AgentRuntime(store=store_at(place)) as runtime:
        with pytest.raises(DefinitionMissing, match="safety gate"):
            await resumed(runtime, tmp_path, None)
        handle = await resumed(runtime, tmp_path, SafetyGate(ALLOWS, [Second()]))
        assert (await handle.result()).value == "it is settled"

    assert effects(tmp_path) == ["pay"]
    events = await on_record(place)
    assert intended(events) == [*left, "main pay committed"]
    assert len(of_kind(events, ToolStarted)) == 1


async def test_a_gate_that_is_stricter_by_now_decides(place: str, tmp_path: pathlib.Path) -> None:
    """The yes of the process that was killed before the call began is not the yes of this one."""
    await killed(PROGRAM, place, tmp_path, "committed")
    async with AgentRuntime(store=store_at(place)) as runtime:
        handle = await resumed(runtime, tmp_path, SafetyGate(SafetyPolicy()))
        assert (await handle.result()).status is Status.COMPLETED
    assert effects(tmp_path) == []


async def test_a_call_that_had_begun_is_reported_as_cut_off(place: str, tmp_path: pathlib.Path) -> None:
    """Its intention was committed and has no output: nobody knows, so it is neither voted on nor run again."""
    await killed(PROGRAM, place, tmp_path, "running")
    async with AgentRuntime(store=store_at(place)) as runtime:
        handle = await resumed(runtime, tmp_path, SafetyGate(ALLOWS, [Second()]))
        await handle.result()
        assert "Whether it took effect is not known" in answers(handle.run.context.history)["c1"]

    assert effects(tmp_path) == ["pay"]
    assert intended(await on_record(place)) == ["main pay committed"]


async def test_a_question_of_the_gate_waits_on(place: str, tmp_path: pathlib.Path) -> None:
    """Under the same id: a person who was asked before the kill is asked once, and answers once."""
    await killed(PROGRAM, place, tmp_path, "asking")
    async with AgentRuntime(store=store_at(place)) as runtime:
        handle = await resumed(runtime, tmp_path, SafetyGate(ASKS, [Second()]))
        (pending,) = runtime.trees[handle.id].inbox.pending
        runtime.trees[handle.id].inbox.answer(pending.id, True)
        async with asyncio.timeout(180):
            await handle.result()

    assert effects(tmp_path) == ["pay"]
    events = await on_record(place)
    assert [each.approval_id for each in of_kind(events, ApprovalAsked)] == [pending.id]
    assert intended(events) == ["main pay open", "main pay committed"]


async def test_what_is_forked_from_a_gated_run_is_gated(place: str, tmp_path: pathlib.Path) -> None:
    """Also from the journal, where the gate must be supplied."""
    await killed(PROGRAM, place, tmp_path, "voting")
    async with AgentRuntime(store=store_at(place)) as runtime:
        (run,) = {each.run for each in await on_record_of(runtime)}
        with pytest.raises(DefinitionMissing, match="safety gate"):
            await runtime.fork(run, "Again.", llm=model(), tools=tools(tmp_path), agents=[payer()])
        gate = SafetyGate(SafetyPolicy())
        handle = await runtime.fork(run, "Again.", llm=model(), tools=tools(tmp_path), agents=[payer()], gate=gate)
        assert handle.run.context.safety is gate
        await handle.result()
    assert effects(tmp_path) == []


@pytest.mark.parametrize("store", [MemoryStore, lambda: None], ids=["journal", "none"])
async def test_a_fork_of_a_tree_that_is_here_has_its_gate(tmp_path: pathlib.Path, store: Any) -> None:
    """Nobody has to think of it."""
    gate = SafetyGate(SafetyPolicy())
    async with AgentRuntime(store=store()) as runtime:
        first = await runtime.spawn(payer(), "Go.", tools=tools(tmp_path), gate=gate)
        await first.result()
        second = await runtime.fork(first.id, "Again.", llm=model(), tools=tools(tmp_path), agents=[payer()])
        assert second.run.context.safety is gate
        await second.result()
    assert effects(tmp_path) == []


async def on_record_of(runtime: AgentRuntime) -> list[Event]:
    """Every event of a runtime's journal."""
    return [decode(each.data) for each in await (await runtime.open_store()).read()]
