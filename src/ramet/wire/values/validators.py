"""How single values meet single annotations, and the rules for what a dict or set may hold."""

from __future__ import annotations

import collections
import pathlib
import re
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from itertools import count, repeat
from typing import Any, Final, NamedTuple

from ramet.core.errors import InvalidValue
from ramet.wire.values.annotations import is_buildable

#: Brackets and commas of a guest's value, those inside of texts aside: each takes up to 100 bytes and 2 µs.
MAX_PARTS: Final = 500_000
_TEXT: Final = re.compile(rb'"[^"]*"')

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
#: Values of one hash that are taken for chance; -1 and -2 have the same, and so do tuples of them.
_CHANCE: Final = 8
#: Comparisons of other values of one hash: a hundred in one dict, or some in each of several.
_MAX_COMPARED: Final = 10_000


class TypeMismatch(Exception):
    """A value that does not fit. `path` grows from the inside out."""

    def __init__(self, value: Any, expected: str) -> None:
        super().__init__(expected)
        self.value, self.expected = value, expected
        self.path: list[str] = []


class Check(NamedTuple):
    """How one annotation is met. None stands for "anything fits"."""

    exact: frozenset[type]  #: values of these types fit as they are
    fit: Callable[[Any], Any]  #: the value as it fits. Raises Misfit.


class Keys:
    """The keys of all dicts and sets of one value.

    Hashes of numbers can be foretold: a megabyte of chosen ones would keep a set busy for minutes, and so would many
    sets of some chosen ones each.
    """

    def __init__(self) -> None:
        self._left = _MAX_COMPARED

    def can_hold(self, values: Any) -> bool:
        """Whether one more dict or set can hold these values, in time that does not grow with their square."""
        try:
            hashes = list(map(hash, values))
        except Exception:  # what cannot be hashed, or an object whose own hash fails
            return False
        if len(set(hashes)) < len(hashes):
            self._left -= sum(each * each for each in collections.Counter(hashes).values() if each > _CHANCE)
        return self._left >= 0


def check_parts(body: bytes, size: int, what: str) -> None:
    """Look at the first `size` bytes, which are JSON, before any of it is built. Raises InvalidValue."""
    if _parts_of(body, size) <= MAX_PARTS:
        return
    text = body[:size]
    if b"\\" in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    parts = text.count(b'"') // 4  # Two texts make a part at least: a key and its value.
    if parts <= MAX_PARTS:
        outside = _TEXT.sub(b"", text)
        parts = _parts_of(outside, len(outside))
    if parts > MAX_PARTS:
        raise InvalidValue(what, f"{parts} parts or more", f"at most {MAX_PARTS} parts: items, fields and brackets")


def _parts_of(body: bytes, size: int) -> int:
    return sum(body.count(each, 0, size) for each in (b"[", b"{", b","))


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
        except TypeMismatch as misfit:
            misfit.path.append(shape.format(safe_repr(place))[:80])
            raise
    return fitted


def listed(value: Any, expected: str) -> list[Any]:
    """What tuples and sets arrive as. Raises Misfit."""
    if isinstance(value, list | tuple):
        return list(value)
    raise TypeMismatch(value, expected)


def instance(cls: type, keys: Keys) -> Check:
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
        if type(value) is not sent or is_buildable(cls) or (is_set and not keys.can_hold(value)):
            raise TypeMismatch(value, "None" if cls is types.NoneType else cls.__qualname__)
        if cls is collections.defaultdict:  # what it defaults to did not travel
            return value
        try:
            return cls(value)
        except Exception as problem:
            raise TypeMismatch(value, f"{cls.__qualname__} ({summarize_error(problem)})") from None

    return Check(exact, fit)


def literal(args: tuple[Any, ...], value: Any) -> Any:
    """One of some values. Raises Misfit."""
    for each in args:
        if type(each) is type(value) and each == value:
            return each
    raise TypeMismatch(value, "one of " + ", ".join(map(repr, args))[:200])


def safe_repr(value: Any) -> Any:
    """What an error message shows of a value: not all of it, and not by a `__repr__` of somebody's own."""
    if value is None or type(value) in (bool, float):
        return value
    if type(value) is int and value.bit_length() < 200:
        return value
    if type(value) is str:
        return value[:200]
    return f"a {type(value).__qualname__}" + (f" of {len(value)}" if type(value) in (list, dict, bytes) else "")


def format_type(hint: Any) -> str:
    """An annotation, for people."""
    return str(hint).replace("typing.", "")[:200]


def summarize_error(error: Exception) -> str:
    """What an error says, in short; never fails."""
    try:
        return next(iter(str(error).splitlines()), "")[:200]
    except Exception:
        return ""
