"""The wire of Google: `generateContent` of the Gemini API.

Its JSON is that of Protocol Buffers: each member has a second name, with underscores.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ramet.models.wires import body as bodies
from ramet.models.wires.body import Members
from ramet.models.wires.contract import Operation, RefusalKind, RequestRefused, UsageReader, WireReply, WireRequest
from ramet.models.wires.usage_reader import ReplyUsageReader, arguments_size, count, make_usage, text_size

if TYPE_CHECKING:
    from langchain_core.messages.ai import UsageMetadata

_MODEL_PATH: Final = re.compile(
    r"/v1(?:beta)?/models/([A-Za-z0-9][A-Za-z0-9._@-]{0,199}):(generateContent|streamGenerateContent|countTokens)"
)
_MODELS_PATH: Final = re.compile(r"/v1(?:beta)?/models(/[A-Za-z0-9][A-Za-z0-9._@-]{0,199})?")
_CLIENT_TOOLS: Final = frozenset({"functionDeclarations", "computerUse"})
#: Status and code of the error for each refusal. Gemini CLI asks again and again after 429.
_ERRORS: Final = {
    RefusalKind.BUDGET: (402, "RESOURCE_EXHAUSTED"),
    RefusalKind.BUSY: (429, "RESOURCE_EXHAUSTED"),
    RefusalKind.DENIED: (403, "PERMISSION_DENIED"),
    RefusalKind.INVALID: (400, "INVALID_ARGUMENT"),
    RefusalKind.KEY: (401, "UNAUTHENTICATED"),
    RefusalKind.PATH: (404, "NOT_FOUND"),
    RefusalKind.TOO_LARGE: (413, "INVALID_ARGUMENT"),
    RefusalKind.UPSTREAM: (503, "UNAVAILABLE"),
}


class GoogleWire:
    """The wire of Google."""

    name = "google"
    model_prefix = "google_genai:"
    key_variables: tuple[str, ...] = ("GEMINI_API_KEY", "GOOGLE_API_KEY")
    base_url_variable = "GOOGLE_GEMINI_BASE_URL"
    base_url = "https://generativelanguage.googleapis.com"
    output_limit = 65_536
    request_headers = frozenset({"x-goog-api-client"})

    def parse(self, method: str, path: str, query: str, headers: Mapping[str, str], body: bytes) -> WireRequest:
        if method == "GET" and _MODELS_PATH.fullmatch(path):
            return WireRequest(operation=Operation.MODELS, path=path)
        match = _MODEL_PATH.fullmatch(path)
        if method != "POST" or match is None:
            raise RequestRefused(RefusalKind.PATH, f"{method} {path[:100]} is not forwarded")
        model, method_name = match.groups()
        members = bodies.decode_members(body)
        if method_name == "countTokens":
            return WireRequest(
                operation=Operation.COUNT, path=path, model=model, members=members, body=bodies.encode_members(members)
            )
        streams = method_name == "streamGenerateContent"
        if streams and "alt=sse" not in query.split("&"):
            raise RequestRefused(RefusalKind.INVALID, "alt: sse is expected for a stream")
        members = _with_one_name(members, "")
        config, thinking = _part(members, "generationConfig"), Members()
        if "thinkingConfig" in config:
            thinking = _part(config, "thinkingConfig")
        if config:
            members = {**members, "generationConfig": msgspec.Raw(bodies.encode_members(config))}
        return WireRequest(
            operation=Operation.GENERATE,
            path=path + ("?alt=sse" if streams else ""),
            model=model,
            streams=streams,
            max_tokens=bodies.read_count(config, "maxOutputTokens", label="generationConfig.maxOutputTokens"),
            thinking_tokens=max(
                0, bodies.read_count(thinking, "thinkingBudget", least=-1, label="thinkingConfig.thinkingBudget") or 0
            ),
            choices=bodies.read_count(config, "candidateCount", label="generationConfig.candidateCount") or 1,
            unbounded=_unbounded(members),
            members=members,
            body=bodies.encode_members(members),
        )

    def limited_body(self, request: WireRequest, max_tokens: int) -> bytes:
        config = {**_part(request.members, "generationConfig"), "maxOutputTokens": bodies.raw_count(max_tokens)}
        return bodies.encode_members(
            {**request.members, "generationConfig": msgspec.Raw(bodies.encode_members(config))}
        )

    def usage_reader(self, request: WireRequest, *, is_stream: bool) -> UsageReader:
        return ReplyUsageReader(_Fold(), is_stream=is_stream)

    def key_headers(self, key: str) -> Mapping[str, str]:
        return {"x-goog-api-key": key}

    def refuse(self, refusal: RequestRefused) -> WireReply:
        status, code = _ERRORS[refusal.kind]
        error = {"error": {"code": status, "message": refusal.reason, "status": code}}
        headers = [("content-type", "application/json; charset=UTF-8")]
        if refusal.kind not in (RefusalKind.BUSY, RefusalKind.UPSTREAM):
            headers.append(("x-should-retry", "false"))
        return WireReply(status, headers, msgspec.json.encode(error))


def _with_one_name(members: Mapping[str, msgspec.Raw], label: str) -> Members:
    """Return the members under their first names. Raises RequestRefused for one that has both."""
    named = Members()
    for name, value in members.items():
        first = re.sub(r"_([a-z0-9])", lambda letter: letter[1].upper(), name)
        if first in named:
            raise RequestRefused(RefusalKind.INVALID, f"{label}{first[:60]}: it is given under two names")
        named[first] = value
    return named


def _part(members: Mapping[str, msgspec.Raw], name: str) -> Members:
    if not bodies.is_given(members, name):
        return Members()
    return _with_one_name(bodies.read(members[name], Members, name, "an object"), f"{name}.")


def _unbounded(members: Mapping[str, msgspec.Raw]) -> tuple[str, ...]:
    found = list(bodies.present_members(members, ("cachedContent",)))
    if not bodies.is_one_of(members, "serviceTier", frozenset({"standard", "flex"})):
        found.append("serviceTier")
    if bodies.is_given(members, "tools"):
        for tool in bodies.read(members["tools"], list[Members], "tools", "a list of tools"):
            found += [f"tools: {name[:60]}" for name in _with_one_name(tool, "tools.") if name not in _CLIENT_TOOLS]
    return tuple(found)


class _Fold:
    """The usage of a reply: each event of a stream has it so far, and the last one all of it."""

    def __init__(self) -> None:
        self._report: Mapping[str, Any] | None = None
        self._is_final = False
        self.text_bytes = 0

    def add(self, event: Mapping[str, Any]) -> None:
        if isinstance(report := event.get("usageMetadata"), dict):
            self._report = report
        if (event.get("promptFeedback") or {}).get("blockReason"):
            self._is_final = True
        for candidate in event.get("candidates") or ():
            self._is_final |= candidate.get("finishReason") is not None
            for part in (candidate.get("content") or {}).get("parts") or ():
                call = part.get("functionCall") or {}
                self.text_bytes += text_size(part.get("text")) + arguments_size(call.get("args"))

    def usage(self) -> UsageMetadata | None:
        report = self._report
        if report is None or not self._is_final or "promptTokenCount" not in report:
            return None
        thoughts = count(report, "thoughtsTokenCount")
        return make_usage(
            input_tokens=count(report, "promptTokenCount") + count(report, "toolUsePromptTokenCount"),
            output_tokens=count(report, "candidatesTokenCount") + thoughts,
            cache_read=count(report, "cachedContentTokenCount"),
            reasoning=thoughts,
        )
