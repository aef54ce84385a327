"""Plan mode of a definition: calls that change something are denied until a person approves the agent's plan."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

from ramet import AgentRuntime
from ramet.agent.definition import Agent
from ramet.core.events import ApprovalAnswered, Event, ToolStarted
from ramet.core.policy.permissions import ModeRule, Permissions
from ramet.host.approvals import Pending
from ramet.host.session import Session
from ramet.models.scripted.dialogue import Call
from ramet.models.scripted.model import ScriptedModel
from ramet.store.memory import MemoryStore
from ramet.tools.permissions.plan_mode import QUESTION
from ramet.tools.workspace import workspace_tools
from tests.support.cut_journals import cut_behind
from tests.support.waiting import eventually
from tests.trips.kits.isolated import BackendName
from tests.trips.kits.isolated import usual_backend as backend
from tests.trips.kits.sessions import answers, of_kind, run_of, session_events

__all__ = ["backend"]

WORKER = Agent(name="worker", description="Works", instructions="Work.")


def shell(command: str, id: str) -> Call:
    return Call("Bash", {"command": command}, id=id)


def present(plan: str, id: str) -> Call:
    return Call("ExitPlanMode", {"plan": plan}, id=id)


@pytest.mark.parametrize("is_sandboxed", [False, True])
async def test_an_agent_changes_nothing_before_its_plan_is_approved(
    tmp_path: pathlib.Path, backend: BackendName, is_sandboxed: bool
) -> None:
    """A person reads the plan. A refused plan changes nothing; an approved one ends plan mode for this run alone."""
    (tmp_path / ".claude" / "agents").mkdir(parents=True)
    (tmp_path / ".claude" / "agents" / "planner.md").write_text(
        "---\nname: planner\ndescription: Plans\npermissionMode: plan\n---\nPlan first.\n"
    )
    script: dict[str, list[Any]] = {
        "Go.": [Call("Agent", {"subagent_type": "planner", "prompt": "plan it", "name": "one"}), "done"],
        "plan it": [
            shell("echo early > out", "early"),
            Call("Agent", {"subagent_type": "worker", "prompt": "below", "name": "two"}),
            present("a bad plan", "bad"),
            shell("echo refused > out", "refused"),
            present("a good plan", "good"),
            shell("echo approved", "approved"),
            present("another plan", "again"),
            "done",
        ],
        "below": [shell("echo below > out", "below"), "I may not."],
    }
    questions: list[Pending] = []

    def approve(pending: Pending) -> bool:
        questions.append(pending)
        return "good" in str(pending.args)

    async with Session(
        ScriptedModel(script), workspace_tools(), agents=[WORKER], cwd=tmp_path, approver=approve,
        backend=backend if is_sandboxed else None,
    ) as session:  # fmt: skip
        await session.ask("Go.")
        planner = run_of(session, "one")
        results = answers(planner.context.history) | answers(run_of(session, "two").context.history)
        system = planner.context.system_messages[0].text
        begun = [each.call_id for each in of_kind(session_events(session), ToolStarted) if each.tool == "Bash"]

    assert "# Plan mode" in system
    assert all("nothing is changed" in results[each] for each in ("early", "below", "refused"))
    assert results["bad"].startswith("Denied")
    assert results["good"] == "Your plan is approved. Carry it out."
    assert "approved" in results["approved"]
    assert "you are not in plan mode" in results["again"]
    assert begun == ["approved"]
    assert [(each.question, each.args["plan"]) for each in questions] == [
        (QUESTION, "a bad plan"), (QUESTION, "a good plan")
    ]  # fmt: skip


async def test_a_plan_that_nobody_can_approve_is_denied_and_an_approved_one_stays_approved(
    tmp_path: pathlib.Path,
) -> None:
    """An unattended agent stays in plan mode. A conversation that goes on later needs no second approval."""
    agent = Agent(name="planner", permissions=Permissions(modes=(ModeRule(mode="plan", source="code"),)))
    unattended = [present("a plan", "c1"), shell("echo x > out", "c2"), "no"]
    attended = [present("a plan", "c3"), "approved"]
    late = [shell("echo late", "c4"), "done"]
    results: dict[str, str] = {}
    for script, approver in ((unattended, None), (attended, lambda _: True), (late, None)):
        steps: list[Any] = [*script]
        async with Session(
            ScriptedModel(steps), workspace_tools(), agent=agent, cwd=tmp_path, session_id="s", approver=approver,
            unattended=approver is None,
        ) as session:  # fmt: skip
            await session.ask("Go.")
            results |= answers(session.messages)

    assert results["c1"].startswith("Denied")
    assert "nothing is changed" in results["c2"]
    assert not list(tmp_path.glob("out"))  # noqa: ASYNC240 - a few files
    assert results["c3"] == "Your plan is approved. Carry it out."
    assert "late" in results["c4"]


@pytest.mark.parametrize("last", [ApprovalAnswered, ToolStarted])
async def test_a_plan_that_was_approved_before_a_kill_is_carried_out_after_it(last: type[Event]) -> None:
    """The kernel was killed once a person had approved: nobody is asked again, and the agent reads that it may act."""
    permissions = Permissions(modes=(ModeRule(mode="plan", source="code"),))
    script: list[Any] = [present("a plan", "c1"), shell("echo acted", "c2"), "done"]
    agent = Agent(name="planner", model=ScriptedModel(script), permissions=permissions)
    store = MemoryStore()
    async with AgentRuntime(store=store) as runtime:
        handle = await runtime.spawn(agent, "Go.", tools=workspace_tools())
        inbox = runtime.trees[handle.id].inbox
        await eventually(lambda: inbox.pending)
        inbox.answer(inbox.pending[0].id, True)
        await handle.result()

    async with AgentRuntime(store=await cut_behind(store, lambda event: isinstance(event, last))) as runtime:
        agent = agent.replace(model=ScriptedModel(script[1:]))
        [handle] = await runtime.resume(tools=workspace_tools(), agents=[agent])
        await handle.result()
        results = answers(handle.run.context.history)

    assert results["c1"] == "Your plan is approved. Carry it out."
    assert "acted" in results["c2"]
