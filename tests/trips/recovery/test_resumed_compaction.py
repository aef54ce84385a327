"""A kernel killed just after the compaction of a conversation: the turn resumes where it was."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.tools import tool

from ramet import Agent, AgentRuntime
from ramet.core.events import Compacted, Event, MessageRecorded, ToolStarted, TurnEnded
from ramet.models.scripted.dialogue import ReplyStep
from ramet.models.scripted.model import Call, ScriptedModel
from ramet.store.memory import MemoryStore
from tests.support.cut_journals import cut_behind
from tests.trips.kits.sessions import Gate

LONG_AGO = [
    each for at in range(14) for each in (HumanMessage(f"question {at} " + "y" * 300), AIMessage(f"answer {at}"))
]


@tool
def look() -> str:
    """Looks."""
    return "saw it"


def _answer(messages: list[BaseMessage]) -> ReplyStep:
    newest = messages[-1]
    if "has become too long" in newest.text:
        return "what was said long ago"
    return "I saw it" if newest.type == "tool" else Call("look")


def _model() -> ScriptedModel:
    return ScriptedModel(_answer, profile={"max_input_tokens": 2_000})


def _is_compaction(event: Event) -> bool:
    return isinstance(event, Compacted)


def _is_call(event: Event) -> bool:
    return isinstance(event, MessageRecorded) and bool(event.message.get("tool_calls"))


def _is_tool_start(event: Event) -> bool:
    return isinstance(event, ToolStarted)


def _is_tool_answer(event: Event) -> bool:
    return isinstance(event, MessageRecorded) and event.message["type"] == "tool"


def _is_turn_end(event: Event) -> bool:
    return isinstance(event, TurnEnded)


@pytest.mark.parametrize("moment", [_is_compaction, _is_call, _is_tool_start, _is_tool_answer])
async def test_a_compacted_conversation_gets_its_task_once_after_resume(moment: Callable[[Event], bool]) -> None:
    """The resumed conversation has its task once, although it is shorter than at its start.

    Every call has its answer.
    """
    store = MemoryStore()
    async with AgentRuntime(store=store) as runtime:
        lead = Agent(name="lead", model=_model())
        assert (await (await runtime.spawn(lead, "go", tools=[look], history=LONG_AGO)).result()).value == "I saw it"
    async with AgentRuntime(store=await cut_behind(store, moment)) as runtime:
        [handle] = await runtime.resume(llm=_model(), tools=[look])
        assert (await handle.result()).value == "I saw it"
        texts = [(each.type, str(each.text)) for each in handle.run.context.history]

    assert texts.count(("human", "go")) == 1
    assert [kind for kind, _ in texts[-4:]] == ["human", "ai", "tool", "ai"]


async def test_the_last_answer_of_a_finished_turn_is_the_result_after_resume() -> None:
    """A resumed run returns the answer of the ended turn, although compaction shortened the conversation."""
    store = MemoryStore()
    async with AgentRuntime(store=store) as runtime:
        lead = Agent(name="lead", model=_model())
        await (await runtime.spawn(lead, "go", tools=[look], history=LONG_AGO)).result()
    async with AgentRuntime(store=await cut_behind(store, _is_turn_end)) as runtime:
        [handle] = await runtime.resume(llm=_model(), tools=[look])
        assert (await handle.result()).value == "I saw it"


async def test_a_stopped_run_keeps_the_newest_text_after_compaction() -> None:
    """The partial result is the newest text of the turn, which the compacted conversation still holds."""
    gate = Gate()

    def answer(messages: list[BaseMessage]) -> ReplyStep:
        if messages[-1].type != "tool":
            return _answer(messages)
        return AIMessage("half of it", tool_calls=[{"name": "gate", "args": {}, "id": "call"}])

    async with AgentRuntime() as runtime:
        lead = Agent(name="lead", model=ScriptedModel(answer, profile={"max_input_tokens": 2_000}))
        handle = await runtime.spawn(lead, "go", tools=[look, gate.tool], history=LONG_AGO)
        await gate.entered.wait()
        assert len(handle.run.context.history) < len(LONG_AGO)
        await handle.cancel("enough")
        assert (await handle.result()).partial == "half of it"
