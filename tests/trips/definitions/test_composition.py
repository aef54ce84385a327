"""Agents composed of agents (a chain, branches or a graph) from functions and models, in the host and in sandboxes."""

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
    describe_branches,
    double,
    fails,
    may_spawn,
    norm,
    pid,
    plus_one,
    promises_a_number,
    to_point,
    triple,
    untyped,
)


@pytest.fixture
async def runtime(tmp_path: pathlib.Path) -> AsyncIterator[AgentRuntime]:
    """Yield a runtime with a journal, whose sandboxes are processes."""
    async with AgentRuntime(tmp_path, backend="local") as runtime:
        yield runtime


async def result_of(runtime: AgentRuntime, agent: Step, *args: Any, prompt: str = "", **options: Any) -> Result:
    """Spawn the agent and return its result."""
    return await (await runtime.spawn(agent, prompt, args=args, **options)).result()


def error_of(result: Result) -> tuple[Status, str, str]:
    """Return the status, the type and the message of a failure."""
    assert result.error is not None
    return result.status, result.error.type, result.error.message


def tree_of(runtime: AgentRuntime, handle: Handle) -> list[str]:
    """Return the paths of a tree that has ended."""
    return [view.path for view in runtime._trees._finished_trees[handle.run.info.root].tree.views()]


# ---- chain


async def test_each_step_of_a_chain_gets_the_previous_output(runtime: AgentRuntime) -> None:
    """AC-S0-13: output n is input n + 1, for sync and async functions and a model; each step is a child run."""
    model = Agent(name="asked", model=ScriptedModel({"9": ["nine"]}))
    handle = await runtime.spawn(chain(double, plus_one, model, str.upper, name="line"), args=(4,))
    result = await handle.result()

    assert (result.status, result.value) == (Status.COMPLETED, "NINE")
    assert tree_of(runtime, handle) == ["main", "main/asked", "main/double", "main/plus_one", "main/upper"]
    assert (result.usage_subtree.agents, result.usage_subtree.model_calls) == (4, 1)


async def test_annotations_decide_the_types_that_steps_receive(runtime: AgentRuntime) -> None:
    """A nested composition without annotations passes the type on; an unannotated step gets a dict."""
    assert (await result_of(runtime, chain(to_point, norm), 3)).value == 9
    assert (await result_of(runtime, chain(to_point, parallel(norm, chain(norm, double))), 3)).value == [9, 18]
    result = (await result_of(runtime, chain(to_point, untyped), 3)).value
    assert (type(result), result["x"]) == (dict, 3)
    assert (await result_of(runtime, chain(to_point), 3)).value == Point(3)


async def test_a_step_with_a_wrong_type_is_named(runtime: AgentRuntime) -> None:
    """A wrong output, a wrong input and an error fail the chain with the step's path and the reason."""
    status, kind, message = error_of(await result_of(runtime, chain(promises_a_number, double)))
    assert (status, kind) == (Status.FAILED, "StepFailed")
    assert message.startswith("step 'promises_a_number' (main/promises_a_number) ended failed: output: 'no number'")

    status, kind, message = error_of(await result_of(runtime, chain(str.upper, double), "x"))
    assert (status, kind) == (Status.FAILED, "InvalidValue")
    assert message.startswith("input: 'X' is not accepted; expected")

    status, kind, message = error_of(await result_of(runtime, chain(double, fails, double), 4))
    assert (status, kind) == (Status.FAILED, "StepFailed")
    assert message == "step 'fails' (main/fails) ended failed: 8 is too much"


async def test_a_prompt_is_the_first_input_of_a_chain(runtime: AgentRuntime) -> None:
    """A chain without arguments takes the prompt as its input."""
    assert (await result_of(runtime, chain(str.upper), prompt="go")).value == "GO"
    assert (await result_of(runtime, chain(pid, double))).value == 2 * os.getpid()


async def test_a_model_can_spawn_a_composition(runtime: AgentRuntime) -> None:
    """The prompt is the chain's input, and its result is the tool result."""
    lead = Agent(name="lead", model=ScriptedModel([[Call("Agent", {"subagent_type": "shout", "prompt": "hi"})], "ok"]))
    handle = await runtime.spawn(lead, "go", agents={"shout": chain(str.upper, name="shout", description="Shouts")})

    assert (await handle.result()).value == "ok"
    assert "HI" in str(handle.run.context.history[2].content)


async def test_a_composition_ends_at_its_limits(runtime: AgentRuntime) -> None:
    """The limits of a composition are those of the tree below it."""
    status, kind, message = error_of(
        await result_of(runtime, chain(double, double, double), 1, limits=Limits(agents=2))
    )
    assert (status, kind) == (Status.FAILED, "SpawnRefused")
    assert "agents" in message

    async def for_ever(_: int) -> None:
        await asyncio.Event().wait()

    result = await result_of(runtime, chain(for_ever).with_timeout(0.05), 1)
    assert result.status is Status.TIMEOUT


