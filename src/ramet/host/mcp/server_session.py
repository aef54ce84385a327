"""A session with one server of the Model Context Protocol, over messages that others carry.

One task owns a session (`run`): it enters the client of the package `mcp`, runs every call, and leaves the client.
Other tasks only put calls into its queue. The server is hostile: of its messages, answers alone reach the client, each
bounded in bytes and in parts. Its requests are refused here, and its notifications dropped. Its schemas are not
compiled, and no answer is checked against them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from types import TracebackType
from typing import Any, Final, NamedTuple, TypeVar

import anyio
import mcp_types as types
import msgspec
from mcp import Client, ClientSession, MCPError
from mcp.shared.message import SessionMessage
from pydantic import TypeAdapter, ValidationError

from ramet.core.errors import InvalidValue, McpServerFailed, ProtocolError
from ramet.core.mcp.server_entry import McpServer
from ramet.host.mcp import server_queries
from ramet.host.mcp.content_text import text_of
from ramet.tools.mcp.connection_port import (
    Feature,
    ListedPrompt,
    ListedResource,
    ListedTool,
    McpResult,
    SendMessage,
)
from ramet.wire.values.json_object import json_object

#: Bytes of a message, and its brackets and commas: each takes up to 100 bytes once it is decoded.
MAX_MESSAGE_BYTES: Final = 4 * 1024 * 1024
MAX_PARTS: Final = 100_000
#: Seconds until a server has listed its tools, unless its own limit for an answer is shorter.
START_S: Final = 60.0
MAX_TOOLS, MAX_PAGES = 2_000, 64
_MAX_ID: Final = 200
_MAX_SHOWN: Final = 500
_METHOD_NOT_FOUND: Final = -32601

T = TypeVar("T")
_CallResult: TypeAdapter[types.CallToolResult | types.InputRequiredResult] = TypeAdapter(
    types.CallToolResult | types.InputRequiredResult
)


class _Call(NamedTuple):
    """A call that waits for the owner of the session."""

    tool: str
    arguments: Mapping[str, Any]
    result: asyncio.Future[McpResult]


class _Query(NamedTuple):
    """Another request that waits for the owner of the session."""

    name: str  #: for the reason of a failure
    send: Callable[[ClientSession], Awaitable[Any]]
    result: asyncio.Future[Any]


class ServerSession:
    """A session (`ramet.tools.mcp.connection_port.McpConnection`)."""

    def __init__(self, server: McpServer, send: SendMessage) -> None:
        self._server, self._send = server, send
        self._inlet, self._outlet = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        self._calls: asyncio.Queue[_Call | _Query | None] = asyncio.Queue()  #: None: the server has ended
        self._open_calls: set[asyncio.Future[Any]] = set()
        self._features: frozenset[Feature] = frozenset()
        self._tools: asyncio.Future[tuple[ListedTool, ...]] = asyncio.get_running_loop().create_future()
        self._tools.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._failure: McpServerFailed | None = None

    # ---- the owner

    async def run(self) -> None:
        """Own the session until the server has ended. Raises McpServerFailed for what ended it."""
        start_s = min(START_S, self._server.timeout_s)
        try:
            async with AsyncExitStack() as stack:
                async with asyncio.timeout(start_s):
                    client = await stack.enter_async_context(Client(self._transport(), cache=None))
                    tools = await self._list_tools(client)
                    self._features = _features_of(client.server_capabilities)
                if not self._tools.done():
                    self._tools.set_result(tools)
                await self._run_calls(client.session)
        except TimeoutError:
            self.end(f"it did not list its tools within {start_s:g} s")
        except Exception as error:
            self.end(_reason_of(error))
        finally:
            self.end("its connection was closed")
            self._outlet.close()
            for call in self._open_calls:
                if not call.done():
                    call.set_exception(self._failed())
        raise self._failed()

    @asynccontextmanager
    async def _transport(self) -> AsyncGenerator[tuple[Any, Any]]:
        yield self._outlet, _Outgoing(self._send)

    async def _list_tools(self, client: Client) -> tuple[ListedTool, ...]:
        """Return the tools of all pages, up to the bounds; the session's own method would also read their schemas."""
        session, may_lack_tools = client.session, client.server_capabilities.tools is None
        tools: list[ListedTool] = []
        cursor: str | None = None
        size = 0
        for _ in range(MAX_PAGES):
            params = types.PaginatedRequestParams(cursor=cursor) if cursor is not None else None
            try:
                page = await session.send_request(types.ListToolsRequest(params=params), types.ListToolsResult)
            except MCPError as error:
                if error.code == _METHOD_NOT_FOUND and may_lack_tools:
                    return ()
                raise
            listed = [ListedTool(each.name, each.description or "", each.input_schema) for each in page.tools]
            size += len(msgspec.json.encode(listed))
            if size > MAX_MESSAGE_BYTES:
                raise self._broken(f"its list of tools has more than {MAX_MESSAGE_BYTES} bytes")
            tools += listed
            cursor = page.next_cursor
            if cursor is None or len(tools) >= MAX_TOOLS:
                break
        return tuple(tools[:MAX_TOOLS])

    async def _run_calls(self, session: ClientSession) -> None:
        async with asyncio.TaskGroup() as group:
            while (call := await self._calls.get()) is not None:
                run = self._run_call(session, call) if isinstance(call, _Call) else self._run_query(session, call)
                task = group.create_task(run)
                call.result.add_done_callback(partial(_cancel_abandoned, task))

    async def _run_call(self, session: ClientSession, call: _Call) -> None:
        params = types.CallToolRequestParams(name=call.tool, arguments=dict(call.arguments))
        try:
            result = await session.send_request(
                types.CallToolRequest(params=params),
                _CallResult,
                request_read_timeout_seconds=self._server.timeout_s,
            )
            outcome = _outcome_of(result)
        except MCPError as error:
            if error.code == types.REQUEST_TIMEOUT:
                reason = f"{call.tool[:_MAX_SHOWN]} did not answer within {self._server.timeout_s:g} s"
                return _fail(call, McpServerFailed(self._server.name, reason))
            if error.code == types.CONNECTION_CLOSED:
                return _fail(call, self._failed())
            outcome = McpResult(f"error {error.code}: {error.message}", is_error=True)
        except Exception as error:
            return _fail(call, McpServerFailed(self._server.name, _reason_of(error)))
        if not call.result.done():
            call.result.set_result(outcome)

    async def _run_query(self, session: ClientSession, query: _Query) -> None:
        try:
            async with asyncio.timeout(self._server.timeout_s):
                outcome = await query.send(session)
        except TimeoutError:
            reason = f"{query.name[:_MAX_SHOWN]} did not answer within {self._server.timeout_s:g} s"
            return _fail(query, McpServerFailed(self._server.name, reason))
        except MCPError as error:
            is_closed = error.code == types.CONNECTION_CLOSED
            return _fail(query, self._failed() if is_closed else McpServerFailed(self._server.name, _reason_of(error)))
        except Exception as error:
            return _fail(query, McpServerFailed(self._server.name, _reason_of(error)))
        if not query.result.done():
            query.result.set_result(outcome)

    # ---- for other tasks

    async def receive(self, message: bytes) -> str:
        """Take a message of the server; return the method that the server asked for and may not use, or "".

        Raises McpServerFailed for a message that is none.
        """
        data = self._parse(message)
        method = data.get("method")
        if method is not None:
            if "id" not in data:
                return ""  # A notification. Nothing here depends on one: the tools are those of the start.
            return await self._refuse(str(method)[:_MAX_SHOWN], data["id"])
        try:
            parsed = types.jsonrpc_message_adapter.validate_python(data, by_name=False)
        except (ValidationError, RecursionError):
            raise self._broken("it sent a message that is none of JSON-RPC") from None
        try:
            await self._inlet.send(SessionMessage(parsed))
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise self._failed() from None
        return ""

    def end(self, reason: str) -> None:
        """Take the end of the server. Idempotent."""
        if self._failure is not None:
            return
        self._failure = McpServerFailed(self._server.name, reason)
        self._inlet.close()
        self._calls.put_nowait(None)
        if not self._tools.done():
            self._tools.set_exception(self._failed())

    async def tools(self) -> tuple[ListedTool, ...]:
        """Wait for the tools of the server. Raises McpServerFailed."""
        return await asyncio.shield(self._tools)

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> McpResult:
        """Call a tool of the server. Raises McpServerFailed."""
        return await self._wait(lambda result: _Call(tool, arguments, result))

    def offers(self, feature: Feature) -> bool:
        """Return whether the server said that it has this. False before its tools are known."""
        return feature in self._features

    async def resources(self) -> tuple[ListedResource, ...]:
        """Return the resources of the server, and templates. Raises McpServerFailed."""
        return await self._query("its list of resources", server_queries.list_resources)

    async def read_resource(self, uri: str) -> McpResult:
        """Return the text of a resource. Raises McpServerFailed."""
        timeout_s = self._server.timeout_s
        return await self._query(uri, partial(server_queries.read_resource, uri=uri, timeout_s=timeout_s))

    async def prompts(self) -> tuple[ListedPrompt, ...]:
        """Return the prompts of the server. Raises McpServerFailed."""
        return await self._query("its list of prompts", server_queries.list_prompts)

    async def prompt(self, name: str, arguments: Mapping[str, str]) -> McpResult:
        """Return the text of a prompt with its arguments. Raises McpServerFailed."""
        send = partial(server_queries.get_prompt, name=name, arguments=arguments, timeout_s=self._server.timeout_s)
        return await self._query(name, send)

    async def _query(self, name: str, send: Callable[[ClientSession], Awaitable[T]]) -> T:
        return await self._wait(lambda result: _Query(name, send, result))

    async def _wait(self, request: Callable[[asyncio.Future[T]], _Call | _Query]) -> T:
        """Let the owner of the session do this, and wait for its result. Raises McpServerFailed."""
        if self._failure is not None:
            raise self._failed()
        result: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._open_calls.add(result)
        try:
            self._calls.put_nowait(request(result))
            return await result
        finally:
            self._open_calls.discard(result)

    # ----

    def _parse(self, message: bytes) -> dict[str, Any]:
        try:
            if sum(map(message.count, (b"[", b"{", b","))) > MAX_PARTS:
                raise InvalidValue("message", "its parts", f"at most {MAX_PARTS} parts")
            return json_object(message, "message", max_bytes=MAX_MESSAGE_BYTES)
        except InvalidValue as refusal:
            raise self._broken(f"it sent a message above a bound: {refusal.accepted}") from None
        except ProtocolError:
            raise self._broken("it sent a message that is no object of JSON") from None

    async def _refuse(self, method: str, request_id: object) -> str:
        """Answer a request of the server, before its next message is read: none of them can gather here."""
        is_id = isinstance(request_id, str) and len(request_id) <= _MAX_ID
        if not is_id and (not isinstance(request_id, int) or isinstance(request_id, bool)):
            raise self._broken("it sent a request without a usable id")
        if method == "ping":
            await self._send(msgspec.json.encode({"jsonrpc": "2.0", "id": request_id, "result": {}}))
            return ""
        error = {"code": _METHOD_NOT_FOUND, "message": "this client offers nothing that a server could ask for"}
        await self._send(msgspec.json.encode({"jsonrpc": "2.0", "id": request_id, "error": error}))
        return method

    def _broken(self, reason: str) -> McpServerFailed:
        """End the session for a violation of the protocol, and return the error."""
        self.end(reason)
        return self._failed()

    def _failed(self) -> McpServerFailed:
        """Return the error of the ended session: a new one, since each raise adds to a traceback."""
        assert self._failure is not None, "the session has ended"
        return McpServerFailed(self._server.name, self._failure.reason)


