"""The format of Anthropic's clients, checked against the package's own types."""

from __future__ import annotations

import json
from typing import Any

import anthropic.types
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter

from ramet.core.errors import InvalidValue, Unknown
from ramet.core.outcome import Usage
from ramet.services.formats import anthropic as format_
from ramet.services.formats.registry import FORMATS, format_of
from ramet.services.formats.request import read_text, wants_stream

USED = Usage(input_tokens=30, output_tokens=12, cache_read_tokens=10)
EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)


def events_of(*deltas: str) -> list[bytes]:
    """Return the events of an answer."""
    writer = format_.Writer("run-1", "scripted", 0)
    middle = [chunk for delta in deltas for chunk in writer.text(delta)]
    return [*writer.begin(), *middle, *writer.end(USED)]


def request(*messages: object, **more: object) -> bytes:
    """Return a body as the client sends it."""
    return json.dumps({"model": "any", "max_tokens": 100, "messages": messages, **more}).encode()


def test_the_prompt_is_the_last_message_of_a_whole_conversation() -> None:
    """Clients send all messages each time; the agent has the earlier ones."""
    block = {"type": "text", "text": "second", "cache_control": {"type": "ephemeral"}}
    body = request(
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}]},
        {"role": "user", "content": [block]},
        system=[{"type": "text", "text": "Be brief."}],
        metadata={"user_id": "ada"},
        thinking={"type": "enabled", "budget_tokens": 2_000},
    )
    assert read_text(body) == "second"
    assert not wants_stream(body)


@pytest.mark.parametrize("kind", ["image", "document", "tool_result"])
def test_content_that_is_not_text_is_refused_by_its_field(kind: str) -> None:
    """An agent that reads text refuses the message instead of answering half of it."""
    with pytest.raises(InvalidValue) as refusal:
        read_text(request({"role": "user", "content": [{"type": "text", "text": "see"}, {"type": kind}]}))
    assert (refusal.value.field, refusal.value.value) == ("messages[0].content[1].type", kind)


def test_a_reply_begun_by_the_client_is_refused() -> None:
    """The client cannot write the beginning of the agent's reply."""
    with pytest.raises(InvalidValue, match=r"messages\[1\].role"):
        read_text(request({"role": "user", "content": "hi"}, {"role": "assistant", "content": "he"}))


def test_every_event_has_a_type_of_the_package() -> None:
    """The events come in the order of the format, each under its event name."""
    chunks = events_of("Hel", "lo")
    events = [EVENT.validate_json(chunk) for chunk in chunks]
    kinds = [type(event).__name__ for event in events]
    assert kinds == [
        "RawMessageStartEvent",
        "RawContentBlockStartEvent",
        "RawContentBlockDeltaEvent",
        "RawContentBlockDeltaEvent",
        "RawContentBlockStopEvent",
        "RawMessageDeltaEvent",
        "RawMessageStopEvent",
    ]
    assert [format_.event_name(chunk) for chunk in chunks] == [event.type for event in events]
    assert not any(event.model_extra for event in events)


def test_an_answer_is_folded_into_one_object() -> None:
    """A client without a stream gets the same answer; tokens from a cache are counted once."""
    reply = Message.model_validate_json(format_.fold(events_of("Hel", "lo ", "☃")), strict=True)
    [block] = reply.content
    assert isinstance(block, anthropic.types.TextBlock)
    assert (block.text, reply.stop_reason, reply.id) == ("Hello ☃", "end_turn", "msg_run-1")
    usage = reply.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (20, 10, 12)


def test_an_answer_cut_by_its_length_has_that_stop_reason() -> None:
    """The reason is max_tokens, as in a model's own reply."""
    writer = format_.Writer("run-1", "scripted", 0)
    reply = Message.model_validate_json(format_.fold([*writer.begin(), *writer.end(USED, "length")]))
    assert reply.stop_reason == "max_tokens"


@pytest.mark.parametrize(
    ("status", "kind"), [(400, "invalid_request_error"), (401, "authentication_error"), (500, "api_error")]
)
def test_the_clients_exceptions_show_our_problem(status: int, kind: str) -> None:
    """The exception holds our message."""
    body = json.loads(format_.error("no such agent", status))
    assert body == {"type": "error", "error": {"type": kind, "message": "no such agent"}}


def test_formats_are_found_by_their_names() -> None:
    """`transport_format` accepts these names."""
    assert tuple(FORMATS) == ("anthropic", "openai")
    assert format_of("anthropic") is format_
    with pytest.raises(Unknown, match="words"):
        format_of("words")
