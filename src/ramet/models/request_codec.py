"""Encode a model request of a guest to its host: new messages as data, shared messages by their position.

A conversation grows at its end. If a guest sent all of it each time, the traffic would be quadratic. So both ends keep
the same list: the system messages and then the conversation. A request contains positions in that list, and messages
that are not in it. Positions rise, so no shared message appears twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.tools import BaseTool

from ramet.core.errors import Bug, InvalidValue, ProtocolError
from ramet.models.json_values import sanitize, to_json_value
from ramet.models.messages import decode, encode

#: Maximum bytes of a request, or of a conversation's messages sent at once; no provider accepts larger requests.
MAX_BYTES: Final = 32 * 1024 * 1024
#: Maximum brackets and commas: a JSON parser needs up to 100 bytes for each, however little was sent.
MAX_PARTS: Final = 500_000
MAX_MESSAGES: Final = 10_000  #: new messages, in one request
MAX_TOOLS: Final = 128
MAX_DESCRIPTION: Final = 16 * 1024
MAX_SCHEMAS_BYTES: Final = 512 * 1024  #: of all tools that a request contains as schemas

_TOOL_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
#: Blocks with content, or parts of a model's reply that are sent back.
_CONTENT_BLOCKS: Final = frozenset({"text", "tool_use", "thinking", "redacted_thinking", "reasoning", "refusal"})
#: Blocks that must contain their data: a provider would fetch referenced data, from anywhere and for anyone.
_MEDIA: Final = frozenset(
    {"image", "image_url", "input_image", "audio", "input_audio", "video", "file", "input_file", "document", "media"}
)
_REFERENCE_KEYS: Final = frozenset({"url", "image_url", "file_url", "file_id", "file_uri", "uri", "blob"})
#: Parts of a message that are not sent to a model.
_UNSENT_FIELDS: Final = frozenset({"response_metadata", "dropped", "artifact"})


#: Metadata of a reply that a guest gets.
STOP_REASON_KEYS: Final = frozenset({"finish_reason", "stop_reason"})


class EncodedRequest(NamedTuple):
    """A guest's model request. A tool is one of the run's own, by name, or the schema of another."""

    messages: list[BaseMessage]
    tools: list[str | dict[str, Any]]


class SharedHistory:
    """The messages that both ends keep, in the same order."""

    __slots__ = ("_index_by_id", "messages")

    def __init__(self, messages: Iterable[BaseMessage]) -> None:
        self.messages = list(messages)
        self._index_by_id = {id(message): index for index, message in enumerate(self.messages)}

    def add(self, message: BaseMessage) -> int:
        """Add a message and return its position: the end, or that of a tool's result in the order of the calls."""
        at = _place_of(message, self.messages)
        if at == len(self.messages):
            self._index_by_id[id(message)] = at
            self.messages.append(message)
        else:
            self.messages.insert(at, message)
            self._index_by_id = {id(each): index for index, each in enumerate(self.messages)}
        return at

    def encode_messages(self, messages: Iterable[BaseMessage]) -> list[int | dict[str, Any]]:
        """Return the messages in encoded form: positions of shared messages, and complete data of all others."""
        entries: list[int | dict[str, Any]] = []
        last = -1
        for message in messages:
            index = self._index_by_id.get(id(message), -1)
            if index > last:
                entries.append(index)
                last = index
            else:
                entries.append(as_data(message))
        return entries

    def decode_messages(self, entries: object) -> list[BaseMessage]:
        """Return the messages that a guest sent.

        Raises ProtocolError for data that `encode_messages` cannot produce.
        """
        if not isinstance(entries, list):
            raise ProtocolError("messages must be a list")
        if sum(not isinstance(each, int) for each in entries) > MAX_MESSAGES:
            raise ProtocolError(f"more than {MAX_MESSAGES} new messages at once")
        last = -1
        messages: list[BaseMessage] = []
        for each in entries:
            if type(each) is not int:
                messages.append(untrusted_message(each))
            elif last < each < len(self.messages):
                messages.append(self.messages[each])
                last = each
            else:
                raise ProtocolError(f"position {each} in a list of {len(self.messages)}, after position {last}")
        return messages


def _place_of(message: BaseMessage, messages: Sequence[BaseMessage]) -> int:
    """Return the position of a new message: the end, or before the results of later calls of the same reply."""
    end = len(messages)
    if not isinstance(message, ToolMessage) or not end or not isinstance(messages[-1], ToolMessage):
        return end
    start = next((at for at in reversed(range(end)) if not isinstance(messages[at], ToolMessage)), 0)
    reply = messages[start]
    calls = (*reply.tool_calls, *reply.invalid_tool_calls) if isinstance(reply, AIMessage) else ()
    order = {call["id"]: at for at, call in enumerate(calls)}
    own = order.get(message.tool_call_id, len(order))
    while end - 1 > start and order.get(getattr(messages[end - 1], "tool_call_id", None), len(order)) > own:
        end -= 1
    return end


def encode_request(
    history: SharedHistory, messages: Sequence[BaseMessage], tools: Sequence[str | Mapping[str, Any]]
) -> bytes:
    """Return a request as bytes. Raises InvalidValue if a message is not data."""
    return msgspec.json.encode({"messages": history.encode_messages(messages), "tools": tools})