class _Outgoing:
    """The stream of the client's messages: each is sent by the task that writes it."""

    def __init__(self, send: SendMessage) -> None:
        self._send = send

    async def send(self, item: SessionMessage) -> None:
        await self._send(item.message.model_dump_json(by_alias=True, exclude_unset=True).encode())

    async def aclose(self) -> None:
        """Do nothing: the messages are sent."""

    async def __aenter__(self) -> _Outgoing:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()


def _cancel_abandoned(task: asyncio.Task[None], result: asyncio.Future[Any]) -> None:
    """End a call that nobody waits for any more; its server is told."""
    if result.cancelled():
        task.cancel()


def _features_of(capabilities: types.ServerCapabilities) -> frozenset[Feature]:
    offered: dict[Feature, object] = {"resources": capabilities.resources, "prompts": capabilities.prompts}
    return frozenset(name for name, each in offered.items() if each is not None)


def _fail(call: _Call | _Query, error: McpServerFailed) -> None:
    if not call.result.done():
        call.result.set_exception(error)


def _outcome_of(result: types.CallToolResult | types.InputRequiredResult) -> McpResult:
    if isinstance(result, types.InputRequiredResult):
        return McpResult("the server asked for more input, which this client does not give", is_error=True)
    parts = [text_of(block) for block in result.content]
    if not parts and result.structured_content is not None:
        parts = [msgspec.json.encode(result.structured_content).decode()]
    return McpResult("\n".join(parts), is_error=bool(result.is_error))


def _reason_of(error: BaseException) -> str:
    """Return why a session failed, in a line, without what the server sent: it may be large."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, MCPError):
        return f"error {error.code}: {error.message[:_MAX_SHOWN]}"
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(str(part)[:60] for part in first["loc"])
        return f"its answer is none of the protocol: {place}: {first['msg'][:_MAX_SHOWN]}"
    return f"{type(error).__name__}: {str(error)[:_MAX_SHOWN]}"
