"""The connection to one server of the Model Context Protocol, as the host of a run uses it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, NamedTuple, Protocol

from ramet.core.mcp.server_entry import McpServer

Feature = Literal["resources", "prompts"]
#: Sends one message to the server, without the end of its line.
SendMessage = Callable[[bytes], Awaitable[None]]


class ListedTool(NamedTuple):
    """A tool as its server lists it: not checked yet."""

    name: str
    description: str
    schema: Mapping[str, Any]


class ListedResource(NamedTuple):
    """A resource as its server lists it, or a template of the addresses of resources."""

    uri: str
    name: str
    description: str = ""
    mime_type: str = ""
    is_template: bool = False


class PromptArgument(NamedTuple):
    """An argument of a prompt."""

    name: str
    description: str = ""
    is_required: bool = False


class ListedPrompt(NamedTuple):
    """A prompt as its server lists it."""

    name: str
    description: str = ""
    arguments: tuple[PromptArgument, ...] = ()


class McpResult(NamedTuple):
    """The result of a call, as text for a model."""

    text: str
    is_error: bool = False


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

    def offers(self, feature: Feature) -> bool:
        """Return whether the server said that it has this. False before its tools are known."""

    async def resources(self) -> tuple[ListedResource, ...]:
        """Return the resources of the server, and templates. Raises McpServerFailed."""

    async def read_resource(self, uri: str) -> McpResult:
        """Return the text of a resource. Raises McpServerFailed."""

    async def prompts(self) -> tuple[ListedPrompt, ...]:
        """Return the prompts of the server. Raises McpServerFailed."""

    async def prompt(self, name: str, arguments: Mapping[str, str]) -> McpResult:
        """Return the text of a prompt with its arguments. Raises McpServerFailed."""


class ServerPrompts(Protocol):
    """The prompts of the servers that run in a sandbox, while they run."""

    async def list_prompts(self, server: str) -> tuple[ListedPrompt, ...]:
        """Return the prompts of a server; none if it does not offer any. Raises McpServerFailed and Unknown."""

    async def render_prompt(self, server: str, name: str, arguments: Mapping[str, str]) -> str:
        """Return the text of a prompt. Raises McpServerFailed and Unknown."""


class McpClient(Protocol):
    """The client of the protocol."""

    def check(self) -> None:
        """Raise MissingExtra if the client's package is not installed."""

    async def open(self, server: McpServer, send: SendMessage) -> McpConnection:
        """Return a connection to a server, which nobody owns yet. Raises MissingExtra."""
