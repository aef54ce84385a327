"""The OpenAI Responses wire format: requests to messages, replies to JSON or server-sent events."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from tests.support.anthropic_wire import words
from tests.support.http import Answer
from tests.support.openai_wire import error, stream_error

_ids = itertools.count(1)

__all__ = ["error", "messages", "stream", "stream_error", "whole"]


def messages(body: dict[str, Any]) -> list[BaseMessage]:
    """Return the messages of a request."""
    asked = body.get("input", [])
    if isinstance(asked, str):
        return [HumanMessage(asked)]
    read: list[BaseMessage] = []
    for item in asked:
        match item.get("type", "message"), item.get("role"):
            case "function_call_output", _:
                read.append(ToolMessage(str(item["output"]), tool_call_id=item["call_id"]))
            case "message", "system" | "developer":
                read.append(SystemMessage(_text(item["content"])))
            case "message", "user":
                read.append(HumanMessage(_text(item["content"])))
            case _:
                read.append(AIMessage(_text(item.get("content", ""))))
    return read


def whole(body: dict[str, Any], reply: AIMessage) -> dict[str, Any]:
    """Return the reply to a request without a stream."""
    ended: dict[str, Any] = _response(body, reply, "completed")
    if reply.response_metadata.get("cut_short"):
        ended |= {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    return {
        **ended,
        "output": [*_message(reply), *_calls(reply)],
        "usage": _usage(reply),
    }


async def stream(
    answer: Answer, body: dict[str, Any], reply: AIMessage, pieces: Sequence[str] | None, *, closing: bool = True
) -> None:
    """Send the reply as events. Without `closing`, stop before the events that complete it."""
    reply.id = f"{next(_ids)}"  # clients take items of one id for one item
    await _event(answer, "response.created", response=_response(body, reply, "in_progress"))
    at = {"item_id": f"msg_{reply.id}", "output_index": 0, "content_index": 0}
    for item in _message(reply):
        opened = {**item, "content": [], "status": "in_progress"}
        await _event(answer, "response.output_item.added", output_index=0, item=opened)
        part = {"type": "output_text", "text": "", "annotations": []}
        await _event(answer, "response.content_part.added", **at, part=part)
        for piece in pieces or words(str(reply.text)):
            await _event(answer, "response.output_text.delta", **at, delta=piece)
        if not closing:
            return
        await _event(answer, "response.output_item.done", output_index=0, item=item)
    for index, item in enumerate(_calls(reply), len(_message(reply))):
        await _event(answer, "response.output_item.added", output_index=index, item={**item, "arguments": ""})
        called = {"item_id": item["id"], "output_index": index}
        await _event(answer, "response.function_call_arguments.delta", **called, delta=item["arguments"])
        await _event(answer, "response.output_item.done", output_index=index, item=item)
    ended = whole(body, reply)
    await _event(answer, f"response.{ended['status']}", response=ended)


def _response(body: dict[str, Any], reply: AIMessage, status: str) -> dict[str, Any]:
    return {
        "id": f"resp_{reply.id}",
        "object": "response",
        "created_at": 0,
        "model": body.get("model"),
        "status": status,
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }


def _message(reply: AIMessage) -> list[dict[str, Any]]:
    if not reply.content:
        return []
    part = {"type": "output_text", "text": str(reply.text), "annotations": []}
    return [
        {"id": f"msg_{reply.id}", "type": "message", "role": "assistant", "status": "completed", "content": [part]},
    ]


def _calls(reply: AIMessage) -> list[dict[str, Any]]:
    return [
        {
            "id": f"fc_{reply.id}_{index}",
            "type": "function_call",
            "status": "completed",
            "call_id": call["id"],
            **_names(call["name"]),
            "arguments": json.dumps(call["args"]),
        }
        for index, call in enumerate(reply.tool_calls)
    ]


def _names(tool: str) -> dict[str, str]:
    """Return the members that name a tool, which may be one of a namespace: "mcp__tree/spawn_agent"."""
    namespace, _, name = tool.rpartition("/")
    return {"namespace": namespace, "name": name} if namespace else {"name": name}


def _usage(reply: AIMessage) -> dict[str, Any]:
    usage = reply.usage_metadata or {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0}
    return {
        "input_tokens": usage["input_tokens"],
        "input_tokens_details": {"cached_tokens": usage.get("input_token_details", {}).get("cache_read", 0)},
        "output_tokens": usage["output_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage["total_tokens"],
    }


async def _event(answer: Answer, kind: str, **fields: Any) -> None:
    await answer.event({"type": kind, "sequence_number": 0, **fields}, kind)


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text", "") for part in content if isinstance(part, dict))
