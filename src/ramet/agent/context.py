"""The initial conversation of a child: only its brief (fresh), or its parent's whole conversation (fork)."""

from __future__ import annotations

from collections.abc import Sequence

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolCall, ToolMessage

FORK_BRIEF = (
    "You are now a fork of the agent above, on a track of your own: what you do from here is not seen by it, only your "
    "final answer is. Do this, and answer with the result:\n\n"
)
FORK_PENDING = "This call is being worked on; its result belongs to the agent you were forked from."


def fork(history: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Return the parent's conversation as its model saw it, unchanged, with every open call answered.

    The messages before the answers are the parent's own objects, so that a provider's prompt cache applies to them.
    """
    answered_ids = {each.tool_call_id for each in history if isinstance(each, ToolMessage)}
    open_ids = [
        call["id"]
        for each in history
        if isinstance(each, AIMessage)
        for call in calls_of(each)
        if call["id"] not in answered_ids
    ]
    pending = [ToolMessage(content=FORK_PENDING, tool_call_id=each or "") for each in open_ids]
    return [*history, *pending]


def fork_brief(brief: str) -> HumanMessage:
    """Return the message with a fork's brief, which follows the shared conversation."""
    return HumanMessage(content=FORK_BRIEF + brief)


def calls_of(message: AIMessage) -> list[ToolCall]:
    """Return all calls of a reply that need an answer; calls with unreadable arguments have an `error`."""
    calls = list(message.tool_calls)
    for invalid_call in message.invalid_tool_calls:
        call = ToolCall(name=invalid_call["name"] or "", args={}, id=invalid_call["id"], type="tool_call")
        # read by the dispatcher
        call["error"] = invalid_call["error"] or "not valid JSON"  # type: ignore[typeddict-unknown-key]
        calls.append(call)
    return calls


def is_silent(message: BaseMessage) -> bool:
    """Return whether the message is a reply without text and calls."""
    if not isinstance(message, AIMessage) or message.tool_calls or message.invalid_tool_calls:
        return False
    content = message.content
    if isinstance(content, str):
        return not content.strip()
    return all(
        isinstance(block, dict) and block.get("type") == "text" and not block["text"].strip() for block in content
    )


def without_calls(message: AIMessage) -> AIMessage:
    """Return a reply with its text alone: its calls, in any form that the provider keeps them, would need answers."""
    kwargs = {
        key: value for key, value in message.additional_kwargs.items() if key not in ("tool_calls", "function_call")
    }
    changes = {"content": str(message.text), "tool_calls": [], "invalid_tool_calls": [], "additional_kwargs": kwargs}
    return message.model_copy(update=changes) if calls_of(message) else message


def with_call_ids(message: AIMessage, step: str) -> AIMessage:
    """Return the reply with unique call ids: some providers omit or repeat ids, and an answer needs one."""
    used_ids: set[str] = set()
    number = 0
    for call in (*message.tool_calls, *message.invalid_tool_calls):
        call_id = call["id"]
        if not call_id or call_id in used_ids:
            number += 1
            call_id = call["id"] = f"call-{step}-{number}"
        used_ids.add(call_id)
    return message
