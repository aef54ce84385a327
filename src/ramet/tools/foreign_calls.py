"""Gate tool calls of foreign loops: they pass the same gates as every call of a tree."""

from __future__ import annotations

from typing import Any

from ramet.core.errors import Denied
from ramet.core.events import ToolEnded
from ramet.core.ids import CallId, StepId
from ramet.tools.context import CurrentCall, ToolUseContext, current_call
from ramet.tools.decisions import HookDecision
from ramet.tools.permission_checks import narrow_decision, rule_on_call


def has_gates(context: ToolUseContext) -> bool:
    """Return whether a tool call must pass any gate."""
    return bool(context.permissions) or context.safety is not None or _has_hooks(context)


async def pass_gates(
    context: ToolUseContext,
    call_id: CallId,
    tool: str,
    args: dict[str, Any],
    *,
    question: str = "",
    records_denial: bool = True,
) -> None:
    """Ask hooks, permission rules, a person, and the safety gate about a call.

    With a `question`, a person is asked unless a permission rule allows the call. Raises Denied, and records the end
    of the call unless the other loop reports it. Arguments belong to that loop: a hook that changes them denies the
    call.
    """
    try:
        await _pass(context, call_id, tool, args, question)
    except Denied as refusal:
        if not records_denial:
            raise
        context.emit(ToolEnded, call_id=call_id, tool=tool, status="denied", preview=str(refusal))
        raise


async def _pass(context: ToolUseContext, call_id: CallId, tool: str, args: dict[str, Any], question: str) -> None:
    decision = HookDecision()
    if context.hooks is not None and _has_hooks(context):
        payload = {"tool_name": tool, "tool_input": args, "tool_use_id": call_id}
        decision = await context.hooks.fire("PreToolUse", context, payload, matcher=tool)
        if decision.updated_input is not None and decision.updated_input != args:
            raise Denied(tool, "a hook changed the arguments, which this agent's own loop does not accept")
    if question and decision.verdict == "allow" and rule_on_call(context, tool, args).verdict != "allow":
        decision = decision._replace(verdict="ask", reason=question)
    decision = narrow_decision(context, tool, args, decision)
    if decision.verdict == "deny":
        raise Denied(tool, decision.reason or "a hook denied it")
    if decision.verdict == "ask":
        await _ask_person(context, call_id, tool, args, decision.reason)
    if context.safety is not None:
        safety_decision = await context.safety(context, call_id=call_id, tool=tool, args=args)
        if not safety_decision.is_committed:
            raise Denied(tool, f"the safety gate: {safety_decision.reason or 'no reason given'}")
        await context.slot.acquire()  # Waiting for a person released it, unless other calls are active.


async def _ask_person(context: ToolUseContext, call_id: CallId, tool: str, args: dict[str, Any], question: str) -> None:
    if context.approve is None:
        raise Denied(tool, "there is no approver")
    token = current_call.set(CurrentCall(context, call_id, StepId("")))  # the asking run
    try:
        approved = await context.approve(context, tool=tool, question=question, args=args, can_be_for_run=True)
    finally:
        current_call.reset(token)
    if not approved:
        raise Denied(tool, approved.denial)
    await context.slot.acquire()  # Waiting for the approval released it, unless other calls are active.


def _has_hooks(context: ToolUseContext) -> bool:
    return context.hooks is not None and context.hooks.listens("PreToolUse")
