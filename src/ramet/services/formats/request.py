"""The request body that both built-in formats share, as far as an agent reads it.

A body is a whole conversation, as clients of models send it. The agent has the conversation itself: only the last
message, of a user, is new. Parameters for a model's behaviour (system prompts, tools, temperatures) are set by the
agent's owner, and are not read here: `parameters` refuses them for clients of models.
"""

from __future__ import annotations

from typing import Any, Literal, TypeVar

import msgspec
from msgspec import Raw, Struct

from ramet.core.errors import InvalidValue

#: Why an answer ends: it is complete, or the model reached its length limit.
Stop = Literal["end", "length"]

_SHOWN = 80
T = TypeVar("T")


class _Body(Struct):
    messages: list[Raw] = []


class _Wish(Struct):
    stream: bool | None = None


class _Message(Struct):
    role: str
    content: Any = None


def read(body: bytes) -> str:
    """Return the new text: the text of the last message, which must be a user's.

    Raises InvalidValue naming the field for an invalid body, for a last message of another role, and for content that
    is no text.
    """
    messages = decode(body, _Body).messages
    if not messages:
        raise InvalidValue("messages", [], "at least one message")
    at = f"messages[{len(messages) - 1}]"
    try:
        last = msgspec.json.decode(messages[-1], type=_Message)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
        raise InvalidValue(at, excerpt(bytes(messages[-1])), f"a message with role and content ({problem})") from None
    if last.role != "user":
        raise InvalidValue(f"{at}.role", last.role, "'user' in the last message: it is what the agent answers")
    text = _text(last.content, f"{at}.content")
    if not text.strip():
        raise InvalidValue(f"{at}.content", text, "text that is not empty")
    return text


def wants_stream(body: bytes) -> bool:
    """Return whether the request asks for a stream. Raises InvalidValue for an invalid body."""
    return bool(decode(body, _Wish).stream)


def _text(content: object, field: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidValue(field, content, "text, or a list of parts that are text")
    return "\n".join(_part(part, f"{field}[{number}]") for number, part in enumerate(content))


def _part(part: object, field: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind != "text":
        raise InvalidValue(f"{field}.type", kind, "'text': this agent reads nothing else")
    assert isinstance(part, dict), "it has a type"
    text = part.get("text")
    if not isinstance(text, str):
        raise InvalidValue(f"{field}.text", text, "text")
    return text


def decode(body: bytes, kind: type[T]) -> T:
    """Decode a body as a structure. Raises InvalidValue for an invalid body."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
        raise InvalidValue("body", excerpt(body), f"a JSON object with messages ({problem})") from None


def excerpt(data: bytes) -> str:
    """Return the beginning of a client's data, for a refusal."""
    return data[:_SHOWN].decode(errors="replace")
