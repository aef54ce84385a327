"""THE loop by itself: no session, no tree, only a context and a way to a model."""

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
from ramet.core.budget import RESOURCES, Budget, Limits
from ramet.core.errors import Aborted, BudgetExceeded, ModelFailed, OutputInvalid
from ramet.core.events import BudgetRefused, Compacted, Event, MailDelivered, MessageRecorded
from ramet.host.gateway import Gateway
from ramet.models.scripted.dialogue import ReplyStep, Script
from ramet.models.scripted.model import Call, Fail, Hang, ScriptedModel
from ramet.tools.context import ModelRequest, ToolUseContext
from tests.support.context import make_context, run_info
from tests.support.waiting import eventually
from tests.trips.kits.sessions import Gate, answers, async_tool, is_valid, said


def thinking(script: Script, *tools: Gate, **fields: Any) -> tuple[ToolUseContext, ScriptedModel]:
    """A context that reaches a scripted model by the real way to models."""
    model = ScriptedModel(script)
    ask = Gateway(SystemClock()).port(model).ask
    return make_context(None, [gate.tool for gate in tools], ask=ask, **fields), model


def open_gate(name: str, **how: Any) -> Gate:
    gate = Gate(name, **how)
    gate.open.set()
    return gate


async def played(context: ToolUseContext, *prompts: str, **params: Any) -> list[AIMessageChunk | Event]:
    """All that the loop yields for these prompts."""
    messages = [HumanMessage(prompt) for prompt in prompts]
    return [piece async for piece in query(QueryParams(context=context, messages=messages, **params))]


def recorded(pieces: list[AIMessageChunk | Event]) -> list[tuple[str, str]]:
    return [
        (piece.message["type"], str(piece.message["content"])) for piece in pieces if isinstance(piece, MessageRecorded)
    ]


def mail(number: int, kind: Kind = "agent") -> Mail:
    return Mail(id=f"m-{number}", sender="main/other", text=f"word {number}", kind=kind)


# --- thinking and acting


def test_the_loop_is_public() -> None:
    """`from ramet import query, QueryParams, ToolUseContext` is how others build on it."""
    assert (ramet.query, ramet.QueryParams, ramet.ToolUseContext) == (query, QueryParams, ToolUseContext)


async def test_it_asks_runs_tools_and_asks_again_until_there_are_none() -> None:
    """Every message is yielded once it is recorded, in order; the answer is the last of the history."""
    look = open_gate("look")
    context, model = thinking([Call("look"), [Call("look"), Call("look")], "the answer"], look)

    pieces = await played(context, "the question")

    assert recorded(pieces) == said(context.history)
    assert [kind for kind, _ in said(context.history)] == ["human", "ai", "tool", "ai", "tool", "tool", "ai"]
    assert context.history[-1].text == "the answer"
    assert (len(model.requests), look.calls) == (3, 3)


async def test_chunks_come_before_the_message_that_they_are() -> None:
    """Text streams; the recorded message supersedes what streamed."""
    context, _ = thinking(["one two three"])

    pieces = await played(context, "go")

    kinds = ["chunk" if isinstance(piece, AIMessageChunk) else type(piece).__name__ for piece in pieces]
    assert kinds[0] == "MessageRecorded"
    assert kinds[-1] == "MessageRecorded"
    assert set(kinds[1:-1]) == {"chunk"}
    assert "".join(piece.text for piece in pieces if isinstance(piece, AIMessageChunk)) == "one two three"


async def test_the_model_sees_exactly_system_history_and_tools() -> None:
    """Nothing is added, nothing left out, nothing reordered."""
    look = open_gate("look")
    context, model = thinking([Call("look"), "ok"], look, system_messages=(SystemMessage("rules"),))
    context.history.extend([HumanMessage("earlier"), AIMessage("indeed")])

    await played(context, "now")

    first, second = model.requests
    assert said(first.messages) == [("system", "rules"), ("human", "earlier"), ("ai", "indeed"), ("human", "now")]
    assert list(second.messages[:4]) == list(first.messages)
    assert first.tools == second.tools == ("look",)


async def test_a_question_is_built_when_it_is_asked() -> None:
    """The request of a turn is a list of its own: what happens later does not change what was sent."""
    seen: list[ModelRequest] = []

    async def ask(context: ToolUseContext, request: ModelRequest) -> AsyncGenerator[AIMessage]:
        seen.append(request)
        yield AIMessage("ok") if len(seen) > 1 else AIMessage("", tool_calls=[tool_call(name="x", args={}, id="1")])

    context = make_context(ask=ask)

    await played(context, "go")

    assert [len(request.messages) for request in seen] == [1, 3]
    assert len({request.step for request in seen}) == 2


# --- mail


