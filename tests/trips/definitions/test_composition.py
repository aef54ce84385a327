"""Agents made of agents: a chain, branches, a graph; with functions and models, in the host and in sandboxes."""

from __future__ import annotations

import asyncio
import operator
import os
import pathlib
from collections.abc import AsyncIterator
from typing import Annotated, Any, TypedDict

import pytest

from ramet import (
    END,
    START,
    Agent,
    AgentRuntime,
    Limits,
    Policy,
    ScriptedModel,
    StateGraph,
    StepFailure,
    chain,
    parallel,
)
from ramet.agent.composition.chain import Step
from ramet.core.errors import RametError
from ramet.core.events import Event, RunSpawned, SandboxStarted
from ramet.core.outcome import Result, Status
from ramet.models.scripted.dialogue import Call
from ramet.spawn.handle import Handle
from tests.trips.agents.composed import (
    Point,
    double,
    fails,
    may_spawn,
    norm,
    pid,
    plus_one,
    promises_a_number,
    to_point,
    told,
    triple,
    untyped,
)


@pytest.fixture
async def runtime(tmp_path: pathlib.Path) -> AsyncIterator[AgentRuntime]:
    """A runtime with a journal, whose sandboxes are processes."""
    async with AgentRuntime(tmp_path, backend="local") as runtime:
        yield runtime


async def result_of(runtime: AgentRuntime, agent: Step, *args: Any, prompt: str = "", **options: Any) -> Result:
    """Its result."""
    return await (await runtime.spawn(agent, prompt, args=args, **options)).result()


def error_of(result: Result) -> tuple[Status, str, str]:
    """How it failed."""
    assert result.error is not None
    return result.status, result.error.type, result.error.message


def tree_of(runtime: AgentRuntime, handle: Handle) -> list[str]:
    """The paths of a tree that has ended."""
    return [view.path for view in runtime._trees._finished[handle.run.info.root].tree.views()]


# ---- chain


async def test_each_step_takes_what_the_one_before_left(runtime: AgentRuntime) -> None:
    """AC-S0-13: output n is input n + 1, over sync and async functions and a model; each step is a run below."""
    model = Agent(name="asked", model=ScriptedModel({"9": ["nine"]}))
    handle = await runtime.spawn(chain(double, plus_one, model, str.upper, name="line"), args=(4,))
    result = await handle.result()

    assert (result.status, result.value) == (Status.COMPLETED, "NINE")
    assert tree_of(runtime, handle) == ["main", "main/asked", "main/double", "main/plus_one", "main/upper"]
    assert (result.usage_subtree.agents, result.usage_subtree.model_calls) == (4, 1)


async def test_objects_pass_by_the_annotations(runtime: AgentRuntime) -> None:
    """Also through a composition in between, which has no annotation of its own."""
    assert (await result_of(runtime, chain(to_point, norm), 3)).value == 9
    assert (await result_of(runtime, chain(to_point, parallel(norm, chain(norm, double))), 3)).value == [9, 18]
    left = (await result_of(runtime, chain(to_point, untyped), 3)).value
    assert (type(left), left["x"]) == (dict, 3)
    assert (await result_of(runtime, chain(to_point), 3)).value == Point(3)


async def test_a_step_that_breaks_its_word_is_named(runtime: AgentRuntime) -> None:
    """A result of another type than its annotation, an input of another, an error: typed, with the step's path."""
    status, kind, message = error_of(await result_of(runtime, chain(promises_a_number, double)))
    assert (status, kind) == (Status.FAILED, "StepFailed")
    assert message.startswith("step 'promises_a_number' (main/promises_a_number) ended failed: output: 'no number'")

    status, kind, message = error_of(await result_of(runtime, chain(str.upper, double), "x"))
    assert (status, kind) == (Status.FAILED, "InvalidValue")
    assert message.startswith("input: 'X' is not accepted; expected")

    status, kind, message = error_of(await result_of(runtime, chain(double, fails, double), 4))
    assert (status, kind) == (Status.FAILED, "StepFailed")
    assert message == "step 'fails' (main/fails) ended failed: 8 is too much"


async def test_a_prompt_is_the_first_input(runtime: AgentRuntime) -> None:
    """As for any agent: text without arguments."""
    assert (await result_of(runtime, chain(str.upper), prompt="go")).value == "GO"
    assert (await result_of(runtime, chain(pid, double))).value == 2 * os.getpid()


async def test_a_composition_is_a_type_that_a_model_may_spawn(runtime: AgentRuntime) -> None:
    """Its prompt is the chain's input, its result what the tool says."""
    lead = Agent(name="lead", model=ScriptedModel([[Call("Agent", {"subagent_type": "shout", "prompt": "hi"})], "ok"]))
    handle = await runtime.spawn(lead, "go", agents={"shout": chain(str.upper, name="shout", description="Shouts")})

    assert (await handle.result()).value == "ok"
    assert "HI" in str(handle.run.context.history[2].content)


