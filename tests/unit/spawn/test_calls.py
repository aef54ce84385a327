"""Tests of `ToolCallLedger`: the host grants, charges and refunds calls, whatever the guest reports of them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage

from ramet.core.budget import Budget
from ramet.core.errors import BudgetExceeded, ProtocolError
from ramet.core.events import Event, ModelCharged
from ramet.core.limits import Limits
from ramet.core.safety import SafetyPolicy
from ramet.host.safety.gate import SafetyGate
from ramet.spawn.tool_calls import PastCalls, ToolCallLedger, charge_aside, step_number
from ramet.tools.workspace import workspace_tools
from tests.support.context import make_context


def reply(*tools: str) -> AIMessage:
    """Return a reply with one call of each tool, with the ids `c0`, `c1`, …"""
    calls = [{"name": name, "args": {}, "id": f"c{number}"} for number, name in enumerate(tools)]
    return AIMessage("", tool_calls=calls)


def test_a_call_by_an_alias_is_a_call_of_the_tool() -> None:
    """The ledger resolves aliases like the host's own dispatch; a call of an unknown tool can end, and not begin."""
    calls = ToolCallLedger(make_context(tools=workspace_tools()), "main:1", reply("Shell", "Nothing"))

    assert calls.begin("c0").tool == "Bash"
    with pytest.raises(ProtocolError, match="may not begin"):
        calls.begin("c1")
    assert (calls.end("c0"), calls.end("c1")) == ("Bash", "Nothing")


@pytest.mark.parametrize("mode", ["end", "answer"])
def test_with_a_safety_gate_a_call_that_never_began_has_no_output(mode: str) -> None:
    """The ledger raises ProtocolError and changes nothing, so the call can still be reported as refused."""
    context = make_context(tools=workspace_tools(), safety=SafetyGate(SafetyPolicy(otherwise="allow")))
    calls = ToolCallLedger(context, "main:1", reply("Read", "Bash"))
    calls.propose("c1")
    calls.commit("c1")
    calls.begin("c1")

    for _ in range(2):
        with pytest.raises(ProtocolError, match="has an output, and never began"):
            getattr(calls, mode)("c0", refused=False)
    getattr(calls, mode)("c0", refused=True)
    getattr(calls, mode)("c1", refused=False)


def test_a_call_with_unreadable_arguments_is_not_charged() -> None:
    """A call with invalid arguments never begins."""
    invalid_message = AIMessage("", invalid_tool_calls=[{"name": "Read", "args": "{", "id": "c0", "error": "no JSON"}])
    context = make_context(tools=workspace_tools(), budget=Budget(Limits(tool_calls=5), scope="main"))
    calls = ToolCallLedger(context, "main:1", invalid_message)
    calls.close()
    assert (context.usage.tool_calls, context.budget.reserved_amount("tool_calls")) == (0, 0)


@given(
    count=st.integers(0, 6),
    limit=st.integers(0, 6) | st.none(),
    begun_calls=st.lists(st.integers(0, 5), unique=True),
    denied_calls=st.lists(st.integers(0, 5), unique=True),
)
def test_grants_stay_within_the_limit_and_nothing_stays_reserved(
    count: int, limit: int | None, begun_calls: list[int], denied_calls: list[int]
) -> None:
    """The ledger charges every call that may have run, at most the limit, for any begun and denied calls."""
    run_events: list[Event] = []
    context = make_context(tools=workspace_tools(), budget=Budget(Limits(tool_calls=limit), scope="main"))
    context.record = lambda event: run_events.append(event) or event  # type: ignore[func-returns-value]  # it is None
    calls = ToolCallLedger(context, "main:1", reply(*["Read"] * count))
    max_calls = math.inf if limit is None else limit
    assert (calls.granted_count is None) is (count <= max_calls)
    grant_count = count if calls.granted_count is None else calls.granted_count
    assert grant_count == min(count, max_calls)

    ran = 0
    for number in begun_calls:
        if number < count and ran < grant_count:
            calls.begin(f"c{number}")
            ran += 1
    no = [number for number in denied_calls if number < count and number not in begun_calls]
    for number in no:
        calls.deny(f"c{number}")
    calls.close()
    calls.close()

    assert context.usage.tool_calls == max(ran, min(grant_count, count - len(no)))
    on_record = sum(each.usage.tool_calls for each in run_events if isinstance(each, ModelCharged))
    assert on_record == context.usage.tool_calls - ran, "whoever goes on would count less"
    assert context.budget.reserved_amount("tool_calls") == 0
    assert context.budget.spent_amount("tool_calls") == (context.usage.tool_calls if limit is not None else 0)


