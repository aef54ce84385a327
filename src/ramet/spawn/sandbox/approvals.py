"""Approvals and hooks for a guest's calls, based on the call as the host knows it, not as the guest reports it."""

from __future__ import annotations

import json
from typing import Any

from ramet.core.errors import ProtocolError
from ramet.core.ids import CallId, StepId
from ramet.models.request_codec import bounded_json
from ramet.spawn.tool_calls import ToolCallLedger
from ramet.tools.context import CurrentCall, ToolUseContext, current_call
from ramet.tools.decisions import Approval, HookDecision
from ramet.tools.permission_checks import narrow_decision, rule_on_call
from ramet.tools.permissions.plan_mode import NAME as EXIT_PLAN_MODE
from ramet.tools.permissions.plan_mode import leave_plan_mode
from ramet.wire.guest_protocol.answer_data import ApprovalReply, HookReply, SafetyReply
from ramet.wire.guest_protocol.guest_to_host import Approve, FireHook, ProposeCall

#: The number of bytes of a hook payload from a guest.
MAX_PAYLOAD = 8 * 1024 * 1024
#: The number of characters of a question that a guest writes itself.
MAX_QUESTION = 1000

#: The fields that a guest may set in the payload of a hook, by event, with their types; the host knows the rest.
_PAYLOAD_FIELDS: dict[str, dict[str, type]] = {
    "PreToolUse": {},
    "PostToolUse": {"tool_response": str},
    "PostToolUseFailure": {"tool_response": str},
    "Notification": {"message": str, "notification_type": str},
    "PreCompact": {"trigger": str},
    "Stop": {"stop_hook_active": bool, "last_assistant_message": str},
    "SubagentStop": {"stop_hook_active": bool, "last_assistant_message": str},
    "TeammateIdle": {"stop_hook_active": bool, "last_assistant_message": str},
}
#: The field that a hook's matcher is compared with; otherwise the agent's name.
_MATCHER_FIELD = {"Notification": "notification_type", "PreCompact": "trigger"}


def quote(text: str) -> str:
    """Quote a guest's text in one line, so that no part of it looks like text of the host."""
    return json.dumps(text[:MAX_QUESTION], ensure_ascii=False)


class Gates:
    """The gates of one conversation."""

    __slots__ = ("_context", "_had_rules", "_open_questions", "_questions")

    def __init__(self, context: ToolUseContext) -> None:
        self._context = context
        self._had_rules = bool(context.permissions)  #: the guest asks about each call, also once a plan is approved
        self._questions: dict[str, str] = {}  #: questions of hooks for a person, by call
        self._open_questions: set[str] = set()  #: calls about which a person is being asked

    async def approve(self, request: Approve, calls: ToolCallLedger) -> ApprovalReply:
        """Ask a person about a call; a denied call is not charged.

        Raises ProtocolError if the call is unknown, or if a person is being asked already. The person, approvers and
        hooks are shown the tool and the arguments of the reply; those that the guest reports are ignored. The guest's
        own text is quoted.
        """
        call_id = CallId(request.call_id or "")
        call, tool = calls.call(call_id), calls.tool(call_id)
        if call_id in self._open_questions:
            raise ProtocolError(f"a person is being asked about call {call_id[:100]!r} already")
        question = self._questions.pop(call_id, None)
        ruling = rule_on_call(self._context, tool, call["args"])
        if question is None and ruling.verdict == "ask":
            question = ruling.reason
        is_of_host = question is not None
        if question is None:  # No hook and no rule asks: a tool asks by itself, with an unchecked text.
            question = f"the sandbox asks: {quote(request.question)}"
        approval = Approval(False, ruling.reason if ruling.verdict == "deny" else "")
        if self._context.approve is not None and ruling.verdict != "deny":
            token = current_call.set(CurrentCall(self._context, call_id, StepId("")))  # the asking call
            self._open_questions.add(call_id)
            try:
                approval = await self._context.approve(
                    self._context, tool=tool, question=question, args=call["args"], can_be_for_run=is_of_host
                )
            finally:
                self._open_questions.discard(call_id)
                current_call.reset(token)
            await self._context.slot.acquire()  # Waiting for the answer released the slot.
        if not approval:
            calls.deny(call_id)
        elif tool == EXIT_PLAN_MODE:  # The guest does the same in its own context, when the tool runs there.
            leave_plan_mode(self._context)
        return ApprovalReply(allowed=approval.is_allowed, reason=approval.reason)

    async def propose(self, request: ProposeCall, calls: ToolCallLedger) -> SafetyReply:
        """Have a call voted on; the decision is about the call of the reply, as the hooks left it.

        A denied call is not charged, and may not begin. Raises ProtocolError, StoreFailed or Aborted.
        """
        safety = self._context.safety
        if safety is None:
            raise ProtocolError("there is no safety gate here")
        call_id = CallId(request.call_id)
        call, tool = calls.propose(call_id), calls.tool(call_id)
        decision = await safety(self._context, call_id=call_id, tool=tool, args=call["args"])
        await self._context.slot.acquire()  # Waiting for a person released the slot.
        if decision.is_committed:
            calls.commit(call_id)
        else:
            calls.deny(call_id)
        return SafetyReply(committed=decision.is_committed, reason=decision.reason)

    async def fire(self, request: FireHook, body: bytes, calls: ToolCallLedger) -> HookReply:
        """Run the hooks of an event of the loop.

        Raises ProtocolError for any other event, or if there is no listener.
        """
        hooks, event = self._context.hooks, request.event
        field_types = _PAYLOAD_FIELDS.get(event)
        is_listening = hooks is not None and hooks.listens(event)
        if field_types is None or not (is_listening or (event == "PreToolUse" and self._had_rules)):
            raise ProtocolError(f"no hook listens for {event[:100]!r} from a sandbox")
        calls.rounds -= 1
        if calls.rounds < 0:
            raise ProtocolError("too many rounds of hooks for one reply")
        fields = bounded_json(body, max_bytes=MAX_PAYLOAD)
        if not isinstance(fields, dict) or not all(
            isinstance(fields.get(key), kind) for key, kind in field_types.items()
        ):
            raise ProtocolError(f"the payload of {event} must hold {', '.join(field_types) or 'the id of its call'}")
        payload: dict[str, Any] = {key: fields[key] for key in field_types}  # Any: the payload of hooks
        if hooks is not None and not event.endswith(("ToolUse", "ToolUseFailure")):
            matcher = payload.get(_MATCHER_FIELD.get(event, ""), self._context.run.agent)
            return HookReply(**(await hooks.fire(event, self._context, payload, matcher=matcher))._asdict())
        call_id = str(fields.get("tool_use_id"))
        call, tool = calls.call(call_id), calls.tool(call_id)
        payload = {"tool_name": tool, "tool_input": call["args"], "tool_use_id": call_id, **payload}
        decision = HookDecision()
        if is_listening and hooks is not None:
            decision = await hooks.fire(event, self._context, payload, matcher=tool)
        if event == "PreToolUse":
            if decision.updated_input is not None:
                call["args"] = decision.updated_input
            decision = narrow_decision(self._context, tool, call["args"], decision)
            if decision.verdict == "deny":
                calls.deny(call_id)
            elif decision.verdict == "ask":
                self._questions[call_id] = decision.reason
        return HookReply(**decision._asdict())