async def test_cancelling_a_composition_ends_its_steps(runtime: AgentRuntime) -> None:
    """The receipt of the cancel lists the composition and each step below it."""
    has_begun = asyncio.Event()

    async def for_ever(_: int) -> None:
        has_begun.set()
        await asyncio.Event().wait()

    handle = await runtime.spawn(chain(parallel(for_ever, for_ever)), args=(1,))
    await has_begun.wait()
    receipt = await handle.cancel()

    assert len(receipt.stopped) == 4
    assert (await handle.result()).status is Status.CANCELLED


# ---- parallel


async def test_branches_run_concurrently_up_to_max_parallel(runtime: AgentRuntime) -> None:
    """AC-S0-13: at most `max_parallel` branches are active, and the results are in the order of the items."""
    at_work = max_active = 0
    full = asyncio.Event()

    async def busy(number: int) -> int:
        nonlocal at_work, max_active
        at_work += 1
        max_active = max(max_active, at_work)
        if at_work == 3:
            full.set()
        await full.wait()
        for _ in range(20 - number):
            await asyncio.sleep(0)
        at_work -= 1
        return number

    items = list(range(12))
    assert (await result_of(runtime, parallel(busy, for_each=True, max_parallel=3), items)).value == items
    assert max_active == 3


async def test_one_failed_branch_does_not_affect_others(runtime: AgentRuntime) -> None:
    """A StepFailure takes the place of its result, and the next step can check its type."""
    result = await result_of(runtime, parallel(double, fails, plus_one), 4)
    assert result.value == [
        8,
        StepFailure(step="fails", status=Status.FAILED, message="4 is too much", path="main/fails"),
        5,
    ]
    assert (await result_of(runtime, chain(parallel(double, fails), describe_branches), 4)).value == [
        "8",
        "fails: 4 is too much",
    ]


async def test_parallel_fails_if_every_branch_fails(runtime: AgentRuntime) -> None:
    """A composition without any result fails; one without items completes."""
    status, kind, message = error_of(await result_of(runtime, parallel(fails, fails), 4))

    assert (status, kind) == (Status.FAILED, "StepFailed")
    assert "and so did every other of 2" in message
    assert (await result_of(runtime, parallel(fails, for_each=True), [])).value == []


async def test_on_failure_stop_cancels_the_other_branches(runtime: AgentRuntime) -> None:
    """The composition fails after the other branches have ended as cancelled."""

    async def for_ever(_: int) -> None:
        await asyncio.Event().wait()

    handle = await runtime.spawn(parallel(for_ever, fails, on_failure="stop"), args=(4,))
    status, kind, _ = error_of(await handle.result())

    assert (status, kind) == (Status.FAILED, "StepFailed")
    views = {view.path: view.state for view in runtime._trees._finished_trees[handle.id].tree.views()}
    assert views["main/for_ever"] == "cancelled"


# ---- graph


class Draft(TypedDict, total=False):
    """A state."""

    topic: str
    text: str
    notes: Annotated[list[str], operator.add]
    rounds: int


def review(state: Draft) -> Draft:
    """Count a round and note it."""
    return {"rounds": state.get("rounds", 0) + 1, "notes": [f"round {state.get('rounds', 0)}"]}


async def enough(state: Draft) -> bool:
    """Return whether two rounds are over."""
    return state["rounds"] >= 2


def review_graph(max_steps: int = 25) -> Agent:
    """Return a graph that writes and reviews until it is enough."""
    writer = Agent(name="writer", model=ScriptedModel(["one", "two"]))
    graph = StateGraph(Draft)
    graph.add_node("write", writer, input="topic", output="text")
    graph.add_node(review)
    graph.add_edge(START, "write")
    graph.add_edge("write", "review")
    graph.add_conditional_edges("review", enough, {True: END, False: "write"})
    return graph.compile(name="draft", max_steps=max_steps)


async def test_a_graph_loops_until_its_edge_returns_end(runtime: AgentRuntime) -> None:
    """A model and a function are nodes; their outputs enter the state as its schema says."""
    result = await result_of(runtime, review_graph(), {"topic": "ramets"})

    expected = {"topic": "ramets", "text": "two", "rounds": 2, "notes": ["round 0", "round 1"]}
    assert (result.status, result.value) == (Status.COMPLETED, expected)


async def test_a_graph_stops_at_max_steps(runtime: AgentRuntime) -> None:
    """AC-S0-13: StepsExceeded names the node that would have been next."""
    handle = await runtime.spawn(review_graph(max_steps=3), args=({"topic": "ramets"},))
    status, kind, message = error_of(await handle.result())

    assert tree_of(runtime, handle) == ["main", "main/review", "main/write", "main/write-2"]
    assert (status, kind) == (Status.FAILED, "StepsExceeded")
    assert message == "draft has reached its limit of 3 steps; 'review' would have been the next"
    assert (await result_of(runtime, review_graph(max_steps=4), {"topic": "ramets"})).status is Status.COMPLETED