async def test_mail_is_read_before_each_question() -> None:
    """What lies in the mailbox goes in behind the results and before the next question, framed by its kind."""
    gate = Gate("look")
    context, model = thinking([Call("look"), "ok"], gate)
    context.mailbox.push(mail(1))

    async def later() -> None:
        await gate.entered.wait()
        context.mailbox.push(mail(2, "user"))
        gate.open.set()

    pieces, _ = await asyncio.gather(played(context, "go"), later())

    assert [kind for kind, _ in said(context.history)] == ["human", "human", "ai", "tool", "human", "ai"]
    assert context.history[1].text == '<agent-message from="main/other" id="m-1">\nword 1\n</agent-message>'
    assert context.history[4].text == "word 2"
    assert said(model.requests[1].messages)[-1] == ("human", "word 2")
    assert is_valid(model.requests[1].messages)
    assert len(pieces) > 4


async def test_mail_that_comes_with_the_last_answer_is_answered_too() -> None:
    """An answer does not stand while there is something unread."""
    context, model = thinking([lambda _: (context.mailbox.push(mail(1)), "first")[1], "second"])

    await played(context, "go")

    assert [text for kind, text in said(context.history) if kind == "ai"] == ["first", "second"]
    assert len(model.requests) == 2


async def test_mail_is_not_lost_when_the_reader_leaves() -> None:
    """Mail that was taken from the box is in the history, however early somebody stops reading."""
    context, _ = thinking(["ok"])
    for number in range(3):
        context.mailbox.push(mail(number))

    async with aclosing(query(QueryParams(context=context))) as pieces:
        async for piece in pieces:
            if isinstance(piece, MessageRecorded):
                break

    in_history = sum("word" in text for _, text in said(context.history))
    assert in_history + len(context.mailbox) == 3


async def test_delivery_is_on_record() -> None:
    """Each piece of mail is recorded as delivered, with its id and sender, before the message that holds it."""
    record: list[Event] = []

    def keep(event: Event) -> Event:
        record.append(event)
        return event

    context, _ = thinking(["ok"], record=keep)
    context.mailbox.push(mail(7))

    await played(context, "go")

    (delivered,) = [event for event in record if isinstance(event, MailDelivered)]
    assert (delivered.mail_id, delivered.sender, delivered.kind) == ("m-7", "main/other", "agent")
    assert isinstance(record[record.index(delivered) + 1], MessageRecorded)


# --- ends


async def test_a_stopped_run_does_not_begin() -> None:
    """Abort before start: Aborted with the reason, and nobody is asked."""
    abort = AbortController()
    abort.abort("not now")
    context, model = thinking(["never"], abort=abort)

    with pytest.raises(Aborted, match="not now"):
        await played(context, "go")

    assert model.requests == []


async def test_a_run_that_is_stopped_in_a_tool_does_not_ask_again() -> None:
    """The abort is looked at before every step; what the tool gave is kept."""
    look = open_gate("look")
    abort = AbortController()

    def stop(_: list[BaseMessage]) -> Call:
        abort.abort("enough")
        return Call("look")

    context, model = thinking([stop, "never"], look, abort=abort)

    with pytest.raises(Aborted, match="enough"):
        await played(context, "go")

    assert len(model.requests) == 1


@pytest.mark.parametrize("turns", [1, 3])
async def test_turns_are_counted(turns: int) -> None:
    """`max_turns` questions and no more; the refusal names it, and there is no last word beyond it."""
    look = open_gate("look")
    context, model = thinking(lambda _: Call("look"), look)

    with pytest.raises(BudgetExceeded) as refusal:
        await played(context, "go", max_turns=turns)

    assert (refusal.value.resource, refusal.value.scope) == ("max_turns", "main")
    assert len(model.requests) == turns
    assert is_valid(context.history)


async def test_the_owner_of_a_spent_budget_gets_a_last_word() -> None:
    """From the reserve, told that it is the last, the notice not being kept in the history."""
    look = open_gate("look")
    budget = Budget(Limits(model_calls=3), scope="main")
    context, model = thinking([Call("look"), Call("look"), "what I know"], look, budget=budget)

    with pytest.raises(BudgetExceeded):
        await played(context, "go")

    assert context.history[-1].text == "what I know"
    notice = str(model.requests[-1].messages[-1].text)
    assert notice == FINAL_ANSWER_PROMPT.format(reason="model_calls: 0 left")
    assert notice not in str(context.history)
    assert budget.reserved("model_calls") == 0
    assert budget.spent("model_calls") == 3


async def test_others_get_no_last_word_from_it() -> None:
    """A run that draws on the scope above ends without one: what is kept there is its owner's."""
    above = Budget(Limits(model_calls=2), scope="main")
    context, model = thinking(["a", "b"], budget=above, run=run_info(1, path="main/child", depth=1))
    await played(context, "go")

    with pytest.raises(BudgetExceeded):
        await played(context, "again")

    assert len(model.requests) == 1


async def test_a_last_word_that_does_not_fit_is_on_record() -> None:
    """Where even the reserve is too small, nobody is asked and the refusal is recorded."""
    record: list[Event] = []

    def keep(event: Event) -> Event:
        record.append(event)
        return event

    context, model = thinking(["never"], budget=Budget(Limits(tokens=10), scope="main"), record=keep)

    with pytest.raises(BudgetExceeded):
        await played(context, "go")

    assert model.requests == []
    assert any(isinstance(event, BudgetRefused) for event in record)


