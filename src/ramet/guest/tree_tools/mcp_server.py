"""A server of the Model Context Protocol over Streamable HTTP: without sessions, one JSON reply to each request.

It has tools and nothing else: it asks nothing of its client, and so offers no stream. What a message may not be has one
answer: a status of HTTP with an error of JSON-RPC.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from ramet.core.errors import InvalidValue, RametError, Unknown
from ramet.guest.tree_tools.tree_tools import TreeTools

#: Versions of the protocol, the newest first: what this server says is the same in each.
VERSIONS: Final = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
_INSTRUCTIONS: Final = (
    "These tools start and lead agents that work beside you, each in a sandbox of its own, within your budget: "
    "`spawn_agent`, then `result` until it has ended."
)
_PARSE_ERROR, _INVALID_REQUEST, _NO_METHOD, _INVALID_PARAMS, _INTERNAL = -32700, -32600, -32601, -32602, -32603
_UNSUPPORTED_VERSION: Final = -32022
_MAX_ID, _MAX_SHOWN = 200, 100
_LOOPBACK_ORIGIN: Final = re.compile(r"https?://(127\.0\.0\.1|localhost|\[::1\])(:[0-9]{1,5})?")


class HttpReply(NamedTuple):
    """The reply to an HTTP request."""

    status: int
    body: bytes = b""
    headers: Sequence[tuple[str, str]] = (("content-type", "application/json"),)


class _RpcError(Exception):
    """An error of JSON-RPC, and the status of HTTP that goes with it."""

    def __init__(self, code: int, message: str, *, status: int = 200, data: object = None) -> None:
        super().__init__(message)
        self.code, self.message, self.status, self.data = code, message, status, data


class McpServer:
    """The server for the tools of one run. Its client has shown the key of the endpoint before."""

    max_bytes: Final = 1024 * 1024  #: of a message

    def __init__(self, tools: TreeTools) -> None:
        self._tools = tools

    async def answer(self, method: str, headers: Mapping[str, str], body: bytes) -> HttpReply:
        """Answer an HTTP request; header names are in lower case."""
        request_id: str | int | None = None
        try:
            _check_origin(headers)
            if method != "POST":  # GET would open a stream of the server's own messages, DELETE end a session.
                return HttpReply(405, headers=[("allow", "POST")])
            message = _parse(headers, body)
            if "method" not in message or "id" not in message:
                return HttpReply(202, headers=())  # A notification, or an answer to nothing that was asked.
            request_id = _id_of(message)
            result = await self._handle(_method_of(message), _params_of(message))
        except _RpcError as error:
            data = {} if error.data is None else {"data": error.data}
            return _reply(error.status, request_id, error={"code": error.code, "message": error.message, **data})
        return _reply(200, request_id, result=result)

    async def _handle(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        match method:
            case "initialize":
                return _initialize(params)
            case "ping":
                return {}
            case "tools/list":
                if params.get("cursor") is not None:
                    raise _RpcError(_INVALID_PARAMS, "cursor: all tools are on the first page")
                return await self._list()
            case "tools/call":
                return await self._call(params)
        raise _RpcError(_NO_METHOD, f"no such method: {_shown(method)}")

    async def _list(self) -> dict[str, Any]:
        try:
            return {"tools": await self._tools.entries()}
        except RametError as error:
            raise _RpcError(_INTERNAL, str(error)) from None

    async def _call(self, params: Mapping[str, Any]) -> dict[str, Any]:
        name, arguments = params.get("name"), params.get("arguments")
        if not isinstance(name, str):
            raise _RpcError(_INVALID_PARAMS, "name: the name of a tool is expected")
        if arguments is not None and not isinstance(arguments, dict):
            raise _RpcError(_INVALID_PARAMS, "arguments: an object is expected")
        try:
            result = await self._tools.call(name, arguments or {})
        except (InvalidValue, Unknown) as error:  # MissingValue is an InvalidValue.
            raise _RpcError(_INVALID_PARAMS, str(error)) from None
        return {"content": [{"type": "text", "text": result.text}], "isError": result.is_error}


def _check_origin(headers: Mapping[str, str]) -> None:
    """Refuse a page of a browser that a name of its own server led here (DNS rebinding)."""
    origin = headers.get("origin")
    if origin is not None and _LOOPBACK_ORIGIN.fullmatch(origin) is None:
        raise _RpcError(_INVALID_REQUEST, f"origin {_shown(origin)}: only a loopback one is accepted", status=403)


def _parse(headers: Mapping[str, str], body: bytes) -> dict[str, Any]:
    """Return the message of a request. Raises _RpcError if it is none, or of another version of the protocol."""
    if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise _RpcError(_INVALID_REQUEST, "content-type: application/json is expected", status=415)
    version = headers.get("mcp-protocol-version")
    if version is not None and version not in VERSIONS:
        data = {"supported": VERSIONS, "requested": version[:_MAX_SHOWN]}
        reason = f"mcp-protocol-version {_shown(version)}: expected is one of {', '.join(VERSIONS)}"
        raise _RpcError(_UNSUPPORTED_VERSION, reason, status=400, data=data)
    try:
        message = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise _RpcError(_PARSE_ERROR, "the body is not JSON", status=400) from None
    if isinstance(message, list):
        raise _RpcError(_INVALID_REQUEST, "a batch is not accepted: send one message", status=400)
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
        raise _RpcError(_INVALID_REQUEST, 'jsonrpc: "2.0" is expected', status=400)
    return message


def _id_of(message: Mapping[str, Any]) -> str | int:
    value = message["id"]
    is_short_text = isinstance(value, str) and len(value) <= _MAX_ID
    is_number = isinstance(value, int) and not isinstance(value, bool) and abs(value) <= 2**53
    if not is_short_text and not is_number:
        reason = f"id: a whole number, or a text of at most {_MAX_ID} characters, is expected"
        raise _RpcError(_INVALID_REQUEST, reason, status=400)
    number_or_text: str | int = value
    return number_or_text


def _method_of(message: Mapping[str, Any]) -> str:
    method = message["method"]
    if not isinstance(method, str):
        raise _RpcError(_INVALID_REQUEST, "method: a text is expected", status=400)
    return method


def _params_of(message: Mapping[str, Any]) -> Mapping[str, Any]:
    params = message.get("params", {})
    if not isinstance(params, dict):
        raise _RpcError(_INVALID_PARAMS, "params: an object is expected")
    return params


def _initialize(params: Mapping[str, Any]) -> dict[str, Any]:
    version = params.get("protocolVersion")
    if not isinstance(version, str):
        raise _RpcError(_INVALID_PARAMS, "protocolVersion: a text is expected")
    return {
        "protocolVersion": version if version in VERSIONS else VERSIONS[0],
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "ramet", "version": "1"},
        "instructions": _INSTRUCTIONS,
    }


def _reply(status: int, request_id: str | int | None, **outcome: object) -> HttpReply:
    message = {"jsonrpc": "2.0", "id": request_id, **outcome}
    return HttpReply(status, json.dumps(message, ensure_ascii=False).encode("utf-8", "replace"))


def _shown(text: str) -> str:
    return repr(text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…")