async def test_it_ends_with_its_budget_and_with_its_time(runtime: AgentRuntime) -> None:
    """Limits of a composition are those of the tree below it."""
    status, kind, message = error_of(
        await result_of(runtime, chain(double, double, double), 1, limits=Limits(agents=2))
    )
    assert (status, kind) == (Status.FAILED, "SpawnRefused")
    assert "agents" in message

    async def for_ever(_: int) -> None:
        await asyncio.Event().wait()

    result = await result_of(runtime, chain(for_ever).with_timeout(0.05), 1)
    assert result.status is Status.TIMEOUT


async def test_cancelled_it_takes_its_steps_along(runtime: AgentRuntime) -> None:
    """When cancel returns nothing of it lives."""
    begun = asyncio.Event()

    async def for_ever(_: int) -> None:
        begun.set()
        await asyncio.Event().wait()

    handle = await runtime.spawn(chain(parallel(for_ever, for_ever)), args=(1,))
    await begun.wait()
    receipt = await handle.cancel()

    assert len(receipt.stopped) == 4
    assert (await handle.result()).status is Status.CANCELLED


# ---- parallel


async def test_branches_work_side_by_side_under_a_cap(runtime: AgentRuntime) -> None:
    """AC-S0-13: never more than `max_parallel` at once, and results in the order of the items."""
    at_work = most = 0
    full = asyncio.Event()

    async def busy(number: int) -> int:
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        if at_work == 3:
            full.set()
        await full.wait()
        for _ in range(20 - number):
            await asyncio.sleep(0)
        at_work -= 1
        return number

    items = list(range(12))
    assert (await result_of(runtime, parallel(busy, for_each=True, max_parallel=3), items)).value == items
    assert most == 3


async def test_one_failure_costs_no_other(runtime: AgentRuntime) -> None:
    """It stands in its place, and the next step can look at it by its type."""
    result = await result_of(runtime, parallel(double, fails, plus_one), 4)
    assert result.value == [
        8,
        StepFailure(step="fails", status=Status.FAILED, message="4 is too much", path="main/fails"),
        5,
    ]
    assert (await result_of(runtime, chain(parallel(double, fails), told), 4)).value == ["8", "fails: 4 is too much"]


async def test_if_all_fail_it_fails(runtime: AgentRuntime) -> None:
    """Nothing is completed without any result; no items are no failure."""
    status, kind, message = error_of(await result_of(runtime, parallel(fails, fails), 4))

    assert (status, kind) == (Status.FAILED, "StepFailed")
    assert "and so did every other of 2" in message
    assert (await result_of(runtime, parallel(fails, for_each=True), [])).value == []


async def test_asked_to_it_stops_with_the_first_failure(runtime: AgentRuntime) -> None:
    """The others are cancelled, and gone when it fails."""

    async def for_ever(_: int) -> None:
        await asyncio.Event().wait()

    handle = await runtime.spawn(parallel(for_ever, fails, on_failure="stop"), args=(4,))
    status, kind, _ = error_of(await handle.result())

    assert (status, kind) == (Status.FAILED, "StepFailed")
    views = {view.path: view.state for view in runtime._trees._finished[handle.id].tree.views()}
    assert views["main/for_ever"] == "cancelled"


# ---- graph


class Draft(TypedDict, total=False):
    """A state."""

    topic: str
    text: str
    notes: Annotated[list[str], operator.add]
    rounds: int


def review(state: Draft) -> Draft:
    """Counts and notes."""
    return {"rounds": state.get("rounds", 0) + 1, "notes": [f"round {state.get('rounds', 0)}"]}


async def enough(state: Draft) -> bool:
    """After the second round."""
    return state["rounds"] >= 2


def reviewing(max_steps: int = 25) -> Agent:
    """Writes, reviews, and writes again."""
    writer = Agent(name="writer", model=ScriptedModel(["one", "two"]))
    graph = StateGraph(Draft)
    graph.add_node("write", writer, input="topic", output="text")
    graph.add_node(review)
    graph.add_edge(START, "write")
    graph.add_edge("write", "review")
    graph.add_conditional_edges("review", enough, {True: END, False: "write"})
    return graph.compile(name="draft", max_steps=max_steps)


async def test_a_graph_goes_round_until_its_edge_says_end(runtime: AgentRuntime) -> None:
    """A model and a function are nodes; what they leave is put into the state as its schema says."""
    result = await result_of(runtime, reviewing(), {"topic": "ramets"})

    expected = {"topic": "ramets", "text": "two", "rounds": 2, "notes": ["round 0", "round 1"]}
    assert (result.status, result.value) == (Status.COMPLETED, expected)


