"""Merge two sides with a common base: find conflicts, and resolve them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ramet.store.state import values
from ramet.store.state.diff import Difference
from ramet.store.state.validation import display_key, is_directory
from ramet.store.state.values import MISSING
from ramet.store.state.working_copy import MARK, WorkingCopy

#: A function that decides one key changed by both sides: resolve(key, base, ours, theirs) -> value, MISSING for none.
Resolve = Callable[[str, Any, Any, Any], Any]


def conflicts(ours: Mapping[str, Difference], theirs: Mapping[str, Difference]) -> list[str]:
    """Return the keys that both sides changed to different values."""
    shared = ours.keys() & theirs.keys()
    return sorted(cell_key for cell_key in shared if ours[cell_key].after != theirs[cell_key].after)


def is_directory_mark(cell_key: str, difference: Difference) -> bool:
    """Return whether only the mark of a directory was added or removed: its entries tell all."""
    return is_directory(cell_key) and {difference.before, difference.after} <= {MARK, None}


class UnresolvedConflict(Exception):
    """The error of a `resolve` that has not decided yet; it is called for the other keys, and nothing is written."""


async def resolve_conflicts(
    copy: WorkingCopy,
    resolve: Resolve,
    ours: Mapping[str, Difference],
    theirs: Mapping[str, Difference],
) -> dict[str, bytes | None]:
    """Return the cells that `resolve` decides; the working copy keeps their values. Raises the errors of `resolve`."""
    decisions: dict[str, bytes | None] = {}
    undecided_error: UnresolvedConflict | None = None
    for cell_key in conflicts(ours, theirs):
        sides = (ours[cell_key].before, ours[cell_key].after, theirs[cell_key].after)
        try:
            value = resolve(display_key(cell_key), *[await value_of_cell(copy, cell_key, cell) for cell in sides])
        except UnresolvedConflict as error:
            undecided_error = error
            continue
        decisions[cell_key] = (
            None if value is MISSING else copy.encode_cell(values.encode(value, display_key(cell_key)))
        )
    if undecided_error is not None:
        raise undecided_error
    return decisions


async def value_of_cell(copy: WorkingCopy, cell_key: str, cell: bytes | None) -> Any:
    """Return a new copy of the value in a cell; MISSING for none."""
    if cell is None:
        return MISSING
    return values.decode(await copy.raw_of(cell), display_key(cell_key))
