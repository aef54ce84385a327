"""The calls of a reply that goes into a sandbox: granted, charged and refunded, whatever the guest says of them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage

from ramet.core.budget import Budget, Limits
from ramet.core.errors import BudgetExceeded, ProtocolError
from ramet.core.events import Event, ModelCharged
from ramet.core.safety import SafetyPolicy
from ramet.host.safety.gate import SafetyGate
from ramet.spawn.tool_calls import PastCalls, ToolCallLedger, charge_aside, step_number
from ramet.tools.workspace import workspace_tools
from tests.support.context import make_context


def reply(*tools: str) -> AIMessage:
    """A reply with a call of each of these, `c0`, `c1`, …"""
    calls = [{"name": name, "args": {}, "id": f"c{number}"} for number, name in enumerate(tools)]
    return AIMessage("", tool_calls=calls)


def test_a_call_by_an_alias_is_a_call_of_the_tool() -> None:
    """As in the host's own dispatch; a tool that is not there can be answered, and not begun."""
    calls = ToolCallLedger(make_context(tools=workspace_tools()), "main:1", reply("Shell", "Nothing"))

    assert calls.begin("c0").tool == "Bash"
    with pytest.raises(ProtocolError, match="may not begin"):
        calls.begin("c1")
    assert (calls.end("c0"), calls.end("c1")) == ("Bash", "Nothing")


@pytest.mark.parametrize("how", ["end", "answer"])
def test_behind_a_safety_gate_nothing_that_never_began_has_an_output(how: str) -> None:
    """It is refused as a breach of the protocol and changes nothing: the call can still be said to be refused."""
    context = make_context(tools=workspace_tools(), safety=SafetyGate(SafetyPolicy(otherwise="allow")))
    calls = ToolCallLedger(context, "main:1", reply("Read", "Bash"))
    calls.propose("c1")
    calls.commit("c1")
    calls.begin("c1")

    for _ in range(2):
        with pytest.raises(ProtocolError, match="has an output, and never began"):
            getattr(calls, how)("c0", refused=False)
    getattr(calls, how)("c0", refused=True)
    getattr(calls, how)("c1", refused=False)


def test_a_call_whose_arguments_could_not_be_read_is_not_charged() -> None:
    """It is answered with the error, and never begins."""
    broken = AIMessage("", invalid_tool_calls=[{"name": "Read", "args": "{", "id": "c0", "error": "no JSON"}])
    context = make_context(tools=workspace_tools(), budget=Budget(Limits(tool_calls=5), scope="main"))
    calls = ToolCallLedger(context, "main:1", broken)
    calls.close()
    assert (context.usage.tool_calls, context.budget.reserved("tool_calls")) == (0, 0)


@given(
    count=st.integers(0, 6),
    limit=st.integers(0, 6) | st.none(),
    begun=st.lists(st.integers(0, 5), unique=True),
    denied=st.lists(st.integers(0, 5), unique=True),
)
def test_no_more_is_granted_than_there_is_and_nothing_stays_held(
    count: int, limit: int | None, begun: list[int], denied: list[int]
) -> None:
    """Whatever begins and whatever the host denies: charged is what may have run, at most the limit."""
    told: list[Event] = []
    context = make_context(tools=workspace_tools(), budget=Budget(Limits(tool_calls=limit), scope="main"))
    context.record = lambda event: told.append(event) or event  # type: ignore[func-returns-value]  # it is None
    calls = ToolCallLedger(context, "main:1", reply(*["Read"] * count))
    most = math.inf if limit is None else limit
    assert (calls.granted is None) is (count <= most)
    granted = count if calls.granted is None else calls.granted
    assert granted == min(count, most)

    ran = 0
    for number in begun:
        if number < count and ran < granted:
            calls.begin(f"c{number}")
            ran += 1
    no = [number for number in denied if number < count and number not in begun]
    for number in no:
        calls.deny(f"c{number}")
    calls.close()
    calls.close()

    assert context.usage.tool_calls == max(ran, min(granted, count - len(no)))
    on_record = sum(each.usage.tool_calls for each in told if isinstance(each, ModelCharged))
    assert on_record == context.usage.tool_calls - ran, "whoever goes on would count less"
    assert context.budget.reserved("tool_calls") == 0
    assert context.budget.spent("tool_calls") == (context.usage.tool_calls if limit is not None else 0)


