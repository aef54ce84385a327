"""Questions as data: positions of known messages, new messages in full, and checks of a guest's messages."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import BaseModel

from ramet.core.errors import Bug, ProtocolError
from ramet.models import request_codec
from ramet.models.messages import encode
from ramet.models.relay import _schema
from ramet.models.request_codec import (
    SharedHistory,
    bounded_json,
    decode_request,
    encode_request,
    schema_only_tool,
    untrusted_message,
)
from ramet.tools.workspace import workspace_tools


def conversation() -> list[BaseMessage]:
    """Return a few messages, one of each kind."""
    call = {"name": "Read", "args": {"file_path": "a"}, "id": "c1"}
    return [
        SystemMessage("Be brief."),
        HumanMessage("Read a."),
        AIMessage("I will.", tool_calls=[call]),
        ToolMessage("a's text", tool_call_id="c1"),
    ]


MESSAGES = st.lists(st.text().map(HumanMessage), max_size=6)


@given(MESSAGES, st.data())
def test_a_sent_question_is_received_equal(history: list[BaseMessage], data: st.DataObject) -> None:
    """The host uses its own objects for known messages, and equal ones for new messages."""
    guest, host = SharedHistory(history), SharedHistory([each.model_copy() for each in history])
    new = data.draw(MESSAGES)
    messages = data.draw(st.lists(st.sampled_from([*history, *new]), max_size=8)) if history or new else []

    received_messages = host.decode_messages(msgspec.json.decode(msgspec.json.encode(guest.encode_messages(messages))))

    assert received_messages == messages
    positions = [each for each in guest.encode_messages(messages) if isinstance(each, int)]
    assert positions == sorted(set(positions))
    assert all(
        received_messages[at] is host.messages[each]
        for at, each in enumerate(guest.encode_messages(messages))
        if isinstance(each, int)
    )


def test_a_longer_conversation_is_sent_as_positions() -> None:
    """Each known message costs a few bytes, however long it is."""
    shared = SharedHistory([HumanMessage("x" * 1_000_000)])
    new = HumanMessage("And now?")
    assert len(encode_request(shared, [*shared.messages, new], ["Read"])) < 200
    shared.add(new)
    assert encode_request(shared, shared.messages, ["Read"]) == b'{"messages":[0,1],"tools":["Read"]}'


def test_half_a_character_is_sent_as_a_replacement() -> None:
    """Text that is no Unicode cannot be sent, so it is sent as U+FFFD."""
    assert SharedHistory([]).encode_messages([HumanMessage("cut \ud83d")]) == [
        {"type": "human", "content": "cut \ufffd"}
    ]


def test_a_decoded_question_has_its_tools() -> None:
    """Own tools come by name, others by schema."""
    shared = SharedHistory(conversation())
    schema = {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {}}}
    request = decode_request(shared, encode_request(shared, shared.messages, ["Read", schema]))
    assert (request.messages, request.tools) == (shared.messages, ["Read", schema])


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"", "not JSON"),
        (b"[]", "a request must have messages and tools"),
        (b'{"messages": [0], "tools": [], "model": "x"}', "a request must have messages and tools"),
        (b'{"messages": 0, "tools": []}', "messages must be a list"),
        (b'{"messages": [true], "tools": []}', "a message must be a position or an object"),
        (b'{"messages": [1, 0], "tools": []}', "position 0 in a list of 4, after position 1"),
        (b'{"messages": [0], "tools": [1]}', "a tool must be a name, or an object"),
        (b'{"messages": [0], "tools": [{"name": "a b"}]}', "a tool's name is"),
        (b'{"messages": [0], "tools": [{"name": "a", "parameters": []}]}', "the JSON schema of an object"),
        (b'{"messages": [0], "tools": [{"name": "a", "parameters": {"properties": 1}}]}', "the JSON schema of an"),
    ],
)
def test_an_invalid_question_is_refused(body: bytes, problem: str) -> None:
    """The error says what was expected."""
    with pytest.raises(ProtocolError, match=problem):
        decode_request(SharedHistory(conversation()), body)


def test_a_question_that_is_too_large_is_refused_before_it_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes, parts, messages, tools and schemas are limited."""
    with pytest.raises(ProtocolError, match="at most 9 are read"):
        bounded_json(b'"123456789"', max_bytes=9)
    with pytest.raises(ProtocolError, match="parts"):
        bounded_json(b"[" + b"[]," * request_codec.MAX_PARTS + b"0]")
    monkeypatch.setattr(request_codec, "MAX_MESSAGES", 2)
    with pytest.raises(ProtocolError, match="more than 2 new messages"):
        SharedHistory([]).decode_messages([{"type": "human", "content": ""}] * 3)
    tools = [f"t{number}" for number in range(request_codec.MAX_TOOLS + 1)]
    with pytest.raises(ProtocolError, match="tools must be a list of at most"):
        decode_request(SharedHistory(conversation()), msgspec.json.encode({"messages": [0], "tools": tools}))
    big = {"name": "a", "parameters": {"type": "object", "properties": {}, "x": "y" * request_codec.MAX_SCHEMAS_BYTES}}
    with pytest.raises(ProtocolError, match="schemas of tools"):
        decode_request(SharedHistory(conversation()), msgspec.json.encode({"messages": [0], "tools": [big]}))


