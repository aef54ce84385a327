"""Agents that agents define: created durably, and loaded after a restart, deep down, and among very many."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from statistics import median
from time import perf_counter

from benchmarks.cost import Cost, Figures
from ramet import Agent, AgentRuntime
from ramet.core.agent_ref import AgentRef
from ramet.core.recipe import Recipe
from ramet.host.dynamic.agents import ref_of
from ramet.host.dynamic.registry import REGISTRY

DEPTH = 10


def creator() -> Agent:
    """Return the agent that code declares."""
    agent = Agent(name="architect", primer="You make specialists.")
    agent.cls(Agent)
    agent.module("math")
    return agent


def written(name: str) -> Recipe:
    """Return the recipe of an agent: a primer, two capabilities, one task."""
    agent = Agent(name=name, primer="You solve equations. You are careful, and you say what you cannot do.")
    agent.cls(Agent)
    agent.module("math", include=["sin", "cos", "pi"])

    @agent.task
    def solve(equation: str, digits: int = 3) -> list[float]:  # type: ignore[empty-body]
        """Solve the equation."""

    return agent.recipe()


async def measure(count: str = "300", many: str = "100000") -> Figures:
    """Return the milliseconds for each."""
    owner = creator()
    with tempfile.TemporaryDirectory(prefix="ramet-bench-") as folder:
        figures, one, deep = await _create_agents(folder, owner, int(count))
        figures["cold_ms"] = median([await _load_after_restart(folder, one) for _ in range(5)])
        figures["deep_ms"] = median([await _load_after_restart(folder, deep) for _ in range(5)])
        among = await _fill(folder, owner, int(many))
        figures["among_ms"] = median([await _load_after_restart(folder, each) for each in among])
    return figures


async def _create_agents(folder: str, owner: Agent, count: int) -> tuple[Figures, AgentRef, AgentRef]:
    async with AgentRuntime(folder) as runtime:
        await runtime.dynamic.create(owner, written("first"))
        recipes = [written(f"agent-{number}") for number in range(count)]
        with Cost() as cost:
            for recipe in recipes:
                made = await runtime.dynamic.create(owner, recipe)
        deep = made.ref
        while len(deep.path) < DEPTH:
            deep = (await runtime.dynamic.create(await runtime.dynamic.load(deep), written("below"))).ref
        return {"create_ms": cost.cpu_s / count * 1e3, "create_wall_ms": cost.wall_s / count * 1e3}, made.ref, deep


async def _load_after_restart(folder: str, ref: AgentRef) -> float:
    """Return the milliseconds in which a process that has just opened the store loads a handle."""
    async with AgentRuntime(folder) as runtime:
        await runtime.open_store()
        start = perf_counter()
        await runtime.dynamic.load(ref)
        return (perf_counter() - start) * 1e3


async def _fill(folder: str, owner: Agent, count: int) -> Sequence[AgentRef]:
    """Write so many agents into one registry, in few commits; return handles of some of them."""
    root, found = ref_of(owner), list[AgentRef]()
    async with AgentRuntime(folder) as runtime:
        mine = await runtime.dynamic.registries.namespace(root.namespace)
        for number in range(count):
            recipe = written(f"one-{number}") if number % 1_000 == 0 else None
            entry = recipe.entry() if recipe is not None else {"primer": f"You are number {number}."}
            mine.set_entry(REGISTRY, f"one-{number}", entry)
            if recipe is not None and number % 20_000 == 0:
                found.append(AgentRef(root.root, root.root_version, (recipe.name,), recipe.version))
            if number % 10_000 == 9_999:
                await mine.commit()
        await mine.commit()
    return found
