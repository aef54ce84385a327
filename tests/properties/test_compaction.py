"""Compaction separates no call from its answers and loses no open call, in conversations of any shape."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from ramet.agent.context import calls_of
from ramet.agent.history.compaction import Compaction, estimated_tokens, repair
from ramet.agent.history.pairing import groups
from tests.support.context import make_context

IDS = ["a", "b", "c"]  # few, so that ids repeat across turns
sizes = st.sampled_from([0, 1, 50, 250, 1_000, 4_000])


@st.composite
def histories(draw: st.DrawFn) -> list[BaseMessage]:
    """Draw any conversation: cut-off turns, late or repeated answers, mail between, broken calls, orphans."""
    history: list[BaseMessage] = []
    late: list[ToolMessage] = []
    for number in range(draw(st.integers(0, 12))):
        kind = draw(st.sampled_from(["turn", "turn", "human", "system", "plain", "late", "orphan", "tangle"]))
        text = f"{number}:" + "x" * draw(sizes)
        if kind == "turn":
            ids = draw(st.lists(st.sampled_from(IDS), min_size=1, max_size=3, unique=True))
            calls: list[Any] = [{"name": "T", "args": {"x": text}, "id": each} for each in ids]
            broken: list[Any] = []
            if draw(st.booleans()):
                broken = [{"name": "T", "args": "{", "id": calls.pop()["id"], "error": "cut"}]
            history.append(AIMessage(content=text, tool_calls=calls, invalid_tool_calls=broken))
            for each in draw(st.permutations(ids)):
                answer = ToolMessage(content=f"run-0{number}f " + text, tool_call_id=each, name="T")
                timing = draw(st.sampled_from(["now", "now", "late", "late", "never"]))
                if timing == "now":
                    history.append(answer)
                elif timing == "late":
                    late.append(answer)
        elif kind == "late" and late:
            history.append(late.pop(draw(st.integers(0, len(late) - 1))))
        elif kind == "tangle":  # two replies before any answer, and the answers in any order
            for each in "xy":
                history.append(AIMessage(content=text, tool_calls=[{"name": "T", "args": {}, "id": f"{each}{number}"}]))
            for each in draw(st.permutations("xy")):
                history.append(ToolMessage(content=text, tool_call_id=f"{each}{number}"))
        elif kind == "orphan":
            history.append(ToolMessage(content=text, tool_call_id="nobody"))
        elif kind == "system":
            history.append(SystemMessage(content=text))
        elif kind == "plain":
            history.append(AIMessage(content=text))
        else:
            history.append(HumanMessage(content=text))
    for index, message in enumerate(history):
        message.id = f"m{index}"  # kept by copies, too
    return history


async def _summary(messages: list[BaseMessage]) -> str:
    return "what happened"


async def _fails(messages: list[BaseMessage]) -> str:
    raise OSError("no network")


compactions = st.builds(
    Compaction,
    window_tokens=st.sampled_from([100, 500, 1_000, 3_000, 100_000]),
    at=st.sampled_from([0.1, 0.5, 0.8, 1.0]),
    keep_last=st.integers(1, 20),
    summarise=st.sampled_from([_summary, _fails]),
)


def compact_once(compaction: Compaction, history: list[BaseMessage], trigger: str = "auto") -> list[BaseMessage]:
    """Return the history after one compaction."""
    context = make_context(history=history)
    asyncio.run(compaction.compact(context, trigger=trigger))
    return context.history


def pairs(history: list[BaseMessage]) -> dict[str, list[str]]:
    """Map the id of each reply with calls to the ids of its answers.

    Written without ramet's own pairing: newest asker first.
    """
    found: dict[str, list[str]] = {}
    open_calls: list[tuple[str, str]] = []
    for message in history:
        if isinstance(message, AIMessage) and calls_of(message):
            found[str(message.id)] = []
            open_calls += [(call["id"] or "", str(message.id)) for call in calls_of(message)]
        elif isinstance(message, ToolMessage):
            asker = next((each for each in reversed(open_calls) if each[0] == message.tool_call_id), None)
            if asker is not None:
                open_calls.remove(asker)
                found[asker[1]].append(str(message.id))
    return found


def open_replies(history: list[BaseMessage]) -> set[str]:
    """Return the ids of replies with an unanswered call."""
    found = pairs(history)
    return {
        str(each.id)
        for each in history
        if isinstance(each, AIMessage) and len(calls_of(each)) > len(found.get(str(each.id), []))
    }


def ids(history: list[BaseMessage]) -> list[str]:
    return [each.id for each in history if each.id is not None]


@given(histories(), compactions, st.sampled_from(["auto", "manual"]))
def test_a_kept_reply_keeps_its_answers_and_no_answer_stands_alone(
    history: list[BaseMessage], compaction: Compaction, trigger: str
) -> None:
    """Pairs of call and answer stay whole, open calls stay, and the order stays. A changed history has no orphans."""
    before = list(history)

    after = compact_once(compaction, history, trigger)

    was, now = pairs(before), pairs(after)
    assert all(now[reply] == was[reply] for reply in now)
    assert open_replies(after) == open_replies(before)
    answered = {answer for answers in now.values() for answer in answers}
    if after is not history:
        assert {each.id for each in after if isinstance(each, ToolMessage)} == answered
    assert [each for each in ids(before) if each in set(ids(after))] == ids(after)


@given(histories(), compactions)
def test_a_compaction_that_is_not_needed_changes_nothing(history: list[BaseMessage], compaction: Compaction) -> None:
    """A second compaction below the threshold returns the same history."""
    once = compact_once(compaction, history)
    if not compaction.is_needed(make_context(history=once)):
        assert compact_once(compaction, once) is once


@given(histories(), compactions, st.sampled_from(["auto", "manual"]))
def test_compaction_never_grows_and_keeps_brief_rules_and_newest_part(
    history: list[BaseMessage], compaction: Compaction, trigger: str
) -> None:
    """The first human message, the system messages, and everything from the newest reply on stay unchanged."""
    before = list(history)

    after = compact_once(compaction, history, trigger)

    assert estimated_tokens(after) <= estimated_tokens(before)
    first = next((each for each in before if isinstance(each, HumanMessage)), None)
    newest = next((i for i in reversed(range(len(before))) if isinstance(before[i], AIMessage)), 0)
    answered = {answer for answers in pairs(before).values() for answer in answers}
    expected = [each for each in before[newest:] if not isinstance(each, ToolMessage) or each.id in answered]
    expected += [each for each in before if isinstance(each, SystemMessage) or each is first]
    assert all(any(each is other for other in after) for each in expected)


@given(histories(), compactions)
def test_every_run_id_in_the_answers_survives_compaction(history: list[BaseMessage], compaction: Compaction) -> None:
    """Ids of runs stay somewhere in the text of the history."""
    named = {f"run-0{n}f" for n in range(12) if any(f"run-0{n}f" in str(each.content) for each in history)}

    after = compact_once(compaction, history)

    text = "".join(str(each.content) for each in after)
    assert {each for each in named if each not in text} == set()


@given(histories())
def test_groups_cover_the_history_and_join_calls_with_their_answers(history: list[BaseMessage]) -> None:
    """Each message is in exactly one group. Groups with open calls are marked, and so are answers without a call."""
    pieces = list(groups(history))

    assert [i for piece in pieces for i in range(piece.start, piece.stop)] == list(range(len(history)))
    group_of = {str(history[i].id): n for n, piece in enumerate(pieces) for i in range(piece.start, piece.stop)}
    found = pairs(history)
    assert all(group_of[answer] == group_of[reply] for reply, answers in found.items() for answer in answers)
    assert {n for n, piece in enumerate(pieces) if piece.open} == {group_of[each] for each in open_replies(history)}
    answered = {answer for answers in found.values() for answer in answers}
    alone = {i for i, each in enumerate(history) if isinstance(each, ToolMessage) and each.id not in answered}
    assert {i for piece in pieces for i in piece.orphans} == alone


@given(histories())
def test_a_repaired_history_answers_each_call_at_once(
    history: list[BaseMessage],
) -> None:
    """A repaired history can be sent to any provider, and a second repair changes nothing. Only orphans are removed."""
    repaired = repair(history)

    index = 0
    while index < len(repaired):
        message = repaired[index]
        assert not isinstance(message, ToolMessage)
        calls = calls_of(message) if isinstance(message, AIMessage) else []
        answers = repaired[index + 1 : index + 1 + len(calls)]
        assert all(isinstance(each, ToolMessage) for each in answers)
        assert Counter(call["id"] for call in calls) == Counter(getattr(each, "tool_call_id", None) for each in answers)
        index += 1 + len(calls)
    assert repair(repaired) == repaired
    answered = {answer for answers in pairs(history).values() for answer in answers}
    whole = [each.id for each in history if not isinstance(each, ToolMessage) or each.id in answered]
    assert Counter(each.id for each in repaired if each.id is not None) == Counter(whole)
