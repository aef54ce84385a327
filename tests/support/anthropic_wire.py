"""The Anthropic Messages wire format: requests to messages, replies to JSON or server-sent events."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from tests.support.http import Answer

_ids = itertools.count(1)

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "api_error",
    529: "overloaded_error",
}


def messages(body: dict[str, Any]) -> list[BaseMessage]:
    """Return the messages of a request, with tool results as ToolMessages."""
    system = body.get("system")
    read: list[BaseMessage] = [SystemMessage(_text(system))] if system else []
    for message in body.get("messages", []):
        content = message["content"]
        if message["role"] == "assistant":
            read.append(AIMessage(_text(content)))
            continue
        blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
        texts = [block["text"] for block in blocks if block["type"] == "text"]
        read += [
            ToolMessage(_text(block.get("content", "")), tool_call_id=block["tool_use_id"])
            for block in blocks
            if block["type"] == "tool_result"
        ]
        if texts:
            read.append(HumanMessage("\n".join(texts)))
    return read


def error(status: int, reason: str) -> dict[str, Any]:
    """Return the body of an error."""
    return {"type": "error", "error": {"type": _TYPES.get(status, "api_error"), "message": reason}}


def whole(body: dict[str, Any], reply: AIMessage) -> dict[str, Any]:
    """Return the reply to a request without a stream."""
    content: list[dict[str, Any]] = [{"type": "text", "text": str(reply.text)}] if reply.content else []
    for call in reply.tool_calls:
        content.append({"type": "tool_use", "id": call["id"], "name": call["name"], "input": call["args"]})
    return {**_message(body, reply), "content": content, "stop_reason": _stop_reason(reply)}


async def stream(
    answer: Answer, body: dict[str, Any], reply: AIMessage, pieces: Sequence[str] | None, *, closing: bool = True
) -> None:
    """Send the reply as events. Without `closing`, stop before the events that complete it."""
    start = _message(body, reply)
    usage = start["usage"]
    start["usage"] = {**usage, "output_tokens": 1}
    await _event(answer, "message_start", message=start)
    index = 0
    if reply.content:
        await _event(answer, "content_block_start", index=0, content_block={"type": "text", "text": ""})
        for piece in pieces or words(str(reply.text)):
            await _event(answer, "content_block_delta", index=0, delta={"type": "text_delta", "text": piece})
        if not closing:
            return
        await _event(answer, "content_block_stop", index=0)
        index = 1
    calls = [(call["id"], call["name"], json.dumps(call["args"])) for call in reply.tool_calls]
    calls += [(bad["id"], bad["name"] or "", bad["args"] or "") for bad in reply.invalid_tool_calls]
    for at, (call_id, name, args) in enumerate(calls, index):
        block: dict[str, Any] = {"type": "tool_use", "id": call_id, "name": name, "input": {}}
        await _event(answer, "content_block_start", index=at, content_block=block)
        for piece in halves(args):
            delta = {"type": "input_json_delta", "partial_json": piece}
            await _event(answer, "content_block_delta", index=at, delta=delta)
        await _event(answer, "content_block_stop", index=at)
    end = {"stop_reason": _stop_reason(reply), "stop_sequence": None}
    await _event(answer, "message_delta", delta=end, usage=usage)
    await _event(answer, "message_stop")


async def stream_error(answer: Answer, kind: str) -> None:
    """Send an error in the middle of a stream."""
    await answer.event({"type": "error", "error": {"type": kind, "message": "said in mid-stream"}}, "error")


def words(text: str) -> list[str]:
    """Return the text in pieces, cut after each space."""
    pieces = text.split(" ")
    return [piece + " " for piece in pieces[:-1]] + pieces[-1:]


def halves(text: str) -> tuple[str, str]:
    """Return the text in two pieces: no client may take the first piece for the whole."""
    return text[: len(text) // 2], text[len(text) // 2 :]


def _message(body: dict[str, Any], reply: AIMessage) -> dict[str, Any]:
    usage = reply.usage_metadata or {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0}
    details = usage.get("input_token_details", {})
    cached, written = details.get("cache_read", 0), details.get("cache_creation", 0)
    return {
        "id": f"msg_{next(_ids)}",  # clients take messages of one id for one message
        "type": "message",
        "role": "assistant",
        "model": body.get("model"),
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {
            "input_tokens": usage["input_tokens"] - cached - written,
            "output_tokens": usage["output_tokens"],
            "cache_read_input_tokens": cached,
            "cache_creation_input_tokens": written,
        },
    }


def _stop_reason(reply: AIMessage) -> str:
    if reply.response_metadata.get("cut_short"):
        return "max_tokens"
    return "tool_use" if reply.tool_calls or reply.invalid_tool_calls else "end_turn"


async def _event(answer: Answer, name: str, **fields: Any) -> None:
    await answer.event({"type": name, **fields}, name)


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(block.get("text", "") for block in content if isinstance(block, dict))
