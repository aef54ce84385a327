"""Select the tools that an agent gets: a pure decision, made once at its spawn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ramet.agent.definition import Agent
from ramet.agent.tool_entry import EVERYTHING, ToolEntry, parse_entry
from ramet.core.errors import InvalidValue, NoToolsLeft
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

    def may_spawn_type(self, name: str) -> bool:
        """Return whether a child of this type may be requested."""
        return name not in self.not_spawnable and (self.spawnable is None or name in self.spawnable)


def resolve_tools(
    agent: Agent, available: Sequence[BaseTool], *, may_spawn: bool, is_child: bool, own: Sequence[BaseTool] = ()
) -> Toolset:
    """Select the tools: deny first, then allow; `tools=None` inherits every available tool, an empty list means none.

    `own` has tools that the definition requests in another way (`memory: project`). They need no entry in the list, may
    be denied, and replace the parent's tool of the same name. Names are case-sensitive. At the depth limit
    (`may_spawn=False`) the Agent tool is withheld. Forks are not resolved here: they keep their parent's list. Raises
    NoToolsLeft if a non-empty list gave no tool at all, and InvalidValue if an entry cannot be parsed.
    """
    mine = _by_name(own)
    here = {name: tool for name, tool in _by_name(available).items() if name not in mine} | mine
    denied, not_spawnable, unknown_denials = _denials(agent, here)
    chosen, spawnable, unknown = _allowances(agent, here, is_child=is_child)
    tools: dict[str, BaseTool] = {}
    withheld: list[str] = []
    for name, tool in (chosen | mine).items():
        if name in denied or EVERYTHING in denied:
            continue
        if _is_for(tool, agent, may_spawn=may_spawn, is_child=is_child and name not in mine):
            tools[name] = tool
        else:
            withheld.append(name)
    if agent.tools and not tools.keys() & chosen.keys():
        raise NoToolsLeft(agent.name, tuple(_shown(entry) for entry in agent.tool_entries or ()))
    return Toolset(tuple(tools.values()), spawnable, (*unknown, *unknown_denials), not_spawnable, tuple(withheld))


def _by_name(available: Iterable[BaseTool]) -> dict[str, BaseTool]:
    here: dict[str, BaseTool] = {}
    for tool in available:
        if tool.name in here:
            raise InvalidValue("tools", tool.name, "one tool of each name")
        here[tool.name] = tool
    return here


class _Denials(NamedTuple):
    names: frozenset[str]
    types: frozenset[str]
    unknown: tuple[str, ...]


def _denials(agent: Agent, here: Mapping[str, BaseTool]) -> _Denials:
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
        found = {entry.name, ALIASES.get(entry.name, entry.name)}
        names |= found
        if entry.name != EVERYTHING and not found & here.keys():
            unknown.append(text)
    return _Denials(frozenset(names), frozenset(types), tuple(unknown))


class _Allowances(NamedTuple):
    chosen: dict[str, BaseTool]
    types: frozenset[str] | None
    unknown: tuple[str, ...] = ()


def _allowances(agent: Agent, here: Mapping[str, BaseTool], *, is_child: bool) -> _Allowances:
    """Return the tools in the list, the types it restricts spawning to, and the entries that name nothing."""
    if agent.tools is None:
        return _Allowances(dict(here), None)
    chosen: dict[str, BaseTool] = {}
    types: set[str] | None = None
    unknown: list[str] = []
    for each in agent.tool_entries or ():
        if not isinstance(each, str):
            tool = _brought(agent, each, here, is_child=is_child)
        else:
            entry = parse_entry(each)
            if entry.name == EVERYTHING and entry.arguments is None:
                chosen = {**here, **chosen}
                continue
            if entry.spawns and entry.arguments is not None:  # Any restriction applies, even next to a plain `Agent`.
                types = (types or set()) | set(entry.arguments)
            tool = _named(entry, here)
        if tool is None:
            unknown.append(_shown(each))
        else:
            chosen[tool.name] = tool
    ordered = {name: chosen.pop(name) for name in here if name in chosen}
    return _Allowances(ordered | chosen, None if types is None else frozenset(types), tuple(unknown))


def _brought(agent: Agent, tool: BaseTool, here: Mapping[str, BaseTool], *, is_child: bool) -> BaseTool | None:
    """Return a tool object from the host's code; any other definition only selects the available tool of that name."""
    if agent.scope == "call" or not is_child:
        return tool
    return here.get(tool.name)


def _named(entry: ToolEntry, here: Mapping[str, BaseTool]) -> BaseTool | None:
    if entry.arguments is not None and not entry.spawns:
        return None  # `Bash(git:*)` asks for less than Bash; the whole tool would be more than requested.
    return here.get(entry.name) or here.get(ALIASES.get(entry.name, entry.name))


def _is_for(tool: BaseTool, agent: Agent, *, may_spawn: bool, is_child: bool) -> bool:
    if tool.name == AGENT and not may_spawn:
        return False
    if is_child and tool_flag(tool, "children", True) is False:
        return False
    return not agent.read_only or bool(tool_flag(tool, "read_only", tool.name in READERS))


def _shown(entry: str | BaseTool) -> str:
    return entry if isinstance(entry, str) else entry.name
