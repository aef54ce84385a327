"""Agents of other frameworks as runs: their model calls are reserved, settled and recorded, and a cancel ends them."""

from __future__ import annotations

import asyncio
import pathlib
import sys
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool

import ramet
from ramet.agent.adopted import ledger
from ramet.agent.definition import Agent
from ramet.core.errors import BudgetExceeded, InvalidValue, RametError, SpawnRefused
from ramet.core.events import BudgetRefused, Event, ModelAsked, ModelCharged, RunSpawned, ToolEnded, ToolStarted
from ramet.core.limits import Limits
from ramet.core.outcome import Result, Status, Usage
from ramet.core.policy.policy import Policy
from ramet.host.runtime import AgentRuntime
from ramet.host.session import Session
from ramet.models.prices import Price
from ramet.models.scripted.dialogue import Step
from ramet.models.scripted.model import Call, Hang, ScriptedModel
from ramet.spawn.handle import Handle
from ramet.tools.context import current
from ramet.tools.spawn_request import SpawnRequest
from tests.support.providers import provider
from tests.trips.kits.sessions import of_kind, session_events, specialist_call
from tests.trips.programs.adopted_agent import asks_twice


@pytest.fixture
async def runtime() -> AsyncIterator[AgentRuntime]:
    async with AgentRuntime(grace_s=0.2) as runtime:
        yield runtime


async def result_and_events(handle: Handle) -> tuple[Result, list[Event]]:
    """Wait for the result of a run, and return it with the run's events."""
    result = await handle.result()
    return result, [event async for event in handle.events()]


async def test_an_adopted_chain_becomes_a_recorded_run(runtime: AgentRuntime) -> None:
    """The value is the model's text; the request and its tokens are in the events and in the usage."""
    model = ScriptedModel(["Blue."])
    chain = ChatPromptTemplate.from_template("What colour is {thing}?") | model
    agent = ramet.adopt(chain, name="painter", description="Knows colours.")

    result, events = await result_and_events(await runtime.spawn(agent, args=({"thing": "the sky"},)))

    assert (result.status, result.value) == (Status.COMPLETED, "Blue.")
    assert model.requests[0].messages[0].text == "What colour is the sky?"
    requests, charges = of_kind(events, ModelAsked), of_kind(events, ModelCharged)
    assert [each.model for each in requests] == ["scripted"]
    assert [each.step_id for each in requests] == [each.step_id for each in charges]
    assert result.usage.model_calls == 1
    assert result.usage.tokens == charges[0].usage.tokens > 0
    assert not charges[0].usage.estimated


async def test_concurrent_branches_make_exactly_the_budgeted_requests(runtime: AgentRuntime) -> None:
    """Forty concurrent branches share a limit of five calls: five requests reach the provider."""
    async with provider(lambda _: "a part") as server:
        model = server.openai(max_retries=0)

        async def all_at_once(text: str) -> list[str]:
            answers = await asyncio.gather(*(model.ainvoke(f"{text} {n}") for n in range(40)), return_exceptions=True)
            return [each.text for each in answers if isinstance(each, AIMessage)]

        agent = ramet.adopt(RunnableLambda(all_at_once), name="many").with_limits(model_calls=5)
        result, events = await result_and_events(await runtime.spawn(agent, "Go."))
        assert server.count == 5

    assert result.usage.model_calls == 5
    assert result.value == ["a part"] * 5
    assert of_kind(events, BudgetRefused)


async def test_an_exhausted_budget_ends_an_adopted_run_as_budget_exhausted(runtime: AgentRuntime) -> None:
    """The refusal is the outcome even if the framework wraps it in an exception of its own."""
    model = ScriptedModel(["one", "two", "three"])

    async def asks_on(_: str) -> str:
        try:
            for _n in range(9):
                await model.ainvoke("again")
        except BudgetExceeded as refusal:
            raise ValueError("something went wrong") from refusal
        return "never"

    agent = ramet.adopt(RunnableLambda(asks_on), name="asker")
    result, _ = await result_and_events(await runtime.spawn(agent, "Go.", limits=Limits(model_calls=2)))

    assert result.status is Status.BUDGET_EXHAUSTED
    assert result.error is not None
    assert result.error.type == "BudgetExceeded"
    assert len(model.requests) == 2


