"""A session with one server of the Model Context Protocol, over messages that others carry, or over HTTP.

One task owns a session: it enters the client of the package `mcp`, runs every call, and leaves the client. Other tasks
only put calls into its queue. The server is hostile: of its messages, answers alone reach the client, each bounded in
bytes and in parts, and reports of progress, thinned out. Of its requests, a person is asked its questions, one after
the other; all others are refused here. Its schemas are not compiled, and no answer is checked against them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from types import TracebackType
from typing import Any, Final, NamedTuple, TypeVar

import anyio
import mcp_types as types
import msgspec
from mcp import Client, ClientSession, MCPError
from mcp.client.session import ClientRequestContext
from mcp.shared.message import SessionMessage
from pydantic import TypeAdapter, ValidationError

from ramet.core.errors import InvalidValue, McpServerFailed, ProtocolError, RametError
from ramet.core.mcp.server_entry import McpServer
from ramet.host.mcp import elicitation, progress_filter, server_queries
from ramet.host.mcp.address_streams import address_streams
from ramet.host.mcp.address_transport import MAX_MESSAGE_BYTES, MAX_PARTS, NO_CONNECTION
from ramet.host.mcp.call_clocks import CallClocks
from ramet.host.mcp.call_results import MAX_SHOWN, reason_of, result_of
from ramet.host.mcp.logins.login_store import LoginStore
from ramet.tools.mcp.connection_port import (
    Feature,
    ListedPrompt,
    ListedResource,
    ListedTool,
    McpResult,
    OnProgress,
    SendMessage,
    ServerRights,
)
from ramet.wire.values.json_object import json_object

#: Seconds until a server has listed its tools, unless its own limit for an answer is shorter.
START_S: Final = 60.0
#: Seconds for the last messages to a server, from the end of its run.
LEAVE_S: Final = 2.0
MAX_TOOLS, MAX_PAGES = 2_000, 64
#: Times that a call may ask for more input, and the seconds before it is called again if it asks for nothing.
MAX_ROUNDS, ROUND_S = 10, 0.1
_MAX_ID: Final = 200

T = TypeVar("T")
_CallResult: TypeAdapter[types.CallToolResult | types.InputRequiredResult] = TypeAdapter(
    types.CallToolResult | types.InputRequiredResult
)


class _Call(NamedTuple):
    """A call that waits for the owner of the session."""

    tool: str
    arguments: Mapping[str, Any]
    result: asyncio.Future[McpResult]
    on_progress: OnProgress


class _Query(NamedTuple):
    """Another request that waits for the owner of the session."""

    name: str  #: for the reason of a failure
    send: Callable[[ClientSession], Awaitable[Any]]
    result: asyncio.Future[Any]


class ServerSession:
    """A session (`ramet.tools.mcp.connection_port.McpConnection`)."""

    def __init__(self, server: McpServer, send: SendMessage, rights: ServerRights, logins: LoginStore | None) -> None:
        self._server, self._send, self._rights, self._logins = server, send, rights, logins
        self._inlet, self._outlet = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        self._calls: asyncio.Queue[_Call | _Query | None] = asyncio.Queue()  #: None: the server has ended
        self._open_calls: set[asyncio.Future[Any]] = set()
        self._features: frozenset[Feature] = frozenset()
        self._tools: asyncio.Future[tuple[ListedTool, ...]] = asyncio.get_running_loop().create_future()
        self._tools.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._failure: McpServerFailed | None = None
        self._clocks, self._progress = CallClocks(), progress_filter.ProgressFilter()
        self._elicitation = elicitation.Elicitation(rights.ask, self._clocks)
        self._questions: set[asyncio.Task[None]] = set()

    # ---- the owner

    async def run(self) -> None:
        """Keep the session until the server has ended. Raises McpServerFailed for what ended it."""
        owner = asyncio.create_task(self._own())
        try:
            await asyncio.wait({owner})
        finally:
            while not owner.done():  # It cancels its calls at the server, which may not listen: then it is cut off.
                owner.cancel()
                await asyncio.wait({owner}, timeout=LEAVE_S)
            if not owner.cancelled():
                owner.exception()
        raise self._failed()

    async def _own(self) -> None:
        start_s = min(START_S, self._server.timeout_s)
        try:
            async with AsyncExitStack() as stack:
                async with asyncio.timeout(start_s):
                    client = Client(self._transport(), cache=None, elicitation_callback=_elicit_here)
                    await stack.enter_async_context(client)
                    tools = await self._list_tools(client)
                    self._features = server_queries.features_of(client.server_capabilities)
                if not self._tools.done():
                    self._tools.set_result(tools)
                await self._run_calls(client.session)
        except TimeoutError:
            self.end(f"it did not list its tools within {start_s:g} s")
        except Exception as error:
            self.end(reason_of(error))
        finally:
            self.end("its connection was closed")
            self._outlet.close()
            for question in self._questions:
                question.cancel()
            for call in self._open_calls:
                if not call.done():
                    call.set_exception(self._failed())

    @asynccontextmanager
    async def _transport(self) -> AsyncGenerator[tuple[Any, Any]]:
        if not self._server.url:
            yield self._outlet, _Outgoing(self._send)
            return
        async with address_streams(self._server, self._rights, logins=self._logins, on_violation=self.end) as streams:

            async def send(message: bytes) -> None:
                parsed = types.jsonrpc_message_adapter.validate_json(message, by_name=False)
                await streams.outgoing.send(SessionMessage(parsed))

            self._send = send
            receiving = asyncio.create_task(self._receive_all(streams.incoming))
            try:
                yield self._outlet, streams.outgoing
            finally:
                receiving.cancel()
                await asyncio.wait({receiving})

    async def _receive_all(self, incoming: Any) -> None:
        """Take the messages of an address until it has no more. What goes wrong ends the session."""
        try:
            await self._receive_each(incoming)
        except Exception as error:
            self.end(reason_of(error))

    async def _receive_each(self, incoming: Any) -> None:
        async for item in incoming:
            if isinstance(item, Exception):  # A line that is no message, and answers none.
                continue
            match item.message:
                case types.JSONRPCNotification() as told:
                    if told.method == progress_filter.METHOD and self._progress.is_shown(told.params):
                        await self._pass_on(told)
                case types.JSONRPCRequest() as asked:
                    method = await self._refuse(asked.method[:MAX_SHOWN], asked.id, asked.params or {})
                    if method:
                        self._rights.on_refused(method)
                case _:
                    await self._pass_on(item.message)

    async def _list_tools(self, client: Client) -> tuple[ListedTool, ...]:
        """Return the tools of all pages, up to the bounds; the session's own method would also read their schemas."""
        session, capabilities = client.session, client.server_capabilities
        if capabilities.tools is None and server_queries.features_of(capabilities):
            return ()
        tools: list[ListedTool] = []
        cursor: str | None = None
        size = 0
        for _ in range(MAX_PAGES):
            params = types.PaginatedRequestParams(cursor=cursor) if cursor is not None else None
            if self._server.url:  # Names of headers for arguments are in the schemas.
                page = await session.list_tools(params=params)
            else:
                page = await session.send_request(types.ListToolsRequest(params=params), types.ListToolsResult)
            listed = [server_queries.listed_tool(each) for each in page.tools]
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
        name, limit_s = self._server.name, self._server.timeout_s
        try:
            async with self._clocks.limit_time(limit_s):
                result = result_of(await self._converse(session, call))
        except TimeoutError:
            return _fail(call, McpServerFailed(name, f"{call.tool[:MAX_SHOWN]} did not answer within {limit_s:g} s"))
        except MCPError as error:
            if error.code == types.CONNECTION_CLOSED and self._failure is not None:
                return _fail(call, self._failed())
            if error.code in (types.CONNECTION_CLOSED, NO_CONNECTION):  # Of one request: the next one may work.
                return _fail(call, McpServerFailed(name, error.message[:MAX_SHOWN]))
            result = McpResult(f"error {error.code}: {error.message}", is_error=True)
        except McpServerFailed as failure:
            return _fail(call, failure)
        except Exception as error:
            return _fail(call, McpServerFailed(name, reason_of(error)))
        if not call.result.done():
            call.result.set_result(result)

    async def _converse(self, session: ClientSession, call: _Call) -> types.CallToolResult:
        """Call a tool, and answer what its server asks before it goes on. Raises McpServerFailed, and others."""

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            call.on_progress(progress, total, (message or "")[:MAX_SHOWN])

        responses: dict[str, Any] | None = None
        state: str | None = None
        for round in range(MAX_ROUNDS):
            params = types.CallToolRequestParams(
                name=call.tool, arguments=dict(call.arguments), input_responses=responses, request_state=state
            )
            result = await session.send_request(
                types.CallToolRequest(params=params), _CallResult, progress_callback=on_progress
            )
            if isinstance(result, types.CallToolResult):
                return result
            state, requests = result.request_state, result.input_requests or {}
            if not requests:
                await asyncio.sleep(ROUND_S * (round + 1))
            responses = {key: await self._input(each) for key, each in requests.items()} or None
        raise McpServerFailed(self._server.name, f"{call.tool[:MAX_SHOWN]} asked for more input {MAX_ROUNDS} times")

    async def _input(self, request: types.InputRequest) -> types.ElicitResult:
        """Return a person's answer to what a call needs. Raises McpServerFailed for what a server may not ask for."""
        if not isinstance(request, types.ElicitRequest):
            self._rights.on_refused(request.method)
            raise McpServerFailed(self._server.name, f"it asked for {request.method!r}, and was refused")
        params = request.params.model_dump(by_alias=True, mode="json", exclude_none=True)
        return types.ElicitResult.model_validate(await self._elicitation.answer(params))

    async def _run_query(self, session: ClientSession, query: _Query) -> None:
        name, limit_s = self._server.name, self._server.timeout_s
        try:
            async with asyncio.timeout(limit_s):
                outcome = await query.send(session)
        except TimeoutError:
            return _fail(query, McpServerFailed(name, f"{query.name[:MAX_SHOWN]} did not answer within {limit_s:g} s"))
        except Exception as error:
            is_closed = isinstance(error, MCPError) and error.code == types.CONNECTION_CLOSED
            failure = self._failed() if is_closed and self._failure is not None else None
            return _fail(query, failure or McpServerFailed(name, reason_of(error)))
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
            params = data["params"] if isinstance(data.get("params"), dict) else {}
            if "id" in data:
                return await self._refuse(str(method)[:MAX_SHOWN], data["id"], params)
            if method != progress_filter.METHOD or not self._progress.is_shown(params):
                return ""  # Nothing here depends on a notification: the tools are those of the start.
        try:
            parsed = types.jsonrpc_message_adapter.validate_python(data, by_name=False)
        except (ValidationError, RecursionError):
            raise self._broken("it sent a message that is none of JSON-RPC") from None
        await self._pass_on(parsed)
        return ""

    async def _pass_on(self, message: types.JSONRPCMessage) -> None:
        try:
            await self._inlet.send(SessionMessage(message))
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise self._failed() from None

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

    async def call(self, tool: str, arguments: Mapping[str, Any], on_progress: OnProgress) -> McpResult:
        """Call a tool of the server. Raises McpServerFailed."""
        return await self._wait(lambda result: _Call(tool, arguments, result, on_progress))

    def offers(self, feature: Feature) -> bool:
        """Return whether the server said that it has this. False before its tools are known."""
        return feature in self._features

    async def resources(self) -> tuple[ListedResource, ...]:
        """Return the resources of the server, and templates. Raises McpServerFailed."""
        return await self._query("its list of resources", server_queries.list_resources)

    async def read_resource(self, uri: str) -> McpResult:
        """Return the text of a resource. Raises McpServerFailed."""
        return await self._query(uri, partial(server_queries.read_resource, uri=uri))

    async def prompts(self) -> tuple[ListedPrompt, ...]:
        """Return the prompts of the server. Raises McpServerFailed."""
        return await self._query("its list of prompts", server_queries.list_prompts)

    async def prompt(self, name: str, arguments: Mapping[str, str]) -> McpResult:
        """Return the text of a prompt with its arguments. Raises McpServerFailed."""
        return await self._query(name, partial(server_queries.get_prompt, name=name, arguments=arguments))

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

    async def _refuse(self, method: str, request_id: object, params: Mapping[str, Any]) -> str:
        """Answer a request of the server before its next message is read, unless a person has to: none can gather."""
        is_id = isinstance(request_id, str) and len(request_id) <= _MAX_ID
        if not is_id and (not isinstance(request_id, int) or isinstance(request_id, bool)):
            raise self._broken("it sent a request without a usable id")
        if method == elicitation.METHOD and len(self._questions) < elicitation.MAX_QUESTIONS:
            task = asyncio.create_task(self._ask_person(request_id, params))
            self._questions.add(task)
            task.add_done_callback(self._questions.discard)
            return ""
        if method == "ping":
            await self._respond(request_id, result={})
            return ""
        message = "this client offers nothing that a server could ask for, except elicitation"
        await self._respond(request_id, error={"code": types.METHOD_NOT_FOUND, "message": message})
        return method

    async def _ask_person(self, request_id: object, params: Mapping[str, Any]) -> None:
        with suppress(McpServerFailed, RametError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            try:
                answer: dict[str, Any] = {"result": await self._elicitation.answer(params)}
            except InvalidValue as refusal:
                answer = {"error": {"code": types.INVALID_PARAMS, "message": str(refusal)[:MAX_SHOWN]}}
            await self._respond(request_id, **answer)

    async def _respond(self, request_id: object, **answer: Any) -> None:
        await self._send(msgspec.json.encode({"jsonrpc": "2.0", "id": request_id, **answer}))

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


async def _elicit_here(context: ClientRequestContext, params: types.ElicitRequestParams) -> types.ElicitResult:
    """Stand for the right to ask a person, which is told to servers; the questions do not come here."""
    return types.ElicitResult(action="decline")


def _cancel_abandoned(task: asyncio.Task[None], result: asyncio.Future[Any]) -> None:
    """End a call that nobody waits for any more; its server is told."""
    if result.cancelled():
        task.cancel()


def _fail(call: _Call | _Query, error: McpServerFailed) -> None:
    if not call.result.done():
        call.result.set_exception(error)
