"""Check single values against single annotations, and decide what a dict or set may hold."""

from __future__ import annotations

import collections
import pathlib
import re
import sys
import types
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import count, repeat
from typing import Any, Final, NamedTuple

from ramet.core.errors import InvalidValue
from ramet.wire.values.annotations import is_buildable

#: Maximum brackets and commas of a guest's value, outside texts: each takes up to 100 bytes and 2 µs.
MAX_PARTS: Final = 500_000
_TEXT: Final = re.compile(rb'"[^"]*"')

#: A whole number is a number, and True is one, as in type checkers.
_ALSO_ACCEPTED: Final[Mapping[type, tuple[type, ...]]] = {int: (bool,), float: (int, bool), complex: (float, int, bool)}
#: The types that values of types with these bases are decoded to.
_WIRE_TYPES: Final[tuple[tuple[type, type], ...]] = (
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
#: Number of equal hashes taken for chance; -1 and -2 have equal hashes, and so do tuples of them.
_MAX_BY_CHANCE: Final = 8
#: Maximum comparisons of further values with equal hashes: a hundred in one dict, or some in each of several.
_MAX_COMPARED: Final = 10_000


class TypeMismatch(Exception):
    """The error for a value that does not fit. `path` grows from the inside out."""

    def __init__(self, value: Any, expected: str) -> None:
        super().__init__(expected)
        self.value, self.expected = value, expected
        self.path: list[str] = []


class Check(NamedTuple):
    """The check of one annotation. None stands for "anything fits"."""

    exact: frozenset[type]  #: values of these types fit unchanged
    fit: Callable[[Any], Any]  #: returns the coerced value. Raises TypeMismatch.
    fit_unchanged: Callable[[Collection[Any]], bool] = lambda _: False  #: True only if all values fit unchanged


class Keys:
    """The count of hash collisions in all dicts and sets of one value.

    The hashes of numbers are predictable. A megabyte of chosen numbers would keep a set busy for minutes, and so would
    many sets of some chosen numbers each.
    """

    def __init__(self) -> None:
        self._remaining = _MAX_COMPARED

    def can_hold(self, values: Any) -> bool:
        """Return whether a further dict or set can hold these values, in time that does not grow with their square."""
        try:
            hashes = list(map(hash, values))
        except Exception:  # a value that cannot be hashed, or an object whose own hash fails
            return False
        if len(set(hashes)) < len(hashes):
            self._remaining -= sum(
                each * each for each in collections.Counter(hashes).values() if each > _MAX_BY_CHANCE
            )
        return self._remaining >= 0


def check_parts(body: bytes, size: int, label: str) -> None:
    """Check the first `size` bytes, which are JSON, before decoding.

    Raises InvalidValue if there are too many parts.
    """
    if size <= MAX_PARTS or _parts_of(body, size) <= MAX_PARTS:
        return
    text = body[:size]
    if b"\\" in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    parts = text.count(b'"') // 4  # Two texts form at least one part: a key and its value.
    if parts <= MAX_PARTS:
        unquoted = _TEXT.sub(b"", text)
        parts = _parts_of(unquoted, len(unquoted))
    if parts > MAX_PARTS:
        raise InvalidValue(label, f"{parts} parts or more", f"at most {MAX_PARTS} parts: items, fields and brackets")


def _parts_of(body: bytes, size: int) -> int:
    return sum(body.count(each, 0, size) for each in (b"[", b"{", b","))


def fit_one(check: Check | None, value: Any) -> Any:
    """Return the value, coerced by a check. Raises TypeMismatch if it does not fit."""
    return value if check is None or type(value) in check.exact else check.fit(value)


def fit_items(check: Check | None, values: list[Any]) -> list[Any]:
    """Return all values, each coerced by the same check. Raises TypeMismatch if one does not fit."""
    return values if fit_unchanged(check, values) else fit_each(count(), repeat(check), values)


def fit_unchanged(check: Check | None, values: Collection[Any]) -> bool:
    """Return True if all values fit a check unchanged, as far as this can be seen without a call for each value."""
    return check is None or set(map(type, values)) <= check.exact or check.fit_unchanged(values)


def fit_each(
    positions: Iterable[Any], checks: Iterable[Check | None], values: Iterable[Any], shape: str = "[{!r}]"
) -> list[Any]:
    """Return values, each coerced by its own check. Raises TypeMismatch, with the place, if one does not fit."""
    fitted_items = []
    for position, check, value in zip(positions, checks, values, strict=False):
        try:
            fitted_items.append(fit_one(check, value))
        except TypeMismatch as misfit:
            misfit.path.append(shape.format(safe_repr(position))[:80])
            raise
    return fitted_items


def as_list(value: Any, expected: str) -> list[Any]:
    """Return a tuple or list as a list. Raises TypeMismatch for any other type."""
    if isinstance(value, list | tuple):
        return list(value)
    raise TypeMismatch(value, expected)


def instance(cls: type, keys: Keys) -> Check:
    """Return a check for values of a class: instances, or the type that they are decoded to."""
    exact = frozenset({cls, *_ALSO_ACCEPTED.get(cls, ())})
    wire_type = next((wire_type for base, wire_type in _WIRE_TYPES if issubclass(cls, base)), None)
    is_set = issubclass(cls, set | frozenset)

    def fit(value: Any) -> Any:
        try:
            if isinstance(value, (cls, *_ALSO_ACCEPTED.get(cls, ()))):
                return value
        except TypeError:  # a protocol that cannot be checked at run time
            return value
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(value, numpy.generic) and type(value.item()) in exact:
            return value.item()
        if type(value) is not wire_type or is_buildable(cls) or (is_set and not keys.can_hold(value)):
            raise TypeMismatch(value, "None" if cls is types.NoneType else cls.__qualname__)
        if cls is collections.defaultdict:  # the default factory was not sent
            return value
        try:
            return cls(value)
        except Exception as problem:
            raise TypeMismatch(value, f"{cls.__qualname__} ({summarize_error(problem)})") from None

    return Check(exact, fit)


def literal(args: tuple[Any, ...], value: Any) -> Any:
    """Return the equal value among `args`. Raises TypeMismatch if there is none."""
    for each in args:
        if type(each) is type(value) and each == value:
            return each
    raise TypeMismatch(value, "one of " + ", ".join(map(repr, args))[:200])


def safe_repr(value: Any) -> Any:
    """Return a bounded form of a value for an error message, without calling a user's `__repr__`."""
    if value is None or type(value) in (bool, float):
        return value
    if type(value) is int and value.bit_length() < 200:
        return value
    if type(value) is str:
        return value[:200]
    return f"a {type(value).__qualname__}" + (f" of {len(value)}" if type(value) in (list, dict, bytes) else "")


def format_type(hint: Any) -> str:
    return str(hint).replace("typing.", "")[:200]


def summarize_error(error: Exception) -> str:
    """Return a short form of an error's message; never raises."""
    try:
        return next(iter(str(error).splitlines()), "")[:200]
    except Exception:
        return ""
