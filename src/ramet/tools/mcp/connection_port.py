"""The connection to one server of the Model Context Protocol, as the host of a run uses it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from ramet.core.mcp.server_entry import McpServer
from ramet.core.media.blocks import Block
from ramet.tools.mcp.answer_form import AnswerForm, Value

Feature = Literal["resources", "prompts"]
#: Sends one message to the server, without the end of its line.
SendMessage = Callable[[bytes], Awaitable[None]]


#: Takes a decision about a connection: host, port, whether it is allowed, and why not.
OnEndpoint = Callable[[str, int, bool, str], None]


#: Takes a report of progress: how much is done, of how much, and a text.
OnProgress = Callable[[float, float | None, str], None]


class ServerQuestion(NamedTuple):
    """A question of a server to a person."""

    message: str
    form: AnswerForm | None  #: None: the person is asked to visit an address
    url: str


#: Returns what a person filled in; None: no person did.
Ask = Callable[[ServerQuestion], Awaitable[dict[str, Value] | None]]


@dataclass(frozen=True, eq=False)
class McpCaller:
    """A caller of tools: an agent while its process lasts. What a server asks about its calls, it is asked alone."""

    ask: Ask


@dataclass(frozen=True, kw_only=True)
class ServerRights:
    """The rights of the run that a server belongs to, for a connection to its address, and its reports."""

    endpoints: Collection[str]  #: that the run may reach
    value_of: Callable[[str], str | None]  #: variables and secrets of its sandbox
    on_endpoint: OnEndpoint
    caller: McpCaller | None  #: of every call; None: several agents share the server, and each call has its own
    on_refused: Callable[[str], None]  #: takes a method that the server asked for and may not use


class ListedTool(NamedTuple):
    """A tool as its server lists it: not checked yet."""

    name: str
    description: str
    schema: Mapping[str, Any]
    is_repeatable: bool = False  #: its server says that a second call does no more than the first


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
    """The result of a call, as text for a model, and its images and documents, which are not checked yet."""

    text: str
    is_error: bool = False
    files: tuple[Block, ...] = ()  #: inline blocks


class McpConnection(Protocol):
    """A connection, as those use it who call its server. Every method may be called from any task."""

    def end(self, reason: str) -> None:
        """Take the end of the server. Idempotent."""

    async def tools(self) -> tuple[ListedTool, ...]:
        """Wait for the tools of the server. Raises McpServerFailed."""

    async def call(self, tool: str, arguments: Mapping[str, Any], on_progress: OnProgress) -> McpResult:
        """Call a tool of the server; cancelled here, it is cancelled there. Raises McpServerFailed."""

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


class OwnedConnection(McpConnection, Protocol):
    """A connection that one task enters, uses and leaves."""

    async def run(self) -> None:
        """Own the connection until the server has ended. Raises McpServerFailed for what ended it."""

    async def receive(self, message: bytes) -> str:
        """Take a message of the server; return the method that the server asked for and may not use, or "".

        Raises McpServerFailed for a message that is none.
        """

    async def call(
        self, tool: str, arguments: Mapping[str, Any], on_progress: OnProgress, caller: McpCaller | None = None
    ) -> McpResult:
        """Call a tool of the server for a caller; None: for the one of its rights. Raises McpServerFailed."""

    def drop(self, caller: McpCaller) -> None:
        """Cancel what the server asks a caller that has ended."""


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

    async def open(self, server: McpServer, send: SendMessage, rights: ServerRights) -> OwnedConnection:
        """Return a connection to a server, which nobody owns yet. Raises MissingExtra, InvalidValue."""
