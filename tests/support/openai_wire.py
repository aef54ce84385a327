"""The OpenAI Chat Completions wire format: requests to messages, replies to JSON or server-sent events."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from tests.support.anthropic_wire import halves, words
from tests.support.http import Answer


def messages(body: dict[str, Any]) -> list[BaseMessage]:
    """Return the messages of a request."""
    read: list[BaseMessage] = []
    for message in body.get("messages", []):
        text = _text(message.get("content"))
        match message["role"]:
            case "system" | "developer":
                read.append(SystemMessage(text))
            case "assistant":
                read.append(AIMessage(text))
            case "tool":
                read.append(ToolMessage(text, tool_call_id=message["tool_call_id"]))
            case _:
                read.append(HumanMessage(text))
    return read


def error(status: int, reason: str) -> dict[str, Any]:
    """Return the body of an error."""
    code = {429: "rate_limit_exceeded", 401: "invalid_api_key"}.get(status)
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return {"error": {"message": reason, "type": kind, "param": None, "code": code}}


def whole(body: dict[str, Any], reply: AIMessage) -> dict[str, Any]:
    """Return the reply to a request without a stream."""
    message: dict[str, Any] = {"role": "assistant", "content": str(reply.text) or None}
    calls = [_call(index, *call) for index, call in enumerate(_calls(reply))]
    if calls:
        message["tool_calls"] = calls
    choice = {"index": 0, "message": message, "finish_reason": _finish_reason(reply)}
    return {**_envelope(body, "chat.completion"), "choices": [choice], "usage": _usage(reply)}


async def stream(
    answer: Answer, body: dict[str, Any], reply: AIMessage, pieces: Sequence[str] | None, *, closing: bool = True
) -> None:
    """Send the reply as events. Without `closing`, stop before the events that complete it."""
    envelope = _envelope(body, "chat.completion.chunk")

    async def delta(fields: dict[str, Any], finish_reason: str | None = None) -> None:
        choice = {"index": 0, "delta": fields, "finish_reason": finish_reason}
        await answer.event({**envelope, "choices": [choice]})

    await delta({"role": "assistant", "content": ""})
    for piece in pieces or words(str(reply.text)):
        await delta({"content": piece})
    if not closing:
        return
    for index, (call_id, name, args) in enumerate(_calls(reply)):
        await delta({"tool_calls": [_call(index, call_id, name, "")]})
        for piece in halves(args):
            await delta({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    await delta({}, _finish_reason(reply))
    if (body.get("stream_options") or {}).get("include_usage"):
        await answer.event({**envelope, "choices": [], "usage": _usage(reply)})
    await answer.event("[DONE]")


async def stream_error(answer: Answer, kind: str) -> None:
    """Send an error in the middle of a stream."""
    kind = {"overloaded_error": "server_error"}.get(kind, kind)
    await answer.event({"error": {"message": "said in mid-stream", "type": kind, "param": None, "code": kind}})


def _calls(reply: AIMessage) -> list[tuple[str | None, str, str]]:
    calls = [(call["id"], call["name"], json.dumps(call["args"])) for call in reply.tool_calls]
    return calls + [(bad["id"], bad["name"] or "", bad["args"] or "") for bad in reply.invalid_tool_calls]


def _call(index: int, call_id: str | None, name: str, args: str) -> dict[str, Any]:
    return {"index": index, "id": call_id, "type": "function", "function": {"name": name, "arguments": args}}


def _envelope(body: dict[str, Any], kind: str) -> dict[str, Any]:
    return {"id": "chatcmpl-loopback", "object": kind, "created": 0, "model": body.get("model")}


def _usage(reply: AIMessage) -> dict[str, Any]:
    usage = reply.usage_metadata or {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0}
    cached = usage.get("input_token_details", {}).get("cache_read", 0)
    return {
        "prompt_tokens": usage["input_tokens"],
        "completion_tokens": usage["output_tokens"],
        "total_tokens": usage["total_tokens"],
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def _finish_reason(reply: AIMessage) -> str:
    if reply.response_metadata.get("cut_short"):
        return "length"
    return "tool_calls" if reply.tool_calls or reply.invalid_tool_calls else "stop"


def _text(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(block.get("text", "") for block in content if isinstance(block, dict))
