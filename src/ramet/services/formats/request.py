"""The request body that both built-in formats share, as far as an agent reads it.

A body is a whole conversation, as clients of models send it. The agent has the conversation itself: only the last
message, of a user, is new. Parameters for a model's behaviour (system prompts, tools, temperatures) are set by the
agent's owner, and are not read here: `parameters` refuses them for clients of models.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import Raw, Struct

from ramet.core.errors import InvalidValue
from ramet.core.media.attachment import Attachment, check_attachments
from ramet.core.media.blocks import inline_data, is_media, name_of
from ramet.core.media.media_types import media_type_of

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


class Prompt(NamedTuple):
    """The new message of a body: its text, and its images and documents."""

    text: str
    attachments: tuple[Attachment, ...] = ()


def read_text(body: bytes) -> str:
    """Return the new text: the text of the last message, which must be a user's.

    Raises InvalidValue naming the field for an invalid body, for a last message of another role, and for content that
    is no text.
    """
    content, at = _newest_content(body)
    return _checked_text(_text(content, at), at)


def read_prompt(body: bytes) -> Prompt:
    """Return the new message, which must be a user's, with its images and documents.

    Their parts may be OpenAI's (`image_url`, `file`) or Anthropic's (`image`, `document`), and hold the bytes. Raises
    InvalidValue naming the field as `read_text` does, and for a part that refers to bytes elsewhere, or has others.
    """
    content, at = _newest_content(body)
    if not isinstance(content, list) or not any(map(is_media, content)):
        return Prompt(_checked_text(_text(content, at), at))
    texts: list[str] = []
    attachments: list[Attachment] = []
    for number, part in enumerate(content):
        field = f"{at}[{number}]"
        if not is_media(part):
            texts.append(_part(part, field))
            continue
        data = inline_data(part, field)
        if data is None:
            raise InvalidValue(field, part.get("type"), "the bytes, as base64 or a data: address")
        media_type_of(data, field)
        attachments.append(Attachment(data, name_of(part)))
    check_attachments(attachments)
    return Prompt(_checked_text("\n".join(texts), at), tuple(attachments))


def _newest_content(body: bytes) -> tuple[object, str]:
    """Return the content of the last message, and its field."""
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
    return last.content, f"{at}.content"


def _checked_text(text: str, field: str) -> str:
    if not text.strip():
        raise InvalidValue(field, text, "text that is not empty")
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
