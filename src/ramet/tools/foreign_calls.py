"""Tool calls of a loop that is not ours: the gates that stand before every call of a tree stand before these, too."""

from __future__ import annotations

from typing import Any

from ramet.core.errors import Denied
from ramet.core.events import ToolEnded
from ramet.core.ids import CallId, StepId
from ramet.tools.context import CurrentCall, HookDecision, ToolUseContext, current_call
from ramet.tools.permission_checks import narrowed


def has_gates(context: ToolUseContext) -> bool:
    """Whether anybody is to be asked before a tool call."""
    return bool(context.permissions) or context.safety is not None or _has_hooks(context)


async def pass_gates(context: ToolUseContext, call_id: CallId, tool: str, args: dict[str, Any]) -> None:
    """Ask hooks, permission rules, a person, and the safety gate about a call.

    Raises Denied, with the refusal on record. Arguments belong to the other loop: a hook that wants others denies.
    """
    try:
        await _pass(context, call_id, tool, args)
    except Denied as refusal:
        context.emit(ToolEnded, call_id=call_id, tool=tool, status="denied", preview=str(refusal))
        raise


async def _pass(context: ToolUseContext, call_id: CallId, tool: str, args: dict[str, Any]) -> None:
    decision = HookDecision()
    if context.hooks is not None and _has_hooks(context):
        payload = {"tool_name": tool, "tool_input": args, "tool_use_id": call_id}
        decision = await context.hooks.fire("PreToolUse", context, payload, matcher=tool)
        if decision.updated_input is not None and decision.updated_input != args:
            raise Denied(tool, "a hook wants other arguments, which this agent's own loop does not take")
    decision = narrowed(context, tool, args, decision)
    if decision.verdict == "deny":
        raise Denied(tool, decision.reason or "a hook said no")
    if decision.verdict == "ask":
        await _ask_person(context, call_id, tool, args, decision.reason)
    if context.safety is not None:
        word = await context.safety(context, call_id=call_id, tool=tool, args=args)
        if not word.committed:
            raise Denied(tool, f"the safety gate: {word.reason or 'it said no'}")
        await context.slot.take()  # Waiting for a person let it go, unless other calls are at work.


async def _ask_person(context: ToolUseContext, call_id: CallId, tool: str, args: dict[str, Any], question: str) -> None:
    if context.approve is None:
        raise Denied(tool, "nobody is there to approve it")
    token = current_call.set(CurrentCall(context, call_id, StepId("")))  # whose question it is
    try:
        approved = await context.approve(context, tool=tool, question=question, args=args)
    finally:
        current_call.reset(token)
    if not approved:
        raise Denied(tool, "it was not approved")
    await context.slot.take()  # Waiting for the word let it go, unless other calls are at work.


def _has_hooks(context: ToolUseContext) -> bool:
    return context.hooks is not None and context.hooks.listens("PreToolUse")
