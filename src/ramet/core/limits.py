"""Limits on the number and the depth of the runs of a tree, checked before each spawn."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from ramet.core.arguments import KnownFields
from ramet.core.errors import InvalidValue


@dataclass(frozen=True, kw_only=True)
class SpawnLimits(metaclass=KnownFields):
    """Limits on the shape of a tree.

    Only living runs count, so the end of a run frees a place. `Limits.agents`, in contrast, counts spawns.
    """

    depth: int = 3  #: levels that may exist below the root
    children: int = 64  #: living children of one run
    runs: int = 256  #: living runs of the tree, root included
    running: int | None = 16  #: runs that are active concurrently; runs that wait for others do not count
    when_full: Literal["queue", "refuse"] = "queue"  #: how a spawn above `children` or `runs` is handled

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name == "when_full":
                if value not in ("queue", "refuse"):
                    raise InvalidValue("when_full", value, "'queue' or 'refuse'")
            elif not (each.name == "running" and value is None):
                minimum = 0 if each.name in ("depth", "children") else 1
                if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
                    raise InvalidValue(each.name, value, f"a whole number from {minimum}")


DEFAULT_SPAWN_LIMITS = SpawnLimits()
