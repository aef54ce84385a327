"""Messages as plain data: refused values with their names, and the bound on their cost."""

from __future__ import annotations

import base64
import enum
import json
from typing import Any

import pytest
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)

from ramet.core.errors import InvalidValue
from ramet.models.messages import (
    IMAGE_TOKENS,
    MESSAGE_TOKENS,
    REFERENCE_TOKENS,
    decode,
    encode,
    input_bound,
    message_bound,
)

CYCLE: dict[str, Any] = {}
CYCLE["self"] = CYCLE


class Colour(enum.StrEnum):
    RED = "red"


def test_a_short_message_is_short_data() -> None:
    """Fields at their defaults are left out."""
    assert encode(HumanMessage("hi")) == {"type": "human", "content": "hi"}
    assert encode(ToolMessage("ok", tool_call_id="c1")) == {"type": "tool", "content": "ok", "tool_call_id": "c1"}


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (b"bytes", "additional_kwargs.x"),
        ({1, 2}, "additional_kwargs.x"),
        ((1, 2), "additional_kwargs.x"),
        (float("nan"), "additional_kwargs.x"),
        (float("-inf"), "additional_kwargs.x"),
        (2**53 + 1, "additional_kwargs.x"),
        (-(2**60), "additional_kwargs.x"),
        pytest.param(object(), "additional_kwargs.x", id="an object"),
        ("\ud800", "additional_kwargs.x"),
        ({1: "one"}, "key of additional_kwargs.x"),
        ({"deep": [0, {"er": b""}]}, "additional_kwargs.x.deep[1].er"),
    ],
    ids=repr,
)
def test_a_value_outside_json_is_refused_by_its_path(value: object, path: str) -> None:
    """The error comes before anything is written."""
    with pytest.raises(InvalidValue) as refusal:
        encode(HumanMessage("x", additional_kwargs={"x": value}))

    assert refusal.value.field == path


@pytest.mark.parametrize(
    ("message", "path"),
    [
        (HumanMessage([{"type": "text", "text": "x", "cache": b""}]), "content[0].cache"),
        (AIMessage("", tool_calls=[{"name": "f", "args": {"n": 2**60}, "id": "1"}]), "tool_calls[0].args.n"),
        (HumanMessage("\ud83d"), "content"),
        (HumanMessage("x", mine=b""), "extra.mine"),
        (ChatMessage(content="x", role="bard"), "message"),
    ],
    ids=["block", "call", "surrogate", "extra field", "kind"],
)
def test_every_part_of_a_message_is_checked(message: BaseMessage, path: str) -> None:
    """Content, calls, text and added fields are checked."""
    with pytest.raises(InvalidValue) as refusal:
        encode(message)

    assert refusal.value.field == path


def test_endless_nesting_is_refused() -> None:
    """A cycle or a thousand levels raise no RecursionError."""
    deep: Any = "x"
    for _ in range(1_000):
        deep = [deep]
    for value in (CYCLE, deep):
        with pytest.raises(InvalidValue, match="levels of nesting"):
            encode(HumanMessage("x", additional_kwargs={"x": value}))


def test_an_artifact_that_is_no_data_is_dropped_and_reported() -> None:
    """The model never sees artifacts: the conversation loses nothing."""
    data = encode(ToolMessage("ok", tool_call_id="c1", artifact=object()))

    assert data["dropped"] == ["artifact"]
    assert "artifact" not in data
    assert decode(data) == ToolMessage("ok", tool_call_id="c1")


def test_a_plain_artifact_is_kept() -> None:
    """Nothing is dropped without need."""
    message = ToolMessage("ok", tool_call_id="c1", artifact={"rows": [1, 2]})

    assert decode(encode(message)) == message
    assert "dropped" not in encode(message)


def test_plain_metadata_of_the_response_is_kept() -> None:
    """Providers put objects there; the rest of it is worth keeping."""
    data = encode(AIMessage("x", response_metadata={"model_name": "m", "raw": object(), "logprobs": {"x": b""}}))

    assert data["response_metadata"] == {"model_name": "m"}
    assert data["dropped"] == ["response_metadata.raw", "response_metadata.logprobs.x"]


def test_a_chunk_is_stored_as_a_message() -> None:
    """Transcripts hold messages."""
    chunk = AIMessageChunk(content="x", id="m1", chunk_position="last")

    assert decode(encode(chunk)) == AIMessage("x", id="m1")