@pytest.mark.parametrize("message", conversation(), ids=lambda each: each.type)
def test_a_guest_may_send_each_common_field(message: BaseMessage) -> None:
    """Other fields are left out."""
    entry = {**encode(message), "response_metadata": {"id": "resp-1"}, "dropped": ["artifact"]}
    assert untrusted_message(entry) == message


PIXEL = "data:image/png;base64,AAAA"


@pytest.mark.parametrize(
    "block",
    [
        {"type": "text", "text": "see https://example.org"},
        {"type": "tool_use", "id": "c1", "name": "Fetch", "input": {"url": "https://example.org"}},
        {"type": "image_url", "image_url": {"url": PIXEL}},
        {"type": "image", "base64": "AAAA", "mime_type": "image/png"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"}},
    ],
)
def test_a_block_with_its_data_is_accepted(block: dict[str, Any]) -> None:
    """The block stays unchanged; links in plain words and in arguments of calls are accepted, too."""
    assert untrusted_message({"type": "human", "content": ["see:", block]}).content == ["see:", block]


@pytest.mark.parametrize(
    "block",
    [
        {"type": "image_url", "image_url": {"url": "https://example.org/x"}},
        {"type": "image_url", "image_url": "https://example.org/x"},
        {"type": "input_image", "image_url": "http://169.254.169.254/"},
        {"type": "image", "source": {"type": "url", "url": "https://example.org/x"}},
        {"type": "image", "source_type": "url", "url": "https://example.org/x"},
        {"type": "image", "source_type": "id", "id": "file-1"},
        {"type": "document", "source": {"type": "file", "file_id": "file-1"}},
        {"type": "document", "source": {"type": "content", "content": [{"type": "image", "url": "https://e.org"}]}},
        {"type": "media", "file_uri": "gs://bucket/secret"},
        {"type": "container_upload", "file_id": "file-1"},
        {"type": "item_reference", "id": "msg_1"},
        {"no": "type"},
    ],
)
def test_a_block_with_a_reference_to_data_is_refused(block: dict[str, Any]) -> None:
    """A provider would fetch the data for a guest without a network, or from the account's own files."""
    for message in ("human", "ai", "system"):
        with pytest.raises(ProtocolError, match="block"):
            untrusted_message({"type": message, "content": [block]})


class Location(BaseModel):
    """Argument with parts."""

    line: int


@tool
def jump(to: Location, over: list[Location]) -> str:
    """Jump."""
    return ""


@pytest.mark.parametrize("each", [*workspace_tools(), jump], ids=lambda each: each.name)
def test_a_received_tool_is_shown_unchanged(each: Any) -> None:
    """A model sees the same schema; the placeholder itself never runs."""
    shared = SharedHistory([HumanMessage("x")])
    decoded_tool = decode_request(shared, encode_request(shared, shared.messages, [_schema(each)])).tools[0]
    assert isinstance(decoded_tool, dict)
    restored_tool = schema_only_tool(decoded_tool)
    assert convert_to_openai_tool(restored_tool) == convert_to_openai_tool(each)
    with pytest.raises(Bug):
        restored_tool.invoke({})
