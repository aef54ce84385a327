"""The format of OpenAI's clients, held against the package's own types."""

from __future__ import annotations

import json

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from ramet.core.errors import InvalidValue
from ramet.core.outcome import Usage
from ramet.services.formats import openai as format_

USED = Usage(input_tokens=30, output_tokens=12, cache_read_tokens=10)


def said(*deltas: str) -> list[bytes]:
    """The chunks of an answer."""
    writer = format_.Writer("run-1", "scripted", 1_700_000_000)
    middle = [chunk for delta in deltas for chunk in writer.text(delta)]
    return [*writer.begin(), *middle, *writer.end(USED)]


def request(*messages: object, **more: object) -> bytes:
    """A body as the client sends it."""
    return json.dumps({"model": "any", "messages": messages, **more}).encode()


def test_the_new_text_is_the_last_message_of_a_whole_conversation() -> None:
    """Clients send all of it each time; the agent knows the rest."""
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
    assert format_.read(body) == "second"
    assert format_.wants_stream(body)


def test_parts_that_are_text_are_one_text() -> None:
    """As clients send it that may send pictures, too."""
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two ☃"}]
    assert format_.read(request({"role": "user", "content": parts})) == "one\ntwo ☃"


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
def test_what_cannot_be_read_is_refused_by_its_field(body: bytes, field: str) -> None:
    """A typed error names the place; nothing is guessed."""
    with pytest.raises(InvalidValue) as refusal:
        format_.read(body)
    assert refusal.value.field == field


def test_every_chunk_is_one_to_the_packages_own_types() -> None:
    """Strictly: no field that it does not know, each of its type."""
    chunks = [ChatCompletionChunk.model_validate_json(chunk, strict=True) for chunk in said("Hel", "lo")]
    assert [chunk.choices[0].delta.content for chunk in chunks] == ["", "Hel", "lo", None]
    assert {chunk.id for chunk in chunks} == {"chatcmpl-run-1"}
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None, None, None, "stop"]
    assert chunks[-1].usage is not None
    assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.total_tokens) == (30, 42)
    assert not any(chunk.model_extra or chunk.choices[0].model_extra for chunk in chunks)


def test_an_answer_is_folded_into_one_object() -> None:
    """What a client without a stream gets says the same."""
    whole = ChatCompletion.model_validate_json(format_.fold(said("Hel", "lo ", "☃")), strict=True)
    assert whole.choices[0].message.content == "Hello ☃"
    assert whole.choices[0].finish_reason == "stop"
    assert whole.usage is not None
    assert (whole.usage.completion_tokens, whole.usage.total_tokens) == (12, 42)
    assert (whole.id, whole.model, whole.created) == ("chatcmpl-run-1", "scripted", 1_700_000_000)


def test_an_answer_that_had_no_more_room_says_so() -> None:
    """As a model's own reply would."""
    writer = format_.Writer("run-1", "scripted", 0)
    whole = ChatCompletion.model_validate_json(format_.fold([*writer.begin(), *writer.end(USED, "length")]))
    assert (whole.choices[0].finish_reason, whole.choices[0].message.content) == ("length", "")


def test_the_stream_that_the_client_reads_is_this_one() -> None:
    """Its own accumulator takes the chunks, and comes to what `fold` says."""
    from openai.lib.streaming.chat import ChatCompletionStreamState

    state: ChatCompletionStreamState[None] = ChatCompletionStreamState()
    for chunk in said("a", "b"):
        state.handle_chunk(ChatCompletionChunk.model_validate_json(chunk))
    whole = state.get_final_completion()
    assert whole.choices[0].message.content == "ab"
    assert whole.usage == ChatCompletion.model_validate_json(format_.fold(said("a", "b"))).usage


@pytest.mark.parametrize(("status", "kind"), [(400, "invalid_request_error"), (503, "server_error")])
def test_a_problem_is_what_the_client_shows(status: int, kind: str) -> None:
    """Its exceptions hold our words."""
    said = json.loads(format_.error("no such agent", status))["error"]
    assert (said["message"], said["type"]) == ("no such agent", kind)
