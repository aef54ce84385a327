"""How single values meet single annotations, and the rules for what a dict or set may hold."""

from __future__ import annotations

import collections
import pathlib
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from itertools import count, repeat
from typing import Any, Final, NamedTuple

from ramet.wire.annotations import is_buildable

#: A whole number is a number, and True is one: as type checkers have it.
_ALSO: Final[Mapping[type, tuple[type, ...]]] = {int: (bool,), float: (int, bool), complex: (float, int, bool)}
#: What values of types with these bases arrive as.
_SENT: Final[tuple[tuple[type, type], ...]] = (
    (pathlib.PurePath, str),
    (memoryview, bytes),
    (dict, dict),
    (list, list),
    (tuple, list),
    (set, list),
    (frozenset, list),
    (str, str),
    (bytes, bytes),
    (int, int),
    (float, float),
)
#: Values of one hash that are taken for chance.
_MAX_ALIKE: Final = 1_000


class Misfit(Exception):
    """A value that does not fit. `path` grows from the inside out."""

    def __init__(self, value: Any, expected: str) -> None:
        super().__init__(expected)
        self.value, self.expected = value, expected
        self.path: list[str] = []


class Check(NamedTuple):
    """How one annotation is met. None stands for "anything fits"."""

    exact: frozenset[type]  #: values of these types fit as they are
    fit: Callable[[Any], Any]  #: the value as it fits. Raises Misfit.


def can_be_keys(values: Any) -> bool:
    """Whether a dict or set can hold these values, and in time that does not grow with their square.

    Hashes of numbers can be foretold: a megabyte of chosen ones would keep a set busy for minutes.
    """
    try:
        return len(values) - len(set(map(hash, values))) <= _MAX_ALIKE
    except Exception:  # what cannot be hashed, or an object whose own hash fails
        return False


def fit_one(check: Check | None, value: Any) -> Any:
    """The value, as a check wants it. Raises Misfit."""
    return value if check is None or type(value) in check.exact else check.fit(value)


def fit_items(check: Check | None, values: list[Any]) -> list[Any]:
    """All values, as one check wants each. Raises Misfit."""
    if check is None or set(map(type, values)) <= check.exact:
        return values
    return fit_each(count(), repeat(check), values)


def fit_each(
    places: Iterable[Any], checks: Iterable[Check | None], values: Iterable[Any], shape: str = "[{!r}]"
) -> list[Any]:
    """Values as a check of its own wants each. Raises Misfit, which tells the place."""
    fitted = []
    for place, check, value in zip(places, checks, values, strict=False):
        try:
            fitted.append(fit_one(check, value))
        except Misfit as misfit:
            misfit.path.append(shape.format(told(place))[:80])
            raise
    return fitted


def listed(value: Any, expected: str) -> list[Any]:
    """What tuples and sets arrive as. Raises Misfit."""
    if isinstance(value, list | tuple):
        return list(value)
    raise Misfit(value, expected)


def instance(cls: type) -> Check:
    """Values of a class: themselves, or what they arrive as."""
    exact = frozenset({cls, *_ALSO.get(cls, ())})
    sent = next((sent for base, sent in _SENT if issubclass(cls, base)), None)
    is_set = issubclass(cls, set | frozenset)

    def fit(value: Any) -> Any:
        try:
            if isinstance(value, (cls, *_ALSO.get(cls, ()))):
                return value
        except TypeError:  # a protocol that cannot be asked at run time
            return value
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(value, numpy.generic) and type(value.item()) in exact:
            return value.item()
        if type(value) is not sent or is_buildable(cls) or (is_set and not can_be_keys(value)):
            raise Misfit(value, "None" if cls is types.NoneType else cls.__qualname__)
        if cls is collections.defaultdict:  # what it defaults to did not travel
            return value
        try:
            return cls(value)
        except Exception as problem:
            raise Misfit(value, f"{cls.__qualname__} ({first_line(problem)})") from None

    return Check(exact, fit)


def literal(args: tuple[Any, ...], value: Any) -> Any:
    """One of some values. Raises Misfit."""
    for each in args:
        if type(each) is type(value) and each == value:
            return each
    raise Misfit(value, "one of " + ", ".join(map(repr, args))[:200])


def told(value: Any) -> Any:
    """What an error message shows of a value: not all of it, and not by a `__repr__` of somebody's own."""
    if value is None or type(value) in (bool, float):
        return value
    if type(value) is int and value.bit_length() < 200:
        return value
    if type(value) is str:
        return value[:200]
    return f"a {type(value).__qualname__}" + (f" of {len(value)}" if type(value) in (list, dict, bytes) else "")


def shown(hint: Any) -> str:
    """An annotation, for people."""
    return str(hint).replace("typing.", "")[:200]


def first_line(error: Exception) -> str:
    """What an error says, in short; never fails."""
    try:
        return next(iter(str(error).splitlines()), "")[:200]
    except Exception:
        return ""
