"""Track objects that `get` returned: detect changes, and drop objects without other references."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

_MIN_TRACKED = 64  #: number of objects kept before unreferenced ones are dropped


class _TrackedObject(NamedTuple):
    cell_key: str
    value: Any
    raw: bytes  #: encoding at the time it was returned
    as_: Any  #: the requested type; None for lists and dicts, whose parts' references can be counted
    encode: Callable[[Any], bytes]


class ChangedObject(NamedTuple):
    """An object that was changed, with its key and its requested type."""

    cell_key: str
    value: Any
    as_: Any


class MutationTracker:
    """The lists, dicts and objects that were returned. Unchanged objects without other references are dropped."""

    def __init__(self) -> None:
        self._tracked_objects: list[_TrackedObject] = []
        self._next_cleanup_at = _MIN_TRACKED

    def add(self, cell_key: str, value: Any, as_: Any, encode: Callable[[Any], bytes]) -> None:
        """Register an object that is returned."""
        if len(self._tracked_objects) >= self._next_cleanup_at:
            self._tracked_objects = [each for each in self._tracked_objects if not _is_alone(each) or _is_changed(each)]
            self._next_cleanup_at = max(_MIN_TRACKED, 2 * len(self._tracked_objects))
        self._tracked_objects.append(_TrackedObject(cell_key, value, encode(value), as_, encode))

    def find_changed(self) -> Iterator[ChangedObject]:
        for each in self._tracked_objects:
            if _is_changed(each):
                yield ChangedObject(each.cell_key, each.value, each.as_)

    def update(self, cell_key: str, value: Any) -> None:
        """Note a new value of a key: objects of the old value are dropped, and the new one counts as unchanged."""
        self._tracked_objects = [
            each._replace(raw=each.encode(value)) if each.value is value else each
            for each in self._tracked_objects
            if each.cell_key != cell_key or each.value is value
        ]

    def forget_changed(self) -> None:
        self._tracked_objects = [each for each in self._tracked_objects if not _is_changed(each)]

    def clear(self) -> None:
        self._tracked_objects = []


def _is_changed(each: _TrackedObject) -> bool:
    try:
        return each.encode(each.value) != each.raw
    except Exception:  # a part that cannot be encoded was added: the object changed
        return True


def _is_alone(each: _TrackedObject) -> bool:
    """Return whether no other code holds the object, or a mutable part of it."""
    if each.as_ is not None or sys.getrefcount(each.value) > _ALONE:
        return False
    return _most_holders(each.value) <= _ALONE_INSIDE


def _most_holders(value: Any) -> int:
    """Return the highest reference count of any list or dict inside."""
    maximum, pending = 0, [value]
    while pending:
        container = pending.pop()
        for part in container.values() if type(container) is dict else container:
            if type(part) is list or type(part) is dict:
                maximum = max(maximum, sys.getrefcount(part))
                pending.append(part)
    return maximum


# Measured by the same code on unshared objects, because the count of temporary references depends on Python.
_SAMPLE = _TrackedObject("", [[], {}], b"", None, bytes)
_ALONE = (lambda each: sys.getrefcount(each.value))(_SAMPLE)
_ALONE_INSIDE = _most_holders(_SAMPLE.value)
