"""The connections of one sandbox to the servers of the Model Context Protocol that run in it.

The guest starts programs, and carries their messages; the host connects to addresses itself. The host has the sessions:
see `McpConnection`. The request with which a guest connects a server lasts as long as the connection, and its task owns
the session. A server that fails costs its tools, and no turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final

from ramet.agent.toolset import allows_resources_of, resource_tools
from ramet.core.errors import Aborted, InvalidValue, McpServerFailed, ProtocolError, RametError, Unknown
from ramet.core.events import EndpointAsked, Notice, ToolProgressed
from ramet.core.mcp.server_entry import PREFIX, McpServer
from ramet.core.tool_names import TOOL_SEARCH
from ramet.spawn.masking import masked_text
from ramet.spawn.mcp.resource_tools import ResourceTools
from ramet.spawn.mcp.tool_list import ToolList, definitions_json, without_server_tools
from ramet.spawn.run import Run
from ramet.tools.agents.report_framing import FLAG, neutralise
from ramet.tools.mcp.answer_form import Value
from ramet.tools.mcp.connection_port import (
    ListedPrompt,
    ListedTool,
    McpCaller,
    McpConnection,
    McpResult,
    OnProgress,
    OwnedConnection,
    ServerQuestion,
    ServerRights,
)
from ramet.wire.guest_protocol.guest_to_host import CallMcpTool, ConnectMcpServer, PassMcpMessage
from ramet.wire.values.json_object import json_body

MAX_ARGUMENTS: Final = 1024 * 1024
#: Seconds until all servers have listed their tools, or have failed.
WAIT_S: Final = 90.0
_MAX_NOTICE, _MAX_PROGRESS = 1_000, 300
_MAX_REFUSED: Final = 8  #: methods of one server that are reported


class _ServerState:
    """The state of one server in a sandbox."""

    def __init__(self, entry: McpServer) -> None:
        self.entry = entry
        self.is_connected = False  #: by a request of the guest, now or before
        self.has_failed = False  #: before its session began, which is reported
        self.connection: asyncio.Future[McpConnection] = asyncio.get_running_loop().create_future()
        self.connection.add_done_callback(lambda done: done.cancelled() or done.exception())
        self.session: OwnedConnection | None = None  #: the connection, unless other agents share it
        self.refused_methods: set[str] = set()

    def fail(self, reason: str) -> None:
        """End the wait for a connection, or the connection."""
        if not self.connection.done():
            self.connection.set_exception(McpServerFailed(self.entry.name, reason))
        elif not self.connection.cancelled() and self.connection.exception() is None:
            self.connection.result().end(reason)

    async def wait_open(self) -> McpConnection:
        """Wait for the connection. Raises McpServerFailed."""
        return await asyncio.shield(self.connection)


class McpConnections:
    """The connections of one sandbox, whose guest is hostile. They end with its channel."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._servers = {each.name: _ServerState(each) for each in run.agent.mcp_servers}
        self._calls: dict[int, asyncio.Future[McpResult]] = {}  #: by the number of their request
        self._abandoned: set[int] = set()  #: of these, by the guest
        self._tools = ToolList(run, self._report)
        self._looking = asyncio.Lock()  #: at definitions of tools, for a list of them or a search
        self._resources: ResourceTools | None = None  #: if the run may use resources of a server
        run.sandbox.server_prompts = self

    async def connect(
        self, request: ConnectMcpServer, send: Callable[[bytes], Awaitable[None]], *, sandbox: str = ""
    ) -> None:
        """Own the session with a server until the server ends. Raises McpServerFailed, ProtocolError.

        `sandbox` is the name of the server whose own sandbox requests it; empty: the sandbox of the agent does.
        """
        server, client = self._find(request.server, sandbox), self._run.sandbox.mcp_client
        if server.is_connected:
            raise ProtocolError(f"a second connection to the MCP server {server.entry.name!r}")
        server.is_connected = True
        try:
            if client is None:
                raise McpServerFailed(server.entry.name, "this tree has no client for it")
            connection = await client.open(server.entry, send, self._rights_of(server))
            if server.connection.done():
                connection.end("it ended before its connection began")
            else:
                server.session = connection
                server.connection.set_result(connection)
            await connection.run()
        except McpServerFailed as failure:
            if not server.has_failed:
                self._report(str(failure))
            raise
        finally:
            server.fail("its connection was closed")

    async def end(self, name: str, reason: str) -> None:
        """Take the end of the sandbox of a server."""
        server = self._servers[name]
        if not server.connection.done() and not self._run.context.abort.aborted:
            server.has_failed = True
            self._report(str(McpServerFailed(name, reason)))
        server.fail(reason)

    async def receive(self, request: PassMcpMessage, body: bytes, *, sandbox: str = "") -> None:
        """Take a message of a server, or its end. Raises McpServerFailed, ProtocolError."""
        server = self._find(request.server, sandbox)
        if request.end:
            return await self.end(server.entry.name, request.end)
        if server.entry.url:
            raise ProtocolError(f"a message of the MCP server {server.entry.name!r}, to which the host connects")
        await server.wait_open()
        assert server.session is not None, "its guest connected it"
        self._on_refused(server, await server.session.receive(body))

    def _rights_of(self, server: _ServerState) -> ServerRights:
        run, grant = self._run, self._run.grant
        assert grant is not None, "a run in a sandbox has a grant"
        values = {**grant.secrets, **run.sandbox.variables()}

        def on_endpoint(host: str, port: int, is_allowed: bool, reason: str) -> None:
            run.context.emit(EndpointAsked, host=host, port=port, allowed=is_allowed, reason=reason)

        return ServerRights(
            endpoints=grant.allowed_endpoints,
            value_of=values.get,
            on_endpoint=on_endpoint,
            caller=self._caller_of(server),
            on_refused=partial(self._on_refused, server),
        )

    def join(self, name: str, open_shared: Callable[[McpCaller], McpConnection]) -> None:
        """Use a server that other agents of the tree use, too; a failure costs its tools."""
        server = self._servers[name]
        server.is_connected = True
        try:
            server.connection.set_result(open_shared(self._caller_of(server)))
        except RametError as refusal:
            server.fail(str(refusal))

    def leave(self, name: str) -> None:
        """Use such a server no longer."""
        self._servers[name].fail("the process of its agent has ended")

    def _caller_of(self, server: _ServerState) -> McpCaller:
        return McpCaller(partial(self._ask, server))

    def _on_refused(self, server: _ServerState, method: str) -> None:
        if method and method not in server.refused_methods and len(server.refused_methods) < _MAX_REFUSED:
            server.refused_methods.add(method)
            self._report(f"the MCP server {server.entry.name!r} asked for {method!r}, and was refused")

    async def list_tools(self) -> bytes:
        """Wait for the servers, give the run what its agent may use of them, and return the definitions as JSON."""
        context = self._run.context
        listed = await self._listed()
        async with self._looking:
            context.tools = without_server_tools(context.tools)
            self._resources = self._resource_tools([server for server, _ in listed])
            await self._tools.fill([(server.entry, tools) for server, tools in listed])
        return definitions_json(context.tools)

    def _resource_tools(self, servers: Iterable[_ServerState]) -> ResourceTools | None:
        """Give the run the tools for resources that its agent may use, if a server has resources."""
        agent, context = self._run.agent, self._run.context
        names = resource_tools(agent) - {each.name for each in context.tools}
        connections = {
            each.entry.name: each.connection.result()
            for each in servers
            if allows_resources_of(agent, each.entry) and each.connection.result().offers("resources")
        }
        if not names or not connections:
            return None
        tools = ResourceTools(connections)
        context.tools = (*context.tools, *(each for each in tools.definitions() if each.name in names))
        return tools

    async def list_prompts(self, server: str) -> tuple[ListedPrompt, ...]:
        """Return the prompts of a server; none if it does not offer any. Raises McpServerFailed and Unknown."""
        connection = await self._find_for_host(server)
        return await connection.prompts() if connection.offers("prompts") else ()

    async def render_prompt(self, server: str, name: str, arguments: Mapping[str, str]) -> str:
        """Return the text of a prompt. Raises McpServerFailed and Unknown."""
        result = await (await self._find_for_host(server)).prompt(name, arguments)
        if result.is_error:
            raise McpServerFailed(server, result.text)
        return result.text

    async def _find_for_host(self, server: str) -> McpConnection:
        if server not in self._servers:
            raise Unknown("MCP server", server, tuple(self._servers))
        connection = await self._servers[server].wait_open()
        await connection.tools()  # Before, it has not said what it offers.
        return connection

    async def _listed(self) -> list[tuple[_ServerState, tuple[ListedTool, ...]]]:
        """Return the tools of each server; a server that is not ready in time has none."""
        listed: list[tuple[_ServerState, tuple[ListedTool, ...]]] = []
        with suppress(TimeoutError):
            async with asyncio.timeout(WAIT_S):
                for server in self._servers.values():
                    try:
                        listed.append((server, await (await server.wait_open()).tools()))
                    except McpServerFailed as failure:
                        if server.entry.shared:  # Nobody else reports it here.
                            self._report(str(failure))
        return listed

    async def call(self, request: CallMcpTool, arguments: Mapping[str, Any]) -> tuple[McpResult, bytes]:
        """Call a tool of a server, the search for them, or a tool for resources.

        The text of the result cannot pass for a frame or for instructions. The bytes are definitions of tools that the
        run has from now on, as JSON. Raises McpServerFailed, Unknown and InvalidValue, and Aborted if the guest
        abandons the call.
        """
        if (size := len(json_body(arguments, "arguments"))) > MAX_ARGUMENTS:
            raise InvalidValue("arguments", f"{size} bytes", f"at most {MAX_ARGUMENTS} bytes of JSON")
        if request.tool == TOOL_SEARCH and self._tools.has_search:
            async with self._looking:
                result, definitions = await self._tools.search(arguments)
            return _framed(result), definitions
        call = asyncio.ensure_future(self._result_of(request, arguments))
        self._calls[request.id] = call
        try:
            result = await call
        except asyncio.CancelledError:
            if request.id in self._abandoned:
                raise Aborted("its caller waits no more") from None
            raise
        except McpServerFailed as failure:  # Its reason may be the server's own text.
            raise McpServerFailed(failure.server, neutralise(failure.reason)[0]) from None
        finally:
            call.cancel()
            del self._calls[request.id]
            self._abandoned.discard(request.id)
        return _framed(result), b""

    async def _result_of(self, request: CallMcpTool, arguments: Mapping[str, Any]) -> McpResult:
        if self._resources is not None and request.tool in resource_tools(self._run.agent):
            return await self._resources.call(request.tool, arguments)
        origin = self._tools.origin(request.tool)
        connection = await self._servers[origin.server].wait_open()
        return await connection.call(origin.tool, arguments, self._progress_of(request))

    def abandon(self, request: int) -> bool:
        """Cancel a call, also at its server; return False if there is no such call."""
        call = self._calls.get(request)
        if call is None:
            return False
        self._abandoned.add(request)
        return call.cancel()

    def _progress_of(self, request: CallMcpTool) -> OnProgress:
        def on_progress(done: float, total: float | None, text: str) -> None:
            run = self._run
            run.context.emit(
                ToolProgressed,
                call_id=request.call_id or None,
                tool=request.tool,
                done=done,
                total=total,
                text=masked_text(run, text, _MAX_PROGRESS),
            )

        return on_progress

    async def _ask(self, server: _ServerState, question: ServerQuestion) -> dict[str, Value] | None:
        """Return what a person answers in the inbox of the tree; None: nobody did, or not what the server asked for."""
        context = self._run.context
        if context.approve is None:
            return None
        form = question.form if question.form is not None and question.form.fields else None
        shown = form.describe() if form is not None else {}
        masked = {masked_text(self._run, name): masked_text(self._run, text) for name, text in shown.items()}
        fields: dict[str, Any] = {"fields": masked} if form is not None else {}
        what = "asks"
        if question.url:
            fields, what = (
                {"url": masked_text(self._run, question.url)},
                "asks you to visit an address, which nothing here opens",
            )
        text = f"the MCP server {server.entry.name!r} {what}: {masked_text(self._run, question.message)}"
        if form is not None:
            text += "\nAnswer with a JSON object of the fields, as the reason of an approval."
        approval = await context.approve(
            context,
            tool=f"{PREFIX}{server.entry.name}",
            question=text,
            args=fields,
            check=form.parse if form is not None else None,
        )
        if form is None or not approval:
            return {} if approval else None
        with suppress(InvalidValue):  # Of a hook, or of an approver: they can only consent.
            return form.parse(approval.reason)
        return None

    def _find(self, name: str, sandbox: str) -> _ServerState:
        server = self._servers.get(name)
        is_in_agent = server is not None and server.entry.runs_with_agent
        if server is None or server.entry.shared or ("" if is_in_agent else name) != sandbox:
            raise ProtocolError(f"an MCP server that this run does not have: {name[:100]!r}")
        return server

    def _report(self, text: str) -> None:
        self._run.context.emit(Notice, text=masked_text(self._run, text, _MAX_NOTICE))


def _framed(result: McpResult) -> McpResult:
    """Return a result whose text cannot pass for a frame or for instructions."""
    text, imitated = neutralise(result.text)
    return result._replace(text=f"{text}\n\n{FLAG}" if imitated else text)