@given(st.lists(st.sampled_from(["waits", "began", "refused", "answered"]), max_size=6), st.integers(0, 6) | st.none())
def test_calls_known_to_another_kernel_continue_in_their_state(past: list[str], left: int | None) -> None:
    """Begun calls were charged there and refused calls never are; waiting calls share the rest of the limit."""
    ids = {state: {f"c{at}" for at, each in enumerate(past) if each == state} for state in set(past)}
    waits = ids.get("waits", set())
    began, refused, answered = (frozenset(ids.get(state, ())) for state in ("began", "refused", "answered"))
    before = PastCalls(began, refused, answered)
    context = make_context(tools=workspace_tools(), budget=Budget(Limits(tool_calls=left), scope="main"))
    calls = ToolCallLedger(context, "main:1", reply(*["Read"] * len(past)), before)
    held_count = len(waits) if left is None else min(len(waits), left)
    assert calls.granted_count == (None if held_count == len(waits) else held_count)

    for each in ids.get("answered", set()):
        with pytest.raises(ProtocolError):
            calls.end(each)
    for each in (*before.started_ids, *before.refused_ids):
        with pytest.raises(ProtocolError):
            calls.begin(each)
        assert calls.end(each) == "Read"
        calls.answer(each)
    denied_calls = sorted(waits)[:held_count:2]
    for each in denied_calls:  # By a kernel that is no more; this one hears of it from the guest.
        calls.end(each)
    for each in set(sorted(waits)[:held_count]) - set(denied_calls):
        calls.begin(each)
    calls.close()
    may_have_run = min(held_count, len(waits) - len(denied_calls))
    assert (context.usage.tool_calls, context.budget.reserved_amount("tool_calls")) == (may_have_run, 0)


def test_a_call_that_only_the_guest_ended_is_charged_once_across_kernels() -> None:
    """The call may have run; the next kernel reads its end and its cost from the journal."""
    run_events: list[Event] = []
    context = make_context(tools=workspace_tools(), budget=Budget(Limits(tool_calls=5), scope="main"))
    context.record = lambda event: run_events.append(event) or event  # type: ignore[func-returns-value]  # it is None
    calls = ToolCallLedger(context, "main:1", reply("Read", "Read"))
    calls.deny("c0")
    calls.end("c0")
    assert not run_events, "the host itself said no"
    calls.end("c1")
    on_record = sum(each.usage.tool_calls for each in run_events if isinstance(each, ModelCharged))
    calls.close()
    assert context.usage.tool_calls == on_record == 1
    ledger = ToolCallLedger(context, "main:1", reply("Read", "Read"), PastCalls(refused_ids=frozenset({"c0", "c1"})))
    ledger.close()
    assert context.budget.spent_amount("tool_calls") == 1


async def test_calls_outside_the_conversation_are_charged_together_or_refused() -> None:
    """The host does not see these calls run, so it charges all of them at once."""
    context = make_context(budget=Budget(Limits(tool_calls=3), scope="main"))
    await charge_aside(context, "main:1", reply("a", "b"))
    with pytest.raises(BudgetExceeded):
        await charge_aside(context, "main:1", reply("a", "b"))
    assert (context.usage.tool_calls, context.budget.spent_amount("tool_calls")) == (2, 2)


@pytest.mark.parametrize(
    "step", ["", "run-00", "run-00:", "run-00:0", "run-00:01", "run-00:-1", "run-01:1", "run-00:٣"]
)
def test_a_step_of_another_run_is_refused(step: str) -> None:
    """Step ids with another run or in another notation raise ProtocolError."""
    with pytest.raises(ProtocolError, match="does not belong to this run"):
        step_number(make_context(), step)


def test_the_next_steps_of_a_run_follow_those_of_its_guest() -> None:
    """The next turn uses no step number again."""
    context = make_context(steps=3)
    assert step_number(context, "run-00:9") == 9
    assert step_number(context, "run-00:5") == 5
    assert context.next_step() == "run-00:10"


def test_a_call_above_the_granted_number_may_not_begin() -> None:
    """The ledger counts begun calls itself."""
    context = make_context(tools=workspace_tools(), budget=Budget(Limits(tool_calls=1), scope="main"))
    calls = ToolCallLedger(context, "main:1", reply("Read", "Read"))
    calls.begin("c1")
    with pytest.raises(ProtocolError, match="may not begin"):
        calls.begin("c0")
    assert calls.refusal is not None
    assert (calls.granted_count, context.usage.tool_calls) == (1, 1)
