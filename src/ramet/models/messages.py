"""Encode LangChain messages as plain data and decode them: one codec for events, transcripts and the journal.

The *content* of a message (content, tool calls, usage, additional_kwargs, extra fields) is kept completely, or refused
with its path. The *metadata* (response_metadata, a tool's artifact) is kept where it is plain and dropped otherwise;
the paths of dropped parts are in the data under "dropped". `langchain_core.load` is never used: decoding builds one of
four known classes from checked values and imports nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
    message_chunk_to_message,
)

from ramet.core.errors import InvalidValue
from ramet.models.json_values import plain_parts, to_json_value

_CLASSES: Final[dict[str, type[BaseMessage]]] = {
    "human": HumanMessage,
    "ai": AIMessage,
    "system": SystemMessage,
    "tool": ToolMessage,
}
_KINDS: Final[dict[type[BaseMessage], str]] = {cls: kind for kind, cls in _CLASSES.items()}
#: The types of messages that `decode` knows.
KINDS: Final = frozenset(_CLASSES)
_FIELDS: Final = frozenset(
    {"content", "additional_kwargs", "response_metadata", "name", "id", "extra", "dropped", "type"}
)
_OWN_FIELDS: Final[dict[str, frozenset[str]]] = {
    "human": _FIELDS,
    "system": _FIELDS,
    "ai": _FIELDS | {"tool_calls", "invalid_tool_calls", "usage_metadata"},
    "tool": _FIELDS | {"tool_call_id", "status", "artifact"},
}

#: Default maximum tokens of one image. A 12-megapixel photo at default settings was billed 14,364 tokens by GPT-6
#: Astra, 4,005 by Claude Opus 5.5 and 1,065 by Gemini 3 (October 2026). Only gpt-4o-mini is higher (2,833 + 5,667 for
#: each of up to 8 tiles).
IMAGE_TOKENS: Final = 16_000
#: Maximum tokens of a file, audio or video that is sent by reference, and of a PDF: its size is unknown here.
REFERENCE_TOKENS: Final = 100_000
#: Tokens of role markers and separators around one message.
MESSAGE_TOKENS: Final = 16
#: Tokens of the hidden preamble that providers add with tools (Anthropic states 290 to 804 by model).
TOOLS_TOKENS: Final = 1_024

_IMAGES: Final = frozenset({"image", "image_url", "input_image"})
_MEDIA: Final = frozenset({"audio", "input_audio", "video", "file", "input_file", "document", "media"})


def encode(message: BaseMessage) -> dict[str, Any]:
    """Return the message as plain data. Raises InvalidValue, with the path, if a part cannot be kept.

    Fields with default values are omitted. Chunks are encoded as the message they belong to.
    """
    kind = _KINDS.get(type(message))
    if kind is None:
        message = message_chunk_to_message(message)
        kind = _KINDS.get(type(message)) or _kind_of_subclass(message)
    data: dict[str, Any] = {"type": kind, "content": to_json_value(message.content, "content")}
    if message.id is not None:
        data["id"] = to_json_value(message.id, "id")
    if message.name is not None:
        data["name"] = to_json_value(message.name, "name")
    if message.additional_kwargs:
        data["additional_kwargs"] = to_json_value(message.additional_kwargs, "additional_kwargs")
    if message.__pydantic_extra__:
        data["extra"] = to_json_value(message.__pydantic_extra__, "extra")
    dropped_paths: list[str] = []
    if message.response_metadata:
        data["response_metadata"] = plain_parts(message.response_metadata, "response_metadata", dropped_paths)
    if isinstance(message, AIMessage):
        if message.tool_calls:
            data["tool_calls"] = [_encode_call(call, index) for index, call in enumerate(message.tool_calls)]
        if message.invalid_tool_calls:
            data["invalid_tool_calls"] = to_json_value(message.invalid_tool_calls, "invalid_tool_calls")
        if message.usage_metadata is not None:
            data["usage_metadata"] = to_json_value(message.usage_metadata, "usage_metadata")
    elif isinstance(message, ToolMessage):
        data["tool_call_id"] = to_json_value(message.tool_call_id, "tool_call_id")
        if message.status != "success":
            data["status"] = message.status
        if message.artifact is not None:
            data.update(plain_parts({"artifact": message.artifact}, "", dropped_paths))
    if dropped_paths:
        data["dropped"] = [path.lstrip(".") for path in dropped_paths]
    return data


def prompt_message(text: str, attachments: Sequence[dict[str, Any]] = ()) -> HumanMessage:
    """Return the message of a prompt, with the blocks of its attachments."""
    return HumanMessage(content=[{"type": "text", "text": text}, *attachments] if attachments else text)


def decode(data: Mapping[str, Any]) -> BaseMessage:
    """Return the message that `encode` encoded. Raises InvalidValue for data that `encode` cannot have written."""
    if not isinstance(data, Mapping):
        raise InvalidValue("message", data, "an object with type and content")
    kind = data.get("type")
    cls = _CLASSES.get(kind) if isinstance(kind, str) else None
    if cls is None or kind is None:
        raise InvalidValue("message.type", kind, "one of " + ", ".join(_CLASSES))
    if not data.keys() <= _OWN_FIELDS[kind]:
        surplus = min(str(key) for key in data.keys() - _OWN_FIELDS[kind])
        raise InvalidValue(f"message.{surplus}", data.get(surplus), f"no such field in a message of type {kind}")
    fields = {key: value for key, value in data.items() if key not in ("extra", "dropped")}
    if "tool_calls" in fields:
        fields["tool_calls"] = _decode_calls(fields["tool_calls"])
    try:
        message = cls(**_extra(data), **fields)
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        raise InvalidValue("message", data, f"the fields of a message of type {kind} ({_first_line(error)})") from None
    return message


def input_bound(
    messages: Iterable[BaseMessage], tool_schemas_bytes: int = 0, *, image_tokens: int = IMAGE_TOKENS
) -> int:
    """Return an upper bound of the input tokens of a request with these messages and tools.

    A token is at least one byte of UTF-8, so the bytes are the bound; images and files count as their fixed numbers.
    """
    preamble = TOOLS_TOKENS + tool_schemas_bytes if tool_schemas_bytes else 0
    return preamble + sum(message_bound(message, image_tokens=image_tokens) for message in messages)


def message_bound(message: BaseMessage, *, image_tokens: int = IMAGE_TOKENS) -> int:
    """Return the part of one message in `input_bound`: callers with a long history keep a running sum."""
    content = message.content
    bound = MESSAGE_TOKENS
    if isinstance(content, str):
        bound += _bytes(content)
    else:
        bound += sum(_block_bound(block, image_tokens) for block in content)
    if isinstance(message, AIMessage):
        for call in message.tool_calls:
            bound += MESSAGE_TOKENS + _json_bytes(call)
        for invalid in message.invalid_tool_calls:
            bound += MESSAGE_TOKENS + _json_bytes(invalid)
    elif isinstance(message, ToolMessage):
        bound += _bytes(message.tool_call_id)
    if message.name:
        bound += _bytes(message.name)
    if message.additional_kwargs:
        bound += _json_bytes(message.additional_kwargs)
    return bound


def _kind_of_subclass(message: BaseMessage) -> str:
    for cls, kind in _KINDS.items():
        if isinstance(message, cls):
            return kind
    raise InvalidValue("message", type(message).__name__, "a human, ai, system or tool message")


def _encode_call(call: Mapping[str, Any], index: int) -> dict[str, Any]:
    path = f"tool_calls[{index}]"
    return {
        "name": to_json_value(call["name"], f"{path}.name"),
        "args": to_json_value(call["args"], f"{path}.args"),
        "id": to_json_value(call["id"], f"{path}.id"),
    }


def _decode_calls(calls: object) -> list[dict[str, Any]]:
    accepted = "a list of calls with name, args and id"
    if not isinstance(calls, list):
        raise InvalidValue("message.tool_calls", calls, accepted)
    for call in calls:
        if not isinstance(call, dict) or call.keys() != {"name", "args", "id"}:
            raise InvalidValue("message.tool_calls", call, accepted)
    return calls


def _extra(data: Mapping[str, Any]) -> Mapping[str, Any]:
    extra = data.get("extra", {})
    if not isinstance(extra, Mapping) or not extra.keys().isdisjoint(_OWN_FIELDS["ai"] | _OWN_FIELDS["tool"]):
        raise InvalidValue("message.extra", extra, "an object whose keys are no fields of messages")
    return extra


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)[:200]


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def _json_bytes(value: object) -> int:
    # ASCII escapes are longer than the UTF-8 they represent, so this is never less than the sent size.
    return len(json.dumps(value, default=str))


def _block_bound(block: object, image_tokens: int) -> int:
    if isinstance(block, str):
        return _bytes(block)
    if not isinstance(block, dict):
        return _json_bytes(block)
    kind = block.get("type")
    if kind == "text" and isinstance(block.get("text"), str):
        return _bytes(block["text"]) + (0 if len(block) == 2 else _json_bytes({**block, "text": ""}))
    if kind in _IMAGES:
        return image_tokens
    if kind == "file" and isinstance(block.get("blob"), str):  # As `ramet.core.media.blocks` stores it.
        return _stored_file_bound(block)
    if kind in _MEDIA:
        return REFERENCE_TOKENS if _is_reference(block) else max(_json_bytes(block), image_tokens)
    return _json_bytes(block)


def _stored_file_bound(block: Mapping[str, Any]) -> int:
    """Return the bound of a text by its bytes, and of another document by the figure for one of unknown content."""
    size = block.get("bytes")
    if block.get("mime_type") != "text/plain" or not isinstance(size, int):
        return REFERENCE_TOKENS
    return size + size // 6 + _json_bytes(block)  # With the frame in which the model reads it.


def _is_reference(block: Mapping[str, Any]) -> bool:
    """Return whether the block refers to its data (by address or file id) instead of containing it."""
    for part in (block, block.get("source"), block.get("file")):
        if isinstance(part, Mapping):
            for key in ("url", "file_id", "file_uri", "id"):
                value = part.get(key)
                if isinstance(value, str) and not value.startswith("data:") and not _holds_data(part):
                    return True
    return False


def _holds_data(part: Mapping[str, Any]) -> bool:
    return any(part.get(key) for key in ("data", "base64", "text", "file_data", "content", "input_audio"))
