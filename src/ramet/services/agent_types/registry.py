"""Agent types by name: those that the server was given, and plugins, which are loaded when somebody asks for them."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from ramet.core.errors import InvalidValue, Unknown
from ramet.services.contract import AgentType

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel

GROUP: Final = "ramet.agent_types"
_METHODS: Final = ("check", "open")
_ACCEPTED: Final = "an agent type (ramet.services.contract.AgentType), or a class that makes one without arguments"


class AgentTypes(Mapping[str, AgentType]):
    """The agent types by name. A plugin is loaded when it is asked for; a broken one is only their trouble who ask.

    Which plugins are installed is read once, when it is first needed: reading takes milliseconds, and each turn asks.
    """

    def __init__(self, given: Iterable[AgentType]) -> None:
        """`given` go before plugins of the same name. Raises InvalidValue for two of one name, and for what is none."""
        self._types: dict[str, AgentType] = {}
        self._plugins: Mapping[str, Sequence[importlib.metadata.EntryPoint]] | None = None
        for each in given:
            _check(each, getattr(each, "name", ""), f"agent type {getattr(each, 'name', each)!r}")
            if each.name in self._types:
                raise InvalidValue("agent type", each.name, "one of each name")
            self._types[each.name] = each

    @property
    def names(self) -> Sequence[str]:
        """All of them, sorted, whether they can be loaded or not."""
        return sorted({*self._types, *self._entry_points()})

    def find(self, name: str) -> AgentType:
        """The type of that name. Raises Unknown; InvalidValue, naming the entry point, for a plugin that is none."""
        if name not in self._types:
            points = self._entry_points().get(name)
            if points is None:
                raise Unknown("agent type", name, tuple(self.names))
            self._types[name] = _loaded(points)
        return self._types[name]

    def __getitem__(self, name: str) -> AgentType:
        if name not in self:
            raise KeyError(name)
        return self.find(name)

    def __contains__(self, name: object) -> bool:
        return name in self._types or name in self._entry_points()

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def _entry_points(self) -> Mapping[str, Sequence[importlib.metadata.EntryPoint]]:
        if self._plugins is None:
            self._plugins = _plugins()
        return self._plugins


def installed(models: Mapping[str, str | BaseChatModel] | None = None) -> Mapping[str, AgentType]:
    """What a server has that is told of none: models, which need no key by default, functions, commands, and plugins.

    `models` are the server's own names for some.
    """
    from ramet.services.agent_types.command.type import CommandType
    from ramet.services.agent_types.function.type import FunctionType
    from ramet.services.agent_types.llm.type import LlmType

    return AgentTypes([LlmType(models, default="offline"), FunctionType(), CommandType()])


def _plugins() -> Mapping[str, Sequence[importlib.metadata.EntryPoint]]:
    """The entry points of each name. The same one twice, as where a package is on the path twice, is one."""
    found: dict[str, dict[str, importlib.metadata.EntryPoint]] = {}
    for point in importlib.metadata.entry_points(group=GROUP):
        found.setdefault(point.name, {}).setdefault(point.value, point)
    return {name: tuple(points.values()) for name, points in found.items()}


def _loaded(points: Sequence[importlib.metadata.EntryPoint]) -> AgentType:
    point = points[0]
    where = f"entry point {point.name!r} in {GROUP!r}{_of(point)}"
    if len(points) > 1:
        others = ", ".join(f"{each.value}{_of(each)}" for each in points)
        raise InvalidValue(where, others, "one agent type of each name")
    try:
        found = point.load()
        made = found() if isinstance(found, type) else found
    except (Exception, SystemExit) as problem:  # Its own code runs in there.
        why = f"{type(problem).__name__}: {str(problem)[:200]}"
        raise InvalidValue(where, point.value, f"{_ACCEPTED}; {why}") from problem
    _check(made, point.name, where)
    return made  # type: ignore[no-any-return]  # checked just now


def _check(made: object, name: str, where: str) -> None:
    """Raises InvalidValue that says what it lacks."""
    called = getattr(made, "name", None)
    if called != name or not isinstance(called, str) or not called:
        raise InvalidValue(f"{where}: name", called, f"{name!r}" if name else "a name")
    _check_struct(getattr(made, "spawn_info", None), f"{where}: spawn_info")
    formats = getattr(made, "transport_formats", None)
    if isinstance(formats, str) or not isinstance(formats, Sequence) or not formats:
        raise InvalidValue(f"{where}: transport_formats", formats, "a list of at least one name")
    if bad := [each for each in formats if not isinstance(each, str) or not each]:
        raise InvalidValue(f"{where}: transport_formats", bad[0], "names")
    operations = getattr(made, "operations", None)
    if not isinstance(operations, Mapping):
        raise InvalidValue(f"{where}: operations", operations, "structures by their names")
    for operation, kind in operations.items():
        _check_struct(kind, f"{where}: operations[{operation!r}]")
    for method in _METHODS:
        if not callable(getattr(made, method, None)):
            raise InvalidValue(f"{where}: {method}", getattr(made, method, None), "an async method")


def _check_struct(kind: object, field: str) -> None:
    if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        raise InvalidValue(field, kind, "a structure (msgspec.Struct)")
    if not kind.__struct_config__.forbid_unknown_fields:
        raise InvalidValue(field, kind.__name__, "a structure that refuses unknown fields (forbid_unknown_fields)")


def _of(point: importlib.metadata.EntryPoint) -> str:
    return f" of {point.dist.name}" if point.dist is not None else ""
