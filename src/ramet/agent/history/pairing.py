"""Pair calls with their answers, and repair an interrupted conversation.

Providers refuse a call without its answer, an answer without its call, and any message between the two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from ramet.agent.context import calls_of

INTERRUPTED = "This call was interrupted before it gave a result. It may or may not have taken effect."


class Group(NamedTuple):
    """Messages `start` to `stop` (excluded) that are kept or removed together."""

    start: int
    stop: int
    open: bool  #: contains a call without an answer
    orphans: tuple[int, ...] = ()  #: answers without a call


def groups(history: Sequence[BaseMessage]) -> Iterator[Group]:
    """Yield the history in groups, in order and without gaps: a reply with all its answers, or one other message."""
    last = list(range(len(history)))  #: the last message that belongs to each
    waiting: dict[str, list[int]] = {}
    orphans: set[int] = set()
    for index, message in enumerate(history):
        if isinstance(message, AIMessage):
            for call in calls_of(message):
                waiting.setdefault(call["id"] or "", []).append(index)
        elif isinstance(message, ToolMessage):
            asked = waiting.get(message.tool_call_id)
            if asked:
                last[asked.pop()] = index  # ids may repeat: the newest waiting call is meant
            else:
                orphans.add(index)
    unanswered = {index for asked in waiting.values() for index in asked}
    start = 0
    while start < len(history):
        stop, index = last[start], start
        while index < stop:
            index += 1
            stop = max(stop, last[index])
        members = range(start, stop + 1)
        alone = tuple(each for each in members if each in orphans)
        yield Group(start, stop + 1, not unanswered.isdisjoint(members), alone)
        start = stop + 1


def repair(history: Sequence[BaseMessage], reason: str = INTERRUPTED) -> list[BaseMessage]:
    """Return a history that a provider accepts: every call is followed by its answer, an error if it has none.

    For interrupted turns. A valid history is returned unchanged.
    """
    waiting: dict[str, list[list[ToolMessage]]] = {}
    answers: dict[int, list[ToolMessage]] = {}
    for index, message in enumerate(history):
        if isinstance(message, AIMessage):
            answers[index] = []
            for call in calls_of(message):
                waiting.setdefault(call["id"] or "", []).append(answers[index])
        elif isinstance(message, ToolMessage) and waiting.get(message.tool_call_id):
            waiting[message.tool_call_id].pop().append(message)
    repaired: list[BaseMessage] = []
    for index, message in enumerate(history):
        if isinstance(message, ToolMessage):
            continue  # moved after its call, or an orphan
        repaired.append(message)
        if isinstance(message, AIMessage):
            repaired += _completed(message, answers[index], reason)
    return repaired


def _completed(reply: AIMessage, answers: list[ToolMessage], reason: str) -> list[ToolMessage]:
    """Return the answers to a reply's calls: unchanged if complete, otherwise in the order of the calls."""
    calls = calls_of(reply)
    if len(answers) == len(calls):
        return answers
    given: dict[str, list[ToolMessage]] = {}
    for each in answers:
        given.setdefault(each.tool_call_id, []).append(each)
    completed: list[ToolMessage] = []
    for call in calls:
        call_id = call["id"] or ""
        known = given.get(call_id)
        answer = ToolMessage(content=reason, tool_call_id=call_id, name=call["name"], status="error")
        completed.append(known.pop(0) if known else answer)
    return completed
