"""Capabilities of an agent by name, and their narrowing for a child: a child never gets more than its creator."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NamedTuple, get_args

from ramet.core.errors import InvalidValue

Kind = Literal["module", "class", "function", "tool"]
Visibility = Literal["high", "medium", "low"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
VISIBILITIES: Final[tuple[Visibility, ...]] = get_args(Visibility)

_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*\Z")
_OBJECT = re.compile(r"([^\W\d]\w*(\.[^\W\d]\w*)*:)?[^\W\d]\w*(\.[^\W\d]\w*)*\Z")
_TOOL = re.compile(r"[A-Za-z0-9_.:-]{1,128}\Z")
_PATTERN = re.compile(r"[\w*?]+\Z")
_MAX_NAME = 256


@dataclass(frozen=True, slots=True)
class Capability:
    """A thing that an agent may use, by name.

    A module or class may list the names that are included; `None` includes all public names.
    """

    type: Kind
    name: str
    visibility: Visibility = "medium"
    include: tuple[str, ...] | None = None
    exclude: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.type not in KINDS:
            raise InvalidValue("capability.type", self.type, ", ".join(KINDS))
        forms = {"module": _MODULE, "tool": _TOOL}
        form = forms.get(self.type, _OBJECT)
        if not isinstance(self.name, str) or len(self.name) > _MAX_NAME or not form.match(self.name):
            accepted = {"module": "the name of a module", "tool": "the name of a tool"}.get(self.type)
            raise InvalidValue("capability.name", self.name, accepted or f"a {self.type} as module:qualname")
        if self.visibility not in VISIBILITIES:
            raise InvalidValue("capability.visibility", self.visibility, ", ".join(VISIBILITIES))
        for attribute in ("include", "exclude"):
            names = getattr(self, attribute)
            if names is None:
                continue
            if self.type not in ("module", "class") and names:
                raise InvalidValue(f"capability.{attribute}", names, f"nothing: a {self.type} has no parts")
            for each in names:
                if not isinstance(each, str) or len(each) > _MAX_NAME or not _PATTERN.match(each):
                    raise InvalidValue(f"capability.{attribute}", each, "a name, or a pattern with * and ?")
            object.__setattr__(self, attribute, tuple(sorted(set(names))))

    @property
    def key(self) -> str:
        """The identity of the capability: its type and name."""
        return f"{self.type} {self.name}"

    @property
    def module(self) -> str:
        """The module itself, or the module that holds the object; empty for a tool, and for a name without a module."""
        if self.type == "tool":
            return ""
        return self.name if self.type == "module" else self.name.rpartition(":")[0]

    def has(self, name: str) -> bool:
        """Return whether a part of a module or class is included.

        A name that begins with `_` is included only if it is listed in full.
        """
        if any(fnmatch.fnmatchcase(name, each) for each in self.exclude):
            return False
        if name.startswith("_"):
            return self.include is not None and name in self.include
        return self.include is None or any(fnmatch.fnmatchcase(name, each) for each in self.include)

    def data(self) -> dict[str, Any]:
        """Return the capability as JSON data, without fields that have their default values."""
        data: dict[str, Any] = {"type": self.type, "name": self.name}
        if self.visibility != "medium":
            data["visibility"] = self.visibility
        if self.include is not None:
            data["include"] = list(self.include)
        if self.exclude:
            data["exclude"] = list(self.exclude)
        return data


def is_code(capability: Capability) -> bool:
    """Return whether only agents that write code can use the capability."""
    return capability.type != "tool"


class CapabilityGrant(NamedTuple):
    """The granted part of the requested capabilities, and the names of the part that was dropped."""

    capabilities: tuple[Capability, ...]
    dropped_names: tuple[str, ...]


def intersect(requested: Iterable[Capability], available: Iterable[Capability]) -> CapabilityGrant:
    """Return the capabilities of a child: the requested ones that its creator holds.

    A function or class is also held through its module. Two different patterns are assumed to have nothing in common.
    """
    mine, granted, dropped_names = tuple(available), dict[Capability, None](), list[str]()
    for each in requested:
        matches = [part for part in (_intersection(each, own) for own in mine) if part is not None]
        granted |= dict.fromkeys(matches)
        if not matches:
            dropped_names.append(each.key)
        elif each.include is not None:
            dropped_names += [
                f"{each.key}.{name}"
                for name in each.include
                if not any(name in (p.include or (name,)) for p in matches)
            ]
    return CapabilityGrant(tuple(sorted(granted, key=sort_key)), tuple(dropped_names))


def sort_key(capability: Capability) -> tuple[str, ...]:
    """Return the sort key of a capability; it gives every set one written form."""
    return (capability.key, repr(capability.include), repr(capability.exclude), capability.visibility)


def _intersection(requested: Capability, available: Capability) -> Capability | None:
    """Return the part of `requested` that `available` contains, or None."""
    module, _, name = requested.name.rpartition(":")
    if available.type == requested.type and available.name == requested.name:
        return _narrow(requested, available) if requested.type in ("module", "class") else requested
    if requested.type in ("class", "function") and available.type == "module" and available.name == module:
        return requested if available.has(name) else None
    if requested.type == "module" and requested.include is not None and available.type in ("class", "function"):
        module, _, name = available.name.rpartition(":")
        if module == requested.name and name in requested.include and requested.has(name):
            return replace(requested, include=(name,))
    return None


def _narrow(requested: Capability, available: Capability) -> Capability | None:
    exclude = tuple({*requested.exclude, *available.exclude})
    if requested.include is None or available.include is None:  # All public names of the other.
        names = available.include if requested.include is None else requested.include
        names = None if names is None else tuple(each for each in names if not each.startswith("_"))
    else:
        names = tuple(
            each for each in requested.include if each in available.include or (_is_name(each) and available.has(each))
        )
        names += tuple(each for each in available.include if _is_name(each) and requested.has(each))
    if names is not None:
        names = tuple(each for each in names if not (_is_name(each) and _fits(each, exclude)))
        if not names:
            return None
    return replace(requested, include=names, exclude=exclude)


def _is_name(pattern: str) -> bool:
    return not {"*", "?"} & set(pattern)


def _fits(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, each) for each in patterns)
