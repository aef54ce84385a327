"""Select the tools that an agent gets: a pure decision, made once at its spawn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ramet.agent.definition import Agent
from ramet.agent.tool_entry import EVERYTHING, ToolEntry, parse_entry
from ramet.core.errors import InvalidValue, NoToolsLeft
from ramet.core.mcp.server_entry import McpServer
from ramet.core.tool_names import LEADING_TOOLS, LIST_MCP_RESOURCES, READ_MCP_RESOURCE, SERVER_TOOLS, TOOL_SEARCH
from ramet.tools.dispatch import ALIASES, tool_flag

if TYPE_CHECKING:
    from langchain_core.tools import BaseTool

AGENT = "Agent"
#: Tools that a read-only agent keeps although their metadata lacks `read_only`.
READERS = frozenset({"Read", "Glob", "Grep", "TaskOutput", "ListAgents"})


class Toolset(NamedTuple):
    """The selected tools, and the entries that gave no tool."""

    tools: tuple[BaseTool, ...]  #: in the order of the available tools, then those of the definition
    spawnable: frozenset[str] | None = None  #: the only types it may spawn; None: every type
    unknown: tuple[str, ...] = ()  #: entries, allowed or denied, that name no tool here
    not_spawnable: frozenset[str] = frozenset()  #: types it may not spawn: takes precedence over `spawnable`
    withheld: tuple[str, ...] = ()  #: tools that exist but not for this run: depth, children, read-only
    delegable: tuple[BaseTool, ...] | None = None  #: of a coordinator: what its children may get; None: `tools`

    def may_spawn_type(self, name: str) -> bool:
        """Return whether a child of this type may be requested."""
        return name not in self.not_spawnable and (self.spawnable is None or name in self.spawnable)


def resolve_tools(
    agent: Agent, available: Sequence[BaseTool], *, may_spawn: bool, is_child: bool, own: Sequence[BaseTool] = ()
) -> Toolset:
    """Select the tools: deny first, then allow; `tools=None` inherits every available tool, an empty list means none.

    `own` has tools that the definition requests in another way (`memory: project`). They need no entry in the list, may
    be denied, and replace the parent's tool of the same name. Names are case-sensitive. At the depth limit
    (`may_spawn=False`) the Agent tool is withheld. Forks are not resolved here: they keep their parent's list. Entries
    for tools of the agent's MCP servers are passed over: see `allows_server_tool`. Raises NoToolsLeft if a non-empty
    list gave no tool at all, and InvalidValue if an entry cannot be parsed.
    """
    own_by_name = _by_name(own)
    available_by_name = {
        name: tool for name, tool in _by_name(available).items() if name not in own_by_name
    } | own_by_name
    denied_names, not_spawnable, unknown_denials = _denials(agent, available_by_name)
    selected_tools, spawnable, unknown = _allowances(agent, available_by_name, is_child=is_child)
    tools: dict[str, BaseTool] = {}
    withheld: list[str] = []
    for name, tool in (selected_tools | own_by_name).items():
        if name in denied_names or EVERYTHING in denied_names:
            continue
        if _is_allowed(tool, agent, may_spawn=may_spawn, is_child=is_child and name not in own_by_name):
            tools[name] = tool
        elif agent.tools is not None or tool_flag(tool, "children", True):
            withheld.append(name)
    if (
        agent.tools
        and not tools.keys() & selected_tools.keys()
        and not any(_is_of_server(agent, each) for each in agent.tools)
    ):
        raise NoToolsLeft(agent.name, tuple(_entry_name(entry) for entry in agent.tool_entries or ()))
    toolset = Toolset(tuple(tools.values()), spawnable, (*unknown, *unknown_denials), not_spawnable, tuple(withheld))
    return _leading_only(agent, toolset) if agent.coordinator else toolset


def _leading_only(agent: Agent, toolset: Toolset) -> Toolset:
    """Return the toolset of a coordinator, which may give its other tools only to its children.

    Raises NoToolsLeft if it has no tool for leading them.
    """
    tools = tuple(each for each in toolset.tools if each.name in LEADING_TOOLS)
    if not tools:
        raise NoToolsLeft(agent.name, tuple(_entry_name(entry) for entry in agent.tool_entries or ()))
    return toolset._replace(tools=tools, delegable=toolset.tools)


def allows_server_tool(agent: Agent, server: McpServer, name: str) -> bool:
    """Return whether an agent may use a tool of one of its MCP servers, by the name that a model calls.

    Lists of tools name one tool, or a whole server: `mcp__server`, `mcp__server__*`. A read-only agent gets none: the
    word of a server about its tools is no proof.
    """
    names = {name, f"{server.tool_name('')}*", server.tool_name("").removesuffix("__"), EVERYTHING}
    denied = {parse_entry(each, field="disallowed_tools").name for each in agent.disallowed_tools}
    if agent.read_only or names & denied:
        return False
    return agent.tools is None or bool(names & {each.strip() for each in agent.tools if isinstance(each, str)})


def allows_tool_search(agent: Agent) -> bool:
    """Return whether an agent may search for tools of its MCP servers: unless its lists deny that."""
    denied = {parse_entry(each, field="disallowed_tools").name for each in agent.disallowed_tools}
    return agent.tool_search is not False and not denied & {TOOL_SEARCH, EVERYTHING}


def resource_tools(agent: Agent) -> frozenset[str]:
    """Return the tools for resources of MCP servers that an agent may use. A read-only agent has none."""
    denied = {parse_entry(each, field="disallowed_tools").name for each in agent.disallowed_tools}
    if agent.read_only or EVERYTHING in denied:
        return frozenset()
    both = frozenset({LIST_MCP_RESOURCES, READ_MCP_RESOURCE}) - denied
    if agent.tools is None:
        return both
    named = {each.strip() for each in agent.tools if isinstance(each, str)}
    return both if EVERYTHING in named else both & named


def allows_resources_of(agent: Agent, server: McpServer) -> bool:
    """Return whether an agent's lists of tools leave it a server: they do not deny the whole of it, or pass it over."""
    whole = {f"{server.tool_name('')}*", server.tool_name("").removesuffix("__")}
    if whole & {parse_entry(each, field="disallowed_tools").name for each in agent.disallowed_tools}:
        return False
    named = None if agent.tools is None else [each.strip() for each in agent.tools if isinstance(each, str)]
    return named is None or any(each == EVERYTHING or server.covers(each) for each in named)


