"""Handles and names of agents find those that a program declares, whatever names clients use."""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

import pathlib
from typing import Any

import pytest

from ramet import Agent, AgentRuntime, Limits, Session
from ramet.agent.capabilities import declarations
from ramet.core.errors import AgentNotResolved
from ramet.core.events import RunSpawned
from ramet.core.policy.capabilities import Capability
from ramet.models.scripted.model import Call, ScriptedModel
from ramet.spawn.run import Run
from tests.trips.definitions.test_handles_of_changed_agents import architect, names, no_agents_of_others, solver
from tests.trips.kits.isolated import BACKENDS
from tests.trips.kits.sessions import Gate, of_kind

__all__ = ["no_agents_of_others"]

MATH = Capability("module", "math")


def client(name: str, **fields: Any) -> Agent:
    """Return an agent as a client of a server creates it, with its own name, instructions and modules."""
    return Agent(name=name, instructions="Do as I say.", capabilities=(MATH,), **fields)


def root_of(session: Session[Any]) -> Run:
    """Return the root run of a session, as its sandbox would use it."""
    return session.handle(session.id).run


async def perform(run: Run, ref: str, task: str = "solve") -> Any:
    """Call a task of an agent, as code in the sandbox of a run does."""
    assert run.context.tree is not None
    return await run.context.tree.call_task(run.context, ref, task, {})


# --- names


async def test_a_clients_agent_does_not_replace_a_declared_one(tmp_path: pathlib.Path) -> None:
    """The name and `rebind` find the program's agent before and after."""
    lead = architect("sin")
    async with AgentRuntime(tmp_path) as runtime:
        ref = (await runtime.dynamic.create(lead, solver("sin", "cos"))).ref
        async with Session(ScriptedModel([]), agent=client("architect"), runtime=runtime, unattended=True) as session:
            with pytest.raises(AgentNotResolved):
                await perform(root_of(session), "nobody")
            assert declarations.find_registered("architect") is lead
            rebound = await runtime.dynamic.rebind(ref)

        assert rebound == ref
        assert names(await runtime.dynamic.load(rebound)) == ("sin",)


async def test_the_name_of_a_clients_agent_finds_no_agent(tmp_path: pathlib.Path) -> None:
    """The process keeps no trace of that agent after its end."""
    asker = architect("sin")
    async with AgentRuntime(tmp_path) as runtime:
        for each in (client("stranger"), Agent(name="stranger", function=print)):
            with pytest.raises(AgentNotResolved, match="not in the registry"):
                await runtime.dynamic.local(asker, each.name)
            async with Session(ScriptedModel([]), agent=client("stranger"), runtime=runtime) as session:
                with pytest.raises(AgentNotResolved):
                    await perform(root_of(session), "nobody")
                with pytest.raises(AgentNotResolved, match="not in the registry"):
                    await runtime.dynamic.local(asker, each.name)
        assert "stranger" not in {
            **declarations._declared.references,
            **declarations._declared.newest,
            **declarations._undeclared.references,
            **declarations._undeclared.newest,
        }


@pytest.mark.parametrize("by", ["name", "handle"])
async def test_a_clients_agent_cannot_call_agents_below_a_declared_namesake(by: str, tmp_path: pathlib.Path) -> None:
    """The registry and the state below the name belong to the program's agent."""
    lead = architect("sin", "pi")
    async with AgentRuntime(tmp_path, backend=BACKENDS[-1]) as runtime:
        ref = (await runtime.dynamic.create(lead, solver("sin"))).ref
        async with Session(ScriptedModel([]), agent=client("architect"), runtime=runtime, unattended=True) as session:
            with pytest.raises(AgentNotResolved):
                await perform(root_of(session), "math_solver" if by == "name" else str(ref))
            assert len(runtime.trees[session.id].tree.views()) == 1  # type: ignore[index]  # the id of its root


# --- what an agent that was declared may use


async def test_a_weaker_caller_narrows_the_called_agent_for_one_run_only(tmp_path: pathlib.Path) -> None:
    """The called agent has fewer capabilities in this run alone; the next caller gets each declared one."""
    specialist = Agent(name="specialist", model=ScriptedModel(["done"] * 9))
    specialist.module("math")
    specialist.module("json")

    @specialist.task
    def work() -> str:
        """Work."""

    handle = declarations.handle_of(specialist)
    async with AgentRuntime(tmp_path, backend=BACKENDS[-1]) as runtime:
        async with Session(ScriptedModel([]), agent=client("bob"), runtime=runtime, unattended=True) as session:
            child = await perform(root_of(session), "specialist", "work")
            assert (await child.result()).value == "done"
            [_, spawn_event] = of_kind(runtime.trees[session.id].recorder.recent_events, RunSpawned)  # type: ignore[index]
        assert [each["name"] for each in spawn_event.birth["agent"]["capabilities"]] == ["math"]
        assert declarations.find_registered("specialist") is specialist
        assert await runtime.dynamic.load(handle) is specialist
        assert await runtime.dynamic.local(specialist, "specialist") == handle


@pytest.mark.parametrize("limits", [None, Limits(tokens=100_000)], ids=["", "limited"])
async def test_agents_of_a_run_follow_the_declared_agents_capabilities(
    limits: Limits | None, tmp_path: pathlib.Path
) -> None:
    """A run has a copy of its agent from its spawn, which does not count as a newer declaration."""
    lead, gate = architect("sin", "cos"), Gate()
    model = ScriptedModel([Call("gate", {}), "done"])
    async with AgentRuntime(tmp_path) as runtime:
        handle = await runtime.spawn(lead.with_model(model), "Go.", tools=[gate.tool], limits=limits)
        await gate.entered.wait()
        context = handle.run.context
        assert context.tree is not None
        ref = (await context.tree.create(context, solver("sin", "cos").entry())).ref
        lead.module("math", include=["cos"])
        await context.tree.create(context, solver("cos", name="other").entry())
        assert names(await runtime.dynamic.load(ref)) == ("cos",)
        gate.open.set()
        await handle.result()
