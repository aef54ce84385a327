"""The wire of Anthropic: the Messages API."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ramet.models.wires import body as bodies
from ramet.models.wires.contract import Operation, RefusalKind, RequestRefused, UsageReader, WireReply, WireRequest
from ramet.models.wires.usage_reader import (
    InvalidUsage,
    ReplyUsageReader,
    arguments_size,
    count,
    details,
    make_usage,
    text_size,
)

if TYPE_CHECKING:
    from langchain_core.messages.ai import UsageMetadata

#: Members whose cost the body does not bound: state that the provider holds, other models, servers that it asks.
_UNBOUNDED: Final = ("thread", "mcp_servers", "container", "compaction", "fallbacks")
#: Types of tools that the program itself runs, and the search for tools, which has no price.
_CLIENT_TOOLS: Final = re.compile(
    r"(custom|(bash|text_editor|computer|computer_toolset|memory)_\d{8}|tool_search_tool_(bm25|regex)(_\d{8})?)?"
)
_MODELS_PATH: Final = re.compile(r"/v1/models(/[A-Za-z0-9][A-Za-z0-9._:@-]{0,199})?")
#: Beta features by which messages, and not only `tools`, name tools that the provider runs.
_UNBOUNDED_BETAS: Final = ("inline-tools-", "mcp-client-", "fast-mode-", "advisor-")
#: Status and type of the error for each refusal. Claude Code asks six times after 400, OpenCode for ever after 429.
_ERRORS: Final = {
    RefusalKind.BUDGET: (402, "billing_error"),
    RefusalKind.BUSY: (429, "rate_limit_error"),
    RefusalKind.DENIED: (403, "permission_error"),
    RefusalKind.INVALID: (403, "invalid_request_error"),
    RefusalKind.KEY: (401, "authentication_error"),
    RefusalKind.PATH: (404, "not_found_error"),
    RefusalKind.TOO_LARGE: (413, "request_too_large"),
    RefusalKind.UPSTREAM: (503, "api_error"),
}


class _Tool(msgspec.Struct):
    type: Any = None
    name: Any = None


class _Thinking(msgspec.Struct):
    type: Any = None
    budget_tokens: Any = None


class _ContextManagement(msgspec.Struct):
    edits: list[_Tool] = []


class AnthropicWire:
    """The wire of Anthropic."""

    name = "anthropic"
    model_prefix = "anthropic:"
    key_variables: tuple[str, ...] = ("ANTHROPIC_API_KEY",)
    base_url_variable = "ANTHROPIC_BASE_URL"
    base_url = "https://api.anthropic.com"
    output_limit = 128_000
    request_headers = frozenset({"anthropic-version", "anthropic-beta"})

    def parse(self, method: str, path: str, query: str, headers: Mapping[str, str], body: bytes) -> WireRequest:
        if method == "GET" and _MODELS_PATH.fullmatch(path):
            return WireRequest(operation=Operation.MODELS, path=path)
        if method != "POST" or path not in ("/v1/messages", "/v1/messages/count_tokens"):
            raise RequestRefused(RefusalKind.PATH, f"{method} {path[:100]} is not forwarded")
        members = bodies.decode_members(body)
        target = path + ("?beta=true" if "beta=true" in query.split("&") else "")
        model = bodies.read_model(members)
        if path.endswith("count_tokens"):
            return WireRequest(
                operation=Operation.COUNT,
                path=target,
                model=model,
                members=members,
                body=bodies.encode_members(members),
            )
        return WireRequest(
            operation=Operation.GENERATE,
            path=target,
            model=model,
            streams=bodies.read_flag(members, "stream"),
            max_tokens=bodies.read_count(members, "max_tokens"),
            thinking_tokens=_thinking_tokens(members),
            unbounded=_unbounded(members, headers.get("anthropic-beta", "")),
            members=members,
            body=bodies.encode_members(members),
        )

    def limited_body(self, request: WireRequest, max_tokens: int) -> bytes:
        return bodies.encode_members({**request.members, "max_tokens": bodies.raw_count(max_tokens)})

    def usage_reader(self, request: WireRequest, *, is_stream: bool) -> UsageReader:
        return ReplyUsageReader(_Fold(), is_stream=is_stream)

    def key_headers(self, key: str) -> Mapping[str, str]:
        return {"x-api-key": key}

    def refuse(self, refusal: RequestRefused) -> WireReply:
        status, kind = _ERRORS[refusal.kind]
        error = {"type": "error", "error": {"type": kind, "message": refusal.reason}}
        headers = [("content-type", "application/json")]
        if refusal.kind not in (RefusalKind.BUSY, RefusalKind.UPSTREAM):
            headers.append(("x-should-retry", "false"))
        return WireReply(status, headers, msgspec.json.encode(error))


def _thinking_tokens(members: Mapping[str, msgspec.Raw]) -> int:
    if not bodies.is_given(members, "thinking"):
        return 0
    thinking = bodies.read(members["thinking"], _Thinking, "thinking", "an object")
    if thinking.budget_tokens is None:
        return 0
    budget = {"budget_tokens": msgspec.Raw(msgspec.json.encode(thinking.budget_tokens))}
    return bodies.read_count(budget, "budget_tokens", label="thinking.budget_tokens") or 0


def _unbounded(members: Mapping[str, msgspec.Raw], betas: str) -> tuple[str, ...]:
    found = list(bodies.present_members(members, _UNBOUNDED))
    if not bodies.is_one_of(members, "service_tier", frozenset({"standard_only", "auto"})):
        found.append("service_tier")
    if not bodies.is_one_of(members, "speed", frozenset({"standard"})):
        found.append("speed")
    if not bodies.is_one_of(members, "inference_geo", frozenset({"global"})):
        found.append("inference_geo")
    if bodies.is_given(members, "tools"):
        for tool in bodies.read(members["tools"], list[_Tool], "tools", "a list of tools"):
            if tool.type is not None and not (isinstance(tool.type, str) and _CLIENT_TOOLS.fullmatch(tool.type)):
                found.append(f"tools: {str(tool.type)[:60]}")
    if bodies.is_given(members, "context_management"):
        management = bodies.read(
            members["context_management"], _ContextManagement, "context_management", "an object with edits"
        )
        # An edit that clears costs nothing. One that compacts asks the model once more.
        found += [
            f"context_management: {str(each.type)[:60]}"
            for each in management.edits
            if not str(each.type).startswith("clear_")
        ]
    found += [f"anthropic-beta: {beta}" for beta in _UNBOUNDED_BETAS if beta in betas]
    return tuple(found)


class _Fold:
    """The usage of a message: what the begin of its stream states, and the last change of it."""

    def __init__(self) -> None:
        self._report: dict[str, Any] = {}
        self._is_final = False
        self.text_bytes = 0

    def add(self, event: Mapping[str, Any]) -> None:
        match event.get("type"):
            case "message_start":
                self._update(event["message"].get("usage"))
            case "content_block_delta":
                delta = event["delta"]
                self.text_bytes += sum(text_size(delta.get(name)) for name in ("text", "thinking", "partial_json"))
            case "message_delta":
                self._update(event.get("usage"))
                self._is_final = True
            case "message":  # a whole reply
                self._update(event.get("usage"))
                self._is_final = "usage" in event
                for block in event.get("content") or ():
                    self.text_bytes += text_size(block.get("text")) + arguments_size(block.get("input"))

    def usage(self) -> UsageMetadata | None:
        if not self._is_final or "output_tokens" not in self._report or "input_tokens" not in self._report:
            return None
        report = self._report
        read, written = count(report, "cache_read_input_tokens"), count(report, "cache_creation_input_tokens")
        creation = details(report, "cache_creation")
        written_5m, written_1h = (count(creation, f"ephemeral_{age}_input_tokens") for age in ("5m", "1h"))
        return make_usage(
            input_tokens=count(report, "input_tokens") + read + max(written, written_5m + written_1h),
            output_tokens=count(report, "output_tokens"),
            cache_read=read,
            cache_creation=written,
            cache_creation_5m=written_5m,
            cache_creation_1h=written_1h,
            reasoning=count(details(report, "output_tokens_details"), "thinking_tokens"),
        )

    def _update(self, report: object) -> None:
        if not isinstance(report, dict):
            raise InvalidUsage("usage")
        self._report.update({name: value for name, value in report.items() if value is not None})
