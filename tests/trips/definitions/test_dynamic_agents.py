"""Agents that agents create: their handles find them again in another process, or raise."""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

import copy
import dataclasses
import json
import math
import pathlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ramet import Agent, AgentRuntime
from ramet.agent.capabilities import declarations
from ramet.agent.capabilities.task import Task
from ramet.core.agent_ref import AgentRef
from ramet.core.errors import (
    AgentNotResolved,
    BusyError,
    Denied,
    InvalidValue,
    NeedsInput,
    RametError,
    TaskFailed,
)
from ramet.core.events import MessageRecorded, RunEnded, RunSpawned
from ramet.core.recipe import Recipe
from ramet.host.dynamic.registry import REGISTRY
from ramet.models.scripted.model import Call, Script, ScriptedModel
from ramet.store.contract import Store
from ramet.store.memory import MemoryStore
from tests.support.empty_stores import empty_store_address
from tests.support.store_addresses import KINDS, store_at

MakeStore = Callable[[], Store]


@pytest.fixture(params=KINDS)
def make_store(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Iterator[MakeStore]:
    """Yield a function that returns a new store at the same address."""
    with empty_store_address(request.param, tmp_path) as store_address:
        yield lambda: store_at(store_address)


@pytest.fixture(autouse=True)
def no_agents_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget each declared agent, as a new process does."""
    monkeypatch.setattr(declarations, "_declared", declarations._Registry())


@asynccontextmanager
async def process(make: MakeStore, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AgentRuntime]:
    """Yield a runtime in a process that knows only the store."""
    monkeypatch.setattr(declarations, "_declared", declarations._Registry())
    async with AgentRuntime(store=make()) as runtime:
        yield runtime


@dataclasses.dataclass
class Solution:
    """A class of the script in which an agent was written; other processes have only its recipe."""

    roots: list[float]
    note: str = ""


def architect(*script: Any, primer: str = "You make specialists.", sin: bool = True) -> Agent:
    """Return an agent that is declared in code, the same in every process."""
    agent = Agent(name="architect", primer=primer, model=ScriptedModel(list(script)) if script else None)
    agent.cls(Agent, visibility="high")
    agent.module(math, include=["sin", "cos", "pi"] if sin else ["cos", "pi"])

    @agent.task
    def create_specialist(prompt: str) -> Callable[..., Any]:
        """Make an agent with a task that does what the prompt says."""

    return agent


def solver(name: str = "math_solver", *, model: str | None = None, also: str = "") -> Recipe:
    """Return a recipe that an architect may register."""
    agent = Agent(name=name, primer=f"You solve equations.{also}", model=model)
    agent.cls(Agent)
    agent.module(math, include=["sin", "tan", "pi"])

    @agent.task
    def solve(equation: str, digits: int = 3) -> Solution:
        """Solve the equation."""

    return agent.recipe()


def script_answers(task: Task, script: Script) -> ScriptedModel:
    """Give the agent of a task a scripted model, in the host, where no code of the agent runs."""
    model = ScriptedModel(script)
    assert isinstance(task.agent, Agent)
    task.agent = task.agent.replace(model=model, capabilities=())
    return model


async def test_an_agent_outlives_the_process_that_created_it(
    make_store: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AC-S4-1: its handle finds the same agent, with the same name, task and memory, in a new process."""
    async with process(make_store, monkeypatch) as runtime:
        new_agent = await runtime.dynamic.create(architect(), solver())
        handle, before = str(new_agent.ref), (await runtime.dynamic.load(new_agent.ref)).recipe()
        memory = await runtime.dynamic.state_of(new_agent.ref)
        memory.set("seen", ["x = 1"])
        await memory.commit()

    async with process(make_store, monkeypatch) as runtime:
        architect()
        task = await runtime.dynamic.task(f"{handle}:solve")
        model = script_answers(task, ['{"roots": [1.5], "note": "easy"}'])
        solution = await task("2x = 3")

        assert (solution.roots, solution.note) == ([1.5], "easy")
        assert dataclasses.is_dataclass(solution)
        assert type(solution).__name__ == "Solution"
        assert "You solve equations." in model.requests[0].messages[0].text
        assert '"equation": "2x = 3"' in model.requests[0].messages[1].text
        assert task.agent.name == "math_solver"
        assert (await runtime.dynamic.load(handle)).recipe() == before
        memory = await runtime.dynamic.state_of(AgentRef.parse(handle))
        assert memory.get("seen") == ["x = 1"]


async def test_three_levels_of_agents_have_registries_of_their_own(
    make_store: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AC-S4-2: each step is a process, with the seed's namespaces; deleting the middle agent deletes those below."""
    async with process(make_store, monkeypatch) as runtime:
        middle = (await runtime.dynamic.create(architect(), solver())).ref
    async with process(make_store, monkeypatch) as runtime:
        architect()
        parent = await runtime.dynamic.load(str(middle))
        leaf = (await runtime.dynamic.create(parent, solver("equation_parser"))).ref
    async with process(make_store, monkeypatch) as runtime:
        architect()
        assert leaf.namespace == "architect/math_solver/equation_parser"
        assert (await runtime.dynamic.load(str(leaf))).name == "equation_parser"
        top, below = [await runtime.dynamic.registries.namespace(each) for each in ("architect", middle.namespace)]
        assert list(top.get(REGISTRY)) == ["math_solver"]
        assert list(below.get(REGISTRY)) == ["equation_parser"]
        (await runtime.dynamic.state_of(leaf)).set("kept", 1)
        assert "kept" not in top
        await runtime.dynamic.delete(str(middle))
    async with process(make_store, monkeypatch) as runtime:
        architect()
        for ref in (middle, leaf):
            with pytest.raises(AgentNotResolved, match="not in the registry"):
                await runtime.dynamic.load(str(ref))
        state = await runtime.dynamic.registries.state()
        assert state.keys() == [f"architect/{REGISTRY}"]


async def test_a_child_has_only_capabilities_of_its_current_ancestors(
    make_store: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AC-S4-4: the child gets sin and pi, and not tan; it loses sin when its ancestor does."""

    def names(agent: Agent) -> list[Any]:
        return [each.include for each in agent.capabilities if each.type == "module"]

    async with process(make_store, monkeypatch) as runtime:
        owner = architect()
        new_agent = await runtime.dynamic.create(owner, solver())
        assert new_agent.dropped_names == ("module math.tan",)
        assert names(await runtime.dynamic.load(new_agent.ref)) == [("pi", "sin")]
        leaf = await runtime.dynamic.create(await runtime.dynamic.load(new_agent.ref), solver("leaf"))

        declarations.add_capability(owner, declarations.capability_of("module", math, include=["cos", "pi"]))
        new_version = owner.recipe().version
        for ref in (new_agent.ref, leaf.ref):
            assert names(await runtime.dynamic.load(ref)) == [("pi",)]
            assert names(await runtime.dynamic.load(ref._replace(root_version=new_version))) == [("pi",)]


async def test_a_tampered_recipe_never_gains_capabilities(
    make_store: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AC-S4-4, NEG-8: a wrong hash is refused; a right one is another version, and has no more capabilities."""
    async with process(make_store, monkeypatch) as runtime:
        owner = architect()
        new_agent = await runtime.dynamic.create(owner, solver())
        registry = await runtime.dynamic.registries.namespace("architect")
        entry = registry.entry(REGISTRY, "math_solver")
        entry["capabilities"] = [{"type": "module", "name": "os"}, {"type": "module", "name": "math"}]
        registry.set_entry(REGISTRY, "math_solver", entry)
        await registry.commit()
        with pytest.raises(AgentNotResolved, match="hash"):
            await runtime.dynamic.load(new_agent.ref)

        del entry["hash"]
        forged = Recipe.from_entry(entry)
        registry.set_entry(REGISTRY, "math_solver", forged.entry())
        await registry.commit()
        with pytest.raises(AgentNotResolved, match="version"):
            await runtime.dynamic.load(new_agent.ref)
        loaded_agent = await runtime.dynamic.load(new_agent.ref._replace(version=forged.version))
        assert [(each.name, each.include) for each in loaded_agent.capabilities] == [("math", ("cos", "pi", "sin"))]


async def test_a_handle_never_finds_another_agent(make_store: MakeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """AC-S4-3, AC-S4-5, NEG-8: unknown names, versions, parents and tasks raise, and find no other agent."""
    async with process(make_store, monkeypatch) as runtime:
        owner = architect()
        one = await runtime.dynamic.create(owner, solver())
        twin = await runtime.dynamic.create(owner, solver("twin"))
        newer = await runtime.dynamic.create(owner, solver(also=" Slowly."))
        second_version = await runtime.dynamic.create(owner, solver(also=" Slowly."))

        assert len({one.ref, twin.ref, newer.ref}) == 3
        assert second_version == newer
        assert "Slowly" not in (await runtime.dynamic.load(one.ref)).primer
        assert "Slowly" in (await runtime.dynamic.load(newer.ref)).primer
        assert sorted(await runtime.dynamic.made_by(owner)) == ["math_solver", "twin"]
        wrong = [
            (one.ref._replace(version="0" * 64), "version"),
            (one.ref._replace(version=twin.ref.version), "version"),
            (one.ref._replace(path=("nobody",)), "agent"),
            (one.ref._replace(path=("nobody", "math_solver")), "agent"),
            (one.ref._replace(path=("math_solver", "math_solver")), "agent"),
            (one.ref._replace(root="nobody"), "root agent"),
            (one.ref._replace(root_version="0" * 64), "root agent"),
        ]
        for ref, kind in wrong:
            with pytest.raises(AgentNotResolved) as refusal:
                await runtime.dynamic.load(str(ref))
            assert refusal.value.kind == kind
        with pytest.raises(AgentNotResolved, match=r"task 'sovle'.*solve"):
            await runtime.dynamic.task(f"{one.ref}:sovle")
        for text in ("", "architect", "architect@0", "../x@" + "0" * 64, f"{one.ref}/\0", "x" * 10**6, None, 3):
            with pytest.raises(InvalidValue):
                await runtime.dynamic.load(text)  # type: ignore[arg-type]  # on purpose


async def test_a_name_is_looked_up_from_the_nearest_registry_outwards(
    make_store: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row 127: the own registry comes first, then those above, then declared agents; otherwise an error."""
    async with process(make_store, monkeypatch) as runtime:
        owner = architect()
        middle = (await runtime.dynamic.create(owner, solver("middle"))).ref
        above = (await runtime.dynamic.create(owner, solver("twice"))).ref
        assert await runtime.dynamic.local(middle, "twice") == above
        own_ref = (await runtime.dynamic.create(await runtime.dynamic.load(middle), solver("twice"))).ref
        assert await runtime.dynamic.local(middle, "twice") == own_ref
        assert (await runtime.dynamic.local(middle, "architect")).path == ()
        with pytest.raises(AgentNotResolved, match="nobody"):
            await runtime.dynamic.local(middle, "nobody")


async def test_an_agent_without_the_capability_creates_no_agents() -> None:
    """Denied is raised, since rights are not clamped: the creator must hold `Agent` itself."""
    async with AgentRuntime() as runtime:
        with pytest.raises(Denied, match="Agent"):
            await runtime.dynamic.create(Agent(name="worker"), solver())


async def test_a_missing_capability_is_named(make_store: MakeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """AC-S4-3: load names a package that the creator may use and that this machine lacks."""
    async with process(make_store, monkeypatch) as runtime:
        owner = architect().module("no_such_package_here.part")
        agent = Agent(name="reader").module("no_such_package_here.part")
        new_agent = await runtime.dynamic.create(owner, agent.recipe())
        with pytest.raises(AgentNotResolved, match=r"capability 'no_such_package_here\.part' is missing"):
            await runtime.dynamic.load(new_agent.ref)


async def test_a_wrong_result_is_retried_then_raises_task_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """AC-S4-6: the agent reads what is wrong; after its tries the caller gets TaskFailed."""
    async with AgentRuntime() as runtime:
        new_agent = await runtime.dynamic.create(architect(), solver())
        task = await runtime.dynamic.task(f"{new_agent.ref}:solve")
        model = script_answers(task, ['{"roots": "none"}', Call("task_success", {"result": {"roots": [2]}})])
        solution = await task("x = 2")

        assert solution.roots == [2.0]
        assert "$.roots" in model.requests[1].messages[-1].text
        script_answers(task, ["no", "still no", "never"])
        with pytest.raises(TaskFailed) as failure:
            await task("x = 2")
        assert failure.value.task == "math_solver.solve"


async def test_map_keeps_the_order_and_every_outcome() -> None:
    """AC-S4-9: `max_parallel` limits the active calls; results keep their order.

    One failure leaves the others valid.
    """
    async with AgentRuntime() as runtime:
        new_agent = await runtime.dynamic.create(architect(), solver())
        task = await runtime.dynamic.task(f"{new_agent.ref}:solve")
        script_answers(
            task,
            {
                '"equation": "b"': [Call("task_fail", {"message": "b cannot be solved"})],
                '"equation": "a"': ['{"roots": [1]}'],
                '"equation": "c"': ['{"roots": [3]}'],
            },
        )
        outcomes = await task.map(["a", "b", "c"], max_parallel=2)

        assert [each.exception() is None for each in outcomes] == [True, False, True]
        assert [outcomes[0].result().roots, outcomes[2].result().roots] == [[1.0], [3.0]]
        with pytest.raises(TaskFailed, match="b cannot be solved"):
            outcomes[1].result()
        handle = await task.submit("a")
        assert (await handle).roots == [1.0]
        assert await handle.exception() is None
        with pytest.raises(InvalidValue, match=r"solve\.equation"):
            await task.map(["a", 3])


async def test_a_task_stream_yields_events_and_a_value() -> None:
    """The stream has the run's events from its spawn to its end, and the value."""
    async with AgentRuntime() as runtime:
        new_agent = await runtime.dynamic.create(architect(), solver())
        task = await runtime.dynamic.task(f"{new_agent.ref}:solve")
        script_answers(task, ['{"roots": [1]}'])
        stream = task.stream("x = 1")
        types = [type(event) async for event in stream]

        assert (types[0], types[-1]) == (RunSpawned, RunEnded)
        assert MessageRecorded in types
        assert (await stream.result()).roots == [1.0]
        assert await stream.exception() is None


async def test_a_question_is_answered_after_a_restart(make_store: MakeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """AC-S4-11: the token of NeedsInput continues the conversation in another process, once."""
    async with process(make_store, monkeypatch) as runtime:
        new_agent = await runtime.dynamic.create(architect(), solver())
        task = await runtime.dynamic.task(f"{new_agent.ref}:solve")
        script_answers(task, [Call("task_clarify", {"question": "Over which field?"})])
        with pytest.raises(NeedsInput, match="Over which field") as needed:
            await task("x^2 = -1")
        token = needed.value.token

    async with process(make_store, monkeypatch) as runtime:
        architect()
        task = await runtime.dynamic.task(f"{new_agent.ref}:solve")
        model = script_answers(task, ['{"roots": []}'])
        solution = await task.answer(token, "The real numbers.")

        assert solution.roots == []
        texts = [message.text for message in model.requests[0].messages]
        assert "x^2 = -1" in texts[1]
        assert texts[-1] == "The real numbers."
        assert (await task.answer(token, "The real numbers.")).roots == []
        assert len(model.requests) == 1
        with pytest.raises(BusyError):
            await task.answer(token, "The complex ones.")
        with pytest.raises(RametError):
            await task.answer("run-0000000000000000", "?")


def test_a_task_is_callable_without_an_event_loop(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain script calls the task and gets the value; the folder has a journal of the run."""
    monkeypatch.chdir(tmp_path)
    agent = Agent(name="clerk", model=ScriptedModel(["3"]))

    @agent.task
    def count(item: str) -> int:
        """Count."""

    assert count("apples") == 3
    assert (tmp_path / ".ramet" / "journal.db").exists()


_junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6) | st.sampled_from(["os", "../x", "a\0b", "module"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def mutated_recipes(draw: st.DrawFn) -> Any:
    """Draw a real recipe with some of its parts replaced, removed or added."""
    entry = copy.deepcopy(solver().entry())
    if draw(st.booleans()):
        del entry["hash"]
    for _ in range(draw(st.integers(1, 3))):
        part: Any = entry
        while isinstance(part, dict | list) and part:
            key = draw(st.sampled_from(sorted(part))) if isinstance(part, dict) else draw(st.integers(0, len(part) - 1))
            if draw(st.integers(0, 2)) == 0:
                part[key] = draw(_junk)
                break
            if isinstance(part, dict) and draw(st.integers(0, 4)) == 0:
                part[draw(st.text(max_size=6))] = draw(_junk)
                break
            part = part[key]
    return entry


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(entry=st.one_of(mutated_recipes(), _junk, st.dictionaries(st.sampled_from(["name", "primer", "types"]), _junk)))
async def test_any_recipe_is_valid_or_refused(entry: Any) -> None:
    """AC-S4-3: the runtime never crashes, imports outside the allow-list, or finds another agent."""
    store = await MemoryStore().open()
    async with AgentRuntime(store=store) as runtime:
        owner = architect()
        try:
            new_agent = await runtime.dynamic.create(owner, entry)
        except InvalidValue:
            return
        loaded_agent = await runtime.dynamic.load(new_agent.ref)
        assert loaded_agent.name == entry["name"]
        assert {each.name for each in loaded_agent.capabilities} <= {"Agent", "math"}
        assert json.loads(json.dumps(loaded_agent.recipe().data()))
