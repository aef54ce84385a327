"""A finished agent that mail brought back goes on, whenever its kernel is killed from then on."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from langchain_core.messages import BaseMessage

from ramet import Agent, AgentRuntime
from ramet.core.events import Event, MailPushed, ModelAsked, RunEnded, TurnStarted
from ramet.host.trees.project import Project
from ramet.models.scripted.dialogue import ReplyStep, Step
from ramet.models.scripted.model import Call, ScriptedModel
from ramet.store.memory import MemoryStore
from tests.support.cut_journals import cut_behind
from tests.trips.kits.sessions import background, fresh

LOOK_AGAIN = Call("SendMessage", {"to": "kid", "message": "look again"})


def _leads(messages: list[BaseMessage], child: str) -> ReplyStep:
    newest = messages[-1].text
    if messages[-1].type == "tool":  # What its child found, or whatever became of its message.
        return LOOK_AGAIN if newest in ("the first finding", "led") else "waiting"
    return "all done" if "second finding" in newest else fresh(child, "kid" if child == "toil" else "boss")


def _answer(child: str) -> Callable[[list[BaseMessage]], ReplyStep]:
    """A root with a child, which toils itself, or has a child of its own that does."""

    def answer(messages: list[BaseMessage]) -> ReplyStep:
        match next(each.text for each in messages if each.type == "human"):
            case "toil":
                return "the second finding" if "look again" in messages[-1].text else "the first finding"
            case "lead":
                return "led" if messages[-1].type == "tool" else fresh("toil", "kid")
        return _leads(messages, child)

    return answer


def _is_mail_to_the_kid(event: Event) -> bool:
    return isinstance(event, MailPushed) and event.path.endswith("kid")


def _is_its_second_turn(event: Event) -> bool:
    return isinstance(event, TurnStarted) and event.path.endswith("kid") and event.turn == 2


def _is_its_second_question(event: Event) -> bool:
    return isinstance(event, ModelAsked) and event.path.endswith("kid")


MOMENTS = pytest.mark.parametrize(
    ("moment", "nth"), [(_is_mail_to_the_kid, 1), (_is_its_second_turn, 1), (_is_its_second_question, 2)]
)


async def _goes_on(child: str, moment: Callable[[Event], bool], nth: int) -> None:
    store, types = MemoryStore(), Project.open(None, user_dir=None)
    async with AgentRuntime(store=store) as runtime:
        lead = Agent(name="lead", model=ScriptedModel(_answer(child)))
        assert (await (await runtime.spawn(lead, "go", agents=types)).result()).value == "all done"
    async with AgentRuntime(store=await cut_behind(store, moment, nth)) as runtime:
        [again] = await runtime.resume(llm=ScriptedModel(_answer(child)))
        assert (await again.result()).value == "all done"
        told = [each.text for each in again.run.context.history if "task-notification" in each.text]
    assert len(told) == 1


@MOMENTS
async def test_who_was_brought_back_goes_on(moment: Callable[[Event], bool], nth: int) -> None:
    """From the moment at which its mail was accepted, and is told of once."""
    await _goes_on("toil", moment, nth)


@MOMENTS
async def test_who_was_brought_back_below_its_grandparent_goes_on_there(
    moment: Callable[[Event], bool], nth: int
) -> None:
    """That its parent has ended does not end it: it came back behind that."""
    await _goes_on("lead", moment, nth)


# --- told once the recipient rests


ASKS = Call("SendMessage", {"to": "kid", "message": "hurry", "notify_when_idle": True})


def _watched(messages: list[BaseMessage]) -> ReplyStep:
    """A root with a child in the background, and one that asks to be told when the other one rests."""
    first = next(each.text for each in messages if each.type == "human")
    notices = [each.text for each in messages if "task-notification" in each.text]
    if first == "toil":
        return Call("ListAgents", {}) if len(messages) < 30 else "the finding"
    if first == "look out":
        asked = any(each.type == "tool" for each in messages)
        return f"it was told {len(notices)} time(s)" if notices else "nothing yet" if asked else ASKS
    calls = [each for each in messages if each.type == "tool"]
    if not calls:
        return background("toil", "kid")
    return fresh("look out", "watcher") if len(calls) == 1 else f"{calls[1].text}"


def _is_asked(event: Event) -> bool:
    return isinstance(event, MailPushed) and bool(event.notify)


def _is_the_kids_end(event: Event) -> bool:
    return isinstance(event, RunEnded) and event.path.endswith("kid")


def _is_told(event: Event) -> bool:
    return isinstance(event, MailPushed) and event.mail_id.startswith("idle:")


@pytest.mark.parametrize("moment", [None, _is_asked, _is_the_kids_end, _is_told])
async def test_who_asked_to_be_told_rests_until_then_and_is_told_once(moment: Callable[[Event], bool] | None) -> None:
    """It has nothing else to do, and does not end before; nor when the kernel is killed at any of these moments."""
    store, types = MemoryStore(), Project.open(None, user_dir=None)
    async with AgentRuntime(store=store) as runtime:
        lead = Agent(name="lead", model=ScriptedModel(_watched))
        result = await (await runtime.spawn(lead, "go", agents=types)).result()
    if moment is not None:
        async with AgentRuntime(store=await cut_behind(store, moment, 1)) as runtime:
            [again] = await runtime.resume(llm=ScriptedModel(_watched))
            result = await again.result()
    assert "it was told 1 time(s)" in result.value


async def test_who_asks_about_an_agent_above_does_not_wait_for_it() -> None:
    """That one waits for the asker: neither would ever come to rest."""
    asks = Call("SendMessage", {"to": "main", "message": "hello", "notify_when_idle": True})
    script: dict[str, list[Step]] = {"look out": [asks, "done"], "go": [fresh("look out", "watcher"), "over"]}
    async with AgentRuntime() as runtime:
        lead = Agent(name="lead", model=ScriptedModel(script))
        types = Project.open(None, user_dir=None)
        assert (await (await runtime.spawn(lead, "go", agents=types)).result()).value == "over"


def _crossed(messages: list[BaseMessage]) -> ReplyStep:
    """Two leads, each waiting for a helper, which asks to be told when the other lead rests."""
    first = next(each.text for each in messages if each.type == "human")
    calls = sum(each.type == "tool" for each in messages)
    match first.split():
        case ["go"]:
            return background(("lead left", "lead right")[calls], ("left", "right")[calls]) if calls < 2 else "over"
        case ["lead", side]:
            return "led" if calls else fresh(f"help {side}", f"of-{side}")
        case [_, side]:
            other = "right" if side == "left" else "left"
            if not any(f"main/{other}/of-{other}" in each.text for each in messages) and calls < 200:
                return Call("ListAgents", {})
            asks = Call("SendMessage", {"to": other, "message": "hello", "notify_when_idle": True})
            return "helped" if messages[-1].text.startswith("Delivered") else asks
    raise AssertionError(first)


async def test_helpers_who_ask_about_each_others_leads_do_not_hold_them_up() -> None:
    """Each lead waits for the end of its helper: if both helpers waited, nobody would ever come to rest."""
    async with AgentRuntime() as runtime:
        lead = Agent(name="lead", model=ScriptedModel(_crossed))
        handle = await runtime.spawn(lead, "go", agents=Project.open(None, user_dir=None))
        events = [event async for event in handle.events()] if (await handle.result()).value else []
    assert events
