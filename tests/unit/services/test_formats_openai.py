"""The format of OpenAI's clients, checked against the package's own types."""

from __future__ import annotations

import json

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from ramet.core.errors import InvalidValue
from ramet.core.outcome import Usage
from ramet.services.formats import openai as format_
from ramet.services.formats.request import read_text, wants_stream

USED = Usage(input_tokens=30, output_tokens=12, cache_read_tokens=10)


def chunks_of(*deltas: str) -> list[bytes]:
    """Return the chunks of an answer."""
    writer = format_.Writer("run-1", "scripted", 1_700_000_000)
    middle = [chunk for delta in deltas for chunk in writer.text(delta)]
    return [*writer.begin(), *middle, *writer.end(USED)]


def request(*messages: object, **more: object) -> bytes:
    """Return a body as the client sends it."""
    return json.dumps({"model": "any", "messages": messages, **more}).encode()


def test_the_prompt_is_the_last_message_of_a_whole_conversation() -> None:
    """Clients send all messages each time; the agent has the earlier ones."""
    body = request(
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "user", "content": "second", "name": "ada"},
        temperature=0.2,
        tools=[{"type": "function", "function": {"name": "f"}}],
        stream=True,
        stream_options={"include_usage": True},
    )
    assert read_text(body) == "second"
    assert wants_stream(body)


def test_text_parts_are_joined_to_one_text() -> None:
    """Clients that may send pictures send text in parts."""
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two ☃"}]
    assert read_text(request({"role": "user", "content": parts})) == "one\ntwo ☃"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"", "body"),
        (b"{", "body"),
        (b"[]", "body"),
        (b'"\xff"', "body"),
        (b'{"messages": "hi"}', "body"),
        pytest.param(b"[" * 100_000, "body", id="nested"),
        (b"{}", "messages"),
        (request(), "messages"),
        (request("hi"), "messages[0]"),
        (request({"content": "hi"}), "messages[0]"),
        (request({"role": "user", "content": "hi"}, {"role": "assistant", "content": "he"}), "messages[1].role"),
        (request({"role": "user"}), "messages[0].content"),
        (request({"role": "user", "content": 7}), "messages[0].content"),
        (request({"role": "user", "content": " \n"}), "messages[0].content"),
        (request({"role": "user", "content": []}), "messages[0].content"),
        (request({"role": "user", "content": ["hi"]}), "messages[0].content[0].type"),
        (request({"role": "user", "content": [{"type": "text"}]}), "messages[0].content[0].text"),
        (
            request({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}),
            "messages[0].content[0].type",
        ),
    ],
)
def test_an_unreadable_body_is_refused_by_its_field(body: bytes, field: str) -> None:
    """A typed error names the place, and nothing is guessed."""
    with pytest.raises(InvalidValue) as refusal:
        read_text(body)
    assert refusal.value.field == field


def test_every_chunk_is_valid_for_the_packages_own_types() -> None:
    """The strict check finds no unknown field and no wrong type."""
    chunks = [ChatCompletionChunk.model_validate_json(chunk, strict=True) for chunk in chunks_of("Hel", "lo")]
    assert [chunk.choices[0].delta.content for chunk in chunks] == ["", "Hel", "lo", None]
    assert {chunk.id for chunk in chunks} == {"chatcmpl-run-1"}
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None, None, None, "stop"]
    assert chunks[-1].usage is not None
    assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.total_tokens) == (30, 42)
    assert not any(chunk.model_extra or chunk.choices[0].model_extra for chunk in chunks)


def test_an_answer_is_folded_into_one_object() -> None:
    """A client without a stream gets the same answer."""
    reply = ChatCompletion.model_validate_json(format_.fold(chunks_of("Hel", "lo ", "☃")), strict=True)
    assert reply.choices[0].message.content == "Hello ☃"
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage is not None
    assert (reply.usage.completion_tokens, reply.usage.total_tokens) == (12, 42)
    assert (reply.id, reply.model, reply.created) == ("chatcmpl-run-1", "scripted", 1_700_000_000)


def test_an_answer_cut_by_its_length_has_that_finish_reason() -> None:
    """The reason is length, as in a model's own reply."""
    writer = format_.Writer("run-1", "scripted", 0)
    reply = ChatCompletion.model_validate_json(format_.fold([*writer.begin(), *writer.end(USED, "length")]))
    assert (reply.choices[0].finish_reason, reply.choices[0].message.content) == ("length", "")


def test_the_clients_own_accumulator_reads_our_stream() -> None:
    """The accumulator's result equals that of `fold`."""
    from openai.lib.streaming.chat import ChatCompletionStreamState

    state: ChatCompletionStreamState[None] = ChatCompletionStreamState()
    for chunk in chunks_of("a", "b"):
        state.handle_chunk(ChatCompletionChunk.model_validate_json(chunk))
    reply = state.get_final_completion()
    assert reply.choices[0].message.content == "ab"
    assert reply.usage == ChatCompletion.model_validate_json(format_.fold(chunks_of("a", "b"))).usage


@pytest.mark.parametrize(("status", "kind"), [(400, "invalid_request_error"), (503, "server_error")])
def test_the_clients_exceptions_show_our_problem(status: int, kind: str) -> None:
    """The exception holds our message."""
    error = json.loads(format_.error("no such agent", status))["error"]
    assert (error["message"], error["type"]) == ("no such agent", kind)