async def test_tokens_and_money_are_reserved_before_a_request(runtime: AgentRuntime) -> None:
    """A request is not sent if its maximum exceeds the tokens or the money that are left."""
    model = ScriptedModel(["never"], max_tokens=1_000)
    agent = ramet.adopt(model, name="dear")

    result, _ = await result_and_events(await runtime.spawn(agent, "Hello.", limits=Limits(tokens=900)))
    assert (result.status, model.requests) == (Status.BUDGET_EXHAUSTED, [])

    async with AgentRuntime(prices={"scripted": Price(input=1_000_000, output=1_000_000)}) as dear:
        result, _ = await result_and_events(await dear.spawn(agent, "Hello.", limits=Limits(usd=500.0)))
        assert (result.status, model.requests) == (Status.BUDGET_EXHAUSTED, [])
        result, _ = await result_and_events(await dear.spawn(agent, "Hello.", limits=Limits(usd=50_000.0)))
        assert result.status is Status.COMPLETED
        assert result.usage.usd == pytest.approx(result.usage.tokens)


async def test_retries_of_a_client_are_reserved_in_advance(runtime: AgentRuntime) -> None:
    """A client whose SDK asks up to three times takes three calls of the budget for one request."""
    async with provider(["Hello."]) as server:
        agent = ramet.adopt(server.openai(), name="patient")
        result, events = await result_and_events(await runtime.spawn(agent, "Go.", limits=Limits(model_calls=2)))
        assert (result.status, server.count) == (Status.BUDGET_EXHAUSTED, 0)
        result, events = await result_and_events(await runtime.spawn(agent, "Go.", limits=Limits(model_calls=3)))
        assert (result.status, server.count) == (Status.COMPLETED, 1)
    assert [each.requests for each in of_kind(events, ModelAsked)] == [3]


@pytest.mark.leaves("LangChain keeps the thread in which it lets asynchronous handlers hear of synchronous calls")
@pytest.mark.parametrize("mode", ["in the event loop", "in a thread of the framework", "in a thread of its own"])
async def test_synchronous_calls_are_counted_and_refused_like_async_ones(runtime: AgentRuntime, mode: str) -> None:
    """The budget holds for calls in the event loop, in a framework's thread and in an own thread."""
    model = ScriptedModel(lambda _: "yes")

    def asks(text: str, config: Any = None) -> list[str]:
        texts: list[str] = []
        for _ in range(3):
            try:
                texts.append(model.invoke(text, config).text)
            except BudgetExceeded:
                texts.append("refused")
        return texts

    async def in_the_loop(text: str) -> list[str]:
        return asks(text)

    async def in_a_thread(text: str, config: Any) -> list[str]:
        conversations: list[list[str]] = []
        thread = threading.Thread(target=lambda: conversations.append(asks(text, config)))
        thread.start()
        await asyncio.get_running_loop().run_in_executor(None, thread.join)
        return conversations[0]

    agents = {
        "in the event loop": RunnableLambda(in_the_loop),
        "in a thread of the framework": RunnableLambda(lambda text: asks(text)),
        "in a thread of its own": RunnableLambda(in_a_thread),
    }
    agent = ramet.adopt(agents[mode], name="asker")
    result, events = await result_and_events(await runtime.spawn(agent, "Well?", limits=Limits(model_calls=2)))

    assert result.value == ["yes", "yes", "refused"]
    assert len(of_kind(events, ModelAsked)) == len(model.requests) == result.usage.model_calls == 2


