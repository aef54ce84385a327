"""The wire of OpenAI: Responses and Chat Completions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ramet.models.wires import body as bodies
from ramet.models.wires.contract import Operation, RefusalKind, RequestRefused, UsageReader, WireReply, WireRequest
from ramet.models.wires.usage_reader import ReplyUsageReader, arguments_size, count, details, make_usage, text_size

if TYPE_CHECKING:
    from langchain_core.messages.ai import UsageMetadata

_RESPONSES: Final = "/v1/responses"
_CHAT: Final = "/v1/chat/completions"
#: Members whose cost the body does not bound: state that the provider holds, and searches.
_UNBOUNDED: Final = ("previous_response_id", "conversation", "prompt", "context_management", "web_search_options")
_TIERS: Final = frozenset({"auto", "default", "flex"})
#: Types of tools that the program itself runs. `namespace` holds others, which are checked as well.
_CLIENT_TOOLS: Final = frozenset(
    {"function", "custom", "local_shell", "apply_patch", "computer", "computer_use_preview", "namespace"}
)
_MODELS_PATH: Final = re.compile(r"/v1/models(/[A-Za-z0-9][A-Za-z0-9._:@-]{0,199})?")
#: Events of Responses whose text is output.
_TEXT_DELTAS: Final = frozenset(
    {"response.output_text.delta", "response.function_call_arguments.delta", "response.custom_tool_call_input.delta"}
)
_MAX_CHAT: Final = ("max_completion_tokens", "max_tokens")
#: Status, type and code of the error for each refusal. OpenCode asks for ever after 429. Codex asks six times after 401
#: to 403, unless its `request_max_retries` is 0, and once after 400.
_ERRORS: Final = {
    RefusalKind.BUDGET: (402, "insufficient_quota", "insufficient_quota"),
    RefusalKind.BUSY: (429, "requests", "rate_limit_exceeded"),
    RefusalKind.DENIED: (400, "invalid_request_error", "not_allowed"),
    RefusalKind.INVALID: (400, "invalid_request_error", "invalid_value"),
    RefusalKind.KEY: (400, "invalid_request_error", "invalid_api_key"),
    RefusalKind.PATH: (404, "invalid_request_error", "not_found"),
    RefusalKind.TOO_LARGE: (413, "invalid_request_error", "request_too_large"),
    RefusalKind.UPSTREAM: (503, "server_error", "server_error"),
}


class _Tool(msgspec.Struct):
    type: Any = None
    tools: Any = None
    execution: Any = None  #: of tool_search: whether the client or the provider searches


class _Item(msgspec.Struct):
    """A part of the input; some of them add tools."""

    tools: Any = None


_Input: Any = str | list[_Item]


class OpenAIWire:
    """The wire of OpenAI."""

    name = "openai"
    model_prefix = "openai:"
    key_variables: tuple[str, ...] = ("OPENAI_API_KEY",)
    base_url_variable = "OPENAI_BASE_URL"
    base_url = "https://api.openai.com/v1"
    output_limit = 128_000
    request_headers = frozenset({"openai-beta", "session_id", "conversation_id", "originator"})

    def parse(self, method: str, path: str, query: str, headers: Mapping[str, str], body: bytes) -> WireRequest:
        target = path.removeprefix("/v1")  # The address of this provider ends with it.
        if method == "GET" and _MODELS_PATH.fullmatch(path):
            return WireRequest(operation=Operation.MODELS, path=target)
        if method != "POST" or path not in (_RESPONSES, _CHAT):
            raise RequestRefused(RefusalKind.PATH, f"{method} {path[:100]} is not forwarded")
        members = bodies.decode_members(body)
        if bodies.read_flag(members, "background"):
            raise RequestRefused(
                RefusalKind.DENIED, "background: it is not accepted, since its usage is not in the reply"
            )
        is_chat = path == _CHAT
        return WireRequest(
            operation=Operation.GENERATE,
            path=target,
            model=bodies.read_model(members),
            streams=bodies.read_flag(members, "stream"),
            max_tokens=_max_chat_tokens(members) if is_chat else bodies.read_count(members, "max_output_tokens"),
            choices=(bodies.read_count(members, "n") or 1) if is_chat else 1,
            unbounded=_unbounded(members),
            members=members,
            body=bodies.encode_members(members),
        )

    def limited_body(self, request: WireRequest, max_tokens: int) -> bytes:
        if request.path == _RESPONSES.removeprefix("/v1"):
            names: tuple[str, ...] = ("max_output_tokens",)
        else:
            names = tuple(name for name in _MAX_CHAT if bodies.is_given(request.members, name)) or _MAX_CHAT[:1]
        limit = bodies.raw_count(max_tokens)
        return bodies.encode_members({**request.members, **dict.fromkeys(names, limit)})

    def usage_reader(self, request: WireRequest, *, is_stream: bool) -> UsageReader:
        return ReplyUsageReader(_Fold(), is_stream=is_stream)

    def key_headers(self, key: str) -> Mapping[str, str]:
        return {"authorization": f"Bearer {key}"}

    def refuse(self, refusal: RequestRefused) -> WireReply:
        status, kind, code = _ERRORS[refusal.kind]
        error = {"error": {"message": refusal.reason, "type": kind, "param": None, "code": code}}
        headers = [("content-type", "application/json")]
        if refusal.kind not in (RefusalKind.BUSY, RefusalKind.UPSTREAM):
            headers.append(("x-should-retry", "false"))
        return WireReply(status, headers, msgspec.json.encode(error))


def _max_chat_tokens(members: Mapping[str, msgspec.Raw]) -> int | None:
    stated = [bodies.read_count(members, name) for name in _MAX_CHAT]
    return min((each for each in stated if each is not None), default=None)


def _unbounded(members: Mapping[str, msgspec.Raw]) -> tuple[str, ...]:
    found = list(bodies.present_members(members, _UNBOUNDED))
    if not bodies.is_one_of(members, "service_tier", _TIERS):
        found.append("service_tier")
    if bodies.is_given(members, "modalities") and b"audio" in bytes(members["modalities"]):
        found.append("modalities: audio")
    if bodies.is_given(members, "tools"):
        found += _unbounded_tools(bodies.read(members["tools"], list[_Tool], "tools", "a list of tools"))
    if bodies.is_given(members, "input"):
        items: Any = bodies.read(members["input"], _Input, "input", "a text or a list of items")
        for item in items if isinstance(items, list) else ():
            if item.tools is not None:
                found += _unbounded_tools(_as_tools(item.tools))
    return tuple(found)


def _as_tools(tools: object) -> list[_Tool]:
    try:
        return msgspec.convert(tools, list[_Tool])
    except (msgspec.ValidationError, RecursionError):
        return [_Tool("unknown")]


def _unbounded_tools(tools: list[_Tool]) -> list[str]:
    """Return the tools that the provider would run, at a price of their own."""
    found = [f"tools: {str(tool.type)[:60]}" for tool in tools if not _is_clients(tool)]
    for tool in tools:
        if tool.type == "namespace" and tool.tools is not None:  # Namespaces are not nested.
            found += [
                f"tools: {str(each.type)[:60]}"
                for each in _as_tools(tool.tools)
                if each.type not in ("function", "custom")
            ]
    return found


def _is_clients(tool: _Tool) -> bool:
    """Return whether the program runs a tool itself."""
    return tool.type in _CLIENT_TOOLS or (tool.type == "tool_search" and tool.execution == "client")


class _Fold:
    """The usage of a reply, of both APIs: in the last event of a stream, or in the reply itself."""

    def __init__(self) -> None:
        self._report: Mapping[str, Any] | None = None
        self.text_bytes = 0

    def add(self, event: Mapping[str, Any]) -> None:
        kind = event.get("type")
        if isinstance(kind, str):
            if kind in ("response.completed", "response.incomplete", "response.failed"):
                self._take(event["response"])
            elif kind in _TEXT_DELTAS:
                self.text_bytes += text_size(event.get("delta"))
            return
        self._take(event)
        for choice in event.get("choices") or ():
            part = choice.get("delta") or choice.get("message") or {}
            self.text_bytes += text_size(part.get("content"))
            for call in part.get("tool_calls") or ():
                self.text_bytes += arguments_size((call.get("function") or {}).get("arguments"))
        for item in event.get("output") or ():
            self.text_bytes += sum(text_size(part.get("text")) for part in item.get("content") or ())
            self.text_bytes += arguments_size(item.get("arguments"))

    def usage(self) -> UsageMetadata | None:
        report = self._report
        if report is None:
            return None
        if "prompt_tokens" in report:
            input_name, output_name = "prompt_tokens", "completion_tokens"
        else:
            input_name, output_name = "input_tokens", "output_tokens"
        if input_name not in report or output_name not in report:
            return None
        cached = details(report, f"{input_name}_details")
        input_tokens, read = count(report, input_name), count(cached, "cached_tokens")
        return make_usage(
            input_tokens=input_tokens,
            output_tokens=count(report, output_name),
            cache_read=read,
            # A token that is written to the cache may be counted as read from it, too.
            cache_creation=min(count(cached, "cache_write_tokens"), max(0, input_tokens - read)),
            reasoning=count(details(report, f"{output_name}_details"), "reasoning_tokens"),
        )

    def _take(self, reply: Mapping[str, Any]) -> None:
        if isinstance(report := reply.get("usage"), dict):
            self._report = report
