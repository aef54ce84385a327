"""Merging of the chunks of a streamed reply."""

from __future__ import annotations

from typing import Any, cast

import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, message_chunk_to_message
from langchain_core.messages.ai import UsageMetadata, add_ai_message_chunks
from langchain_core.messages.tool import tool_call_chunk

from ramet.core.errors import ModelFailed
from ramet.models.chunks import merge, validate_message
from ramet.models.scripted.dialogue import Call
from ramet.models.scripted.model import ScriptedModel


def pieces(*fragments: str, name: str = "write", call_id: str = "c1", index: int | None = 0) -> list[AIMessageChunk]:
    """Return the chunks of a tool call whose arguments come in fragments."""
    first = tool_call_chunk(name=name, args="", id=call_id, index=index)
    rest = [tool_call_chunk(name=None, args=fragment, id=None, index=index) for fragment in fragments]
    return [AIMessageChunk(content="", tool_call_chunks=[piece]) for piece in (first, *rest)]


def blocks(*texts: str, index: int = 0) -> list[AIMessageChunk]:
    """Return text that comes as chunks of one content block."""
    return [AIMessageChunk(content=[{"type": "text", "text": text, "index": index}]) for text in texts]


def merge_with_langchain(chunks: list[AIMessageChunk]) -> AIMessage:
    return cast(AIMessage, message_chunk_to_message(add_ai_message_chunks(*chunks)))


@pytest.mark.parametrize(
    "chunks",
    [
        [
            AIMessageChunk(content="a "),
            AIMessageChunk(content="b", id="msg_1"),
            AIMessageChunk(content="", chunk_position="last"),
        ],
        pieces('{"path": ', '"x"}'),
        [*pieces('{"a": 1}'), *pieces('{"b": 2}', call_id="c2", index=1)],
        [*blocks("one ", "two ", "three"), *blocks("four", " five", index=1)],
        [
            AIMessageChunk(
                content="x",
                usage_metadata={"input_tokens": 3, "output_tokens": 0, "total_tokens": 3},
                response_metadata={"model_provider": "openai", "model_name": "m"},
            ),
            AIMessageChunk(
                content="y",
                usage_metadata={"input_tokens": 0, "output_tokens": 2, "total_tokens": 2},
                response_metadata={"model_provider": "openai", "finish_reason": "stop"},
            ),
        ],
        [
            AIMessageChunk(content=[{"type": "tool_use", "id": "t", "name": "f", "input": {}, "index": 0}]),
            AIMessageChunk(content=[{"type": "input_json_delta", "partial_json": '{"a', "index": 0}]),
            AIMessageChunk(content=[{"type": "input_json_delta", "partial_json": '": 1}', "index": 0}]),
            AIMessageChunk(content=[{"type": "text", "text": "and", "index": 1}]),
        ],
    ],
    ids=["text", "call", "two calls", "blocks", "usage", "anthropic"],
)
def test_well_formed_chunks_become_the_message_of_langchain(chunks: list[AIMessageChunk]) -> None:
    """Our way of merging changes the cost, not the message."""
    assert merge(chunks) == merge_with_langchain(chunks)


def test_merging_does_not_change_the_chunks() -> None:
    """Readers may still hold them."""
    chunks = [*pieces('{"a":', " 1}"), *blocks("x", "y")]
    before = [chunk.model_copy(deep=True) for chunk in chunks]

    merge(chunks)

    assert chunks == before


def test_incomplete_arguments_are_no_call() -> None:
    """LangChain would close the brackets and call the tool: a path that is cut short is another path."""
    chunks = pieces('{"path": "/srv/data', "/old")
    assert merge_with_langchain(chunks).tool_calls[0]["args"] == {"path": "/srv/data/old"}

    reply = merge(chunks)

    assert reply.tool_calls == []
    assert reply.invalid_tool_calls[0]["args"] == '{"path": "/srv/data/old'
    assert "not JSON" in (reply.invalid_tool_calls[0]["error"] or "")


