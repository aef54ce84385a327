"""Coordinators, whose other tools are for their children only, and the list of siblings that a child reads."""

from __future__ import annotations

import pathlib

import pytest

from ramet import Agent, AgentRuntime, ScriptedModel, Session, workspace_tools
from ramet.core.errors import InvalidValue
from ramet.core.events import RunSpawned
from ramet.models.scripted.dialogue import Call, Script
from ramet.spawn.birth.sibling_list import MAX_SIBLINGS
from ramet.store.memory import MemoryStore
from tests.trips.kits.isolated import BackendName, usual_backend
from tests.trips.kits.sessions import of_kind, run_of, session_events, typed_texts
from tests.trips.recovery.test_resume import lost_runtime

__all__ = ["usual_backend"]

LEADING = ["Agent", "SendMessage", "TaskOutput", "TaskStop", "ListAgents"]
LEAD = Agent(name="lead", description="Leads", instructions="Lead.", coordinator=True)
WORKER = Agent(name="worker", description="Works", instructions="Work.", sibling_list=True)


def spawn(kind: str, prompt: str, name: str) -> Call:
    """Return a call that spawns an agent of a type."""
    return Call("Agent", {"subagent_type": kind, "prompt": prompt, "name": name})


async def test_a_coordinator_leads_and_cannot_work_in_any_sandbox(
    tmp_path: pathlib.Path, usual_backend: BackendName
) -> None:
    """A coordinator has no shell, also in a sandbox, and its children have one; a child reads who works beside it."""
    shell = Call("Bash", {"command": "echo $((6 * 7))"})
    model = ScriptedModel(
        {
            "Root": [shell, spawn("lead", "Nested", "sub"), spawn("worker", "Report", "late"), "root is done"],
            "Nested": [shell, spawn("worker", "Work", "hand"), "nested is done"],
            "Work": [shell, "worked"],
            "Report": ["reported"],
        }
    )
    async with Session(
        model,
        workspace_tools(),
        agent=LEAD,
        agents=[LEAD, WORKER],
        cwd=tmp_path,
        backend=usual_backend,
        unattended=True,
    ) as session:
        result = await session.ask("Root")
        spawns = {each.path: each for each in of_kind(session_events(session), RunSpawned)}
        texts = {each: [text for _, text in typed_texts(run_of(session, each).context.history)] for each in spawns}

    assert result.value == "root is done"
    for path in ("main", "main/sub"):
        assert list(spawns[path].tools) == LEADING
        assert "no tool" in texts[path][2]
    assert "Bash" in spawns["main/sub/hand"].tools
    assert texts["main/sub/hand"][2] == "42\n[exit code 0]"
    assert texts["main/sub/hand"][0] == "Work"  # It has no siblings.
    reach = "which SendMessage reaches by name"
    assert texts["main/late"][0] == (
        f"Report\n\n[other agents of your caller as you start, {reach}:\n- sub (lead): completed]"
    )


async def test_a_coordinator_gives_its_tools_on_after_a_restart(tmp_path: pathlib.Path) -> None:
    """Tools of a coordinator and its children are the same in the next process, and a list of siblings is bounded."""
    crowd = [spawn("worker", "Rest", f"w{number}") for number in range(MAX_SIBLINGS + 2)]
    script: Script = {
        "Begin": [crowd, "began"],
        "Rest": ["rested"],
        "Go on": [spawn("worker", "Work", "late"), "went on"],
        "Work": [Call("Bash", {"command": "echo $((6 * 7))"}), "worked"],
    }
    tools, store = workspace_tools(), MemoryStore()
    async with lost_runtime(store) as runtime:
        session = Session(ScriptedModel(script), tools, agent=LEAD, agents=[WORKER], runtime=runtime, session_id="talk")
        await session.ask("Begin")
    async with AgentRuntime(store=store) as runtime:
        session = await Session.resume("talk", ScriptedModel(script), tools, agents=[WORKER], runtime=runtime)
        result = await session.ask("Go on")
        texts = [text for _, text in typed_texts(run_of(session, "late").context.history)]
        leading = [tool.name for tool in run_of(session, "main").context.tools]

    assert (result.value, leading) == ("went on", LEADING)
    assert texts[2] == "42\n[exit code 0]"
    lines = texts[0].splitlines()
    assert lines[3] == f"- w{MAX_SIBLINGS + 1} (worker): completed"
    assert (len(lines), lines[-1]) == (MAX_SIBLINGS + 4, "- and 2 more]")


@pytest.mark.parametrize(("field", "value"), [("memory", "project"), ("function", print), ("skills", ("x",))])
def test_a_coordinator_has_nothing_to_work_with(field: str, value: object) -> None:
    """A setting that would let it do more than lead is refused, with its name."""
    with pytest.raises(InvalidValue, match=f"{field}: .*only leads other agents"):
        LEAD.replace(**{field: value})