def decode_request(history: SharedHistory, body: bytes) -> EncodedRequest:
    """Return a guest's request. Raises ProtocolError if it is invalid, or exceeds a bound."""
    data = bounded_json(body)
    if not isinstance(data, dict) or data.keys() != {"messages", "tools"}:
        raise ProtocolError("a request must have messages and tools")
    messages = history.decode_messages(data["messages"])
    if not messages:
        raise ProtocolError("a request without a message")
    return EncodedRequest(messages, _tools(data["tools"]))


def bounded_json(body: bytes, *, max_bytes: int = MAX_BYTES) -> Any:
    """Return JSON data of a guest. Raises ProtocolError if it is too large, or invalid."""
    if len(body) > max_bytes:
        raise ProtocolError(f"{len(body)} bytes of JSON; at most {max_bytes} are read")
    if sum(map(body.count, (b"[", b"{", b","))) > MAX_PARTS:
        raise ProtocolError(f"JSON of more than {MAX_PARTS} parts")
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
        raise ProtocolError(f"not JSON: {problem}") from None


def as_data(message: BaseMessage) -> dict[str, Any]:
    """Return a message as data, with lone surrogates replaced if needed. Raises InvalidValue if it is not data."""
    try:
        return encode(message)
    except InvalidValue:
        return encode(message.model_copy(update={"content": sanitize(message.content)}))


def redact_for_guest(data: dict[str, Any]) -> dict[str, Any]:
    """Return a message as data, without the provider's metadata about itself, its account and its machines."""
    metadata = data.get("response_metadata")
    if metadata is None:
        return data
    return {**data, "response_metadata": {key: each for key, each in metadata.items() if key in STOP_REASON_KEYS}}


def untrusted_message(data: object) -> BaseMessage:
    """Return a message decoded from a guest's data.

    Raises ProtocolError if the data is no message, or if it refers to data instead of containing it: the provider would
    fetch it for a guest without a network, or from the files of the account.
    """
    if not isinstance(data, dict):
        raise ProtocolError("a message must be a position or an object")
    if data.get("extra"):
        raise ProtocolError("a message with unknown fields")
    content = data.get("content")
    for block in content if isinstance(content, list) else ():
        if not isinstance(block, str):
            _check_block(block)
    try:
        fields = to_json_value({key: value for key, value in data.items() if key not in _UNSENT_FIELDS}, "message")
        return decode(fields)
    except InvalidValue as problem:
        raise ProtocolError(f"not a message: {problem}") from None


def _check_block(block: object) -> None:
    kind = block.get("type") if isinstance(block, dict) else None
    if kind in _MEDIA:
        if any(map(_is_reference, _objects(block))):
            raise ProtocolError(
                f"a block of type {kind!r} that refers to its data; a guest's block must contain its data"
            )
    elif kind not in _CONTENT_BLOCKS:
        raise ProtocolError(f"a block of type {str(kind)[:40]!r} in a guest's message")


def _objects(data: object) -> Iterator[dict[Any, Any]]:
    """Yield every object in JSON data."""
    pending = [data]
    while pending:
        each = pending.pop()
        if isinstance(each, list):
            pending += each
        elif isinstance(each, dict):
            yield each
            pending += each.values()


def _is_reference(fields: Mapping[Any, Any]) -> bool:
    return fields.get("source_type") == "id" or any(
        key in _REFERENCE_KEYS and isinstance(item, str) and not item.startswith("data:")
        for key, item in fields.items()
    )


def _tools(entries: object) -> list[str | dict[str, Any]]:
    if not isinstance(entries, list) or len(entries) > MAX_TOOLS:
        raise ProtocolError(f"tools must be a list of at most {MAX_TOOLS}")
    if len(msgspec.json.encode([each for each in entries if not isinstance(each, str)])) > MAX_SCHEMAS_BYTES:
        raise ProtocolError(f"schemas of tools of more than {MAX_SCHEMAS_BYTES} bytes")
    return [each if isinstance(each, str) else _schema(each) for each in entries]


def _schema(entry: object) -> dict[str, Any]:
    if not isinstance(entry, dict) or not entry.keys() <= {"name", "description", "parameters"}:
        raise ProtocolError("a tool must be a name, or an object with name, description and parameters")
    name, description, parameters = entry.get("name"), entry.get("description", ""), entry.get("parameters", {})
    if not isinstance(name, str) or not _TOOL_NAME.match(name):
        raise ProtocolError("a tool's name is 1 to 64 letters, digits, '_' or '-'")
    if not isinstance(description, str) or len(description) > MAX_DESCRIPTION:
        raise ProtocolError(f"a tool's description is text of at most {MAX_DESCRIPTION} characters")
    if not isinstance(parameters, dict) or not isinstance(parameters.get("properties", {}), dict):
        raise ProtocolError("a tool's parameters are the JSON schema of an object")
    if any("$ref" in each for each in _objects(parameters)):
        raise ProtocolError("a tool's schema has a $ref: expanded, it may be infinite")
    try:
        return {"name": name, "description": description, "parameters": to_json_value(parameters, "parameters")}
    except InvalidValue as problem:
        raise ProtocolError(f"a tool's schema: {problem}") from None


class SchemaOnlyTool(BaseTool):
    """A tool of which only the schema is here: a model can see it, and it runs elsewhere."""

    args_schema: Any = None

    def _run(self, **_: Any) -> str:
        raise Bug(f"the tool {self.name} does not run here")


def schema_only_tool(schema: Mapping[str, Any]) -> SchemaOnlyTool:
    """Return the tool of a schema that `decode_request` returned."""
    parameters = {"type": "object", "properties": {}, **schema["parameters"], "description": ""}
    return SchemaOnlyTool(name=schema["name"], description=schema["description"], args_schema=parameters)
