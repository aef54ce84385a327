"""A finished agent that mail woke continues, wherever its kernel is killed after that."""

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
from tests.trips.kits.sessions import background_call, specialist_call

LOOK_AGAIN = Call("SendMessage", {"to": "kid", "message": "look again"})


def _play_lead(messages: list[BaseMessage], child: str) -> ReplyStep:
    newest = messages[-1].text
    if messages[-1].type == "tool":  # What its child found, or whatever became of its message.
        return LOOK_AGAIN if newest in ("the first finding", "led") else "waiting"
    return "all done" if "second finding" in newest else specialist_call(child, "kid" if child == "toil" else "boss")


def _replies_with(child: str) -> Callable[[list[BaseMessage]], ReplyStep]:
    """Return the replies of a root whose child does the work, or has a child of its own that does."""

    def answer(messages: list[BaseMessage]) -> ReplyStep:
        match next(each.text for each in messages if each.type == "human"):
            case "toil":
                return "the second finding" if "look again" in messages[-1].text else "the first finding"
            case "lead":
                return "led" if messages[-1].type == "tool" else specialist_call("toil", "kid")
        return _play_lead(messages, child)

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


async def _assert_resumed_with_one_notice(child: str, moment: Callable[[Event], bool], nth: int) -> None:
    store, types = MemoryStore(), Project.open(None, user_dir=None)
    async with AgentRuntime(store=store) as runtime:
        lead = Agent(name="lead", model=ScriptedModel(_replies_with(child)))
        assert (await (await runtime.spawn(lead, "go", agents=types)).result()).value == "all done"
    async with AgentRuntime(store=await cut_behind(store, moment, nth)) as runtime:
        [handle] = await runtime.resume(llm=ScriptedModel(_replies_with(child)))
        assert (await handle.result()).value == "all done"
        texts = [each.text for each in handle.run.context.history if "task-notification" in each.text]
    assert len(texts) == 1


@MOMENTS
async def test_a_woken_agent_continues_after_a_kill(moment: Callable[[Event], bool], nth: int) -> None:
    """The kernel is killed after the mail was accepted, or later. The agent's new end is reported once."""
    await _assert_resumed_with_one_notice("toil", moment, nth)


@MOMENTS
async def test_an_agent_woken_after_its_parent_ended_continues_after_a_kill(
    moment: Callable[[Event], bool], nth: int
) -> None:
    """The agent continues below its grandparent: its parent had ended before it was woken."""
    await _assert_resumed_with_one_notice("lead", moment, nth)


# --- told once the recipient rests


ASKS = Call("SendMessage", {"to": "kid", "message": "hurry", "notify_when_idle": True})


def _play_watcher(messages: list[BaseMessage]) -> ReplyStep:
    """Play a root, a background child, and a watcher that asks for a notice when that child is idle."""
    first = next(each.text for each in messages if each.type == "human")
    notices = [each.text for each in messages if "task-notification" in each.text]
    if first == "toil":
        return Call("ListAgents", {}) if len(messages) < 30 else "the finding"
    if first == "look out":
        has_called = any(each.type == "tool" for each in messages)
        return f"it was told {len(notices)} time(s)" if notices else "nothing yet" if has_called else ASKS
    calls = [each for each in messages if each.type == "tool"]
    if not calls:
        return background_call("toil", "kid")
    return specialist_call("look out", "watcher") if len(calls) == 1 else f"{calls[1].text}"


def _is_notify_request(event: Event) -> bool:
    return isinstance(event, MailPushed) and bool(event.notify)


def _is_end_of_the_kid(event: Event) -> bool:
    return isinstance(event, RunEnded) and event.path.endswith("kid")


def _is_idle_notice(event: Event) -> bool:
    return isinstance(event, MailPushed) and event.mail_id.startswith("idle:")


@pytest.mark.parametrize("moment", [None, _is_notify_request, _is_end_of_the_kid, _is_idle_notice])
async def test_a_run_that_awaits_an_idle_notice_receives_it_once_despite_a_kill(
    moment: Callable[[Event], bool] | None,
) -> None:
    """The watcher has nothing else to do and does not end before the notice, also if the kernel is killed."""
    store, types = MemoryStore(), Project.open(None, user_dir=None)
    async with AgentRuntime(store=store) as runtime:
        lead = Agent(name="lead", model=ScriptedModel(_play_watcher))
        result = await (await runtime.spawn(lead, "go", agents=types)).result()
    if moment is not None:
        async with AgentRuntime(store=await cut_behind(store, moment, 1)) as runtime:
            [handle] = await runtime.resume(llm=ScriptedModel(_play_watcher))
            result = await handle.result()
    assert "it was told 1 time(s)" in result.value


async def test_a_run_does_not_wait_for_an_idle_notice_of_its_ancestor() -> None:
    """The ancestor waits for the run, so neither of them would ever become idle."""
    asks = Call("SendMessage", {"to": "main", "message": "hello", "notify_when_idle": True})
    script: dict[str, list[Step]] = {"look out": [asks, "done"], "go": [specialist_call("look out", "watcher"), "over"]}
    async with AgentRuntime() as runtime:
        lead = Agent(name="lead", model=ScriptedModel(script))
        types = Project.open(None, user_dir=None)
        assert (await (await runtime.spawn(lead, "go", agents=types)).result()).value == "over"


def _play_crossed_helpers(messages: list[BaseMessage]) -> ReplyStep:
    """Play two leads that each wait for a helper, which asks for a notice when the other lead is idle."""
    first = next(each.text for each in messages if each.type == "human")
    calls = sum(each.type == "tool" for each in messages)
    match first.split():
        case ["go"]:
            return (
                background_call(("lead left", "lead right")[calls], ("left", "right")[calls]) if calls < 2 else "over"
            )
        case ["lead", side]:
            return "led" if calls else specialist_call(f"help {side}", f"of-{side}")
        case [_, side]:
            other = "right" if side == "left" else "left"
            if not any(f"main/{other}/of-{other}" in each.text for each in messages) and calls < 200:
                return Call("ListAgents", {})
            asks = Call("SendMessage", {"to": other, "message": "hello", "notify_when_idle": True})
            return "helped" if messages[-1].text.startswith("Delivered") else asks
    raise AssertionError(first)


async def test_crossed_idle_notices_do_not_deadlock() -> None:
    """Each lead waits for its helper: if both helpers waited for the notice, no run would become idle."""
    async with AgentRuntime() as runtime:
        lead = Agent(name="lead", model=ScriptedModel(_play_crossed_helpers))
        handle = await runtime.spawn(lead, "go", agents=Project.open(None, user_dir=None))
        events = [event async for event in handle.events()] if (await handle.result()).value else []
    assert events
