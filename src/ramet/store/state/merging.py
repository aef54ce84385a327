"""Two sides that changed the same beginning: what is to be done to ours, so that both are in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ramet.store.state import values
from ramet.store.state.diff import Difference
from ramet.store.state.validation import is_directory, shown
from ramet.store.state.values import MISSING
from ramet.store.state.working_copy import MARK, WorkingCopy

#: Decides one key that both sides changed: resolve(key, base, ours, theirs) -> value, MISSING for none.
Resolve = Callable[[str, Any, Any, Any], Any]


def conflicts(ours: Mapping[str, Difference], theirs: Mapping[str, Difference]) -> list[str]:
    """What both sides changed, and not to the same."""
    both = ours.keys() & theirs.keys()
    return sorted(kept for kept in both if ours[kept].after != theirs[kept].after)


def is_mark(kept: str, difference: Difference) -> bool:
    """Whether it is only that a directory came or went: its entries tell all."""
    return is_directory(kept) and {difference.before, difference.after} <= {MARK, None}


class UnresolvedConflict(Exception):
    """Raised by a `resolve` that has not decided yet; it is asked for the other keys, and nothing is written."""


async def resolved(
    copy: WorkingCopy,
    resolve: Resolve,
    ours: Mapping[str, Difference],
    theirs: Mapping[str, Difference],
) -> dict[str, bytes | None]:
    """The cells that `resolve` decides for; their values are kept by the working copy. Raises what it raises."""
    decided: dict[str, bytes | None] = {}
    undecided: UnresolvedConflict | None = None
    for kept in conflicts(ours, theirs):
        sides = (ours[kept].before, ours[kept].after, theirs[kept].after)
        try:
            value = resolve(shown(kept), *[await told(copy, kept, cell) for cell in sides])
        except UnresolvedConflict as later:
            undecided = later
            continue
        decided[kept] = None if value is MISSING else copy.celled(values.encode(value, shown(kept)))
    if undecided is not None:
        raise undecided
    return decided


async def told(copy: WorkingCopy, kept: str, cell: bytes | None) -> Any:
    """The value in a cell, made anew; MISSING for none."""
    if cell is None:
        return MISSING
    return values.decode(await copy.raw_of(cell), shown(kept))
