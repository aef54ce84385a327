"""Requests of programs in the wires of their providers: what they ask for, and what of them is changed or refused."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.models.wires.contract import (
    MAX_REQUEST_BYTES,
    MAX_TOKENS,
    Operation,
    RefusalKind,
    RequestRefused,
    WireRequest,
)
from ramet.models.wires.input_estimate import estimate_tokens, media_in
from ramet.models.wires.wires import WIRES

MESSAGES = "/v1/messages"
RESPONSES = "/v1/responses"
CHAT = "/v1/chat/completions"
GENERATE = "/v1beta/models/gemini-3-pro:generateContent"
STREAM = "/v1beta/models/gemini-3-pro:streamGenerateContent"
MINIMAL = {MESSAGES: {"model": "m"}, RESPONSES: {"model": "m"}, CHAT: {"model": "m"}, GENERATE: {}, STREAM: {}}
WIRE_OF = {MESSAGES: "anthropic", RESPONSES: "openai", CHAT: "openai", GENERATE: "google", STREAM: "google"}
PATHS = sorted(MINIMAL)


def parse(path: str, body: bytes | dict[str, Any], query: str = "", **headers: str) -> WireRequest:
    data = body if isinstance(body, bytes) else json.dumps({**MINIMAL.get(path, {}), **body}).encode()
    query = query or ("alt=sse" if path == STREAM else "")
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return WIRES[WIRE_OF.get(path, "anthropic")].parse("POST", path, query, named, data)


def refusal(path: str, body: bytes | dict[str, Any], query: str = "") -> RequestRefused:
    with pytest.raises(RequestRefused) as refused:
        parse(path, body, query)
    return refused.value


def limited(path: str, body: bytes | dict[str, Any], max_tokens: int = 77) -> Any:
    return json.loads(WIRES[WIRE_OF[path]].limited_body(parse(path, body), max_tokens))


def test_a_request_to_anthropic_is_understood() -> None:
    body = {"model": "claude-x", "stream": True, "max_tokens": 9, "thinking": {"type": "enabled", "budget_tokens": 5}}

    request = parse(MESSAGES, body, "beta=true&x=1")

    assert (request.operation, request.path, request.model) == (
        Operation.GENERATE,
        "/v1/messages?beta=true",
        "claude-x",
    )
    assert (request.streams, request.max_tokens, request.thinking_tokens) == (True, 9, 5)


def test_a_request_to_google_is_understood_under_both_names_of_its_members() -> None:
    body = {"generation_config": {"max_output_tokens": 9, "thinking_config": {"thinking_budget": 5}}}

    request = parse(STREAM, body, "alt=sse&key=abc")

    assert (request.path, request.model, request.streams) == (f"{STREAM}?alt=sse", "gemini-3-pro", True)
    assert (request.max_tokens, request.thinking_tokens) == (9, 5)
    assert limited(STREAM, body)["generationConfig"]["maxOutputTokens"] == 77


def test_requests_that_cost_nothing_are_told_apart() -> None:
    wires = WIRES
    count = wires["anthropic"].parse("POST", "/v1/messages/count_tokens", "", {}, b'{"model":"m"}')
    count_google = wires["google"].parse("POST", "/v1beta/models/g:countTokens", "", {}, b"{}")
    models = [wires[name].parse("GET", "/v1/models", "", {}, b"") for name in ("anthropic", "openai")]
    one = wires["google"].parse("GET", "/v1beta/models/g-1", "key=x", {}, b"")

    assert {count.operation, count_google.operation} == {Operation.COUNT}
    assert [each.operation for each in (*models, one)] == [Operation.MODELS] * 3
    assert one.path == "/v1beta/models/g-1"


@pytest.mark.parametrize("path", PATHS)
def test_the_maximum_of_output_is_added_where_none_is_stated(path: str) -> None:
    name = {MESSAGES: "max_tokens", RESPONSES: "max_output_tokens", CHAT: "max_completion_tokens"}.get(path)

    body = limited(path, {})

    assert parse(path, {}).max_tokens is None
    assert (body[name] if name else body["generationConfig"]["maxOutputTokens"]) == 77


def test_both_names_of_the_maximum_in_chat_are_lowered() -> None:
    body = limited(CHAT, {"max_tokens": 5_000, "max_completion_tokens": 9_000})

    assert parse(CHAT, {"max_tokens": 5_000, "max_completion_tokens": 9_000}).max_tokens == 5_000
    assert (body["max_tokens"], body["max_completion_tokens"]) == (77, 77)


@pytest.mark.parametrize("path", PATHS)
def test_a_request_passes_byte_for_byte_but_for_its_maximum(path: str) -> None:
    """Order, spaces in values, escapes and numbers of the nested values stay."""
    stated = b'"generationConfig":{"maxOutputTokens":9}' if WIRE_OF[path] == "google" else b'"max_tokens":9'
    rest = b'"model":"m","z":{ "b":1.50,"a":"\\u00e9\\/"},"a":[1e3, null],'
    body = b"{" + rest + stated + b"}"

    request = parse(path, body)

    assert request.body == body
    assert WIRES[WIRE_OF[path]].limited_body(request, 5).startswith(b"{" + rest.rstrip(b","))


@pytest.mark.parametrize("path", PATHS)
def test_a_member_that_occurs_twice_has_one_meaning(path: str) -> None:
    """Providers may take the first or the last: only one is sent."""
    if WIRE_OF[path] == "google":
        body = b'{"generationConfig":{"maxOutputTokens":1,"maxOutputTokens":9000}}'
    else:
        name = {MESSAGES: b"max_tokens", RESPONSES: b"max_output_tokens"}.get(path, b"max_tokens")
        body = b'{"model":"m","%b":1,"model":"m","max\\u005f%b":9000}' % (name, name.removeprefix(b"max_"))

    request = parse(path, body)

    assert request.max_tokens == 9_000
    assert request.body.count(b"9000") == 1
    assert b":1" not in request.body


def test_a_member_of_google_under_both_names_is_refused() -> None:
    twice = {"generationConfig": {"maxOutputTokens": 1, "max_output_tokens": 9_000}}

    assert "maxOutputTokens" in refusal(GENERATE, twice).reason
    assert "generationConfig" in refusal(GENERATE, {"generationConfig": {}, "generation_config": {}}).reason


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "100", [1], {"a": 1}, MAX_TOKENS + 1, 10**30])
@pytest.mark.parametrize("path", PATHS)
def test_a_maximum_that_is_no_whole_positive_number_is_refused(path: str, value: object) -> None:
    name = {MESSAGES: "max_tokens", RESPONSES: "max_output_tokens", CHAT: "max_completion_tokens"}.get(path)
    body = {name: value} if name else {"generationConfig": {"maxOutputTokens": value}}

    refused = refusal(path, body)

    assert refused.kind is RefusalKind.INVALID
    assert (name or "maxOutputTokens") in refused.reason


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b'{"a":NaN}',
        b'{"a":1}{}',
        b"\xff\xfe",
        b'{"messages":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
        b'{"max_tokens":' + b"9" * 5_000 + b',"model":"m"}',
        b'{"max_tokens":1e999,"model":"m"}',
        b'{"model":5}',
        b'{"model":"' + b"m" * 300 + b'"}',
        b'{"model":"a b"}',
        b'{"model":"m","stream":"yes"}',
        b'{"model":"m","tools":{"a":1}}',
        b'{"model":"m","tools":[5]}',
        b'{"model":"m","thinking":[1]}',
        b'{"model":"m","thinking":{"budget_tokens":-5}}',
    ],
)
def test_hostile_bodies_are_refused(body: bytes) -> None:
    assert refusal(MESSAGES, body).kind is RefusalKind.INVALID


def test_a_body_above_the_limit_is_refused() -> None:
    refused = refusal(MESSAGES, b'{"model":"m","a":"' + b"a" * MAX_REQUEST_BYTES + b'"}')

    assert refused.kind is RefusalKind.TOO_LARGE
    assert str(MAX_REQUEST_BYTES) in refused.reason


@pytest.mark.parametrize(
    ("wire", "method", "path"),
    [
        ("anthropic", "GET", "/v1/messages"),
        ("anthropic", "POST", "/v1/messages/batches"),
        ("anthropic", "POST", "/v1/files"),
        ("anthropic", "GET", "/v1/models/../files"),
        ("anthropic", "POST", "/v1/messages/../files"),
        ("openai", "GET", "/v1/responses/resp_1"),
        ("openai", "POST", "/v1/images/generations"),
        ("openai", "POST", "/v1/responses/"),
        ("google", "POST", "/v1beta/models/g:batchGenerateContent"),
        ("google", "POST", "/v1beta/models/a/b:generateContent"),
        ("google", "POST", "/v1beta/cachedContents"),
        ("google", "POST", "/v1beta/models/../x:generateContent"),
    ],
)
def test_only_listed_paths_are_forwarded(wire: str, method: str, path: str) -> None:
    with pytest.raises(RequestRefused) as refused:
        WIRES[wire].parse(method, path, "alt=sse", {}, b'{"model":"m"}')

    assert refused.value.kind is RefusalKind.PATH


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        (MESSAGES, {"tools": [{"type": "web_search_20250305", "name": "w"}]}, "tools: web_search_20250305"),
        (MESSAGES, {"tools": [{"type": "code_execution_20260120"}]}, "tools: code_execution_20260120"),
        (MESSAGES, {"tools": [{"type": 5}]}, "tools: 5"),
        (MESSAGES, {"mcp_servers": [{"url": "https://x"}]}, "mcp_servers"),
        (MESSAGES, {"speed": "fast"}, "speed"),
        (MESSAGES, {"service_tier": "priority"}, "service_tier"),
        (MESSAGES, {"thread": {"type": "create"}}, "thread"),
        (MESSAGES, {"context_management": {"edits": [{"type": "compact_20260112"}]}}, "context_management: compact"),
        (RESPONSES, {"tools": [{"type": "web_search"}]}, "tools: web_search"),
        (RESPONSES, {"tools": [{"type": "namespace", "tools": [{"type": "mcp"}]}]}, "tools: mcp"),
        (RESPONSES, {"tools": [{"type": "namespace", "tools": 5}]}, "tools: unknown"),
        (RESPONSES, {"tools": [{"type": "tool_search"}]}, "tools: tool_search"),
        (RESPONSES, {"tools": [{"type": "tool_search", "execution": "server"}]}, "tools: tool_search"),
        (RESPONSES, {"input": [{"type": "tool_search_output", "tools": [{"type": "mcp"}]}]}, "tools: mcp"),
        (RESPONSES, {"previous_response_id": "resp_1"}, "previous_response_id"),
        (RESPONSES, {"conversation": "conv_1"}, "conversation"),
        (RESPONSES, {"prompt": {"id": "pmpt_1"}}, "prompt"),
        (RESPONSES, {"service_tier": "priority"}, "service_tier"),
        (CHAT, {"web_search_options": {"a": 1}}, "web_search_options"),
        (CHAT, {"modalities": ["text", "audio"]}, "modalities: audio"),
        (GENERATE, {"tools": [{"google_search": {}}]}, "tools: googleSearch"),
        (GENERATE, {"tools": [{"codeExecution": {}}]}, "tools: codeExecution"),
        (GENERATE, {"cached_content": "cachedContents/1"}, "cachedContent"),
    ],
)
def test_members_whose_cost_the_body_does_not_bound_are_named(path: str, body: dict[str, Any], named: str) -> None:
    (found,) = parse(path, body).unbounded

    assert found.startswith(named)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (MESSAGES, {"tools": [{"name": "f"}, {"type": "bash_20250124"}, {"type": "tool_search_tool_bm25"}]}),
        (MESSAGES, {"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}}),
        (MESSAGES, {"mcp_servers": [], "thread": None, "service_tier": "standard_only", "speed": None}),
        (RESPONSES, {"tools": [{"type": "function"}, {"type": "namespace", "tools": [{"type": "function"}]}]}),
        (RESPONSES, {"tools": [{"type": "tool_search", "execution": "client"}]}),
        (RESPONSES, {"input": "hi", "background": False, "previous_response_id": None}),
        (RESPONSES, {"input": [{"role": "user", "content": "hi"}], "service_tier": "flex"}),
        (GENERATE, {"tools": [{"functionDeclarations": []}]}),
    ],
)
def test_what_programs_usually_send_is_bounded(path: str, body: dict[str, Any]) -> None:
    assert parse(path, body).unbounded == ()


def test_a_beta_feature_that_adds_tools_in_messages_is_not_bounded() -> None:
    request = parse(MESSAGES, {}, anthropic_beta="x-1,inline-tools-2026-09-15")

    assert request.unbounded == ("anthropic-beta: inline-tools-",)


def test_a_request_in_the_background_is_refused_always() -> None:
    refused = refusal(RESPONSES, {"background": True})

    assert refused.kind is RefusalKind.DENIED
    assert "background" in refused.reason


def test_the_number_of_replies_is_read() -> None:
    assert parse(CHAT, {"n": 4}).choices == 4
    assert parse(GENERATE, {"generationConfig": {"candidateCount": 3}}).choices == 3
    assert refusal(CHAT, {"n": 0}).kind is RefusalKind.INVALID


@pytest.mark.parametrize("wire", sorted(WIRES))
@pytest.mark.parametrize("kind", list(RefusalKind))
def test_a_refusal_has_the_form_of_the_provider(wire: str, kind: RefusalKind) -> None:
    reply = WIRES[wire].refuse(RequestRefused(kind, "the reason"))

    body = json.loads(reply.body)
    assert body["error"]["message"] == "the reason"
    assert 400 <= reply.status < 600
    assert body.get("type") == ("error" if wire == "anthropic" else None)
    is_final = kind not in (RefusalKind.BUSY, RefusalKind.UPSTREAM)
    assert (("x-should-retry", "false") in reply.headers) is is_final


def test_refusals_have_the_statuses_after_which_programs_ask_once() -> None:
    """Claude Code asks six times after 400, Gemini CLI and OpenCode for ever after 429."""
    final = [kind for kind in RefusalKind if kind not in (RefusalKind.BUSY, RefusalKind.UPSTREAM)]

    def statuses(wire: str) -> set[int]:
        return {WIRES[wire].refuse(RequestRefused(kind, "")).status for kind in final}

    assert statuses("anthropic") == {401, 402, 403, 404, 413}
    assert statuses("openai") == {400, 402, 404, 413}


def test_the_estimate_counts_three_bytes_of_text_and_less_of_encoded_files() -> None:
    text = json.dumps({"content": "some words of a prompt " * 1_000}).encode()
    image = json.dumps({"data": "iVBORw0KGgo/" * 100_000}).encode()

    assert estimate_tokens(text) == pytest.approx(len(text) / 3, abs=1)
    assert estimate_tokens(image) < len(image) / 25
    assert estimate_tokens(b"") == 0


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ([{"type": "text", "text": "an image of a document"}], ""),
        ([{"type": "image", "source": {"type": "url", "url": "https://x"}}], "image"),
        ([{"type": "tool_result", "content": [{"type": "document", "source": {}}]}], "document"),
        ([{"type": "input_file", "file_id": "file-1"}], "input_file"),
        ([{"type": "container_upload", "file_id": "file-1"}], "file_id"),
        ([{"fileData": {"fileUri": "gs://x"}}], "fileData"),
    ],
)
def test_parts_that_are_no_text_are_found(content: object, found: str) -> None:
    """Their tokens have no bound in bytes."""
    tools = [{"name": "look", "input_schema": {"properties": {"image": {"type": "string"}}}}]
    assert media_in(parse(MESSAGES, {"messages": [{"content": content}], "tools": tools}).members) == found


def test_a_body_too_deep_to_read_counts_as_no_text() -> None:
    assert media_in({"messages": msgspec.Raw(b"[" * 100_000)}) != ""


members = st.dictionaries(
    st.text(max_size=12),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=8,
    ),
    max_size=5,
)


@given(path=st.sampled_from(PATHS), body=members, more=st.booleans())
def test_any_body_is_understood_or_refused_and_means_the_same_afterwards(
    path: str, body: dict[str, Any], more: bool
) -> None:
    data = json.dumps({**MINIMAL[path], **body} if more else body).encode()
    try:
        request = parse(path, data)
    except RequestRefused:
        return

    assert json.loads(request.body) == json.loads(data) or WIRE_OF[path] == "google"
    assert parse(path, WIRES[WIRE_OF[path]].limited_body(request, 5)).max_tokens == 5


@given(path=st.sampled_from(PATHS), data=st.binary(max_size=60))
def test_any_bytes_are_understood_or_refused(path: str, data: bytes) -> None:
    try:
        parse(path, data)
    except RequestRefused:
        pass
