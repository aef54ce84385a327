"""The two tools with which a model lists and reads the resources of its MCP servers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from pydantic import Field, ValidationError

from ramet.core.errors import McpServerFailed, Unknown
from ramet.core.mcp.server_entry import DEFAULT_TIMEOUT_S, MAX_SERVERS
from ramet.core.tool_names import LIST_MCP_RESOURCES, READ_MCP_RESOURCE
from ramet.spawn.mcp.tool_definitions import ServerTool
from ramet.tools.arguments import Arguments, mistakes
from ramet.tools.mcp.connection_port import ListedResource, McpConnection, McpResult

MAX_URI: Final = 4_000
MAX_LIST_BYTES: Final = 1024 * 1024
_SERVER: Final = {"type": "string", "description": "The name of the server."}
_LIST: Final = """List the resources of MCP servers, such as files and tables, each with its server, address (`uri`) and
name. A `uriTemplate` stands for many addresses: fill in its parts. Servers: {servers}"""
_READ: Final = "Read a resource of an MCP server by its address."


class ListArguments(Arguments):
    """The arguments of the list."""

    server: str | None = Field(default=None, max_length=MAX_URI)


class ReadArguments(Arguments):
    """The arguments of a read."""

    server: str = Field(max_length=MAX_URI)
    uri: str = Field(min_length=1, max_length=MAX_URI)


class ResourceTools:
    """The tools for the resources of the servers of one sandbox that have any."""

    def __init__(self, connections: Mapping[str, McpConnection]) -> None:
        assert len(connections) <= MAX_SERVERS
        self._connections = connections

    def definitions(self) -> tuple[ServerTool, ServerTool]:
        """Return the definitions of both tools."""
        description = _LIST.format(servers=", ".join(self._connections))
        uri = {"type": "string", "description": "The address."}
        return (
            _definition(LIST_MCP_RESOURCES, description, {"server": _SERVER}),
            _definition(READ_MCP_RESOURCE, _READ, {"server": _SERVER, "uri": uri}, required=["server", "uri"]),
        )

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> McpResult:
        """Run one of the tools. Raises McpServerFailed, and Unknown for a server that has no resources."""
        try:
            if tool == LIST_MCP_RESOURCES:
                return await self._list(ListArguments.model_validate(arguments).server)
            read = ReadArguments.model_validate(arguments)
        except ValidationError as error:
            return McpResult(mistakes(tool, error), is_error=True)
        return await self._find(read.server).read_resource(read.uri)

    async def _list(self, server: str | None) -> McpResult:
        """Return the resources, one in a line. A server that fails costs its own, unless it is asked for."""
        if server is not None:
            connections = {server: self._find(server)}
        else:
            connections = dict(self._connections)
        lines: list[str] = []
        size = 0
        for name, connection in connections.items():
            try:
                resources = await connection.resources()
            except McpServerFailed as failure:
                if server is not None:
                    raise
                lines.append(str(failure))
                continue
            for each in resources:
                line = _line(name, each)
                size += len(line)
                if size > MAX_LIST_BYTES:
                    return McpResult("\n".join([*lines, "… and more, which are left out: name a server."]))
                lines.append(line)
        return McpResult("\n".join(lines) or "There are no resources.")

    def _find(self, server: str) -> McpConnection:
        if server not in self._connections:
            raise Unknown("MCP server with resources", server[:100], tuple(self._connections))
        return self._connections[server]


def _line(server: str, resource: ListedResource) -> str:
    fields = {
        "server": server,
        "uriTemplate" if resource.is_template else "uri": resource.uri,
        "name": resource.name,
        "mimeType": resource.mime_type,
        "description": resource.description,
    }
    return msgspec.json.encode({name: each for name, each in fields.items() if each}).decode("utf-8", "replace")


def _definition(
    name: str, description: str, properties: dict[str, Any], required: list[str] | None = None
) -> ServerTool:
    schema = {
        "type": "object",
        "properties": properties,
        "required": required or [],
        "additionalProperties": False,
        "description": "",
    }
    return ServerTool(name=name, description=description, args_schema=schema, timeout_s=DEFAULT_TIMEOUT_S)
