"""The tools of the servers of one run: what its model sees, and what it can find.

With many tools, a model sees the search in their place, and what it has found until now, in this turn or before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from langchain_core.tools import BaseTool
from pydantic import ValidationError

from ramet.agent.toolset import allows_server_tool, allows_tool_search
from ramet.core.errors import InvalidValue, Unknown
from ramet.core.events import ToolsLoaded
from ramet.core.mcp.server_entry import McpServer
from ramet.core.tool_names import TOOL_SEARCH
from ramet.spawn.masking import masked_text
from ramet.spawn.mcp.tool_definitions import PartsBudget, ServerTool, definition_of
from ramet.spawn.mcp.tool_search import OfferedTool, SearchArguments, ToolCatalogue, is_deferred
from ramet.spawn.run import Run
from ramet.tools.arguments import mistakes
from ramet.tools.mcp.connection_port import ListedTool, McpResult

#: Tools of all servers that the model of a run sees, and bytes of their definitions: parts of every request to it.
MAX_TOOLS, MAX_DEFINITION_BYTES = 100, 256 * 1024
_ACCEPTED_TOOLS: Final = f"at most {MAX_TOOLS} tools, of {MAX_DEFINITION_BYTES} bytes together"
#: Tools of all servers that are looked at, whether the agent may use them or not.
MAX_LISTED: Final = 4_000


class Origin(NamedTuple):
    """The place of a tool: the name of its server, and its name there."""

    server: str
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


class ToolList:
    """The tools of the servers of one run, as the definitions among the tools of its context."""

    def __init__(self, run: Run, report: Callable[[str], None]) -> None:
        """`report` is called with a notice."""
        self._run, self._report = run, report
        self._origins: dict[str, Origin] = {}  #: by the name that a model calls
        self._definitions: dict[str, ServerTool] = {}  #: of the tools that the model sees, besides the search
        self._catalogue: ToolCatalogue | None = None  #: if tools are found first

    @property
    def has_search(self) -> bool:
        """True if the model finds tools before it calls them."""
        return self._catalogue is not None

    async def fill(self, listed: Sequence[tuple[McpServer, tuple[ListedTool, ...]]]) -> None:
        """Give the run the tools that its agent may use, of those that its servers list."""
        agent, context, found = self._run.agent, self._run.context, self._run.sandbox.loaded_tools
        self._definitions.clear()
        offered, refused = self._offered(listed)
        can_search = allows_tool_search(agent) and all(each.name != TOOL_SEARCH for each in context.tools)
        self._catalogue = ToolCatalogue(offered) if can_search and is_deferred(agent.tool_search, offered) else None
        if self._catalogue is None:
            _, left_out = await self._load(offered)
        else:
            context.tools = (*context.tools, self._catalogue.search_tool())
            _, left_out = await self._load(self._catalogue.select(tuple(found)))
            self._record_loaded([each for each, is_recorded in found.items() if not is_recorded])
        self._report_left_out([*refused, *left_out])

    def origin(self, name: str) -> Origin:
        """Return the place of a tool that the model sees. Raises Unknown."""
        if name not in self._definitions:
            raise Unknown("tool", name, tuple(self._definitions))
        return self._origins[name]

    async def search(self, arguments: Mapping[str, Any]) -> tuple[McpResult, bytes]:
        """Find tools: from now on the run has them. Return their definitions for the model, and for its guest.

        Raises Unknown without a search.
        """
        catalogue = self._catalogue
        if catalogue is None:
            raise Unknown("tool", TOOL_SEARCH, tuple(self._definitions))
        try:
            search = SearchArguments.model_validate(arguments)
        except ValidationError as error:
            return McpResult(mistakes(TOOL_SEARCH, error), is_error=True), b""
        found = catalogue.find(search)
        if not found:
            text = f"No tool was found for {search.query!r}. Tools: {catalogue.names()}"
            return McpResult(text, is_error=True), b""
        loaded, left_out = await self._load(found)
        self._record_loaded([each.name for each in loaded])
        definitions = [self._definitions[each.name] for each in found if each.name in self._definitions]
        lines = [f"Found {len(definitions)}, which you can call from your next message on:"] if definitions else []
        lines += [msgspec.json.encode(each.shown_data()).decode() for each in definitions]
        lines += [f"Cannot be used: {each.text}" for each in left_out]
        return McpResult("\n".join(lines), is_error=not definitions), definitions_json(loaded) if loaded else b""

    def _offered(
        self, listed_tools: Sequence[tuple[McpServer, tuple[ListedTool, ...]]]
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
                name = server.tool_name(each.name)
                if not allows_server_tool(self._run.agent, server, name):
                    continue
                if name in self._origins or name in own_names:
                    refusal = InvalidValue("name", name, "one tool of each name")
                    left_out.append(_LeftOut(server.name, name, refusal))
                    continue
                self._origins[name] = Origin(server.name, each.name)
                offered.append(OfferedTool(name, server, each))
        return offered, left_out

    async def _load(self, tools: Iterable[OfferedTool]) -> tuple[list[ServerTool], list[_LeftOut]]:
        """Add tools to those of the run, up to the bounds; return them, and those that are left out."""
        loaded: list[ServerTool] = []
        left_out: list[_LeftOut] = []
        size = sum(each.size for each in self._definitions.values())
        budget = PartsBudget()
        for each in tools:
            await asyncio.sleep(0)  # Other runs go on between two tools.
            if each.name in self._definitions:
                continue
            try:
                if len(self._definitions) >= MAX_TOOLS:
                    raise InvalidValue("tools", each.name, _ACCEPTED_TOOLS)
                if masked_text(self._run, each.name, 2 * len(each.name)) != each.name:
                    raise InvalidValue("name", "its text", "a name without a secret")
                definition = definition_of(each.server, each.listed, budget)
                if size + definition.size > MAX_DEFINITION_BYTES:
                    raise InvalidValue("tools", each.name, _ACCEPTED_TOOLS)
            except InvalidValue as refusal:
                left_out.append(_LeftOut(each.server.name, each.name, refusal))
                continue
            size += definition.size
            self._definitions[each.name] = definition
            loaded.append(definition)
        self._run.context.tools = (*self._run.context.tools, *loaded)
        return loaded, left_out

    def _record_loaded(self, names: list[str]) -> None:
        if names:
            self._run.context.emit(ToolsLoaded, tools=tuple(names))
            self._run.sandbox.loaded_tools |= dict.fromkeys(names, True)

    def _report_left_out(self, left_out: Sequence[_LeftOut]) -> None:
        for server in dict.fromkeys(each.server for each in left_out):
            text = ", ".join(each.text for each in left_out if each.server == server)
            self._report(f"tools of the MCP server {server!r} that are left out: {text}")


def definitions_json(tools: Iterable[BaseTool]) -> bytes:
    """Return the definitions of the servers' tools among these, for the guest that calls them."""
    return msgspec.json.encode([each.as_data() for each in tools if isinstance(each, ServerTool)])


def is_repeatable(tools: Iterable[BaseTool], name: str) -> bool:
    """Return whether an interrupted call of a tool, by its name among these, may begin again."""
    return any(isinstance(each, ServerTool) and each.name == name and each.is_repeatable for each in tools)


def without_server_tools(tools: Sequence[BaseTool]) -> tuple[BaseTool, ...]:
    """Return the tools that are of no server: a server's tools belong to one process, and nobody inherits them."""
    return tuple([each for each in tools if not isinstance(each, ServerTool)])
