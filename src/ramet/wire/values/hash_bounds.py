"""Numbers of one hash: a set, or a dict whose keys are numbers, would compare each of them with all others.

Hashes of numbers can be foretold, those of texts cannot. The type of JSON data says what becomes of it in Python: a
text may become a number or a UUID, and a list of numbers a tuple, whose hash can be foretold, too. So all lists and all
keys of the data are looked at, as if each were a set.
"""

from __future__ import annotations

import decimal
import re
from collections.abc import Mapping
from typing import Any

from ramet.wire.values.validators import Keys

ACCEPTED = "at most 100 different numbers of one hash"
_FEW = 8  #: are compared with each other in no time
_UUID = re.compile(r"(?:urn:uuid:)?\{?[0-9a-fA-F-]{32,36}\}?")
_AMBIGUOUS = (
    0  #: the hash of a text that can be read as a number and as a UUID: one of them is chosen, whichever counts
)
_TEXT_KEYS = (None, "str", "any")


def needs_hashes(core_schema: Any) -> bool:
    """Whether a type of pydantic makes sets or dicts of what is not known to be text."""
    seen, left = set[int](), [core_schema]
    while left:
        part = left.pop()
        if id(part) in seen or not isinstance(part, Mapping | list | tuple):
            continue
        seen.add(id(part))
        if not isinstance(part, Mapping):
            left.extend(part)
            continue
        if part.get("type") in ("set", "frozenset") and _kind(part.get("items_schema")) != "str":
            return True
        if _kind(part.get("keys_schema")) not in _TEXT_KEYS:
            return True
        left.extend(part.values())
    return False


def can_be_hashed(data: Any, keys: Keys | None = None) -> bool:
    """Whether sets and keys of JSON data can be made in time that does not grow with their square.

    `keys` counts them together with those of other data.
    """
    count = _Count(Keys() if keys is None else keys)
    count.hashes(data)
    return count.is_bounded


class _Count:
    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self.is_bounded = True

    def hashes(self, value: Any) -> tuple[int, int]:
        """The hash of a value as it can be foretold, and one that nobody can foretell, which tells values apart."""
        if isinstance(value, str):
            return _of_text(value), hash(value)
        if isinstance(value, list):
            return self._of_all([self.hashes(each) for each in value])
        if isinstance(value, dict):
            self._of_all([self.hashes(name) for name in value])
            return self._of_all([self.hashes(value[name]) for name in sorted(value)])
        if value is None or isinstance(value, int | float):
            return hash(value), hash(repr(value))
        return id(value), id(value)  # an object of the caller's own program

    def _of_all(self, parts: list[tuple[int, int]]) -> tuple[int, int]:
        hashes = tuple(foretold for foretold, _ in parts)
        if len(parts) > _FEW and len(set(hashes)) < len(parts):
            different = {own: foretold for foretold, own in parts}
            self.is_bounded = self._keys.can_hold(different.values()) and self.is_bounded
        return hash(hashes), hash(tuple(own for _, own in parts))


def _kind(schema: Any) -> Any:
    return schema.get("type") if isinstance(schema, Mapping) else None


def _of_text(text: str) -> int:
    number = _number(text)
    if 32 <= len(text) <= 45 and _UUID.fullmatch(text):
        digits = text.removeprefix("urn:uuid:").strip("{}").replace("-", "")
        if len(digits) == 32:
            return _AMBIGUOUS if number is not None else hash(int(digits, 16))
    return hash(text if number is None else number)


def _number(text: str) -> decimal.Decimal | None:
    try:
        number = decimal.Decimal(text)
    except (ArithmeticError, ValueError):
        return None
    return number if number.is_finite() else None