async def test_a_tool_call_that_does_not_fit_ends_the_loop_with_a_valid_history() -> None:
    """All calls of the turn are answered first; then the last word."""
    look = open_gate("look")
    budget = Budget(Limits(tool_calls=2), scope="main")
    context, _ = thinking([[Call("look"), Call("look"), Call("look")], "what I know"], look, budget=budget)

    with pytest.raises(BudgetExceeded, match="tool_calls"):
        await played(context, "go")

    assert look.calls == 2
    assert len(answers(context.history)) == 3
    assert context.history[-1].text == "what I know"
    assert is_valid(context.history)


async def test_a_provider_s_failure_passes_through() -> None:
    """ModelFailed reaches the caller; the history ends with the question."""
    context, _ = thinking([Fail("down")])

    with pytest.raises(ModelFailed, match="down"):
        await played(context, "go")

    assert said(context.history) == [("human", "go")]


@pytest.mark.parametrize(
    ("script", "asked"), [(["", "ok"], 2), (["", "", "ok"], 3), (["", "", ""], None), ([" \n\t", "ok"], 2)]
)
async def test_an_empty_answer_does_not_stand(script: list[str], asked: int | None) -> None:
    """It is asked again, at most three times in all."""
    context, model = thinking(script)

    if asked is None:
        with pytest.raises(OutputInvalid):
            await played(context, "go")
    else:
        await played(context, "go")
        assert (len(model.requests), context.history[-1].text) == (asked, "ok")


async def test_an_answer_must_fit_its_contract() -> None:
    """What does not fit is told to the model as a message of its own, and is no answer."""
    contract = OutputContract({"type": "object", "required": ["cause"], "additionalProperties": False,
                               "properties": {"cause": {"type": "string"}}})  # fmt: skip
    context, model = thinking(["no idea", '{"cause": 1}', '{"cause": "clock"}'])

    await played(context, "go", output=contract)

    assert contract.parse(str(context.history[-1].text)) == {"cause": "clock"}
    assert len(model.requests) == 3


async def test_room_is_made_before_a_question() -> None:
    """With a compaction the history is shortened in time; its calls keep their results."""
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

    context, model = thinking(answer, record=keep)
    context.tools = (async_tool(read),)

    await played(context, "go", compaction=Compaction(window_tokens=4_000, keep_last=4, summarise=summary))

    assert [event for event in record if isinstance(event, Compacted)]
    assert all(is_valid(request.messages) for request in model.requests)


# --- leaving


PIECES = 15


@pytest.mark.parametrize("left_after", range(PIECES))
async def test_leaving_at_any_piece_leaves_nothing_behind(left_after: int) -> None:
    """Whoever stops reading after any piece: no task goes on, nothing is held, and what is there can be made valid."""
    look = open_gate("look", safe=True)
    budget = Budget(Limits(model_calls=9, tool_calls=9, tokens=100_000), scope="main")
    context, _ = thinking([[Call("look"), Call("look")], "one two three"], look, budget=budget)
    context.mailbox.push(mail(1))
    count = 0
    params = QueryParams(context=context, messages=[HumanMessage("go")])

    async with aclosing(query(params)) as pieces:
        async for _ in pieces:
            count += 1
            if count > left_after:
                break

    assert {resource: budget.reserved(resource) for resource in RESOURCES} == dict.fromkeys(RESOURCES, 0)
    assert is_valid(repair([*context.history, *context.answers.values()]))
    assert len(asyncio.all_tasks()) == 1


async def test_there_are_as_many_pieces_as_the_test_above_says() -> None:
    """Else it would not leave everywhere."""
    look = open_gate("look", safe=True)
    context, _ = thinking([[Call("look"), Call("look")], "one two three"], look)
    context.mailbox.push(mail(1))

    assert len(await played(context, "go")) == PIECES


async def test_leaving_keeps_the_answers_that_exist() -> None:
    """A reader that leaves at the first of several results does not cost the others: the tools have run."""
    look = open_gate("look", safe=True)
    context, _ = thinking([[Call("look", id="a"), Call("look", id="b")], "never"], look)

    async with aclosing(query(QueryParams(context=context, messages=[HumanMessage("go")]))) as pieces:
        async for piece in pieces:
            if isinstance(piece, MessageRecorded) and piece.message["type"] == "tool":
                break

    kept = answers(repair([*context.history, *context.answers.values()]))
    assert kept == {"a": "the gate is open", "b": "the gate is open"}


async def test_cancelling_in_mid_stream_ends_the_request() -> None:
    """The task that talks to the provider ends with the one that reads."""
    context, model = thinking([Hang(3, "never ends")])
    reading = asyncio.create_task(played(context, "go"))
    await eventually(lambda: model.requests)

    reading.cancel()
    await asyncio.wait([reading])

    assert reading.cancelled()
    assert len(asyncio.all_tasks()) == 1
