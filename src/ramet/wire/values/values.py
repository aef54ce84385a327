"""Encode values as data: JSON types, bytes, dataclasses, pydantic models, dates, arrays; no pickles.

An encoded value is one bytes object: `json_size` bytes of JSON, then the binary parts that the JSON refers to, in the
order of the references. Types that JSON lacks are objects with one key that begins with "@". A user's own key that
begins with "@" is escaped by a second "@".

    {"@type": "module.Name", …fields}   dataclass, NamedTuple, msgspec Struct, pydantic model
    {"@enum": ["module.Name", "NAME" or null, value]}
    {"@map": [[key, value], …]}         a dict with keys that are not text; lists in keys are tuples
    {"@bytes": size}, {"@bytearray": size}, {"@str": size} (text with lone surrogates)
    {"@array": [dtype, [shape], size]}, {"@scalar": [dtype, size]}
    {"@int": hex}, {"@float": "nan"}, {"@complex": [real, imaginary]}, {"@decimal": text}, {"@uuid": hex}
    {"@datetime": iso}, {"@date": iso}, {"@time": iso}, {"@timedelta": [days, seconds, microseconds]}

Tuples and sets are encoded as lists, paths as text: the receiver's annotation restores their types. Integers are exact
JSON numbers of any size; integers of thousands of digits are tagged.
"""

from __future__ import annotations

import gc
import math
import re
import sys
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

from ramet.core.errors import NotShippable, OutputTooLarge, RametError
from ramet.wire.frames import MAX_BODY
from ramet.wire.values.decoder import decode as decode
from ramet.wire.values.encoder import MAX_DEPTH, TOO_LARGE_REMEDY, ValueTooLarge, Writer

_CONTAINERS: Final = frozenset({list, tuple, dict})
_PLAIN: Final = _CONTAINERS | {str, int, float, bool, type(None)}
#: A key that begins with "@". A quote inside of a text follows a backslash: each text of the JSON is read at most once.
_TAG: Final = re.compile(rb'[{,]"@(?:[^"\\]++|\\.)*+":')
#: Digits of an integer that every reader accepts: Python's default limit.
_DIGITS: Final = 4300
_json = msgspec.json.Encoder()


class EncodedValue(NamedTuple):
    """A value as bytes: JSON first, then binary parts."""

    json_size: int
    body: bytes


def encode(value: Any, *, label: str = "result", max_bytes: int | None = None) -> EncodedValue:
    """Return the encoded value.

    Raises NotShippable with the path, the type, and a remedy if a part cannot be encoded.
    """
    limit = MAX_BODY if max_bytes is None else min(max_bytes, MAX_BODY)
    text = plain_json(value, limit)
    parts: Sequence[bytes | memoryview] = ()
    if text is None:
        text, parts = _tagged_json(value, label, limit)
    size = len(text) + sum(map(len, parts))
    if size > limit:
        raise ValueTooLarge(label, size, limit)
    return EncodedValue(len(text), b"".join((text, *parts)) if parts else text)


def encode_result(value: Any, *, max_bytes: int | None = None) -> EncodedValue:
    """Return a run's encoded result. Raises OutputTooLarge if it is too large, and the other errors of `encode`."""
    try:
        return encode(value, max_bytes=max_bytes)
    except ValueTooLarge as refusal:
        raise result_too_large(refusal.size, refusal.limit) from None


def result_too_large(size: int, limit: int) -> OutputTooLarge:
    return OutputTooLarge("bytes of the result", size=size, limit=limit, remedy=TOO_LARGE_REMEDY)


def _tagged_json(value: Any, label: str, limit: int) -> tuple[bytes, Sequence[bytes | memoryview]]:
    writer = Writer(label, limit)
    try:
        try:
            return _json.encode(writer.data(value)), writer.parts
        except ValueError:  # lone surrogates, or an integer of thousands of digits
            writer = Writer(label, limit, careful=True)
            return _json.encode(writer.data(value)), writer.parts
    except (RametError, MemoryError):
        raise
    except RecursionError:
        reason = "it is nested too deeply for the remaining stack"
        raise NotShippable(label, reason, "return a flatter value") from None
    except Exception as problem:  # for example, a property of the user's own class failed
        reason = f"reading it failed with {type(problem).__name__}"
        raise NotShippable(writer.path, reason, "return plain data") from problem


def plain_json(value: Any, limit: int = MAX_BODY, *, max_int: float = math.inf) -> bytes | None:
    """Return the JSON of a value that needs no tags, much faster than with tags; None for any other value.

    A value with an integer beyond `max_int`, or beyond its negative, counts as another value.
    """
    nones = _count_nones(value, limit, max_int)
    if nones is None or not 0 < sys.get_int_max_str_digits() <= _DIGITS:
        return None
    try:
        text = _json.encode(value)
    except (TypeError, ValueError, RecursionError):
        return None
    if nones >= 0 and text.count(b"null") != nones:  # NaN and infinities become null
        return None
    return None if b"@" in text and _TAG.search(text) else text


def _count_nones(value: Any, limit: int, max_int: float) -> int | None:
    """Return how often None occurs in plain data (-1: irrelevant, without floats); None if the data is not plain."""
    level: list[Any] = [value]
    nones, floats = 0, False
    for _ in range(MAX_DEPTH + 1):
        kinds = set(map(type, level))
        if not kinds <= _PLAIN:
            return None
        floats = floats or float in kinds
        if int in kinds and max_int < math.inf:
            ints = _of_kind(level, kinds, int)
            if max(ints) > max_int or min(ints) < -max_int:
                return None
        if type(None) in kinds:
            nones += level.count(None)
        if kinds.isdisjoint(_CONTAINERS):
            return nones if floats else -1
        dicts = _of_kind(level, kinds, dict)
        if not set(map(type, set().union(*dicts))) <= {str}:
            return None
        limit -= len(level)
        if limit < sum(
            sum(map(len, _of_kind(level, kinds, kind))) for kind in _CONTAINERS
        ):  # Shared parts count each time.
            return None
        level = gc.get_referents(*level)  # the items of lists, and the keys and values of dicts, at the speed of C
    return None


def _of_kind(level: list[Any], kinds: set[type], kind: type) -> list[Any]:
    if kind not in kinds:
        return []
    return level if len(kinds) == 1 else [each for each in level if type(each) is kind]
