"""The usage in replies of providers, however their bytes are cut, and what is not believed."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.models.prices import Price, cost_usd
from ramet.models.wires import usage_reader
from ramet.models.wires.contract import Operation, WireRequest
from ramet.models.wires.wires import WIRES

REQUEST = WireRequest(operation=Operation.GENERATE, path="/", streams=True)


def sse(*events: dict[str, Any] | str, end: str = "\n\n") -> bytes:
    return "".join(
        f"event: x{end[: len(end) // 2]}data: {each if isinstance(each, str) else json.dumps(each)}{end}"
        for each in events
    ).encode()


def anthropic(output: Any = 30, text: str = "hello", **more: Any) -> bytes:
    usage = {"input_tokens": 10, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 1_000, **more}
    return sse(
        {"type": "message_start", "message": {"usage": {**usage, "output_tokens": 1}}},
        {"type": "ping"},
        {"type": "content_block_delta", "delta": {"type": "text_delta", "text": text}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": output}},
        {"type": "message_stop"},
    )


RESPONSES_USAGE = {
    "input_tokens": 50,
    "input_tokens_details": {"cached_tokens": 20},
    "output_tokens": 40,
    "output_tokens_details": {"reasoning_tokens": 30},
}
CHAT_USAGE = {
    "prompt_tokens": 50,
    "completion_tokens": 40,
    "prompt_tokens_details": {"cached_tokens": 20},
    "completion_tokens_details": {"reasoning_tokens": 30},
}
GOOGLE_USAGE = {
    "promptTokenCount": 50,
    "candidatesTokenCount": 10,
    "thoughtsTokenCount": 30,
    "cachedContentTokenCount": 20,
}
STREAMS = {
    "anthropic": anthropic(),
    "openai": sse(
        {"type": "response.created", "response": {"usage": None}},
        {"type": "response.output_text.delta", "delta": "hello"},
        {"type": "response.completed", "response": {"usage": RESPONSES_USAGE}},
    ),
    "openai chat": sse(
        {"choices": [{"delta": {"content": "hello"}}], "usage": None},
        {"choices": [], "usage": CHAT_USAGE},
        "[DONE]",
    ),
    "google": sse(
        {"candidates": [{"content": {"parts": [{"text": "hello"}]}}], "usageMetadata": {"promptTokenCount": 50}},
        {"candidates": [{"finishReason": "STOP"}], "usageMetadata": GOOGLE_USAGE},
        end="\r\n\r\n",
    ),
}
WHOLE: dict[str, dict[str, Any]] = {
    "anthropic": {"type": "message", "content": [], "usage": {"input_tokens": 5, "output_tokens": 7}},
    "openai": {"object": "response", "output": [], "usage": RESPONSES_USAGE},
    "openai chat": {"choices": [{"message": {"content": "hi"}}], "usage": CHAT_USAGE},
    "google": {"candidates": [{"finishReason": "STOP"}], "usageMetadata": GOOGLE_USAGE},
}


def read(wire: str, *pieces: bytes, is_stream: bool = True) -> Any:
    reader = WIRES[wire.split()[0]].usage_reader(REQUEST, is_stream=is_stream)
    for piece in pieces:
        reader.feed(piece)
    return reader.finish()


def totals(usage: Any) -> tuple[int, int, int, int]:
    details = usage["input_token_details"]
    return (
        usage["input_tokens"],
        usage["output_tokens"],
        details.get("cache_read", 0),
        usage["output_token_details"].get("reasoning", 0),
    )


def test_the_usage_of_anthropic_includes_its_cache() -> None:
    usage = read("anthropic", STREAMS["anthropic"])

    assert totals(usage) == (1_110, 30, 100, 0)
    price = Price(1, 10, cache_read=0.1, cache_write=2)
    assert cost_usd(usage, price) == pytest.approx((10 + 100 * 0.1 + 1_000 * 2 + 30 * 10) / 1e6)


def test_the_ages_of_anthropics_cache_have_their_prices() -> None:
    written: dict[str, Any] = {"cache_creation": {"ephemeral_5m_input_tokens": 400, "ephemeral_1h_input_tokens": 600}}

    usage = read("anthropic", anthropic(**written))

    price = Price(1, 10, cache_read=0.1, cache_write=2, cache_write_1h=3)
    assert usage["input_tokens"] == 1_110
    assert cost_usd(usage, price) == pytest.approx((10 + 100 * 0.1 + 400 * 2 + 600 * 3 + 30 * 10) / 1e6)


@pytest.mark.parametrize("wire", ["openai", "openai chat", "google"])
def test_the_usage_of_other_wires_includes_cache_and_reasoning(wire: str) -> None:
    assert totals(read(wire, STREAMS[wire])) == (50, 40, 20, 30)
    assert totals(read(wire, json.dumps(WHOLE[wire]).encode(), is_stream=False)) == (50, 40, 20, 30)


def test_a_whole_reply_of_anthropic_reports_its_usage() -> None:
    whole = json.dumps(WHOLE["anthropic"]).encode()

    assert totals(read("anthropic", whole[:20], whole[20:], is_stream=False)) == (5, 7, 0, 0)


@given(wire=st.sampled_from(sorted(STREAMS)), cuts=st.lists(st.integers(0, 700), max_size=20), crlf=st.booleans())
def test_the_usage_does_not_depend_on_the_cuts(wire: str, cuts: list[int], crlf: bool) -> None:
    data = STREAMS[wire].replace(b"\r\n", b"\n").replace(b"\n", b"\r\n" if crlf else b"\n")
    at = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})

    pieces = [data[begin:end] for begin, end in itertools.pairwise(at)]

    assert read(wire, *pieces) == read(wire, STREAMS[wire])


@given(wire=st.sampled_from(sorted(STREAMS)), size=st.integers(0, 700))
def test_a_stream_that_was_cut_off_reports_all_or_nothing(wire: str, size: int) -> None:
    assert read(wire, STREAMS[wire][:size]) in (None, read(wire, STREAMS[wire]))


@given(wire=st.sampled_from(sorted(STREAMS)), data=st.binary(max_size=200), is_stream=st.booleans())
def test_hostile_bytes_report_nothing(wire: str, data: bytes, is_stream: bool) -> None:
    assert read(wire, data, is_stream=is_stream) is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(wire=st.sampled_from(sorted(STREAMS)), value=json_values, key=st.sampled_from(["usage", "response", "message"]))
def test_events_of_any_shape_raise_nothing(wire: str, value: Any, key: str) -> None:
    events = [
        {"type": kind, key: value, "choices": value, "candidates": value, "usageMetadata": value, "delta": value}
        for kind in ("message_start", "message_delta", "message", "response.completed", value)
    ]

    read(wire, sse(*events))


@pytest.mark.parametrize(
    "nonsense", [-1, 1.5, "30", True, 1e30, 10**12, [1], {"a": 1}], ids=lambda value: str(value)[:10]
)
def test_a_number_that_cannot_be_is_not_believed(nonsense: object) -> None:
    assert read("anthropic", anthropic(nonsense)) is None
    assert read("anthropic", anthropic(cache_read_input_tokens=nonsense)) is None
    assert read("openai", sse({"type": "response.completed", "response": {"usage": {**RESPONSES_USAGE, "output_tokens": nonsense}}})) is None  # fmt: skip  # noqa: E501
    assert read("google", sse({"candidates": [{"finishReason": "STOP"}], "usageMetadata": {**GOOGLE_USAGE, "promptTokenCount": nonsense}})) is None  # fmt: skip  # noqa: E501


def test_a_part_above_its_whole_is_not_believed() -> None:
    cached = {**RESPONSES_USAGE, "input_tokens_details": {"cached_tokens": 51}}

    assert read("openai", sse({"type": "response.completed", "response": {"usage": cached}})) is None


def test_less_output_than_was_streamed_is_not_believed() -> None:
    assert read("anthropic", anthropic(30, "word " * 700)) is not None
    assert read("anthropic", anthropic(30, "word " * 800)) is None


_LONG = {"content": "a" * 6_000}
_CALL = {"function": {"name": "write", "arguments": json.dumps(_LONG)}}


@pytest.mark.parametrize(
    ("wire", "called"),
    [
        ("anthropic", {**WHOLE["anthropic"], "content": [{"type": "tool_use", "input": _LONG}]}),
        ("openai", {**WHOLE["openai"], "output": [{"type": "function_call", "arguments": json.dumps(_LONG)}]}),
        ("openai chat", {**WHOLE["openai chat"], "choices": [{"message": {"tool_calls": [_CALL]}}]}),
        ("openai chat", {**WHOLE["openai chat"], "choices": [{"delta": {"tool_calls": [_CALL]}}]}),
        (
            "google",
            {**WHOLE["google"], "candidates": [{"finishReason": "STOP", "content": {"parts": [{"functionCall": {"args": _LONG}}]}}]},  # noqa: E501
        ),
    ],
)  # fmt: skip
def test_the_arguments_of_a_call_are_output(wire: str, called: dict[str, Any]) -> None:
    """A reply that is a call of 6,000 bytes does not have the 40 tokens, or 7, that it reports."""
    if "delta" in str(called):
        assert read(wire, sse(called)) is None
    else:
        assert read(wire, json.dumps(called).encode(), is_stream=False) is None


def test_a_request_without_input_is_not_believed() -> None:
    empty: dict[str, Any] = {"cache_read_input_tokens": 0, "cache_creation_input_tokens": 0}

    assert read("anthropic", anthropic(input_tokens=0)) is not None
    assert read("anthropic", anthropic(input_tokens=0, **empty)) is None
    assert read("google", sse({"candidates": [{"finishReason": "STOP"}], "usageMetadata": {"promptTokenCount": 0}})) is None  # fmt: skip  # noqa: E501


def test_an_event_above_the_limit_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory stays bounded, and the events behind it are read."""
    monkeypatch.setattr(usage_reader, "MAX_EVENT_BYTES", 10_000)
    huge = b"data: " + b"a" * 30_000
    many = b"data: aaaaaaaaaa\n" * 3_000 + b"\n"

    for flood in (huge + b"\n\n", many):
        assert read("anthropic", flood, STREAMS["anthropic"]) == read("anthropic", STREAMS["anthropic"])
    assert read("anthropic", huge) is None
    assert read("anthropic", b"{" * 30_000, is_stream=False) is None


def test_an_endless_line_takes_no_more_memory_than_an_event() -> None:
    reader: Any = WIRES["openai"].usage_reader(REQUEST, is_stream=True)
    piece = b"a" * 1024 * 1024

    for _ in range(20):
        reader.feed(piece)
        assert len(reader._line) + len(reader._event) <= usage_reader.MAX_EVENT_BYTES
    assert reader.finish() is None