@pytest.mark.parametrize(
    ("node", "path", "kind", "message"),
    [
        (lambda state: {"wrong": 1}, None, "StepFailed", "the output of node: key: 'wrong' is not accepted"),
        (lambda state: 3, None, "StepFailed", "the output of node: 3 is not accepted"),
        (lambda state: {}, lambda state: "nowhere", "Unknown", "unknown node after 'node' 'nowhere'; known: node"),
        (lambda state: {}, lambda state: 1 / 0, "StepFailed", "ZeroDivisionError"),
    ],
)
async def test_an_invalid_node_output_or_route_is_named(
    runtime: AgentRuntime, node: Any, path: Any, kind: str, message: str
) -> None:
    """The cases are an unknown key, an output that is no dict, an unknown node, and a route that raises."""
    graph = StateGraph(Draft).add_node("node", node).set_entry_point("node")
    if path is not None:
        graph.add_conditional_edges("node", path)

    status, error_type, error_message = error_of(await result_of(runtime, graph.compile(), {"topic": "x"}))

    assert (status, error_type) == (Status.FAILED, kind)
    assert message in error_message


async def test_compositions_nest_beyond_the_depth_limit_of_agents(runtime: AgentRuntime) -> None:
    """A node may be a composition, and a state any value; levels of compositions do not count as depth."""
    graph = StateGraph().add_node("both", parallel(double, plus_one)).add_node("sum", sum)
    graph.add_edge(START, "both").add_edge("both", "sum")
    inner: Step = graph.compile()
    for _ in range(6):
        inner = chain(inner)

    assert (await result_of(runtime, inner, 5)).value == 16


# ---- policies


async def test_steps_of_run_agent_have_sandboxes_and_the_composition_has_none(runtime: AgentRuntime) -> None:
    """`run_agent` without a policy gives each step a sandbox of its own."""
    result = await runtime.run_agent(chain(parallel(pid, pid), untyped))

    assert result.exit_code == 0
    assert os.getpid() not in result.output
    assert await sandboxes(runtime, result.session_id) == ["main/parallel/pid", "main/parallel/pid-2", "main/untyped"]


async def test_a_step_gets_no_more_than_its_composition(runtime: AgentRuntime) -> None:
    """Limits are lowered and rights refused; a step may spawn only if the policy of the composition allows it."""
    tight = Policy(memory_mb=120, retry_count=0)
    handle = await runtime.spawn(chain(triple, triple.with_policy(Policy(memory_mb=500))).with_policy(tight), args=(1,))
    assert (await handle.result()).value == 9
    runs = runtime._trees._finished_trees[handle.id].tree.register.runs.values()
    grants = [run.grant for run in runs if run.grant is not None]
    assert [grant.memory_mb for grant in grants] == [100, 120]

    greedy = chain(triple.with_policy(Policy(allowed_endpoints=["example.org:443"]))).with_policy(tight)
    status, kind, message = error_of(await result_of(runtime, greedy, 1))
    assert (status, kind) == (Status.FAILED, "SpawnRefused")
    assert "policy.allowed_endpoints" in message

    assert error_of(await result_of(runtime, chain(may_spawn).with_policy(tight), 1))[0] is Status.FAILED
    policy = Policy(allow_sub_agents=True, memory_mb=400)
    assert (await result_of(runtime, chain(chain(may_spawn)).with_policy(policy), 1)).value is True


async def sandboxes(runtime: AgentRuntime, root: str) -> list[str]:
    """Return the paths of the runs of a tree that had a sandbox."""
    assert runtime.journal is not None
    entries = await runtime.journal.store.read(tree=root, limit=10_000)
    from ramet.core.events import decode

    events: list[Event] = [decode(each.data) for each in entries]
    assert all(event.root == root for event in events if isinstance(event, RunSpawned))
    return sorted(event.path for event in events if isinstance(event, SandboxStarted))


async def test_a_decorated_function_works_as_root_step_and_plain_function(runtime: AgentRuntime) -> None:
    """`@agent` keeps the function callable, and makes it a root or a step."""
    assert triple(3) == 9
    result = await runtime.run_agent(triple, args=(3,))
    assert (result.output, await sandboxes(runtime, result.session_id)) == (9, ["main"])
    assert (await result_of(runtime, chain(triple, double), 1)).value == 6


async def test_calling_a_composition_outside_a_runtime_raises() -> None:
    """RametError says that the composition needs a runtime for its steps."""
    with pytest.raises(RametError, match="pass it to a runtime"):
        await chain(double)(1)
