"""The model that plays a written dialogue.

Its common behaviour with real models is in tests/conformance/test_models.py.
"""

from __future__ import annotations

import asyncio

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.tools import tool

from ramet.concurrency.clock import FakeClock
from ramet.core.errors import InvalidValue, ModelFailed
from ramet.models.call import bind, complete, merge, stream_reply
from ramet.models.scripted.dialogue import Dialogue, Step
from ramet.models.scripted.model import Call, Cut, Fail, Request, Say, ScriptedModel

HI: list[BaseMessage] = [HumanMessage("hi")]


@tool
def grep(pattern: str) -> str:
    """Search."""
    return pattern


def child_messages(brief: str, *messages: BaseMessage) -> list[BaseMessage]:
    return [SystemMessage("You search."), HumanMessage(brief), *messages]


async def texts(model: ScriptedModel, *requests: list[BaseMessage]) -> list[str]:
    return [str((await complete(model, request)).text) for request in requests]


async def test_a_list_is_played_in_order() -> None:
    """Text, messages, calls and functions are steps."""
    script: list[Step] = [
        "one",
        AIMessage("two", id="m2"),
        Call("grep", {"pattern": "x"}),
        lambda messages: f"got {len(messages)}",
    ]
    model = ScriptedModel(script)

    replies = [await complete(model, HI) for _ in range(4)]

    assert [str(reply.text) for reply in replies] == ["one", "two", "", "got 1"]
    assert replies[1].id == "m2"
    assert replies[2].tool_calls[0]["args"] == {"pattern": "x"}


async def test_the_end_of_the_script_is_reported_with_the_step() -> None:
    """The test that reached it shows where."""
    model = ScriptedModel(["only"])
    await complete(model, HI)

    with pytest.raises(ModelFailed, match="step 2 was requested, it has 1") as failure:
        await complete(model, HI)

    assert not failure.value.retryable


async def test_requests_are_kept() -> None:
    """Messages, tool names and the limit are kept as they were at the time of the request."""
    model = ScriptedModel(["a", "b"])
    history = list(HI)
    await complete(bind(model, [grep]), history, max_tokens=9)
    history.append(HumanMessage("later"))
    await complete(model, history)

    assert model.requests == [Request((HI[0],), ("grep",), 9), Request(tuple(history), (), None)]


async def test_requests_are_not_kept_if_so_configured() -> None:
    """A benchmark asks a million times."""
    model = ScriptedModel(lambda messages: "x", keep_requests=False)
    await complete(model, HI)

    assert model.requests == []


async def test_usage_is_always_set_and_always_the_same() -> None:
    """Usage follows from the texts, or is the given one, streamed or not."""
    usage = UsageMetadata(input_tokens=1, output_tokens=2, total_tokens=3)
    replies = [
        *[await complete(ScriptedModel(["four words are said"]), HI) for _ in range(2)],
        merge([chunk async for chunk in stream_reply(ScriptedModel(["four words are said"]), HI)]),
    ]

    assert len({str(reply.usage_metadata) for reply in replies}) == 1
    assert replies[0].usage_metadata is not None
    assert replies[0].usage_metadata["output_tokens"] > 0
    assert (await complete(ScriptedModel([Say("x", usage=usage)]), HI)).usage_metadata == usage


async def test_call_ids_follow_from_the_step() -> None:
    """Two runs of the same script have the same ids, and no id comes twice."""

    async def ids() -> list[str | None]:
        model = ScriptedModel([[Call("a"), Call("b")], Call("c"), Call("d", id="mine")])
        return [call["id"] for _ in range(3) for call in (await complete(model, HI)).tool_calls]

    assert await ids() == await ids() == ["call_1_1", "call_1_2", "call_2_1", "mine"]


async def test_a_delay_uses_the_clock() -> None:
    """Nothing comes before it has passed."""
    clock = FakeClock()
    model = ScriptedModel([Say("late", delay_s=60)], clock=clock)
    asking = asyncio.create_task(complete(model, HI))
    while not clock.sleeping:  # noqa: ASYNC110  # sleep(0) is a step, not a wait
        await asyncio.sleep(0)

    await clock.advance(59)
    assert not asking.done()
    await clock.advance(1)
    assert (await asking).content == "late"


