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
    last_index = list(range(len(history)))  #: the last message that belongs to each
    open_calls: dict[str, list[int]] = {}
    orphans: set[int] = set()
    for index, message in enumerate(history):
        if isinstance(message, AIMessage):
            for call in calls_of(message):
                open_calls.setdefault(call["id"] or "", []).append(index)
        elif isinstance(message, ToolMessage):
            call_indexes = open_calls.get(message.tool_call_id)
            if call_indexes:
                last_index[call_indexes.pop()] = index  # ids may repeat: the newest waiting call is meant
            else:
                orphans.add(index)
    unanswered_indexes = {index for call_indexes in open_calls.values() for index in call_indexes}
    start = 0
    while start < len(history):
        stop, index = last_index[start], start
        while index < stop:
            index += 1
            stop = max(stop, last_index[index])
        members = range(start, stop + 1)
        group_orphans = tuple(each for each in members if each in orphans)
        yield Group(start, stop + 1, not unanswered_indexes.isdisjoint(members), group_orphans)
        start = stop + 1


def repair(history: Sequence[BaseMessage], reason: str = INTERRUPTED) -> list[BaseMessage]:
    """Return a history that a provider accepts: every call is followed by its answer, an error if it has none.

    For interrupted turns. A valid history is returned unchanged.
    """
    open_calls: dict[str, list[list[ToolMessage]]] = {}
    answers: dict[int, list[ToolMessage]] = {}
    for index, message in enumerate(history):
        if isinstance(message, AIMessage):
            answers[index] = []
            for call in calls_of(message):
                open_calls.setdefault(call["id"] or "", []).append(answers[index])
        elif isinstance(message, ToolMessage) and open_calls.get(message.tool_call_id):
            open_calls[message.tool_call_id].pop().append(message)
    repaired_history: list[BaseMessage] = []
    for index, message in enumerate(history):
        if isinstance(message, ToolMessage):
            continue  # moved after its call, or an orphan
        repaired_history.append(message)
        if isinstance(message, AIMessage):
            repaired_history += _complete_answers(message, answers[index], reason)
    return repaired_history


def _complete_answers(reply: AIMessage, answers: list[ToolMessage], reason: str) -> list[ToolMessage]:
    """Return the answers to a reply's calls: unchanged if complete, otherwise in the order of the calls."""
    calls = calls_of(reply)
    if len(answers) == len(calls):
        return answers
    answers_by_id: dict[str, list[ToolMessage]] = {}
    for each in answers:
        answers_by_id.setdefault(each.tool_call_id, []).append(each)
    complete_answers: list[ToolMessage] = []
    for call in calls:
        call_id = call["id"] or ""
        matching = answers_by_id.get(call_id)
        answer = ToolMessage(content=reason, tool_call_id=call_id, name=call["name"], status="error")
        complete_answers.append(matching.pop(0) if matching else answer)
    return complete_answers