def test_subclasses_of_plain_types_become_plain() -> None:
    """Enums and LangChain's own text accessor become text."""
    message = HumanMessage("x", additional_kwargs={"colour": Colour.RED, Colour.RED: True})
    data = encode(message)

    assert type(data["additional_kwargs"]["colour"]) is str
    assert json.loads(json.dumps(data)) == data
    assert [type(key) for key in data["additional_kwargs"]] == [str, str]


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        "human",
        {},
        {"type": "human"},
        {"type": "robot", "content": "x"},
        {"type": ["human"], "content": "x"},
        {"type": "human", "content": 7},
        {"type": "human", "content": "x", "tool_calls": []},
        {"type": "human", "content": "x", "lc": 1},
        {"type": "tool", "content": "x"},
        {"type": "tool", "content": "x", "tool_call_id": "1", "status": "maybe"},
        {"type": "ai", "content": "x", "tool_calls": "f()"},
        {"type": "ai", "content": "x", "tool_calls": [{"name": "f"}]},
        {"type": "ai", "content": "x", "tool_calls": [{"name": "f", "args": "no", "id": "1"}]},
        {"type": "ai", "content": "x", "tool_calls": [{"name": "f", "args": {}, "id": "1", "type": "x"}]},
        {"type": "ai", "content": "x", "invalid_tool_calls": [{"evil": 1}]},
        {"type": "ai", "content": "x", "usage_metadata": {"input_tokens": "many"}},
        {"type": "human", "content": "x", "extra": {"content": "y"}},
        {"type": "human", "content": "x", "extra": 3},
        {"type": "human", "content": "x", "additional_kwargs": []},
    ],
    ids=str,
)
def test_foreign_data_is_refused(data: Any) -> None:
    """A journal or a guest may hold anything: the error is a typed one."""
    with pytest.raises(InvalidValue):
        decode(data)


def test_the_bound_of_text_is_its_bytes() -> None:
    """No tokenizer makes more tokens than there are bytes."""
    assert message_bound(HumanMessage("hello")) == MESSAGE_TOKENS + 5
    assert message_bound(HumanMessage("héé😀")) == MESSAGE_TOKENS + len("héé😀".encode())
    assert message_bound(HumanMessage("\ud83d")) > MESSAGE_TOKENS


def test_the_bound_of_a_conversation_is_the_sum() -> None:
    """A long conversation can be counted once."""
    messages = [SystemMessage("s"), HumanMessage("h"), AIMessage("a")]

    assert input_bound(messages) == sum(map(message_bound, messages))
    assert input_bound(messages, 5_000) >= input_bound(messages) + 5_000


def test_calls_and_their_results_count() -> None:
    """Names, ids and arguments are sent as well."""
    call = AIMessage("", tool_calls=[{"name": "grep", "args": {"pattern": "x" * 100}, "id": "c1"}])
    invalid_message = AIMessage(
        "",
        invalid_tool_calls=[{"type": "invalid_tool_call", "name": "f", "args": "x" * 100, "id": "1", "error": None}],
    )

    assert message_bound(call) > 100 + len("grep")
    assert message_bound(invalid_message) > 100
    assert message_bound(ToolMessage("x" * 100, tool_call_id="c1", name="grep")) >= MESSAGE_TOKENS + 100 + 2 + 4


@pytest.mark.parametrize(
    "block",
    [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "x" * 100_000}},
        {"type": "image", "base64": "x" * 100_000, "mime_type": "image/png"},
        {"type": "image", "url": "https://example.org/a.png"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "x" * 100_000}},
    ],
    ids=["anthropic", "langchain", "url", "openai"],
)
def test_an_image_counts_as_its_stated_figure(block: dict[str, Any]) -> None:
    """The bytes of an image, a hundred times as many, do not count; the figure can be set."""
    message = HumanMessage([{"type": "text", "text": "look:"}, block])

    assert message_bound(message) == MESSAGE_TOKENS + 5 + IMAGE_TOKENS
    assert input_bound([message], image_tokens=2_000) == MESSAGE_TOKENS + 5 + 2_000


def test_a_file_counts_as_its_bytes_and_a_reference_as_a_stated_figure() -> None:
    """A file that is elsewhere cannot be measured."""
    pdf = base64.b64encode(b"x" * 90_000).decode()
    inline = HumanMessage([{"type": "document", "source": {"type": "base64", "data": pdf}}])
    file_message = HumanMessage([{"type": "file", "file": {"file_id": "file_1"}}])

    assert message_bound(inline) >= len(pdf)
    assert message_bound(file_message) == MESSAGE_TOKENS + REFERENCE_TOKENS