@pytest.mark.parametrize(
    "text", ["[1]", '"x"', "{a: 1}", "NaN", '{"a": NaN}', '{"a": Infinity}', '{"a": 9007199254740993}', "[" * 100_000]
)
def test_arguments_that_are_no_plain_object_make_an_invalid_call(text: str) -> None:
    """The model gets each back as its own mistake, with the text that it wrote."""
    reply = merge(pieces(text))

    assert reply.tool_calls == []
    assert reply.invalid_tool_calls[0]["name"] == "write"
    assert reply.invalid_tool_calls[0]["error"]


def test_missing_arguments_are_an_empty_object() -> None:
    """Tools without parameters are called with no arguments."""
    assert merge(pieces()).tool_calls[0]["args"] == {}


def test_malformed_arguments_of_any_size_are_read_once() -> None:
    """Repairing 200 kB of invalid JSON character by character would take a minute of CPU."""
    text = "{a: " + "x" * 200_000

    reply = merge(pieces(*(text[at : at + 50] for at in range(0, len(text), 50))))

    assert reply.invalid_tool_calls[0]["args"] == text


def test_a_hundred_thousand_pieces_of_one_block_are_joined() -> None:
    """Merging lists of blocks one by one copies everything before them: 20 GB here."""
    one = AIMessageChunk(content=[{"type": "input_json_delta", "partial_json": "xxxx", "index": 0}])

    reply = merge([one] * 100_000)

    assert cast(Any, reply.content[0])["partial_json"] == "xxxx" * 100_000


def test_arguments_above_the_limit_are_a_failure() -> None:
    """A megabyte of arguments is never meant as a call."""
    with pytest.raises(ModelFailed, match="1,000,000 bytes") as failure:
        merge(pieces('{"a": "' + "x" * 1_000_001 + '"}'), "gpt-5")

    assert not failure.value.retryable
    assert failure.value.model == "gpt-5"


def test_an_empty_stream_is_a_failure() -> None:
    """A stream without chunks has no reply; the next try may bring one."""
    with pytest.raises(ModelFailed, match="single chunk") as failure:
        merge([])

    assert failure.value.retryable


def test_a_call_with_another_id_at_the_same_index_is_another_call() -> None:
    """Some servers give every call the index 0."""
    reply = merge([*pieces('{"n": 1}', call_id="a"), *pieces('{"n": 2}', call_id="b")])

    assert [(call["id"], call["args"]) for call in reply.tool_calls] == [("a", {"n": 1}), ("b", {"n": 2})]


def test_incomplete_emoji_are_replaced() -> None:
    """Half of a surrogate pair is no text: neither the journal nor the next request can hold it."""
    joined = merge([AIMessageChunk(content="\ud83d"), AIMessageChunk(content="\ude00 and \ud83d")])
    message = validate_message(AIMessage("", tool_calls=[{"name": "f", "args": {"a": "\ud83d"}, "id": "1"}]))

    assert joined.content == "😀 and \ufffd"
    assert message.tool_calls == []
    assert message.invalid_tool_calls[0]["name"] == "f"
    for text in (joined.content, message.invalid_tool_calls[0]["args"]):
        str(text).encode()


def test_a_valid_message_is_returned_itself() -> None:
    """Validation does not copy it."""
    message = AIMessage("fine", tool_calls=[{"name": "f", "args": {"a": [1, "é"]}, "id": "1"}])

    assert validate_message(message) is message


@pytest.mark.parametrize("args", [{"x": object()}, {"x": {1, 2}}], ids=["object", "set"])
def test_usage_beside_arguments_that_are_no_json_counts_as_not_reported(args: Any) -> None:
    """A model in this process may supply any object; the call becomes an invalid one."""
    usage = UsageMetadata(input_tokens=1, output_tokens=1, total_tokens=2)
    reply = AIMessage("", tool_calls=[{"name": "f", "args": args, "id": "1"}], usage_metadata=usage)

    checked = validate_message(reply)

    assert checked.usage_metadata is None
    assert [call["name"] for call in checked.invalid_tool_calls] == ["f"]


def test_a_scripted_model_reports_a_usage_that_a_large_call_can_have() -> None:
    """The tokens grow with the arguments of the call."""
    reply = ScriptedModel([[Call("f", {"text": "x" * 100_000})]]).invoke("go")

    assert validate_message(reply).usage_metadata is not None
