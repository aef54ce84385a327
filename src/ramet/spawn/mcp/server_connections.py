"""The connections of one sandbox to the servers of the Model Context Protocol that run in it.

The guest starts the servers, and carries their messages. The host has the sessions: see `McpConnection`. The request
with which a guest connects a server lasts as long as the connection, and its task owns the session. A server that
fails costs its tools, and no turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import msgspec
from langchain_core.tools import BaseTool
from pydantic import ValidationError

from ramet.agent.toolset import allows_resources_of, allows_server_tool, allows_tool_search, resource_tools
from ramet.core.errors import InvalidValue, McpServerFailed, ProtocolError, Unknown
from ramet.core.events import Notice, ToolsLoaded
from ramet.core.mcp.server_entry import McpServer
from ramet.core.tool_names import TOOL_SEARCH
from ramet.spawn.masking import masked_text
from ramet.spawn.mcp.resource_tools import ResourceTools
from ramet.spawn.mcp.tool_definitions import ServerTool, definition_of
from ramet.spawn.mcp.tool_search import OfferedTool, SearchArguments, ToolCatalogue, is_deferred
from ramet.spawn.run import Run
from ramet.tools.agents.report_framing import FLAG, neutralise
from ramet.tools.arguments import mistakes
from ramet.tools.mcp.connection_port import ListedPrompt, ListedTool, McpConnection, McpResult
from ramet.wire.guest_protocol.guest_to_host import CallMcpTool, ConnectMcpServer, PassMcpMessage
from ramet.wire.values.json_object import json_object

#: Tools of all servers that the model of a run sees, and bytes of their definitions: parts of every request to it.
MAX_TOOLS, MAX_DEFINITION_BYTES = 100, 256 * 1024
#: Tools of all servers that are looked at, whether the agent may use them or not.
MAX_LISTED: Final = 4_000
MAX_ARGUMENTS: Final = 1024 * 1024
#: Seconds until all servers have listed their tools, or have failed.
WAIT_S: Final = 90.0
_MAX_NOTICE: Final = 1_000
_MAX_REFUSED: Final = 8  #: methods of one server that are reported


class _ServerState:
    """The state of one server in a sandbox."""

    def __init__(self, entry: McpServer) -> None:
        self.entry = entry
        self.is_connected = False  #: by a request of the guest, now or before
        self.has_failed = False  #: before its session began, which is reported
        self.connection: asyncio.Future[McpConnection] = asyncio.get_running_loop().create_future()
        self.connection.add_done_callback(lambda done: done.cancelled() or done.exception())
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


class _Origin(NamedTuple):
    """The place of a tool: its server, and its name there."""

    server: _ServerState
    tool: str


class _LeftOut(NamedTuple):
    """A tool that the run does not get."""

    server: str
    name: str
    refusal: InvalidValue

    @property
    def text(self) -> str:
        """The name, and the reason."""
        return f"{self.name[:100]} ({self.refusal.field}: {self.refusal.accepted})"


class McpConnections:
    """The connections of one sandbox, whose guest is hostile. They end with its channel."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._servers = {each.name: _ServerState(each) for each in run.agent.mcp_servers}
        self._origins: dict[str, _Origin] = {}  #: by the name that a model calls
        self._definitions: dict[str, ServerTool] = {}  #: of the tools that the model sees, besides the search
        self._catalogue: ToolCatalogue | None = None  #: if tools are found first
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
            connection = await client.open(server.entry, send)
            if server.connection.done():
                connection.end("it ended before its connection began")
            else:
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
        method = await (await server.wait_open()).receive(body)
        if method and method not in server.refused_methods and len(server.refused_methods) < _MAX_REFUSED:
            server.refused_methods.add(method)
            self._report(f"the MCP server {server.entry.name!r} asked for {method!r}, and was refused")

    async def list_tools(self) -> bytes:
        """Wait for the servers, give the run the tools that its agent may use, and return their definitions as JSON.

        With many tools, these are the search, and the tools that its model has found until now.
        """
        agent, context, found = self._run.agent, self._run.context, self._run.sandbox.loaded_tools
        context.tools = without_server_tools(context.tools)
        self._definitions.clear()
        listed = await self._listed()
        self._resources = self._resource_tools([server for server, _ in listed])
        offered, refused = self._offered(listed)
        can_search = allows_tool_search(agent) and all(each.name != TOOL_SEARCH for each in context.tools)
        self._catalogue = ToolCatalogue(offered) if can_search and is_deferred(agent.tool_search, offered) else None
        if self._catalogue is None:
            _, left_out = self._load(offered)
        else:
            context.tools = (*context.tools, self._catalogue.search_tool())
            _, left_out = self._load(self._catalogue.select(tuple(found)))
            self._record_loaded([each for each, is_recorded in found.items() if not is_recorded])
        self._report_left_out([*refused, *left_out])
        return _as_json(context.tools)

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

    def _offered(
        self, listed_tools: list[tuple[_ServerState, tuple[ListedTool, ...]]]
    ) -> tuple[list[OfferedTool], list[_LeftOut]]:
        """Return the tools that the agent may use, one of each name, and the others of these names."""
        offered: list[OfferedTool] = []
        self._origins.clear()
        own_names = {each.name for each in self._run.context.tools}
        left_out: list[_LeftOut] = []
        remaining = MAX_LISTED
        for server, listed in listed_tools:
            listed, remaining = listed[:remaining], max(0, remaining - len(listed))
            for each in listed:
                name = server.entry.tool_name(each.name)
                if not allows_server_tool(self._run.agent, server.entry, name):
                    continue
                if name in self._origins or name in own_names:
                    refusal = InvalidValue("name", name, "one tool of each name")
                    left_out.append(_LeftOut(server.entry.name, name, refusal))
                    continue
                self._origins[name] = _Origin(server, each.name)
                offered.append(OfferedTool(name, server.entry, each))
        return offered, left_out

    def _load(self, tools: Iterable[OfferedTool]) -> tuple[list[ServerTool], list[_LeftOut]]:
        """Add tools to those of the run, up to the bounds; return them, and those that are left out."""
        loaded: list[ServerTool] = []
        left_out: list[_LeftOut] = []
        size = sum(each.size for each in self._definitions.values())
        for each in tools:
            if each.name in self._definitions:
                continue
            try:
                if masked_text(self._run, each.name, 2 * len(each.name)) != each.name:
                    raise InvalidValue("name", "its text", "a name without a secret")
                definition = definition_of(each.server, each.listed)
                if len(self._definitions) >= MAX_TOOLS or size + definition.size > MAX_DEFINITION_BYTES:
                    accepted = f"at most {MAX_TOOLS} tools, of {MAX_DEFINITION_BYTES} bytes together"
                    raise InvalidValue("tools", each.name, accepted)
            except InvalidValue as refusal:
                left_out.append(_LeftOut(each.server.name, each.name, refusal))
                continue
            size += definition.size
            self._definitions[each.name] = definition
            loaded.append(definition)
        self._run.context.tools = (*self._run.context.tools, *loaded)
        return loaded, left_out

    def _search(self, catalogue: ToolCatalogue, arguments: Mapping[str, Any]) -> tuple[McpResult, bytes]:
        """Find tools: from now on the run has them. Return their definitions for the model, and for its guest."""
        try:
            search = SearchArguments.model_validate(arguments)
        except ValidationError as error:
            return McpResult(mistakes(TOOL_SEARCH, error), is_error=True), b""
        found = catalogue.find(search)
        if not found:
            text = f"No tool was found for {search.query!r}. Tools: {catalogue.names()}"
            return McpResult(text, is_error=True), b""
        loaded, left_out = self._load(found)
        self._record_loaded([each.name for each in loaded])
        definitions = [self._definitions[each.name] for each in found if each.name in self._definitions]
        lines = [f"Found {len(definitions)}, which you can call from your next message on:"] if definitions else []
        lines += [msgspec.json.encode(each.shown_data()).decode() for each in definitions]
        lines += [f"Cannot be used: {each.text}" for each in left_out]
        return McpResult("\n".join(lines), is_error=not definitions), _as_json(loaded) if loaded else b""

    def _record_loaded(self, names: list[str]) -> None:
        if names:
            self._run.context.emit(ToolsLoaded, tools=tuple(names))
            self._run.sandbox.loaded_tools |= dict.fromkeys(names, True)

    def _report_left_out(self, left_out: Sequence[_LeftOut]) -> None:
        for server in dict.fromkeys(each.server for each in left_out):
            text = ", ".join(each.text for each in left_out if each.server == server)
            self._report(f"tools of the MCP server {server!r} that are left out: {text}")

    async def _listed(self) -> list[tuple[_ServerState, tuple[ListedTool, ...]]]:
        """Return the tools of each server; a server that is not ready in time has none."""
        listed: list[tuple[_ServerState, tuple[ListedTool, ...]]] = []
        with suppress(TimeoutError):
            async with asyncio.timeout(WAIT_S):
                for server in self._servers.values():
                    with suppress(McpServerFailed):
                        listed.append((server, await (await server.wait_open()).tools()))
        return listed

    async def call(self, request: CallMcpTool, body: bytes) -> tuple[McpResult, bytes]:
        """Call a tool of a server, the search for them, or a tool for resources.

        The text of the result cannot pass for a frame. The bytes are definitions of tools that the run has from now on,
        as JSON. Raises McpServerFailed, Unknown and
        InvalidValue.
        """
        arguments = json_object(body, "arguments", max_bytes=MAX_ARGUMENTS)
        definitions = b""
        if request.tool == TOOL_SEARCH and self._catalogue is not None:
            result, definitions = self._search(self._catalogue, arguments)
        elif self._resources is not None and request.tool in resource_tools(self._run.agent):
            result = await self._resources.call(request.tool, arguments)
        else:
            origin = self._origins.get(request.tool)
            if origin is None or request.tool not in self._definitions:
                raise Unknown("tool", request.tool, tuple(self._definitions))
            result = await (await origin.server.wait_open()).call(origin.tool, arguments)
        text, imitated = neutralise(result.text)
        return McpResult(f"{text}\n\n{FLAG}" if imitated else text, result.is_error), definitions

    def _find(self, name: str, sandbox: str) -> _ServerState:
        server = self._servers.get(name)
        if server is None or (name if server.entry.policy is not None else "") != sandbox:
            raise ProtocolError(f"an MCP server that this run does not have: {name[:100]!r}")
        return server

    def _report(self, text: str) -> None:
        self._run.context.emit(Notice, text=masked_text(self._run, text, _MAX_NOTICE))


def _as_json(tools: Iterable[BaseTool]) -> bytes:
    """Return the definitions of the servers' tools among these, for the guest that calls them."""
    return msgspec.json.encode([each.as_data() for each in tools if isinstance(each, ServerTool)])


def without_server_tools(tools: Sequence[BaseTool]) -> tuple[BaseTool, ...]:
    """Return the tools that are of no server: a server's tools belong to one process, and nobody inherits them."""
    return tuple(each for each in tools if not isinstance(each, ServerTool))
