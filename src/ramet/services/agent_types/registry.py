"""The registry of agent types: the types that the server was given, and plugins, which are loaded on first use."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from ramet.core.errors import InvalidValue
from ramet.services.contract import AgentType

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel

    from ramet.agent.external.external import External
    from ramet.core.mcp.server_entry import McpServer

GROUP: Final = "ramet.agent_types"
_METHODS: Final = ("check", "open")
_ACCEPTED: Final = "an agent type (ramet.services.contract.AgentType), or a class that makes one without arguments"


class AgentTypes(Mapping[str, AgentType]):
    """The agent types by name.

    A plugin is loaded on first use; a broken plugin fails only for callers that use its type. The list of installed
    plugins is read once, on first use: reading takes milliseconds, and each turn needs the list.
    """

    def __init__(self, types: Iterable[AgentType]) -> None:
        """Register the types of `types`, which take precedence over plugins of the same name.

        Raises InvalidValue for two types of one name, and for an object that is no agent type.
        """
        self._types: dict[str, AgentType] = {}
        self._plugins: Mapping[str, Sequence[importlib.metadata.EntryPoint]] | None = None
        for each in types:
            _check(each, getattr(each, "name", ""), f"agent type {getattr(each, 'name', each)!r}")
            if each.name in self._types:
                raise InvalidValue("agent type", each.name, "one of each name")
            self._types[each.name] = each

    def __getitem__(self, name: str) -> AgentType:
        """Return the type of that name. Raises InvalidValue naming the entry point if a plugin is no agent type."""
        if name not in self._types:
            self._types[name] = _load(self._entry_points()[name])
        return self._types[name]

    def __contains__(self, name: object) -> bool:
        return name in self._types or name in self._entry_points()

    def __iter__(self) -> Iterator[str]:
        """Iterate over all names, sorted, also of types that cannot be loaded."""
        return iter(sorted({*self._types, *self._entry_points()}))

    def __len__(self) -> int:
        return len({*self._types, *self._entry_points()})

    def _entry_points(self) -> Mapping[str, Sequence[importlib.metadata.EntryPoint]]:
        if self._plugins is None:
            self._plugins = _plugins()
        return self._plugins


def create_default_types(
    models: Mapping[str, str | BaseChatModel] | None = None,
    programs: Mapping[str, External] | None = None,
    mcp_servers: Mapping[str, McpServer] | None = None,
) -> Mapping[str, AgentType]:
    """Return the default agent types of a server: llm, function, command, external, and plugins.

    The default model of llm needs no key. `models` are the server's own names for models, `programs` the operator's
    programs of other makers, and `mcp_servers` the operator's MCP servers.
    """
    from ramet.services.agent_types.command.type import CommandType
    from ramet.services.agent_types.external.type import ExternalType
    from ramet.services.agent_types.function.type import FunctionType
    from ramet.services.agent_types.llm.type import LlmType

    return AgentTypes(
        [
            LlmType(models, default="offline", mcp_servers=mcp_servers),
            FunctionType(),
            CommandType(),
            ExternalType(programs, models),
        ]
    )


def _plugins() -> Mapping[str, Sequence[importlib.metadata.EntryPoint]]:
    """Return the entry points of each name. Duplicates of one entry point (a package twice on the path) count once."""
    points_by_name: dict[str, dict[str, importlib.metadata.EntryPoint]] = {}
    for point in importlib.metadata.entry_points(group=GROUP):
        points_by_name.setdefault(point.name, {}).setdefault(point.value, point)
    return {name: tuple(points.values()) for name, points in points_by_name.items()}


def _load(points: Sequence[importlib.metadata.EntryPoint]) -> AgentType:
    point = points[0]
    location = f"entry point {point.name!r} in {GROUP!r}{_package_suffix(point)}"
    if len(points) > 1:
        others = ", ".join(f"{each.value}{_package_suffix(each)}" for each in points)
        raise InvalidValue(location, others, "one agent type of each name")
    try:
        loaded = point.load()
        agent_type = loaded() if isinstance(loaded, type) else loaded
    except (Exception, SystemExit) as problem:  # Loading runs the plugin's own code.
        why = f"{type(problem).__name__}: {str(problem)[:200]}"
        raise InvalidValue(location, point.value, f"{_ACCEPTED}; {why}") from problem
    _check(agent_type, point.name, location)
    return agent_type  # type: ignore[no-any-return]  # checked just now


def _check(candidate: object, name: str, location: str) -> None:
    """Check that an object is an agent type. Raises InvalidValue, which names the missing part."""
    declared_name = getattr(candidate, "name", None)
    if declared_name != name or not isinstance(declared_name, str) or not declared_name:
        raise InvalidValue(f"{location}: name", declared_name, f"{name!r}" if name else "a name")
    _check_struct(getattr(candidate, "spawn_info", None), f"{location}: spawn_info")
    formats = getattr(candidate, "transport_formats", None)
    if isinstance(formats, str) or not isinstance(formats, Sequence) or not formats:
        raise InvalidValue(f"{location}: transport_formats", formats, "a list of at least one name")
    if invalid := [each for each in formats if not isinstance(each, str) or not each]:
        raise InvalidValue(f"{location}: transport_formats", invalid[0], "names")
    operations = getattr(candidate, "operations", None)
    if not isinstance(operations, Mapping):
        raise InvalidValue(f"{location}: operations", operations, "structures by their names")
    for operation, kind in operations.items():
        _check_struct(kind, f"{location}: operations[{operation!r}]")
    for method in _METHODS:
        if not callable(getattr(candidate, method, None)):
            raise InvalidValue(f"{location}: {method}", getattr(candidate, method, None), "an async method")


def _check_struct(kind: object, field: str) -> None:
    if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        raise InvalidValue(field, kind, "a structure (msgspec.Struct)")
    if not kind.__struct_config__.forbid_unknown_fields:
        raise InvalidValue(field, kind.__name__, "a structure that refuses unknown fields (forbid_unknown_fields)")


def _package_suffix(point: importlib.metadata.EntryPoint) -> str:
    return f" of {point.dist.name}" if point.dist is not None else ""
