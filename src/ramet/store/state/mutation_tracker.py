"""Objects that `get` gave out: whether somebody has changed one since, and whether anybody still could."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

_FEW = 64  #: how many are kept before it is looked which of them nobody has any more


class _Given(NamedTuple):
    kept: str
    value: Any
    raw: bytes  #: what it was when it was given out
    as_: Any  #: the type that it was asked for as; None for lists and dicts, of which it can be seen who holds a part
    encode: Callable[[Any], bytes]


class Changed(NamedTuple):
    """Something that is not as it was: under which key it was found, and as what."""

    kept: str
    value: Any
    as_: Any


class Fetched:
    """Lists, dicts and objects that were given out. What nobody else holds, and is as it was, is let go."""

    def __init__(self) -> None:
        self._given: list[_Given] = []
        self._look_at = _FEW

    def add(self, kept: str, value: Any, as_: Any, encode: Callable[[Any], bytes]) -> None:
        """Something is given out."""
        if len(self._given) >= self._look_at:
            self._given = [each for each in self._given if not _is_alone(each) or _is_changed(each)]
            self._look_at = max(_FEW, 2 * len(self._given))
        self._given.append(_Given(kept, value, encode(value), as_, encode))

    def changed(self) -> Iterator[Changed]:
        """What is not as it was."""
        for each in self._given:
            if _is_changed(each):
                yield Changed(each.kept, each.value, each.as_)

    def written(self, kept: str, value: Any) -> None:
        """A key has another value: objects of the old one are its writer's business; that one is as it was written."""
        self._given = [
            each._replace(raw=each.encode(value)) if each.value is value else each
            for each in self._given
            if each.kept != kept or each.value is value
        ]

    def leave(self) -> None:
        """Forget those that were changed."""
        self._given = [each for each in self._given if not _is_changed(each)]

    def clear(self) -> None:
        """Forget all."""
        self._given = []


def _is_changed(each: _Given) -> bool:
    try:
        return each.encode(each.value) != each.raw
    except Exception:  # it was given a part that cannot be written: changed, whatever else it is
        return True


def _is_alone(each: _Given) -> bool:
    """Whether nobody but us holds it, or a part of it that could be changed."""
    if each.as_ is not None or sys.getrefcount(each.value) > _ALONE:
        return False
    return _most_holders(each.value) <= _ALONE_INSIDE


def _most_holders(value: Any) -> int:
    """The most references to any list or dict inside."""
    most, todo = 0, [value]
    while todo:
        outer = todo.pop()
        for part in outer.values() if type(outer) is dict else outer:
            if type(part) is list or type(part) is dict:
                most = max(most, sys.getrefcount(part))
                todo.append(part)
    return most


# Counted by the same code on what certainly nobody else holds, since how many are on the way is Python's own affair.
_SAMPLE = _Given("", [[], {}], b"", None, bytes)
_ALONE = (lambda each: sys.getrefcount(each.value))(_SAMPLE)
_ALONE_INSIDE = _most_holders(_SAMPLE.value)
