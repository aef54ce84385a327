"""A session with one server of the Model Context Protocol, over messages that others carry, or over HTTP.

One task owns a session: it enters the client of the package `mcp`, runs every call, and leaves the client. Other tasks
only put calls into its queue. The server is hostile: of its messages, answers alone reach the client, each bounded in
bytes and in parts, and reports of progress, thinned out. Of its requests, a person is asked its questions, one after
the other; all others are refused here. Its schemas are not compiled, and no answer is checked against them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from types import TracebackType
from typing import Any, Final

import anyio
import mcp_types as types
import msgspec
from mcp import Client
from mcp.client.session import ClientRequestContext
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from ramet.core.errors import InvalidValue, McpServerFailed, ProtocolError, RametError
from ramet.core.mcp.server_entry import McpServer
from ramet.host.mcp import elicitation, progress_filter, server_queries
from ramet.host.mcp.address_streams import address_streams
from ramet.host.mcp.address_transport import MAX_MESSAGE_BYTES, MAX_PARTS
from ramet.host.mcp.call_results import MAX_SHOWN, reason_of
from ramet.host.mcp.logins.login_store import LoginStore
from ramet.host.mcp.session_callers import CallerState, SessionCallers
from ramet.host.mcp.session_calls import SessionCalls
from ramet.tools.mcp.connection_port import (
    Feature,
    ListedPrompt,
    ListedResource,
    ListedTool,
    McpCaller,
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
_MAX_ID: Final = 200


class ServerSession:
    """A session (`ramet.tools.mcp.connection_port.OwnedConnection`)."""

    def __init__(self, server: McpServer, send: SendMessage, rights: ServerRights, logins: LoginStore | None) -> None:
        self._server, self._send, self._rights, self._logins = server, send, rights, logins
        self._inlet, self._outlet = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        self._callers = SessionCallers(rights.caller)
        self._calls = SessionCalls(server, self._callers, self._failure_now, rights.on_refused)
        self._features: frozenset[Feature] = frozenset()
        self._tools: asyncio.Future[tuple[ListedTool, ...]] = asyncio.get_running_loop().create_future()
        self._tools.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._failure: McpServerFailed | None = None
        self._progress = progress_filter.ProgressFilter()

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
                await self._calls.run(client.session)
        except TimeoutError:
            self.end(f"it did not list its tools within {start_s:g} s")
        except Exception as error:
            self.end(reason_of(error))
        finally:
            self.end("its connection was closed")
            self._outlet.close()
            self._callers.cancel_questions()
            self._calls.fail_open()

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
            owner = asyncio.current_task()
            assert owner is not None, "a task owns the session"
            receiving = asyncio.create_task(self._receive_all(streams.incoming, owner))
            try:
                yield self._outlet, streams.outgoing
            finally:
                receiving.cancel()
                await asyncio.wait({receiving})

    async def _receive_all(self, incoming: Any, owner: asyncio.Task[None]) -> None:
        """Take the messages of an address until it has no more, which ends the session, as does what goes wrong.

        The transport ends its messages without an error if it fails to send one that has no answer. For any other
        failure it cancels its owner, which then gets the reason.
        """
        try:
            await self._receive_each(incoming)
        except Exception as error:
            self.end(reason_of(error))
        if not owner.cancelling():
            self.end("its connection broke off")

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
        self._calls.end()
        if not self._tools.done():
            self._tools.set_exception(self._failed())

    async def tools(self) -> tuple[ListedTool, ...]:
        """Wait for the tools of the server. Raises McpServerFailed."""
        return await asyncio.shield(self._tools)

    async def call(
        self, tool: str, arguments: Mapping[str, Any], on_progress: OnProgress, caller: McpCaller | None = None
    ) -> McpResult:
        """Call a tool of the server. Raises McpServerFailed."""
        return await self._calls.call(tool, arguments, on_progress, caller)

    def drop(self, caller: McpCaller) -> None:
        """Cancel the questions of a caller that has ended."""
        self._callers.drop(caller)

    def offers(self, feature: Feature) -> bool:
        """Return whether the server said that it has this. False before its tools are known."""
        return feature in self._features

    async def resources(self) -> tuple[ListedResource, ...]:
        """Return the resources of the server, and templates. Raises McpServerFailed."""
        return await self._calls.query("its list of resources", server_queries.list_resources)

    async def read_resource(self, uri: str) -> McpResult:
        """Return the text of a resource. Raises McpServerFailed."""
        return await self._calls.query(uri, partial(server_queries.read_resource, uri=uri))

    async def prompts(self) -> tuple[ListedPrompt, ...]:
        """Return the prompts of the server. Raises McpServerFailed."""
        return await self._calls.query("its list of prompts", server_queries.list_prompts)

    async def prompt(self, name: str, arguments: Mapping[str, str]) -> McpResult:
        """Return the text of a prompt with its arguments. Raises McpServerFailed."""
        return await self._calls.query(name, partial(server_queries.get_prompt, name=name, arguments=arguments))

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
        if method == elicitation.METHOD:
            asked = self._callers.find_asked()
            if asked is not None and asked.can_be_asked:
                asked.start_question(self._ask_person(asked, request_id, params))
                return ""
        if method == "ping":
            await self._respond(request_id, result={})
            return ""
        message = "this client offers nothing that a server could ask for, except elicitation"
        if method == elicitation.METHOD:
            message = "too many questions wait for an answer, or nobody can tell which agent this one is for"
        await self._respond(request_id, error={"code": types.METHOD_NOT_FOUND, "message": message})
        return method

    async def _ask_person(self, asked: CallerState, request_id: object, params: Mapping[str, Any]) -> None:
        with suppress(McpServerFailed, RametError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            try:
                answer: dict[str, Any] = {"result": await asked.elicitation.answer(params)}
            except InvalidValue as refusal:
                answer = {"error": {"code": types.INVALID_PARAMS, "message": str(refusal)[:MAX_SHOWN]}}
            except asyncio.CancelledError:  # Its agent has ended: the server must not wait for it.
                if self._failure is None:
                    await self._respond(request_id, result={"action": "cancel"})
                raise
            await self._respond(request_id, **answer)

    async def _respond(self, request_id: object, **answer: Any) -> None:
        await self._send(msgspec.json.encode({"jsonrpc": "2.0", "id": request_id, **answer}))

    def _broken(self, reason: str) -> McpServerFailed:
        """End the session for a violation of the protocol, and return the error."""
        self.end(reason)
        return self._failed()

    def _failure_now(self) -> McpServerFailed | None:
        return self._failed() if self._failure is not None else None

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
