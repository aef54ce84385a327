"""The agent loop by itself: without session or tree, with a context and a model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any

import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, SystemMessage
from langchain_core.messages.tool import tool_call

import ramet
from ramet.agent.history.compaction import Compaction
from ramet.agent.history.pairing import repair
from ramet.agent.loop import FINAL_ANSWER_PROMPT, QueryParams, query
from ramet.agent.output import OutputContract
from ramet.concurrency.cancel import AbortController
from ramet.concurrency.clock import SystemClock
from ramet.concurrency.mailbox import Kind, Mail
from ramet.core.budget import Budget
from ramet.core.errors import Aborted, BudgetExceeded, ModelFailed, OutputInvalid
from ramet.core.events import BudgetRefused, Compacted, Event, MailDelivered, MessageRecorded
from ramet.core.limits import RESOURCES, Limits
from ramet.host.gateway import Gateway
from ramet.models.scripted.dialogue import ReplyStep, Script
from ramet.models.scripted.model import Call, Fail, Hang, ScriptedModel
from ramet.tools.context import ToolUseContext
from ramet.tools.model_request import ModelRequest
from tests.support.context import make_context, run_info
from tests.support.waiting import eventually
from tests.trips.kits.sessions import Gate, answers, async_tool, is_valid, typed_texts


def context_with_model(script: Script, *tools: Gate, **fields: Any) -> tuple[ToolUseContext, ScriptedModel]:
    """Return a context that reaches a scripted model through the gateway, and the model."""
    model = ScriptedModel(script)
    ask = Gateway(SystemClock()).port(model).ask
    return make_context(None, [gate.tool for gate in tools], ask=ask, **fields), model


def open_gate(name: str, **options: Any) -> Gate:
    gate = Gate(name, **options)
    gate.open.set()
    return gate


async def run_loop(context: ToolUseContext, *prompts: str, **params: Any) -> list[AIMessageChunk | Event]:
    """Return all pieces that the loop yields for these prompts."""
    messages = [HumanMessage(prompt) for prompt in prompts]
    return [piece async for piece in query(QueryParams(context=context, messages=messages, **params))]


def messages_of(pieces: list[AIMessageChunk | Event]) -> list[tuple[str, str]]:
    return [
        (piece.message["type"], str(piece.message["content"])) for piece in pieces if isinstance(piece, MessageRecorded)
    ]


def mail(number: int, kind: Kind = "agent") -> Mail:
    return Mail(id=f"m-{number}", sender="main/other", text=f"word {number}", kind=kind)


# --- thinking and acting


def test_the_loop_is_public() -> None:
    """Other programs build on `from ramet import query, QueryParams, ToolUseContext`."""
    assert (ramet.query, ramet.QueryParams, ramet.ToolUseContext) == (query, QueryParams, ToolUseContext)


async def test_the_loop_runs_tools_until_the_model_asks_for_none() -> None:
    """Each message is yielded in order once it is recorded; the answer is the last message of the history."""
    look = open_gate("look")
    context, model = context_with_model([Call("look"), [Call("look"), Call("look")], "the answer"], look)

    pieces = await run_loop(context, "the question")

    assert messages_of(pieces) == typed_texts(context.history)
    assert [kind for kind, _ in typed_texts(context.history)] == ["human", "ai", "tool", "ai", "tool", "tool", "ai"]
    assert context.history[-1].text == "the answer"
    assert (len(model.requests), look.calls) == (3, 3)


async def test_chunks_come_before_their_message() -> None:
    """The recorded message replaces the streamed text."""
    context, _ = context_with_model(["one two three"])

    pieces = await run_loop(context, "go")

    kinds = ["chunk" if isinstance(piece, AIMessageChunk) else type(piece).__name__ for piece in pieces]
    assert kinds[0] == "MessageRecorded"
    assert kinds[-1] == "MessageRecorded"
    assert set(kinds[1:-1]) == {"chunk"}
    assert "".join(piece.text for piece in pieces if isinstance(piece, AIMessageChunk)) == "one two three"


async def test_the_model_sees_exactly_system_history_and_tools() -> None:
    """Nothing is added, left out or reordered."""
    look = open_gate("look")
    context, model = context_with_model([Call("look"), "ok"], look, system_messages=(SystemMessage("rules"),))
    context.history.extend([HumanMessage("earlier"), AIMessage("indeed")])

    await run_loop(context, "now")

    first, second = model.requests
    assert typed_texts(first.messages) == [
        ("system", "rules"),
        ("human", "earlier"),
        ("ai", "indeed"),
        ("human", "now"),
    ]
    assert list(second.messages[:4]) == list(first.messages)
    assert first.tools == second.tools == ("look",)


async def test_each_request_is_a_list_of_its_own() -> None:
    """Later messages do not change a request that was sent."""
    requests: list[ModelRequest] = []

    async def ask(context: ToolUseContext, request: ModelRequest) -> AsyncGenerator[AIMessage]:
        requests.append(request)
        yield AIMessage("ok") if len(requests) > 1 else AIMessage("", tool_calls=[tool_call(name="x", args={}, id="1")])

    context = make_context(ask=ask)

    await run_loop(context, "go")

    assert [len(request.messages) for request in requests] == [1, 3]
    assert len({request.step for request in requests}) == 2


# --- mail


async def test_mail_is_read_before_each_request() -> None:
    """Mail comes after the results and before the next request, framed by its kind."""
    gate = Gate("look")
    context, model = context_with_model([Call("look"), "ok"], gate)
    context.mailbox.push(mail(1))

    async def later() -> None:
        await gate.entered.wait()
        context.mailbox.push(mail(2, "user"))
        gate.open.set()

    pieces, _ = await asyncio.gather(run_loop(context, "go"), later())

    assert [kind for kind, _ in typed_texts(context.history)] == ["human", "human", "ai", "tool", "human", "ai"]
    assert context.history[1].text == '<agent-message from="main/other" id="m-1">\nword 1\n</agent-message>'
    assert context.history[4].text == "word 2"
    assert typed_texts(model.requests[1].messages)[-1] == ("human", "word 2")
    assert is_valid(model.requests[1].messages)
    assert len(pieces) > 4


async def test_mail_that_comes_with_the_last_answer_is_answered_too() -> None:
    """An answer is not final while mail is unread."""
    context, model = context_with_model([lambda _: (context.mailbox.push(mail(1)), "first")[1], "second"])

    await run_loop(context, "go")

    assert [text for kind, text in typed_texts(context.history) if kind == "ai"] == ["first", "second"]
    assert len(model.requests) == 2


async def test_chunks_are_passed_on_or_yielded_but_not_both() -> None:
    """A context with `on_chunk` gets each chunk once, with the step of its reply; the reader gets the events alone."""
    published: list[tuple[str, str]] = []
    context, _ = context_with_model(["two words"], on_chunk=lambda chunk, step: published.append((chunk.text, step)))

    pieces = await run_loop(context, "go")

    assert [text for text, _ in published if text] == ["two ", "words"]
    assert not any(isinstance(piece, AIMessageChunk) for piece in pieces)
    reply = next(piece for piece in pieces if isinstance(piece, MessageRecorded) and piece.step_id is not None)
    assert {step for _, step in published} == {reply.step_id}


async def test_mail_is_not_lost_when_the_reader_leaves() -> None:
    """Mail taken from the mailbox is in the history, however early the reader leaves."""
    context, _ = context_with_model(["ok"])
    for number in range(3):
        context.mailbox.push(mail(number))

    async with aclosing(query(QueryParams(context=context))) as pieces:
        async for piece in pieces:
            if isinstance(piece, MessageRecorded):
                break

    in_history = sum("word" in text for _, text in typed_texts(context.history))
    assert in_history + len(context.mailbox) == 3


async def test_the_delivery_of_mail_is_recorded() -> None:
    """Each delivery is recorded with id and sender, before the message that holds the mail."""
    record: list[Event] = []

    def keep(event: Event) -> Event:
        record.append(event)
        return event

    context, _ = context_with_model(["ok"], record=keep)
    context.mailbox.push(mail(7))

    await run_loop(context, "go")

    (delivered,) = [event for event in record if isinstance(event, MailDelivered)]
    assert (delivered.mail_id, delivered.sender, delivered.kind) == ("m-7", "main/other", "agent")
    assert isinstance(record[record.index(delivered) + 1], MessageRecorded)


# --- ends


async def test_an_aborted_run_does_not_start() -> None:
    """The loop raises Aborted with the reason, and no model is asked."""
    abort = AbortController()
    abort.abort("not now")
    context, model = context_with_model(["never"], abort=abort)

    with pytest.raises(Aborted, match="not now"):
        await run_loop(context, "go")

    assert model.requests == []


async def test_a_run_aborted_in_a_tool_call_does_not_ask_again() -> None:
    """The abort is checked before every step."""
    look = open_gate("look")
    abort = AbortController()

    def stop(_: list[BaseMessage]) -> Call:
        abort.abort("enough")
        return Call("look")

    context, model = context_with_model([stop, "never"], look, abort=abort)

    with pytest.raises(Aborted, match="enough"):
        await run_loop(context, "go")

    assert len(model.requests) == 1


@pytest.mark.parametrize("turns", [1, 3])
async def test_turns_are_bounded(turns: int) -> None:
    """`max_turns` requests are made and no more; the error names the limit, and no last answer is asked for."""
    look = open_gate("look")
    context, model = context_with_model(lambda _: Call("look"), look)

    with pytest.raises(BudgetExceeded) as refusal:
        await run_loop(context, "go", max_turns=turns)

    assert (refusal.value.resource, refusal.value.scope) == ("max_turns", "main")
    assert len(model.requests) == turns
    assert is_valid(context.history)


async def test_the_owner_of_a_spent_budget_gets_a_last_answer() -> None:
    """The reserve pays for it; the notice that it is the last does not stay in the history."""
    look = open_gate("look")
    budget = Budget(Limits(model_calls=3), scope="main")
    context, model = context_with_model([Call("look"), Call("look"), "what I know"], look, budget=budget)

    with pytest.raises(BudgetExceeded):
        await run_loop(context, "go")

    assert context.history[-1].text == "what I know"
    notice = str(model.requests[-1].messages[-1].text)
    assert notice == FINAL_ANSWER_PROMPT.format(reason="model_calls: 0 left")
    assert notice not in str(context.history)
    assert budget.reserved_amount("model_calls") == 0
    assert budget.spent_amount("model_calls") == 3


async def test_a_run_below_the_owner_gets_no_last_answer() -> None:
    """The reserve belongs to the owner of the budget."""
    above = Budget(Limits(model_calls=2), scope="main")
    context, model = context_with_model(["a", "b"], budget=above, run=run_info(1, path="main/child", depth=1))
    await run_loop(context, "go")

    with pytest.raises(BudgetExceeded):
        await run_loop(context, "again")

    assert len(model.requests) == 1


async def test_a_last_answer_beyond_the_reserve_is_recorded_as_refused() -> None:
    """No model is asked."""
    record: list[Event] = []

    def keep(event: Event) -> Event:
        record.append(event)
        return event

    context, model = context_with_model(["never"], budget=Budget(Limits(tokens=10), scope="main"), record=keep)

    with pytest.raises(BudgetExceeded):
        await run_loop(context, "go")

    assert model.requests == []
    assert any(isinstance(event, BudgetRefused) for event in record)


async def test_a_refused_tool_call_ends_the_loop_with_a_valid_history() -> None:
    """Each call of the turn gets a result first, then comes the last answer."""
    look = open_gate("look")
    budget = Budget(Limits(tool_calls=2), scope="main")
    context, _ = context_with_model([[Call("look"), Call("look"), Call("look")], "what I know"], look, budget=budget)

    with pytest.raises(BudgetExceeded, match="tool_calls"):
        await run_loop(context, "go")

    assert look.calls == 2
    assert len(answers(context.history)) == 3
    assert context.history[-1].text == "what I know"
    assert is_valid(context.history)


async def test_a_providers_failure_reaches_the_caller() -> None:
    """The error is ModelFailed; the history ends with the prompt."""
    context, _ = context_with_model([Fail("down")])

    with pytest.raises(ModelFailed, match="down"):
        await run_loop(context, "go")

    assert typed_texts(context.history) == [("human", "go")]


@pytest.mark.parametrize(
    ("script", "max_asks"), [(["", "ok"], 2), (["", "", "ok"], 3), (["", "", ""], None), ([" \n\t", "ok"], 2)]
)
async def test_an_empty_answer_is_asked_for_again(script: list[str], max_asks: int | None) -> None:
    """The model is asked at most three times in all."""
    context, model = context_with_model(script)

    if max_asks is None:
        with pytest.raises(OutputInvalid):
            await run_loop(context, "go")
    else:
        await run_loop(context, "go")
        assert (len(model.requests), context.history[-1].text) == (max_asks, "ok")


async def test_an_answer_must_fit_its_contract() -> None:
    """The model gets the problem as a message, and answers again."""
    contract = OutputContract({"type": "object", "required": ["cause"], "additionalProperties": False,
                               "properties": {"cause": {"type": "string"}}})  # fmt: skip
    context, model = context_with_model(["no idea", '{"cause": 1}', '{"cause": "clock"}'])

    await run_loop(context, "go", output=contract)

    assert contract.parse(str(context.history[-1].text)) == {"cause": "clock"}
    assert len(model.requests) == 3


async def test_compaction_runs_before_a_request() -> None:
    """The history is compacted in time, and its calls keep their results."""
    steps: Iterator[ReplyStep] = iter([*[Call("read")] * 8, "done"])
    record: list[Event] = []

    def keep(event: Event) -> Event:
        record.append(event)
        return event

    async def read() -> str:
        """Read much."""
        return "much to read " * 200

    def answer(_: list[BaseMessage]) -> ReplyStep:
        return next(steps)

    async def summary(_: list[BaseMessage]) -> str:
        return "A good deal was read."

    context, model = context_with_model(answer, record=keep)
    context.tools = (async_tool(read),)

    await run_loop(context, "go", compaction=Compaction(window_tokens=4_000, keep_last=4, summarise=summary))

    assert [event for event in record if isinstance(event, Compacted)]
    assert all(is_valid(request.messages) for request in model.requests)


# --- leaving


PIECES = 15


@pytest.mark.parametrize("left_after", range(PIECES))
async def test_a_reader_may_leave_at_any_piece(left_after: int) -> None:
    """No task continues, nothing stays reserved, and the history can be repaired."""
    look = open_gate("look", safe=True)
    budget = Budget(Limits(model_calls=9, tool_calls=9, tokens=100_000), scope="main")
    context, _ = context_with_model([[Call("look"), Call("look")], "one two three"], look, budget=budget)
    context.mailbox.push(mail(1))
    count = 0
    params = QueryParams(context=context, messages=[HumanMessage("go")])

    async with aclosing(query(params)) as pieces:
        async for _ in pieces:
            count += 1
            if count > left_after:
                break

    assert {resource: budget.reserved_amount(resource) for resource in RESOURCES} == dict.fromkeys(RESOURCES, 0)
    assert is_valid(repair([*context.history, *context.answers.values()]))
    assert len(asyncio.all_tasks()) == 1


async def test_the_number_of_pieces_is_as_assumed() -> None:
    """Otherwise the test before would not cover every piece."""
    look = open_gate("look", safe=True)
    context, _ = context_with_model([[Call("look"), Call("look")], "one two three"], look)
    context.mailbox.push(mail(1))

    assert len(await run_loop(context, "go")) == PIECES


async def test_results_are_kept_when_the_reader_leaves() -> None:
    """A reader that leaves at the first of several results does not lose the others, whose tools have run."""
    look = open_gate("look", safe=True)
    context, _ = context_with_model([[Call("look", id="a"), Call("look", id="b")], "never"], look)

    async with aclosing(query(QueryParams(context=context, messages=[HumanMessage("go")]))) as pieces:
        async for piece in pieces:
            if isinstance(piece, MessageRecorded) and piece.message["type"] == "tool":
                break

    replies = answers(repair([*context.history, *context.answers.values()]))
    assert replies == {"a": "the gate is open", "b": "the gate is open"}


async def test_cancelling_in_mid_stream_ends_the_request() -> None:
    """The provider's task ends with the reader's."""
    context, model = context_with_model([Hang(3, "never ends")])
    reading = asyncio.create_task(run_loop(context, "go"))
    await eventually(lambda: model.requests)

    reading.cancel()
    await asyncio.wait([reading])

    assert reading.cancelled()
    assert len(asyncio.all_tasks()) == 1
