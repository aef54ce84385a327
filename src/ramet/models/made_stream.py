"""Functions for models that create their replies locally: a reply as a stream, and the names of tools."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.messages.tool import ToolCallChunk, tool_call_chunk
from langchain_core.outputs import ChatGenerationChunk


def to_chunks(reply: AIMessage, texts: Iterable[str] = ()) -> Iterator[ChatGenerationChunk]:
    """Yield a reply as providers stream it: its text (in `texts`, or word by word), its calls, its usage at the end."""
    if isinstance(reply.content, list):
        yield chunk(content=reply.content)
    else:
        for text in texts or _words(reply.content):
            yield chunk(content=text)
    for call in _calls(reply):
        yield chunk(tool_call_chunks=[call])
    yield chunk(
        usage_metadata=reply.usage_metadata,
        response_metadata=reply.response_metadata,
        additional_kwargs=reply.additional_kwargs,
        id=reply.id,
        chunk_position="last",
    )


def chunk(content: str | list[Any] = "", **fields: Any) -> ChatGenerationChunk:
    # Any: LangChain's content blocks and the keywords of its message class.
    return ChatGenerationChunk(message=AIMessageChunk(content=content, **fields))


def tool_name(tool: object) -> str:
    """Return the name of a tool, in any form that `bind_tools` accepts."""
    if isinstance(tool, str):
        return tool
    if isinstance(tool, dict):
        return str(tool.get("name") or tool.get("function", {}).get("name") or "?")
    return str(getattr(tool, "name", None) or getattr(tool, "__name__", "?"))


def _words(text: str) -> list[str]:
    words = text.split(" ")
    return [word + " " for word in words[:-1]] + words[-1:] if text else []


def _calls(reply: AIMessage) -> Iterator[ToolCallChunk]:
    """Yield each call in two pieces, its name and then its arguments; an invalid call in one piece."""
    for index, call in enumerate(reply.tool_calls):
        yield tool_call_chunk(name=call["name"], args="", id=call["id"], index=index)
        yield tool_call_chunk(name=None, args=json.dumps(call["args"]), id=None, index=index)
    for index, invalid in enumerate(reply.invalid_tool_calls, len(reply.tool_calls)):
        yield tool_call_chunk(name=invalid["name"], args=invalid["args"], id=invalid["id"], index=index)
