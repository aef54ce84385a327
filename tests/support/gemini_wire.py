"""The Gemini wire format: requests to messages, replies to JSON or server-sent events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from tests.support.anthropic_wire import words
from tests.support.http import Answer

_STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    402: "FAILED_PRECONDITION",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
}


def messages(body: dict[str, Any]) -> list[BaseMessage]:
    """Return the messages of a request, with function responses as ToolMessages."""
    system = body.get("systemInstruction")
    read: list[BaseMessage] = [SystemMessage(_text(system))] if system else []
    for content in body.get("contents", []):
        if content.get("role") == "model":
            read.append(AIMessage(_text(content)))
            continue
        answers = [part["functionResponse"] for part in content.get("parts", []) if "functionResponse" in part]
        read += [
            ToolMessage(str(each.get("response")), tool_call_id=each.get("id") or each["name"]) for each in answers
        ]
        if _text(content):
            read.append(HumanMessage(_text(content)))
    return read


def error(status: int, reason: str) -> dict[str, Any]:
    """Return the body of an error."""
    return {"error": {"code": status, "message": reason, "status": _STATUSES.get(status, "INTERNAL")}}


def whole(body: dict[str, Any], reply: AIMessage) -> dict[str, Any]:
    """Return the reply to a request without a stream."""
    parts: list[dict[str, Any]] = [{"text": str(reply.text)}] if reply.content else []
    return _chunk(reply, [*parts, *_calls(reply)], ended=True)


async def stream(
    answer: Answer, body: dict[str, Any], reply: AIMessage, pieces: Sequence[str] | None, *, closing: bool = True
) -> None:
    """Send the reply as events. Without `closing`, stop before the event that completes it."""
    for piece in (pieces or words(str(reply.text))) if reply.content else ():
        await answer.event(_chunk(reply, [{"text": piece}]))
    if closing:
        await answer.event(_chunk(reply, _calls(reply), ended=True))


async def stream_error(answer: Answer, kind: str) -> None:
    """Send an error in the middle of a stream."""
    await answer.event({"error": {"code": 503, "message": "said in mid-stream", "status": kind}})


def _chunk(reply: AIMessage, parts: list[dict[str, Any]], *, ended: bool = False) -> dict[str, Any]:
    candidate: dict[str, Any] = {"index": 0, "content": {"role": "model", "parts": parts}}
    chunk = {
        "candidates": [candidate],
        "modelVersion": reply.response_metadata.get("model_name"),
        "responseId": "loopback",
    }
    if ended:
        candidate["finishReason"] = "MAX_TOKENS" if reply.response_metadata.get("cut_short") else "STOP"
        chunk["usageMetadata"] = _usage(reply)
    return chunk


def _calls(reply: AIMessage) -> list[dict[str, Any]]:
    return [
        {"functionCall": {"id": call["id"], "name": call["name"], "args": call["args"]}} for call in reply.tool_calls
    ]


def _usage(reply: AIMessage) -> dict[str, Any]:
    usage = reply.usage_metadata or {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0}
    return {
        "promptTokenCount": usage["input_tokens"],
        "candidatesTokenCount": usage["output_tokens"],
        "totalTokenCount": usage["total_tokens"],
        "cachedContentTokenCount": usage.get("input_token_details", {}).get("cache_read", 0),
    }


def _text(content: dict[str, Any]) -> str:
    return "\n".join(part["text"] for part in content.get("parts", []) if "text" in part)