async def test_threads_of_a_blocked_event_loop_are_refused(
    runtime: AgentRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A synchronous `batch` in a coroutine blocks the loop that its threads need for a reservation."""
    monkeypatch.setattr(ledger, "BLOCKED_S", 0.1)
    model = ScriptedModel(["never"])

    async def asks(text: str) -> list[str]:
        return [each.text for each in model.batch([text, text])]

    result, _ = await result_and_events(await runtime.spawn(ramet.adopt(RunnableLambda(asks), name="asker"), "Go."))

    assert (result.status, model.requests) == (Status.FAILED, [])
    assert result.error is not None
    assert "its event loop was blocked" in result.error.message


async def test_tool_calls_of_a_framework_are_recorded_and_counted(runtime: AgentRuntime) -> None:
    """Events have the arguments and the outcomes; a call beyond the budget does not run."""
    ran: list[int] = []

    @tool
    async def double(number: int) -> int:
        """Double a number."""
        ran.append(number)
        if number == 2:
            raise ValueError("two is too many")
        return 2 * number

    async def calls(_: str) -> list[Any]:
        return await asyncio.gather(*(double.ainvoke({"number": n}) for n in (1, 2, 3)), return_exceptions=True)

    agent = ramet.adopt(RunnableLambda(calls) | RunnableLambda(lambda results: results[0]), name="doubler")
    result, events = await result_and_events(await runtime.spawn(agent, "Go.", limits=Limits(tool_calls=2)))

    assert (result.value, result.usage.tool_calls, ran) == (2, 2, [1, 2])
    tool_starts, tool_ends = of_kind(events, ToolStarted), of_kind(events, ToolEnded)
    assert [(each.tool, each.args) for each in tool_starts] == [("double", {"number": 1}), ("double", {"number": 2})]
    assert {each.call_id: (each.status, each.preview) for each in tool_ends} == {
        tool_starts[0].call_id: ("ok", "2"),
        tool_starts[1].call_id: ("error", "ValueError: two is too many"),
    }


async def test_a_hook_denies_a_tool_call_of_a_framework() -> None:
    """The tool does not run, its call is recorded as denied, and the parent reads the reason."""
    ran: list[str] = []

    @tool
    async def erase(path: str) -> str:
        """Erase a file."""
        ran.append(path)
        return "gone"

    async def deny(payload: dict[str, Any]) -> dict[str, Any]:
        return {"decision": "deny", "reason": f"not {payload['tool_input']['path']}"}

    helper = ramet.adopt(RunnableLambda(lambda _: {"path": "/etc"}) | erase, name="helper", description="Helps.")
    model = ScriptedModel([specialist_call("Erase it.", subagent_type="helper"), "Done."])
    hooks = {"PreToolUse": [{"matcher": "erase", "hooks": [deny]}]}
    async with Session(model, agents=[helper], hooks=hooks) as session:
        result = await session.ask("Go.")
        events = session_events(session)

    assert (result.status, ran) == (Status.COMPLETED, [])
    assert "not /etc" in model.requests[1].messages[-1].text
    assert [each.tool for each in of_kind(events, ToolStarted)] == ["Agent"]
    assert [each.status for each in of_kind(events, ToolEnded) if each.tool == "erase"] == ["denied"]


async def test_a_synchronous_call_in_the_event_loop_cannot_pass_a_gate(runtime: AgentRuntime) -> None:
    """A synchronous tool call blocks the loop that would ask a hook: it is refused, and not let through."""
    ran: list[int] = []

    @tool
    def work(number: int) -> int:
        """Work."""
        ran.append(number)
        return number

    async def blocks(_: str) -> Any:
        return work.invoke({"number": 1})

    async def allow(_: dict[str, Any]) -> dict[str, Any]:
        return {"decision": "allow"}

    agent = ramet.adopt(RunnableLambda(blocks), name="blocker")
    result, _ = await result_and_events(await runtime.spawn(agent, "Go."))
    assert (result.value, ran) == (1, [1])
    gated = agent.replace(hooks={"PreToolUse": [{"hooks": [allow]}]})
    result, _ = await result_and_events(await runtime.spawn(gated, "Go."))
    assert result.status is Status.FAILED
    assert result.error is not None
    assert result.error.type == "Denied"
    assert ran == [1]


async def test_a_cancelled_adopted_run_is_charged_for_its_open_request(runtime: AgentRuntime) -> None:
    """The open request is cut and charged with its maximum; nothing stays reserved."""
    is_reached = asyncio.Event()
    model = ScriptedModel([Hang(0)], max_tokens=100)

    async def asks(text: str) -> Any:
        is_reached.set()
        return await model.ainvoke(text)

    handle = await runtime.spawn(ramet.adopt(RunnableLambda(asks), name="slow"), "Go.", limits=Limits(tokens=10_000))
    await is_reached.wait()
    receipt = await handle.cancel("enough")
    result, events = await result_and_events(handle)

    assert (result.status, receipt.left) == (Status.CANCELLED, ())
    assert handle.run.context.budget.reserved_amount("tokens") == 0
    charges = of_kind(events, ModelCharged)
    assert len(of_kind(events, ModelAsked)) == len(charges)
    assert all(each.usage.estimated for each in charges)


async def test_a_thread_that_outlives_its_run_cannot_ask_a_model(runtime: AgentRuntime) -> None:
    """The receipt names the synchronous step, which cannot be ended, and its next request is refused."""
    has_entered, free, entered_refusal = threading.Event(), threading.Event(), threading.Event()
    model = ScriptedModel(lambda _: "late")

    def stuck(text: str) -> str:
        has_entered.set()
        free.wait()
        try:
            return model.invoke(text).text
        except RametError:
            entered_refusal.set()
            raise

    handle = await runtime.spawn(ramet.adopt(RunnableLambda(stuck), name="stuck"), "Go.")
    await asyncio.to_thread(has_entered.wait)
    receipt = await handle.cancel("enough")
    assert len(receipt.left) == 1
    assert receipt.left[0].startswith("main: ")
    free.set()
    await asyncio.to_thread(entered_refusal.wait)
    assert model.requests == []


async def test_a_model_agent_delegates_to_an_adopted_one() -> None:
    """The model gets a description of the adopted type, which runs below its parent in the tree's budget."""
    inner = ScriptedModel(["The inner answer."], model_name="inner")
    helper = ramet.adopt(inner, name="helper", description="Answers.")
    outer = ScriptedModel([specialist_call("Ask.", subagent_type="helper"), "Thanks."])
    async with Session(outer, agents=[helper], limits=Limits(model_calls=3)) as session:
        result = await session.ask("Go.")
        events = session_events(session)

    assert result.value == "Thanks."
    assert result.usage_subtree.model_calls == 3
    assert outer.requests[1].messages[-1].text.count("The inner answer.") == 1
    assert [each.path for each in of_kind(events, RunSpawned)] == ["main", "main/1"]
    assert [each.path for each in of_kind(events, ModelAsked)] == ["main", "main/1", "main"]


async def test_requests_of_an_adopted_agents_child_are_counted_once(runtime: AgentRuntime) -> None:
    """The agent's own usage has its own requests, and the child's usage has the child's."""
    own, childs = ScriptedModel(["own"]), ScriptedModel(["child's"], model_name="childs")

    async def delegates(text: str) -> str:
        own_call = current()
        assert own_call.tree is not None
        request = SpawnRequest(agent=Agent(name="child", model=childs), prompt=text, background=False)
        child = await (await own_call.tree.spawn(own_call, request)).result()
        return f"{child.value} and {(await own.ainvoke(text)).text}"

    agent = ramet.adopt(RunnableLambda(delegates), name="above")
    result, events = await result_and_events(await runtime.spawn(agent, "Go.", limits=Limits(model_calls=4)))
    assert result.value == "child's and own"
    assert result.usage.model_calls == 1
    assert result.usage_subtree.model_calls == 2
    assert [each.model for each in of_kind(events, ModelAsked)] == ["scripted"]


@pytest.mark.parametrize(("value", "message"), [("graph", "'graph'"), (None, "None"), (len, "len")])
def test_only_a_runnable_is_adopted(value: Any, message: str) -> None:
    with pytest.raises(InvalidValue, match=r"runnable: .*a Runnable") as refusal:
        ramet.adopt(value)
    assert message in str(refusal.value)


async def test_an_adopted_agent_refuses_a_policy(runtime: AgentRuntime) -> None:
    """The agent's objects and keys are in the host, so that a policy for it is refused, not ignored."""
    agent = ramet.adopt(ScriptedModel(["hello"]), name="inside")
    with pytest.raises((InvalidValue, SpawnRefused), match="works in the host"):
        await runtime.spawn(agent, "Go.", policy=Policy())
    with pytest.raises((InvalidValue, SpawnRefused), match="works in the host"):
        await runtime.run_agent(agent, Policy())


async def test_an_adopted_agent_is_a_step_of_a_composition(runtime: AgentRuntime) -> None:
    steps = ramet.chain(ramet.adopt(ScriptedModel(["one two"]), name="first"), lambda text: len(text.split()))
    result, _ = await result_and_events(await runtime.spawn(steps, "Go."))
    assert result.value == 2


# --- LangGraph, LangChain's agents, deepagents: where they are installed


async def test_a_graph_of_langgraph_becomes_a_run(runtime: AgentRuntime) -> None:
    """The prompt becomes the first message, and the last message the value; tool calls of nodes are recorded."""
    graph = pytest.importorskip("langgraph.graph", reason="langgraph is not installed")
    prebuilt = pytest.importorskip("langgraph.prebuilt")

    @tool
    def double(number: int) -> int:
        """Double a number."""
        return 2 * number

    model = ScriptedModel([Call("double", {"number": 21}), "It is 42."])

    async def ask(state: Any) -> dict[str, Any]:
        return {"messages": [await model.bind_tools([double]).ainvoke(state["messages"])]}

    built = graph.StateGraph(graph.MessagesState)
    built.add_node("ask", ask)
    built.add_node("tools", prebuilt.ToolNode([double]))
    built.add_edge(graph.START, "ask")
    built.add_conditional_edges("ask", prebuilt.tools_condition)
    built.add_edge("tools", "ask")
    agent = ramet.adopt(built.compile(), name="calculator")

    result, events = await result_and_events(await runtime.spawn(agent, "Twice 21?"))
    assert (result.status, result.value) == (Status.COMPLETED, "It is 42.")
    assert model.requests[0].messages[0].text == "Twice 21?"
    assert [(each.tool, each.args) for each in of_kind(events, ToolStarted)] == [("double", {"number": 21})]
    assert result.usage == Usage(
        model_calls=2,
        tool_calls=1,
        input_tokens=result.usage.input_tokens,
        output_tokens=result.usage.output_tokens,
    )


async def test_a_graph_with_a_checkpointer_continues_at_its_checkpoint(
    runtime: AgentRuntime, tmp_path: pathlib.Path
) -> None:
    """The run's id is the thread of the graph: a second spawn continues after the last saved step."""
    graph = pytest.importorskip("langgraph.graph", reason="langgraph is not installed")
    memory = pytest.importorskip("langgraph.checkpoint.memory")
    calls: list[str] = []
    is_down = True

    def first(state: Any) -> dict[str, Any]:
        calls.append("first")
        return {"messages": [AIMessage("one")]}

    def second(state: Any) -> dict[str, Any]:
        if is_down:
            raise OSError("it is down")
        calls.append("second")
        return {"messages": [AIMessage("two")]}

    built = graph.StateGraph(graph.MessagesState)
    built.add_sequence([first, second])
    built.add_edge(graph.START, "first")
    agent = ramet.adopt(built.compile(checkpointer=memory.InMemorySaver()), name="steps")
    run = runtime.mint()
    result, _ = await result_and_events(await runtime.spawn(agent, "Go.", run=run))
    assert result.status is Status.FAILED
    is_down = False
    async with AgentRuntime() as another:
        result, _ = await result_and_events(await another.spawn(agent, "Go.", run=run))
    assert (result.value, calls) == ("two", ["first", "second"])


async def test_an_interrupted_graph_needs_input(runtime: AgentRuntime) -> None:
    graph = pytest.importorskip("langgraph.graph", reason="langgraph is not installed")
    memory, types = pytest.importorskip("langgraph.checkpoint.memory"), pytest.importorskip("langgraph.types")

    def asks(state: Any) -> dict[str, Any]:
        return {"messages": [AIMessage(types.interrupt("Which database?"))]}

    built = graph.StateGraph(graph.MessagesState)
    built.add_node("asks", asks)
    built.add_edge(graph.START, "asks")
    agent = ramet.adopt(built.compile(checkpointer=memory.InMemorySaver()), name="curious")
    run = runtime.mint()
    result, _ = await result_and_events(await runtime.spawn(agent, "Go.", run=run))
    assert result.status is Status.NEEDS_INPUT
    assert result.error is not None
    assert result.error.message == "Which database?"
    async with AgentRuntime() as another:
        result, _ = await result_and_events(await another.spawn(agent, args=(types.Command(resume="orders"),), run=run))
    assert result.value == "orders"


async def test_a_deep_agent_and_its_sub_agents_share_one_budget(runtime: AgentRuntime) -> None:
    """The requests and tool calls of `create_deep_agent(…)` and of its sub-agent are counted and recorded."""
    deepagents = pytest.importorskip("deepagents", reason="deepagents is not installed")
    script: list[Step] = [
        Call("task", {"description": "Look.", "subagent_type": "general-purpose"}),
        Call("write_file", {"file_path": "/found.md", "content": "it"}),
        "The sub-agent's report.",
        "The end.",
    ]
    agent = ramet.adopt(deepagents.create_deep_agent(model=ScriptedModel(script)), name="deep")

    result, events = await result_and_events(await runtime.spawn(agent, "Go."))
    assert (result.status, result.value) == (Status.COMPLETED, "The end.")
    assert (result.usage.model_calls, result.usage.tool_calls) == (4, 2)
    assert [each.tool for each in of_kind(events, ToolStarted)] == ["task", "write_file"]

    agent = ramet.adopt(deepagents.create_deep_agent(model=(bounded := ScriptedModel(script))), name="deep")
    result, _ = await result_and_events(await runtime.spawn(agent, "Go.", limits=Limits(model_calls=3)))
    assert result.status is Status.BUDGET_EXHAUSTED
    assert len(bounded.requests) == 3


# --- over kills


async def test_a_killed_adopted_agent_resumes_with_its_used_budget(tmp_path: pathlib.Path) -> None:
    """Resume invokes the agent again; its earlier usage counts, with the maximum for the cut request."""
    argv = [sys.executable, "-m", "tests.trips.programs.adopted_agent", str(tmp_path)]
    program = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
    assert program.stdout is not None
    assert await program.stdout.readline() == b"asked\n"
    program.kill()
    await program.wait()

    model = ScriptedModel(["three", "four"], max_tokens=50)
    async with AgentRuntime(tmp_path) as runtime:
        (handle,) = await runtime.resume(agents=[asks_twice(model)])
        result, events = await result_and_events(handle)
        assert handle.run.context.budget.reserved_amount("tokens") == 0

    assert (result.status, result.value) == (Status.COMPLETED, "three, four")
    assert result.usage.model_calls == 4
    assert result.usage.estimated
    assert len(of_kind(events, ModelAsked)) == 2  # of this process