async def test_chunks_are_cut_as_written() -> None:
    """A test may need exact chunks."""
    chunks = [chunk async for chunk in stream_reply(ScriptedModel([Say("abc", chunks=("a", "bc"))]), HI)]

    assert [chunk.content for chunk in chunks if chunk.content] == ["a", "bc"]


async def test_the_model_answers_without_an_event_loop() -> None:
    """A notebook calls `invoke`."""
    assert ScriptedModel(["x"]).invoke("hi").content == "x"


async def test_parent_and_children_have_their_own_dialogues() -> None:
    """A system prompt or a brief selects the dialogue; the order of requests does not matter."""
    model = ScriptedModel({"You lead.": ["plan", "answer"], "search logs": ["logs: 3"], "search code": ["code: 7"]})
    parent: list[BaseMessage] = [SystemMessage("You lead."), HumanMessage("why?")]

    assert await texts(
        model,
        parent,
        child_messages("search code"),
        child_messages("search logs"),
        [*parent, AIMessage("plan"), HumanMessage("<task-notification>search logs: 3</task-notification>")],
    ) == ["plan", "code: 7", "logs: 3", "answer"]


async def test_a_notification_starts_no_dialogue() -> None:
    """A notification quotes a child; its reader continues with its own dialogue."""
    model = ScriptedModel({"why?": ["plan", "answer"], "search logs": ["logs: 3"]})
    note = HumanMessage("<task-notification>search logs: 3</task-notification>")

    assert await texts(model, [HumanMessage("why?"), AIMessage("plan"), note]) == ["answer"]


async def test_any_number_of_runs_may_use_one_dialogue_concurrently() -> None:
    """The step follows from the history of each, not from the order of requests."""
    model = ScriptedModel({"search": [Call("grep", {"pattern": "x"}), "found"]})

    async def one(number: int) -> str:
        messages = child_messages(f"search part {number}")
        first = await complete(model, messages)
        await asyncio.sleep(0)
        messages_after = [*messages, first, ToolMessage("hit", tool_call_id=first.tool_calls[0]["id"] or "")]
        return str((await complete(model, messages_after)).text)

    assert await asyncio.gather(*(one(number) for number in range(100))) == ["found"] * 100


async def test_a_fork_is_found_by_its_brief() -> None:
    """A fork has the history of its parent, with its own task at the end."""
    model = ScriptedModel({"why?": [Call("Agent", {"prompt": "check db"}), "answer"], "check db": ["db is fine"]})
    parent: list[BaseMessage] = [SystemMessage("You lead."), HumanMessage("why?")]
    reply = await complete(model, parent)
    result = ToolMessage("forked", tool_call_id=reply.tool_calls[0]["id"] or "")

    assert await texts(model, [*parent, reply, result, HumanMessage("check db")], [*parent, reply, result]) == [
        "db is fine",
        "answer",
    ]


async def test_failures_in_a_dialogue_are_played_once_each() -> None:
    """The retry gets the next step, though the history is the same."""
    model = ScriptedModel({"": [Fail(429, retry_after_s=1), Cut(3), "first", Fail(500), "second"]})
    for status in (429, None):
        with pytest.raises(ModelFailed) as failure:
            await complete(model, HI)
        assert failure.value.status == status
    assert await texts(model, HI) == ["first"]
    messages = [*HI, AIMessage("first"), HumanMessage("and?")]
    with pytest.raises(ModelFailed):
        await complete(model, messages)
    assert await texts(model, messages) == ["second"]


async def test_a_request_outside_the_dialogues_is_reported() -> None:
    """The error lists the patterns."""
    with pytest.raises(ModelFailed, match="known patterns: alpha, beta"):
        await complete(ScriptedModel({"alpha": ["x"], "beta": ["y"]}), HI)


async def test_an_exception_is_raised_as_by_a_provider() -> None:
    """The caller translates it."""
    with pytest.raises(ModelFailed, match="ConnectionResetError") as failure:
        await complete(ScriptedModel([Fail(ConnectionResetError("gone"))]), HI)

    assert failure.value.retryable


@pytest.mark.parametrize("script", ["text", 7, None])
def test_an_invalid_script_is_refused(script: object) -> None:
    """A string is a sequence of letters, which nobody means."""
    with pytest.raises(InvalidValue, match="script"):
        Dialogue(script)  # type: ignore[arg-type]
