"""Handles of agents below a changed one: its rights narrow theirs, and its changed text is another version."""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

import gc
import pathlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from ramet import Agent, AgentRuntime, Session
from ramet.agent.capabilities import declarations
from ramet.agent.capabilities.task import Task
from ramet.core.agent_ref import AgentRef
from ramet.core.errors import AgentNotResolved, InvalidValue
from ramet.core.events import RunSpawned
from ramet.core.recipe import Recipe
from ramet.models.scripted.model import Call, ScriptedModel
from ramet.tools.agents.authoring import authoring_tools
from tests.trips.kits.isolated import BACKENDS, BackendName


@pytest.fixture(autouse=True)
def no_agents_of_others(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forget each declared agent, as a new process does."""
    for each in ("_declared", "_undeclared"):
        monkeypatch.setattr(declarations, each, declarations._Registry())
    yield
    gc.collect()


def architect(*names: str, primer: str = "You make specialists.") -> Agent:
    """Return an agent that is declared in code."""
    agent = Agent(name="architect", primer=primer)
    agent.cls(Agent)
    agent.module("math", include=names)
    return agent


def solver(*names: str, name: str = "math_solver", primer: str = "You solve.") -> Recipe:
    """Return a recipe that an architect may register."""
    agent = Agent(name=name, primer=primer)
    agent.cls(Agent)
    agent.module("math", include=names)

    @agent.task
    def solve() -> str:
        """Solve."""

    return agent.recipe()


def names(agent: Agent) -> tuple[str, ...]:
    """Return the names that an agent may use of the module."""
    return tuple(name for each in agent.capabilities if each.type == "module" for name in each.include or ())


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_descendants_lose_a_name_with_their_ancestor(tmp_path: pathlib.Path, backend: BackendName) -> None:
    """AC-S4-4, in several processes: child and grandchild, tampered recipes, and another architect."""

    def step(name: str) -> list[str]:
        command = [sys.executable, "-m", "tests.trips.programs.handles", str(tmp_path / "work"), backend, name]
        root = pathlib.Path(__file__).parents[3]
        process_result = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=300, check=False)
        assert (process_result.returncode, process_result.stderr) == (0, "")
        return process_result.stdout.splitlines()

    (tmp_path / "work").mkdir()
    reason = "is declared here in another version"
    assert step("make") == ["solve sin pi", "parse sin pi"]
    assert step("lost") == ["solve pi", "parse pi"]
    *errors, local, solves, parses = step("reworded")
    assert [each.partition(" than ")[0] for each in errors] == [
        f"{name} root agent {reason}" for name in ("solve", "parse")
    ]
    assert all("dynamic.rebind" in each for each in errors)
    assert (local, solves, parses) == ("local True", "solve pi", "parse pi")
    old_solve, old_parse, solves, parses = step("tampered")
    assert old_solve.startswith("solve version of math_solver is unknown")
    assert old_parse.startswith("parse version of equation_parser is unknown")
    assert (solves, parses) == ("solve cos tan pi", "parse cos tan pi")


async def test_a_handle_follows_the_current_capabilities_of_ancestors() -> None:
    """The newest declaration counts, changed in place or declared anew; a handle never gains capabilities."""
    async with AgentRuntime() as runtime:
        dynamic, first = runtime.dynamic, architect("sin", "cos", "pi")
        ref = (await dynamic.create(first, solver("sin", "tan", "pi"))).ref
        leaf = (await dynamic.create(await dynamic.load(ref), solver("sin", "cos", name="leaf"))).ref

        async def seen() -> list[tuple[str, ...]]:
            return [names(await dynamic.load(each)) for each in (ref, str(leaf))]

        assert await seen() == [("pi", "sin"), ("sin",)]
        first.module("math", include=["cos", "pi"])
        assert await seen() == [("pi",), ()]
        first.module("math", include=["sin", "cos", "tan", "pi"])
        assert await seen() == [("pi", "sin"), ("sin",)]
        second = architect("sin")
        assert await seen() == [("sin",), ("sin",)]
        assert first is not second


async def test_a_child_of_a_created_parent_loses_a_name_with_it() -> None:
    """A newer version of the parent narrows the agent that the child's handle finds."""
    async with AgentRuntime() as runtime:
        dynamic, owner = runtime.dynamic, architect("sin", "cos", "pi")
        middle = (await dynamic.create(owner, solver("sin", "cos"))).ref
        leaf = (await dynamic.create(await dynamic.load(middle), solver("sin", "cos", name="leaf"))).ref
        await dynamic.create(owner, solver("cos", primer="You solve less."))

        assert names(await dynamic.load(leaf)) == ("cos",)
        assert names(await dynamic.load(middle)) == ("cos", "sin")


async def spawned_capabilities(task: Task) -> list[Any]:
    """Return the capabilities of the run that a task starts."""
    stream = task.stream()
    [spawn_event] = [event async for event in stream if isinstance(event, RunSpawned)]
    return [
        each.get("include") for each in spawn_event.birth["agent"].get("capabilities", []) if each["type"] == "module"
    ]


async def test_a_task_is_looked_up_at_each_call(tmp_path: pathlib.Path) -> None:
    """Each call has the ancestors' current capabilities, and raises once the agent is deleted."""
    async with AgentRuntime(tmp_path, backend="local") as runtime:
        owner = architect("sin", "cos", "pi").with_model(ScriptedModel(["done"] * 9))
        ref = (await runtime.dynamic.create(owner, solver("sin", "pi"))).ref
        task = await runtime.dynamic.task(f"{ref}:solve")
        assert await spawned_capabilities(task) == [["pi", "sin"]]
        owner.module("math", include=["cos", "pi"])
        assert await spawned_capabilities(task) == [["pi"]]
        await runtime.dynamic.delete(ref)
        with pytest.raises(AgentNotResolved, match="not in the registry"):
            await task.submit()


async def test_a_changed_text_is_another_version_that_rebind_finds() -> None:
    """AC-S4-5: the refusal of the old handle names `dynamic.rebind`, which returns a handle of that same agent."""
    async with AgentRuntime() as runtime:
        dynamic, first = runtime.dynamic, architect("sin", "pi")
        old = (await dynamic.create(first, solver("sin"))).ref
        leaf = (await dynamic.create(await dynamic.load(old), solver("sin", name="leaf"))).ref
        newer = (await dynamic.create(first, solver("sin", primer="You solve better."))).ref
        root = declarations.handle_of(first)
        declarations._declared.references.clear()
        declarations._declared.newest.clear()
        for ref in (old, leaf, root):
            with pytest.raises(AgentNotResolved, match="not declared in this process"):
                await dynamic.rebind(ref)

        second = architect("sin", "pi", primer="You make other specialists.")
        for ref in (old, leaf, root):
            with pytest.raises(AgentNotResolved, match=r"another version.*dynamic\.rebind"):
                await dynamic.load(str(ref))
            rebound = await dynamic.rebind(str(ref))
            assert rebound == await dynamic.rebind(ref)
            assert (rebound.root, rebound.path, rebound.root_version == ref.root_version) == (ref.root, ref.path, False)
        assert (await dynamic.load(await dynamic.rebind(old))).primer == "You solve."
        assert (await dynamic.load(await dynamic.rebind(newer))).primer == "You solve better."
        assert (await dynamic.load(await dynamic.rebind(leaf))).name == "leaf"
        assert (await dynamic.load(await dynamic.rebind(root))).primer == second.primer
        with pytest.raises(AgentNotResolved, match="not in the registry"):
            await dynamic.rebind(old._replace(path=("nobody",)))
        with pytest.raises(AgentNotResolved, match="version"):
            await dynamic.rebind(old._replace(version="0" * 64))
        with pytest.raises(InvalidValue, match="handle"):
            await dynamic.rebind("architect")


async def test_a_model_with_an_old_handle_can_ask_by_name(tmp_path: pathlib.Path) -> None:
    """The refusal tells the model to ask by name, which works."""
    async with AgentRuntime(tmp_path, backend="local") as runtime:
        old = (await runtime.dynamic.create(architect("sin", "pi"), solver("sin"))).ref
        calls = [Call("CallTask", {"agent": each, "task": "solve"}) for each in (str(old), "math_solver")]
        model = ScriptedModel({"Solve.": ["2"], "Go.": [*calls, "done"]})
        changed_agent = architect("sin", "pi", primer="You make other specialists.")
        changed_agent = changed_agent.replace(model=model, tools=authoring_tools())
        async with Session(agent=changed_agent, runtime=runtime, unattended=True) as session:
            await session.ask("Go.")
            refusal, answer = [each.text for each in session.messages if each.type == "tool"]

    assert "another version" in refusal
    assert "ask by name" in refusal
    assert answer == "2"


async def test_capabilities_are_part_of_a_declared_agents_version() -> None:
    """A declared agent's handle is refused after a change of its capabilities; handles below it are not."""
    async with AgentRuntime() as runtime:
        agent = architect("sin", "pi")
        handle = declarations.handle_of(agent)
        assert (await runtime.dynamic.load(handle)).name == "architect"
        agent.module("math", include=["pi"])
        with pytest.raises(AgentNotResolved, match="another version"):
            await runtime.dynamic.load(handle)


async def test_a_local_name_is_found_from_an_agent_or_its_handle() -> None:
    """The registry has the seed's form; the agent, its handle and the handle's text find the same entry."""
    async with AgentRuntime() as runtime:
        agent = architect("sin", "pi")
        state = await runtime.dynamic.state_of(agent)
        state.set(
            "__local_agent_registry__",
            {
                "math_solver_123": {
                    "primer": "You are a math solver...",
                    "capabilities": [{"type": "module", "name": "math"}, {"type": "class", "name": "Agent"}],
                    "task_definitions": {
                        "solve_math_problem": {
                            "docstring": "Solve mathematical equations",
                            "signature": {"parameters": {"equation": {"type": "string"}}},
                        }
                    },
                }
            },
        )
        await state.commit()
        ref = declarations.handle_of(agent)
        agents = [await runtime.dynamic.local(each, "math_solver_123") for each in (agent, ref, str(ref))]

        assert len(set(agents)) == 1
        assert agents[0] == AgentRef.parse(str(agents[0]))
        solver = await runtime.dynamic.load(agents[0])
        assert (names(solver), list(solver.tasks)) == (("pi", "sin"), ["solve_math_problem"])
        leaf = (await runtime.dynamic.create(solver, solver_recipe())).ref
        assert await runtime.dynamic.local(solver, "equation_parser") == leaf
        assert await runtime.dynamic.local(solver, "math_solver_123") == agents[0]
        agent.module("math", include=["pi"])
        assert names(await runtime.dynamic.load(agents[0])) == ("pi",)
        for wrong in ("architect", None, 3):
            with pytest.raises(InvalidValue, match="creator"):
                await runtime.dynamic.local(wrong, "math_solver_123")  # type: ignore[arg-type]  # on purpose


def solver_recipe() -> Recipe:
    """Return a recipe that a solver may register."""
    return solver("sin", name="equation_parser")