def _is_of_server(agent: Agent, entry: object) -> bool:
    """Return whether an entry of an agent's lists is about tools of its MCP servers."""
    if not isinstance(entry, str) or not agent.mcp:
        return False
    return entry.strip() in SERVER_TOOLS or any(each.covers(entry.strip()) for each in agent.mcp_servers)


def _by_name(available: Iterable[BaseTool]) -> dict[str, BaseTool]:
    by_name: dict[str, BaseTool] = {}
    for tool in available:
        if tool.name in by_name:
            raise InvalidValue("tools", tool.name, "one tool of each name")
        by_name[tool.name] = tool
    return by_name


class _Denials(NamedTuple):
    names: frozenset[str]
    types: frozenset[str]
    unknown: tuple[str, ...]


def _denials(agent: Agent, available_by_name: Mapping[str, BaseTool]) -> _Denials:
    """Return the denied names, the types that may not be spawned, and the entries that name nothing.

    `Bash(rm:*)` denies Bash completely: a tool has no parts here, and a partial denial would deny nothing.
    """
    names: set[str] = set()
    types: set[str] = set()
    unknown: list[str] = []
    for text in agent.disallowed_tools:
        entry = parse_entry(text, field="disallowed_tools")
        if entry.spawns and entry.arguments:
            types.update(entry.arguments)
            continue
        denied_names = {entry.name, ALIASES.get(entry.name, entry.name)}
        names |= denied_names
        is_known = entry.name == EVERYTHING or _is_of_server(agent, text)
        if not is_known and not denied_names & available_by_name.keys():
            unknown.append(text)
    return _Denials(frozenset(names), frozenset(types), tuple(unknown))


class _Allowances(NamedTuple):
    selected_tools: dict[str, BaseTool]
    types: frozenset[str] | None
    unknown: tuple[str, ...] = ()


def _allowances(agent: Agent, available_by_name: Mapping[str, BaseTool], *, is_child: bool) -> _Allowances:
    """Return the tools in the list, the types it restricts spawning to, and the entries that name nothing."""
    if agent.tools is None:
        return _Allowances(dict(available_by_name), None)
    selected_tools: dict[str, BaseTool] = {}
    types: set[str] | None = None
    unknown: list[str] = []
    for each in agent.tool_entries or ():
        if _is_of_server(agent, each):
            continue
        if not isinstance(each, str):
            tool = _tool_object(agent, each, available_by_name, is_child=is_child)
        else:
            entry = parse_entry(each)
            if entry.name == EVERYTHING and entry.arguments is None:
                selected_tools = {**available_by_name, **selected_tools}
                continue
            if entry.spawns and entry.arguments is not None:  # Any restriction applies, even next to a plain `Agent`.
                types = (types or set()) | set(entry.arguments)
            tool = _available_tool(entry, available_by_name)
        if tool is None:
            unknown.append(_entry_name(each))
        else:
            selected_tools[tool.name] = tool
    ordered_tools = {name: selected_tools.pop(name) for name in available_by_name if name in selected_tools}
    return _Allowances(ordered_tools | selected_tools, None if types is None else frozenset(types), tuple(unknown))


def _tool_object(
    agent: Agent, tool: BaseTool, available_by_name: Mapping[str, BaseTool], *, is_child: bool
) -> BaseTool | None:
    """Return a tool object from the host's code; any other definition only selects the available tool of that name."""
    if agent.scope == "call" or not is_child:
        return tool
    return available_by_name.get(tool.name)


def _available_tool(entry: ToolEntry, available_by_name: Mapping[str, BaseTool]) -> BaseTool | None:
    if entry.arguments is not None and not entry.spawns:
        return None  # `Bash(git:*)` asks for less than Bash; the whole tool would be more than requested.
    return available_by_name.get(entry.name) or available_by_name.get(ALIASES.get(entry.name, entry.name))


def _is_allowed(tool: BaseTool, agent: Agent, *, may_spawn: bool, is_child: bool) -> bool:
    if tool.name == AGENT and not may_spawn:
        return False
    if is_child and tool_flag(tool, "children", True) is False:
        return False
    return not agent.read_only or bool(tool_flag(tool, "read_only", tool.name in READERS))


def _entry_name(entry: str | BaseTool) -> str:
    return entry if isinstance(entry, str) else entry.name
