"""Bound the number of values with the same hash: a set or dict would compare each of them with all others.

The hashes of numbers are predictable, the hashes of texts are not. The type of JSON data does not determine the Python
type: a text may become a number or a UUID, and a list of numbers may become a tuple, whose hash is predictable too. So
all lists and all keys of the data are checked as if each were a set.
"""

from __future__ import annotations

import decimal
import re
from collections.abc import Mapping
from typing import Any

from ramet.wire.values.validators import Keys

ACCEPTED = "at most 100 different numbers of one hash"
_FAST_COUNT = 8  #: a number of values that is compared quickly
_UUID = re.compile(r"(?:urn:uuid:)?\{?[0-9a-fA-F-]{32,36}\}?")
#: The hash of a text that can be read as a number and as a UUID: the annotation decides which, so all get one hash.
_AMBIGUOUS = 0
_TEXT_KEYS = (None, "str", "any")


def needs_hashes(core_schema: Any) -> bool:
    """Return whether a pydantic type makes sets or dicts of values that may not be text."""
    seen_ids, pending = set[int](), [core_schema]
    while pending:
        part = pending.pop()
        if id(part) in seen_ids or not isinstance(part, Mapping | list | tuple):
            continue
        seen_ids.add(id(part))
        if not isinstance(part, Mapping):
            pending.extend(part)
            continue
        if part.get("type") in ("set", "frozenset") and _kind(part.get("items_schema")) != "str":
            return True
        if _kind(part.get("keys_schema")) not in _TEXT_KEYS:
            return True
        pending.extend(part.values())
    return False


def can_be_hashed(data: Any, keys: Keys | None = None) -> bool:
    """Return whether sets and keys of JSON data can be built without time that grows with the square of their size.

    `keys` counts them together with those of other data.
    """
    if not _has_large_part(data):
        return True
    count = _Count(Keys() if keys is None else keys)
    count.hashes(data)
    return count.is_bounded


def _has_large_part(value: Any) -> bool:
    """Return whether a list or mapping in the value has so many entries that `_Count` would look at their hashes."""
    if isinstance(value, dict):
        return len(value) > _FAST_COUNT or any(map(_has_large_part, value.values()))
    return isinstance(value, list) and (len(value) > _FAST_COUNT or any(map(_has_large_part, value)))


class _Count:
    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self.is_bounded = True

    def hashes(self, value: Any) -> tuple[int, int]:
        """Return the predictable hash of a value, and an unpredictable hash that distinguishes values."""
        if isinstance(value, str):
            return _text_hash(value), hash(value)
        if isinstance(value, list):
            return self._combine([self.hashes(each) for each in value])
        if isinstance(value, dict):
            self._combine([self.hashes(name) for name in value])
            return self._combine([self.hashes(value[name]) for name in sorted(value)])
        if value is None or isinstance(value, int | float):
            return hash(value), hash(repr(value))
        return id(value), id(value)  # an object of the caller's own program

    def _combine(self, parts: list[tuple[int, int]]) -> tuple[int, int]:
        hashes = tuple(predicted_hash for predicted_hash, _ in parts)
        if len(parts) > _FAST_COUNT and len(set(hashes)) < len(parts):
            different = {own_hash: predicted_hash for predicted_hash, own_hash in parts}
            self.is_bounded = self._keys.can_hold(different.values()) and self.is_bounded
        return hash(hashes), hash(tuple(own_hash for _, own_hash in parts))


def _kind(schema: Any) -> Any:
    return schema.get("type") if isinstance(schema, Mapping) else None


def _text_hash(text: str) -> int:
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