@given(st.lists(st.sampled_from(["waits", "began", "refused", "answered"]), max_size=6), st.integers(0, 6) | st.none())
def test_calls_that_another_kernel_had_heard_of_go_on_where_they_were(past: list[str], left: int | None) -> None:
    """What had begun was charged there, what was refused never is; what waits is granted from what is left."""
    ids = {what: {f"c{at}" for at, each in enumerate(past) if each == what} for what in set(past)}
    waits = ids.get("waits", set())
    before = PastCalls(*(frozenset(ids.get(what, ())) for what in ("began", "refused", "answered")))
    context = make_context(tools=workspace_tools(), budget=Budget(Limits(tool_calls=left), scope="main"))
    calls = ToolCallLedger(context, "main:1", reply(*["Read"] * len(past)), before)
    held = len(waits) if left is None else min(len(waits), left)
    assert calls.granted == (None if held == len(waits) else held)

    for each in ids.get("answered", set()):
        with pytest.raises(ProtocolError):
            calls.end(each)
    for each in (*before.begun, *before.refused):
        with pytest.raises(ProtocolError):
            calls.begin(each)
        assert calls.end(each) == "Read"
        calls.answer(each)
    denied = sorted(waits)[:held:2]
    for each in denied:  # By a kernel that is no more; this one hears of it from the guest.
        calls.end(each)
    for each in set(sorted(waits)[:held]) - set(denied):
        calls.begin(each)
    calls.close()
    may_have_run = min(held, len(waits) - len(denied))
    assert (context.usage.tool_calls, context.budget.reserved("tool_calls")) == (may_have_run, 0)


def test_a_call_that_a_guest_alone_says_is_over_is_charged_once_whoever_goes_on() -> None:
    """It may have run; the next kernel takes from the record that it is over, and what it cost."""
    told: list[Event] = []
    context = make_context(tools=workspace_tools(), budget=Budget(Limits(tool_calls=5), scope="main"))
    context.record = lambda event: told.append(event) or event  # type: ignore[func-returns-value]  # it is None
    calls = ToolCallLedger(context, "main:1", reply("Read", "Read"))
    calls.deny("c0")
    calls.end("c0")
    assert not told, "the host itself said no"
    calls.end("c1")
    on_record = sum(each.usage.tool_calls for each in told if isinstance(each, ModelCharged))
    calls.close()
    assert context.usage.tool_calls == on_record == 1
    heir = ToolCallLedger(context, "main:1", reply("Read", "Read"), PastCalls(refused=frozenset({"c0", "c1"})))
    heir.close()
    assert context.budget.spent("tool_calls") == 1


def test_calls_beside_the_conversation_are_all_or_none() -> None:
    """Whoever asked runs them unseen, so they are charged at once."""
    context = make_context(budget=Budget(Limits(tool_calls=3), scope="main"))
    charge_aside(context, "main:1", reply("a", "b"))
    with pytest.raises(BudgetExceeded):
        charge_aside(context, "main:1", reply("a", "b"))
    assert (context.usage.tool_calls, context.budget.spent("tool_calls")) == (2, 2)


@pytest.mark.parametrize(
    "step", ["", "run-00", "run-00:", "run-00:0", "run-00:01", "run-00:-1", "run-01:1", "run-00:٣"]
)
def test_a_step_of_another_run_is_none(step: str) -> None:
    """Nor is one that is written in another way."""
    with pytest.raises(ProtocolError, match="does not belong to this run"):
        step_number(make_context(), step)


def test_the_runs_next_steps_come_after_its_guests() -> None:
    """The next turn must not use a key again."""
    context = make_context(steps=3)
    assert step_number(context, "run-00:9") == 9
    assert step_number(context, "run-00:5") == 5
    assert context.next_step() == "run-00:10"


def test_a_call_beyond_what_was_granted_may_not_begin() -> None:
    """However the guest counts."""
    context = make_context(tools=workspace_tools(), budget=Budget(Limits(tool_calls=1), scope="main"))
    calls = ToolCallLedger(context, "main:1", reply("Read", "Read"))
    calls.begin("c1")
    with pytest.raises(ProtocolError, match="may not begin"):
        calls.begin("c0")
    assert calls.refusal is not None
    assert (calls.granted, context.usage.tool_calls) == (1, 1)
