"""The connection to one server of the Model Context Protocol, as the host of a run uses it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, Protocol

from ramet.core.mcp.server_entry import McpServer
from ramet.core.media.blocks import Block

#: Sends one message to the server, without the end of its line.
SendMessage = Callable[[bytes], Awaitable[None]]


class ListedTool(NamedTuple):
    """A tool as its server lists it: not checked yet."""

    name: str
    description: str
    schema: Mapping[str, Any]


class McpResult(NamedTuple):
    """The result of a call, as text for a model, and its images and documents, which are not checked yet."""

    text: str
    is_error: bool = False
    files: tuple[Block, ...] = ()  #: inline blocks


class McpConnection(Protocol):
    """A connection that one task enters, uses and leaves. Every other method may be called from any task."""

    async def run(self) -> None:
        """Own the connection until the server has ended. Raises McpServerFailed for what ended it."""

    async def receive(self, message: bytes) -> str:
        """Take a message of the server; return the method that the server asked for and may not use, or "".

        Raises McpServerFailed for a message that is none.
        """

    def end(self, reason: str) -> None:
        """Take the end of the server. Idempotent."""

    async def tools(self) -> tuple[ListedTool, ...]:
        """Wait for the tools of the server. Raises McpServerFailed."""

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> McpResult:
        """Call a tool of the server. Raises McpServerFailed."""


class McpClient(Protocol):
    """The client of the protocol."""

    def check(self) -> None:
        """Raise MissingExtra if the client's package is not installed."""

    async def open(self, server: McpServer, send: SendMessage) -> McpConnection:
        """Return a connection to a server, which nobody owns yet. Raises MissingExtra."""
