"""Handles and names of agents lead to those that a program declares, whatever others call theirs."""

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
    """An agent as a client of a server makes one: it chooses its name, its words and the modules of its code."""
    return Agent(name=name, instructions="Do as I say.", capabilities=(MATH,), **fields)


def root_of(session: Session[Any]) -> Run:
    """The root, as its sandbox speaks for it."""
    return session.handle(session.id).run


async def perform(run: Run, ref: str, task: str = "solve") -> Any:
    """Ask an agent, as code in the sandbox of a run does."""
    assert run.context.tree is not None
    return await run.context.tree.call_task(run.context, ref, task, {})


# --- names


async def test_an_agent_of_a_client_takes_no_name_of_a_declared_one(tmp_path: pathlib.Path) -> None:
    """By the name, and by `rebind`, everybody finds the agent of the program, before and after."""
    lead = architect("sin")
    async with AgentRuntime(tmp_path) as runtime:
        made = (await runtime.dynamic.create(lead, solver("sin", "cos"))).ref
        async with Session(ScriptedModel([]), agent=client("architect"), runtime=runtime, unattended=True) as session:
            with pytest.raises(AgentNotResolved):
                await perform(root_of(session), "nobody")
            assert declarations.find_registered("architect") is lead
            rebound = await runtime.dynamic.rebind(made)

        assert rebound == made
        assert names(await runtime.dynamic.load(rebound)) == ("sin",)


async def test_the_name_of_a_client_or_a_guest_stands_for_nobody(tmp_path: pathlib.Path) -> None:
    """And nothing of it is kept once it has ended."""
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
            **declarations._registered,
            **declarations._newest,
            **declarations._registered_undeclared,
            **declarations._newest_undeclared,
        }


@pytest.mark.parametrize("by", ["name", "handle"])
async def test_an_agent_of_a_client_asks_none_below_a_declared_one_of_its_name(by: str, tmp_path: pathlib.Path) -> None:
    """The registry and the state below are those of the program's agent."""
    lead = architect("sin", "pi")
    async with AgentRuntime(tmp_path, backend=BACKENDS[-1]) as runtime:
        made = (await runtime.dynamic.create(lead, solver("sin"))).ref
        async with Session(ScriptedModel([]), agent=client("architect"), runtime=runtime, unattended=True) as session:
            with pytest.raises(AgentNotResolved):
                await perform(root_of(session), "math_solver" if by == "name" else str(made))
            assert len(runtime.trees[session.id].tree.views()) == 1  # type: ignore[index]  # the id of its root


# --- what an agent that was declared may use


async def test_who_may_use_less_takes_nothing_from_the_agent_that_it_asks(tmp_path: pathlib.Path) -> None:
    """By its name, in this run alone: whoever asks next has an agent with all that was declared."""
    specialist = Agent(name="specialist", model=ScriptedModel(["done"] * 9))
    specialist.module("math")
    specialist.module("json")

    @specialist.task
    def work() -> str:
        """Work."""

    handle = declarations.handle_of(specialist)
    async with AgentRuntime(tmp_path, backend=BACKENDS[-1]) as runtime:
        async with Session(ScriptedModel([]), agent=client("bob"), runtime=runtime, unattended=True) as session:
            asked = await perform(root_of(session), "specialist", "work")
            assert (await asked.result()).value == "done"
            [_, born] = of_kind(runtime.trees[session.id].recorder.recent_events, RunSpawned)  # type: ignore[index]
        assert [each["name"] for each in born.birth["agent"]["capabilities"]] == ["math"]
        assert declarations.find_registered("specialist") is specialist
        assert await runtime.dynamic.load(handle) is specialist
        assert await runtime.dynamic.local(specialist, "specialist") == handle


@pytest.mark.parametrize("limits", [None, Limits(tokens=100_000)], ids=["", "limited"])
async def test_what_a_run_makes_follows_what_the_declared_agent_may_use(
    limits: Limits | None, tmp_path: pathlib.Path
) -> None:
    """A run has a copy, as the agent was when it was born: it is no newer declaration, whatever it makes later."""
    lead, gate = architect("sin", "cos"), Gate()
    model = ScriptedModel([Call("gate", {}), "done"])
    async with AgentRuntime(tmp_path) as runtime:
        handle = await runtime.spawn(lead.with_model(model), "Go.", tools=[gate.tool], limits=limits)
        await gate.entered.wait()
        context = handle.run.context
        assert context.tree is not None
        made = (await context.tree.create(context, solver("sin", "cos").entry())).ref
        lead.module("math", include=["cos"])
        await context.tree.create(context, solver("cos", name="other").entry())
        assert names(await runtime.dynamic.load(made)) == ("cos",)
        gate.open.set()
        await handle.result()