async def test_a_graph_stops_at_max_steps(runtime: AgentRuntime) -> None:
    """AC-S0-13: typed, and naming the node that would have been next."""
    handle = await runtime.spawn(reviewing(max_steps=3), args=({"topic": "ramets"},))
    status, kind, message = error_of(await handle.result())

    assert tree_of(runtime, handle) == ["main", "main/review", "main/write", "main/write-2"]
    assert (status, kind) == (Status.FAILED, "StepsExceeded")
    assert message == "draft has reached its limit of 3 steps; 'review' would have been the next"
    assert (await result_of(runtime, reviewing(max_steps=4), {"topic": "ramets"})).status is Status.COMPLETED


@pytest.mark.parametrize(
    ("node", "path", "kind", "message"),
    [
        (lambda state: {"wrong": 1}, None, "StepFailed", "what node left: key: 'wrong' is not accepted"),
        (lambda state: 3, None, "StepFailed", "what node left: 3 is not accepted"),
        (lambda state: {}, lambda state: "nowhere", "Unknown", "unknown node after 'node' 'nowhere'; known: node"),
        (lambda state: {}, lambda state: 1 / 0, "StepFailed", "ZeroDivisionError"),
    ],
)
async def test_what_cannot_be_gone_on_with_is_named(
    runtime: AgentRuntime, node: Any, path: Any, kind: str, message: str
) -> None:
    """A change of a key that there is not, no dict at all, a way to nowhere, a route that fails."""
    graph = StateGraph(Draft).add_node("node", node).set_entry_point("node")
    if path is not None:
        graph.add_conditional_edges("node", path)

    status, found, said = error_of(await result_of(runtime, graph.compile(), {"topic": "x"}))

    assert (status, found) == (Status.FAILED, kind)
    assert message in said


async def test_nodes_may_be_compositions_and_states_any_value(runtime: AgentRuntime) -> None:
    """They nest, deeper than agents may, since their levels are not counted."""
    graph = StateGraph().add_node("both", parallel(double, plus_one)).add_node("sum", sum)
    graph.add_edge(START, "both").add_edge("both", "sum")
    inner: Step = graph.compile()
    for _ in range(6):
        inner = chain(inner)

    assert (await result_of(runtime, inner, 5)).value == 16


# ---- policies


async def test_a_composition_works_in_the_host_and_its_steps_under_its_policy(runtime: AgentRuntime) -> None:
    """Given to `run_agent` every step has a sandbox of its own, also without a policy; the composition has none."""
    result = await runtime.run_agent(chain(parallel(pid, pid), untyped))

    assert result.exit_code == 0
    assert os.getpid() not in result.output
    assert await sandboxes(runtime, result.session_id) == ["main/parallel/pid", "main/parallel/pid-2", "main/untyped"]


async def test_a_step_never_gets_more_than_its_composition_has(runtime: AgentRuntime) -> None:
    """Limits are clamped, rights refused; sub-agents only where the policy says so."""
    tight = Policy(memory_mb=120, retry_count=0)
    handle = await runtime.spawn(chain(triple, triple.with_policy(Policy(memory_mb=500))).with_policy(tight), args=(1,))
    assert (await handle.result()).value == 9
    runs = runtime._trees._finished[handle.id].tree.register.runs.values()
    grants = [run.grant for run in runs if run.grant is not None]
    assert [grant.memory_mb for grant in grants] == [100, 120]

    greedy = chain(triple.with_policy(Policy(allowed_endpoints=["example.org:443"]))).with_policy(tight)
    status, kind, message = error_of(await result_of(runtime, greedy, 1))
    assert (status, kind) == (Status.FAILED, "SpawnRefused")
    assert "policy.allowed_endpoints" in message

    assert error_of(await result_of(runtime, chain(may_spawn).with_policy(tight), 1))[0] is Status.FAILED
    allowed = Policy(allow_sub_agents=True, memory_mb=400)
    assert (await result_of(runtime, chain(chain(may_spawn)).with_policy(allowed), 1)).value is True


async def sandboxes(runtime: AgentRuntime, root: str) -> list[str]:
    """The paths of the runs of a tree that had a sandbox."""
    assert runtime.journal is not None
    found = await runtime.journal.store.read(tree=root, limit=10_000)
    from ramet.core.events import decode

    events: list[Event] = [decode(each.data) for each in found]
    assert all(event.root == root for event in events if isinstance(event, RunSpawned))
    return sorted(event.path for event in events if isinstance(event, SandboxStarted))


async def test_decorated_functions_are_agents_everywhere(runtime: AgentRuntime) -> None:
    """As a root, as a step, and as a plain function."""
    assert triple(3) == 9
    result = await runtime.run_agent(triple, args=(3,))
    assert (result.output, await sandboxes(runtime, result.session_id)) == (9, ["main"])
    assert (await result_of(runtime, chain(triple, double), 1)).value == 6


async def test_outside_of_a_runtime_it_says_where_it_runs() -> None:
    """A composition that is called like a function has nowhere to have its steps born."""
    with pytest.raises(RametError, match="pass it to a runtime"):
        await chain(double)(1)
