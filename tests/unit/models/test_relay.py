"""A model that forwards its requests, as LangChain uses it from the event loop and from a thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.tools import tool

from ramet.core.errors import InvalidValue, ModelFailed, ProtocolError, RametError
from ramet.models.relay import RelayModel, decode_chunk, encode_chunk

USAGE = UsageMetadata(input_tokens=3, output_tokens=2, total_tokens=5)
REPLY = AIMessage("one two", usage_metadata=USAGE)


class Line:
    """Relay that answers with the given chunks and keeps its requests."""

    def __init__(self, *pieces: AIMessageChunk | AIMessage) -> None:
        self._pieces = pieces
        self.requests: list[tuple[Sequence[BaseMessage], Sequence[dict[str, Any]], int | None, bool]] = []

    async def __call__(
        self, messages: Sequence[BaseMessage], tools: Sequence[dict[str, Any]], *, max_tokens: int | None, stream: bool
    ) -> AsyncGenerator[AIMessageChunk | AIMessage]:
        """Answer."""
        self.requests.append((messages, tools, max_tokens, stream))
        for piece in self._pieces:
            yield piece


@tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


async def test_a_whole_reply_keeps_its_usage() -> None:
    """The request arrives with its limit of length."""
    line = Line(REPLY)
    reply = await RelayModel(line, max_tokens=7).ainvoke("Count.")

    assert reply.content == "one two"
    assert reply.usage_metadata == USAGE
    assert line.requests == [([HumanMessage("Count.")], (), 7, False)]


async def test_tools_are_sent_as_schemas() -> None:
    """A choice among them cannot be forwarded."""
    line = Line(AIMessage("", tool_calls=[{"name": "add", "args": {"a": 1, "b": 2}, "id": "c1"}]))
    model = RelayModel(line)
    reply = await model.bind_tools([add]).ainvoke("1 + 2?")

    assert reply.tool_calls[0]["args"] == {"a": 1, "b": 2}
    (tool_schema,) = line.requests[0][1]
    assert (tool_schema["name"], tool_schema["description"], set(tool_schema["parameters"]["properties"])) == (
        "add",
        "Add.",
        {"a", "b"},
    )
    with pytest.raises(InvalidValue, match="tool_choice"):
        model.bind_tools([add], tool_choice="any")
    with pytest.raises(InvalidValue, match="stop"):
        await model.ainvoke("x", stop=["."])


async def test_a_stream_yields_its_chunks() -> None:
    """The whole message after them adds nothing; its usage is in the last chunk."""
    pieces = [AIMessageChunk(content="one "), AIMessageChunk(content="two", usage_metadata=USAGE)]
    total = AIMessageChunk(content="")
    async for piece in RelayModel(Line(*pieces, REPLY)).astream("Count."):
        total += piece
    assert (total.text, total.usage_metadata) == ("one two", USAGE)


async def test_a_reply_without_chunks_is_a_stream_of_one() -> None:
    """A model that cannot stream answers so."""
    chunks = [piece async for piece in RelayModel(Line(REPLY)).astream("Count.")]
    assert "".join(each.text for each in chunks) == "one two"
    assert [each.usage_metadata for each in chunks if each.usage_metadata] == [USAGE]


async def test_a_restarted_stream_is_a_failure() -> None:
    """Yielded text cannot be taken back, so it must not count as the reply."""
    line = Line(*(AIMessageChunk(content=text) for text in ("on", "one ", "two")), REPLY)
    with pytest.raises(ModelFailed, match="restarted"):
        _ = [piece async for piece in RelayModel(line).astream("Count.")]


async def test_a_thread_may_wait_and_the_event_loop_may_not() -> None:
    """Synchronous tools run in threads; in the event loop itself the wait would never end."""
    model = RelayModel(Line(REPLY))
    assert (await asyncio.to_thread(model.invoke, "Count.")).content == "one two"
    with pytest.raises(RametError, match="with `await`, or from a thread"):
        model.invoke("Count.")


CHUNKS = st.builds(
    lambda text, call, position, usage: AIMessageChunk(
        content=text,
        tool_call_chunks=[tool_call_chunk(name="add", args=call, id="c1", index=0)] if call else [],
        usage_metadata=USAGE if usage else None,
        chunk_position="last" if position else None,
        response_metadata={"stop_reason": "end_turn"} if position else {},
    ),
    st.text(),
    st.sampled_from(["", '{"a": 1', '{"a": 1}']),
    st.booleans(),
    st.booleans(),
)


@given(CHUNKS)
def test_a_decoded_chunk_equals_the_encoded_one(piece: AIMessageChunk) -> None:
    """Text, incomplete calls, usage and the mark of the last chunk are kept."""
    decoded_chunk = decode_chunk(encode_chunk(piece))
    assert decoded_chunk == piece
    assert decoded_chunk.chunk_position == piece.chunk_position


def test_metadata_of_a_provider_is_not_sent_to_a_guest() -> None:
    """A guest receives why a reply ended, and nothing about accounts and machines."""
    metadata = {"stop_reason": "end_turn", "headers": {"x-organization": "acme"}, "model_name": "m"}
    decoded_chunk = decode_chunk(encode_chunk(AIMessageChunk(content="x", response_metadata=metadata)))
    assert decoded_chunk.response_metadata == {"stop_reason": "end_turn"}


@pytest.mark.parametrize("body", [b"", b"[]", b'{"content": 1}', b'{"type": "human", "content": ""}'])
def test_an_invalid_chunk_is_refused(body: bytes) -> None:
    """Nothing is guessed."""
    with pytest.raises(ProtocolError, match="not a chunk"):
        decode_chunk(body)
