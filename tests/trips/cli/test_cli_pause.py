"""`ramet pause` and `ramet resume`: from another process, through a folder and through a server alike."""

from __future__ import annotations

import json

import pytest

from ramet import Agent, ScriptedModel
from ramet.models.scripted.dialogue import Call
from ramet.spawn.handle import Handle
from tests.support.waiting import eventually
from tests.trips.cli.test_cli_served import ServedFolder, folder, served_folder
from tests.trips.kits.sessions import Gate

__all__ = ["folder", "served_folder"]

SOURCES = pytest.mark.parametrize("source", ["folder", "socket"])


async def run_at_gate(served: ServedFolder, gate: Gate) -> Handle:
    """Return a root whose tool call waits at the gate."""
    agent = Agent(name="lead", model=ScriptedModel([Call("gate"), "All is done."]))
    handle = await served.server.runtime.spawn(agent, "Begin", tools=[gate.tool], cwd=served.folder)
    await gate.entered.wait()
    return handle


@SOURCES
async def test_a_run_is_paused_shown_and_goes_on(served_folder: ServedFolder, source: str) -> None:
    """The call under way ends first; a repeated command changes nothing."""
    gate = Gate()
    handle = await run_at_gate(served_folder, gate)

    paused = await served_folder.on(source, "pause", handle.id, "--reason", "lunch")
    again = await served_folder.on(source, "pause", handle.id, "--reason", "lunch", "--json")
    gate.open.set()
    await eventually(lambda: handle.view().state == "paused")
    (row,) = [json.loads(line) for line in (await served_folder.on(source, "ps", "--json")).out.splitlines()]
    drawn = await served_folder.on(source, "tree", handle.id)
    logs = await served_folder.on(source, "logs", handle.id)
    resumed = await served_folder.on(source, "resume", handle.id)

    assert (await handle.result()).value == "All is done."
    assert (paused.status, paused.out) == (0, "still at work, and pauses then: main\n")
    assert json.loads(again.out) == {"run": handle.id, "paused": [], "working": ["main"]}
    assert (row["state"], row["waits_for"]) == ("paused", "pause")
    assert "lunch" in drawn.out
    assert "lunch" in logs.out
    assert (resumed.status, resumed.out) == (0, f"{handle.id} goes on\n")


@SOURCES
async def test_all_trees_are_paused_and_go_on(served_folder: ServedFolder, source: str) -> None:
    """Both roots are named; afterwards none is."""
    gates = [Gate(), Gate()]
    handles = [await run_at_gate(served_folder, gate) for gate in gates]

    paused = await served_folder.on(source, "pause", "--all", "--now", "--json")
    await eventually(lambda: all(handle.view().state == "paused" for handle in handles))
    resumed = await served_folder.on(source, "resume", "--all", "--json")

    assert [(await handle.result()).value for handle in handles] == ["All is done."] * 2
    assert {json.loads(line)["run"] for line in paused.out.splitlines()} == {handle.id for handle in handles}
    assert {json.loads(line)["resumed"] for line in resumed.out.splitlines()} == {handle.id for handle in handles}
    assert (await served_folder.on(source, "pause", "--all")).err.strip() == "no tree is active"


@SOURCES
@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("pause", "--all"),
        ("pause RUN --all", "--all"),
        ("pause nope", "nope"),
        ("resume nope", "nope"),
        (f"pause RUN --reason {'x' * 1_001}", "reason"),
    ],
)
async def test_a_pause_that_cannot_be_is_refused_in_one_line(
    served_folder: ServedFolder, source: str, words: str, named: str
) -> None:
    """Nothing is paused, and the line names what is wrong."""
    gate = Gate()
    handle = await run_at_gate(served_folder, gate)

    refusal = await served_folder.on(source, *words.replace("RUN", handle.id).split())

    assert (refusal.status, refusal.out) == (2, "")
    assert named in refusal.err.splitlines()[-1]
    assert handle.run.pauses.reason is None
    await handle.cancel()


@SOURCES
async def test_a_run_that_has_ended_is_not_paused(served_folder: ServedFolder, source: str) -> None:
    """The command says that it has ended."""
    gate = Gate()
    gate.open.set()
    handle = await run_at_gate(served_folder, gate)
    await handle.result()

    refusal = await served_folder.on(source, "pause", handle.id)

    assert refusal.status != 0
    assert "ended" in refusal.err
