"""Decode values of `ramet.wire.values.values`. The input may be malicious.

Sizes are checked against the received bytes. Each binary part is read once and in order. Nesting is bounded. Only types
named by the receiver's own annotation are built.
"""

from __future__ import annotations

import datetime
import decimal
import gc
import math
import uuid
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from typing import Any, Final

import msgspec

from ramet.core.errors import InvalidValue, ProtocolError
from ramet.wire.values.coercion import Coercer
from ramet.wire.values.encoder import DTYPES, MAX_DEPTH
from ramet.wire.values.json_object import decode_json
from ramet.wire.values.validators import Keys, TypeMismatch, check_parts, safe_repr


def decode(body: bytes, json_size: int, *, returns: Any = None, label: str = "output", is_bounded: bool = True) -> Any:
    """Return the value that `encode` encoded. Raises ProtocolError for bytes that `encode` cannot produce.

    Objects are decoded to dicts with "@type" unless their type occurs in `returns`, an annotation: only types that the
    receiver names are built. Nothing is imported by name.

    Raises InvalidValue if a value does not fit the annotation; its `field` is the path inside the value, beginning with
    `label`. Raises InvalidValue if a value has more than MAX_PARTS parts, unless `is_bounded` is false because the host
    itself encoded the value.
    """
    if not 0 < json_size <= len(body):
        raise ProtocolError(f"a value announces {json_size} bytes of JSON in a body of {len(body)}")
    if is_bounded:
        check_parts(body, json_size, label)
    text = memoryview(body)[:json_size]
    try:
        raw = _load(text)
        is_tagged = body.find(b"@", 0, json_size) >= 0
        fitter = None if returns is None else Coercer(returns, text_keys=not is_tagged)
        if is_tagged:
            reader = _Reader(body, json_size, fitter)
            raw = reader.value(raw)
            reader.finish()
        elif len(body) != json_size:
            raise ProtocolError(f"a value has {len(body) - json_size} bytes that no part of it uses")
        return raw if fitter is None else fitter.fit(raw)
    except TypeMismatch as misfit:
        path = label + "".join(reversed(misfit.path))
        raise InvalidValue(path, safe_repr(misfit.value), misfit.expected) from None
    except RecursionError:
        raise _decode_error(f"it is nested deeper than {MAX_DEPTH} levels") from None


def _load(text: memoryview) -> Any:
    try:
        raw: Any = decode_json(text)
    except (msgspec.DecodeError, UnicodeError) as problem:
        raise _decode_error(str(problem)[:200]) from None
    level = [raw]
    for _ in range(MAX_DEPTH + 5):  # a tag may add as many levels to the innermost value
        level = gc.get_referents(*level)  # one level of a tree of lists and dicts, at the speed of C
        if not level:
            return raw
    raise _decode_error(f"it is nested deeper than {MAX_DEPTH} levels")


def _decode_error(reason: str) -> ProtocolError:
    return ProtocolError(f"a value that cannot be read: {reason}")


class _Reader:
    """A reader that replaces tagged objects by the values that they encode."""

    def __init__(self, body: bytes, at: int, fitter: Coercer | None) -> None:
        self._body, self._at, self._fitter = body, at, fitter
        self._keys = Keys()

    def finish(self) -> None:
        """Check that every byte of the body was used. Raises ProtocolError otherwise."""
        if self._at != len(self._body):
            raise _decode_error(f"{len(self._body) - self._at} bytes of it belong to no part")

    def value(self, raw: Any) -> Any:
        """Return the value of JSON data.

        Raises ProtocolError or TypeMismatch if the data is invalid or does not fit.
        """
        if type(raw) is list:
            return self._list(raw)
        if type(raw) is dict:
            return self._dict(raw)
        return raw

    def _list(self, raw: list[Any]) -> list[Any]:
        for index, each in enumerate(raw):
            if type(each) is dict or type(each) is list:
                try:
                    raw[index] = self.value(each)
                except TypeMismatch as misfit:
                    misfit.path.append(f"[{index}]")
                    raise
        return raw

    def _dict(self, raw: dict[str, Any]) -> Any:
        first_key = next(iter(raw), "")
        if first_key[:1] != "@" or first_key[:2] == "@@":
            return self._fields(raw, "[{!r}]")
        if first_key == "@type":
            return self._object(raw.pop(first_key), raw)
        read_tag = _TAGS.get(first_key)
        if read_tag is None or len(raw) > 1:
            raise _decode_error(f"an object with the keys {list(raw)[:3]!r:.200}")
        try:
            return read_tag(self, raw[first_key])
        except (ProtocolError, TypeMismatch):
            raise
        except (ValueError, TypeError, OverflowError, ArithmeticError) as problem:
            raise _decode_error(
                f"a {first_key} of {type(raw[first_key]).__name__} ({type(problem).__name__})"
            ) from None

    def _fields(self, raw: dict[str, Any], path_format: str) -> dict[str, Any]:
        fields = {}
        for name, each in raw.items():
            key = name
            if name[:1] == "@":
                key = name[1:]
                if key[:1] != "@":
                    raise _decode_error(f"the key {name!r:.200} among others")
            if type(each) is dict or type(each) is list:
                try:
                    each = self.value(each)
                except TypeMismatch as misfit:
                    misfit.path.append(path_format.format(key)[:80])
                    raise
            fields[key] = each
        return fields

    def _object(self, name: Any, raw: dict[str, Any]) -> Any:
        if type(name) is not str:
            raise _decode_error("a type whose name is not text")
        fields = self._fields(raw, ".{}")
        cls = self._fitter.types.get(name) if self._fitter is not None else None
        if cls is None or self._fitter is None:
            return {"@type": name, **fields}
        return self._fitter.build(cls, fields)

    # ---- tags

    def _part(self, size: Any) -> memoryview:
        if type(size) is not int or not 0 <= size <= len(self._body) - self._at:
            raise _decode_error("a part that is missing")
        self._at += size
        return memoryview(self._body)[self._at - size : self._at]

    def _enum(self, raw: Any) -> Any:
        name, member, value = _list_of(raw, 3)
        value = self.value(value)
        cls = self._fitter.types.get(_text(name)) if self._fitter is not None else None
        return value if cls is None or self._fitter is None else self._fitter.member(cls, member, value)

    def _map(self, raw: Any) -> dict[Any, Any]:
        keys, values = [], []
        for pair in _list_of(raw):
            key, value = _list_of(pair, 2)
            keys.append(_freeze(self.value(key)))
            try:
                values.append(self.value(value))
            except TypeMismatch as misfit:
                misfit.path.append(f"[{safe_repr(keys[-1])!r}]"[:80])
                raise
        if not self._keys.can_hold(keys):
            raise _decode_error("keys that a dict cannot hold")
        return dict(zip(keys, values, strict=True))

    def _array(self, raw: Any) -> Any:
        dtype, shape, size = _list_of(raw, 3)
        return self._numbers(dtype, _list_of(shape), size)

    def _scalar(self, raw: Any) -> Any:
        dtype, size = _list_of(raw, 2)
        array = self._numbers(dtype, [], size)
        return array if isinstance(array, dict) else array[()]

    def _numbers(self, dtype: Any, shape: list[Any], size: Any) -> Any:
        if _text(dtype) not in DTYPES:
            raise _decode_error("an array of another dtype")
        if len(shape) > 32 or not all(type(each) is int and 0 <= each <= 2**40 for each in shape):
            raise _decode_error("an array of another shape")
        if size != math.prod(shape) * int(dtype[2:]):
            raise _decode_error("an array of another size than its shape")
        part = self._part(size)
        numpy = _numpy()
        if numpy is None:
            return {"@type": "numpy.ndarray", "dtype": dtype, "shape": shape, "data": bytes(part)}
        if size == 0:
            return numpy.empty(shape, dtype)
        if dtype == "|b1":
            return (numpy.frombuffer(part, "|u1") != 0).reshape(shape)
        return numpy.frombuffer(part, dtype).reshape(shape).copy()


@cache
def _numpy() -> Any:
    """Return numpy, or None if it is not installed. Cached: a failing import is slow, and every part may need it."""
    try:
        return import_module("numpy")
    except ImportError:
        return None


def _list_of(raw: Any, size: int | None = None) -> list[Any]:
    if type(raw) is not list or (size is not None and len(raw) != size):
        raise _decode_error("something that is not a list, or a list of another length")
    return raw


def _text(raw: Any) -> str:
    if type(raw) is not str:
        raise _decode_error("something that is not text")
    return raw


def _number(raw: Any) -> float:
    if type(raw) is dict:
        return _special(raw.get("@float"))
    if type(raw) not in (int, float):
        raise _decode_error("something that is not a number")
    return float(raw)


def _special(raw: Any) -> float:
    if raw not in ("nan", "inf", "-inf"):
        raise _decode_error("something that is not a number")
    return float(raw)


def _timedelta(raw: Any) -> datetime.timedelta:
    days, seconds, microseconds = _list_of(raw, 3)
    if not all(type(each) is int for each in (days, seconds, microseconds)):
        raise _decode_error("something that is not a time")
    return datetime.timedelta(days, seconds, microseconds)


def _freeze(key: Any) -> Any:
    return tuple(map(_freeze, key)) if type(key) is list else key


_TAGS: Final[Mapping[str, Callable[[_Reader, Any], Any]]] = {
    "@enum": _Reader._enum,
    "@map": _Reader._map,
    "@array": _Reader._array,
    "@scalar": _Reader._scalar,
    "@bytes": lambda reader, raw: bytes(reader._part(raw)),
    "@bytearray": lambda reader, raw: bytearray(reader._part(raw)),
    "@str": lambda reader, raw: str(reader._part(raw), "utf-8", "surrogatepass"),
    "@int": lambda _, raw: int(_text(raw), 16),
    "@float": lambda _, raw: _special(raw),
    "@complex": lambda _, raw: complex(*map(_number, _list_of(raw, 2))),
    "@decimal": lambda _, raw: decimal.Decimal(_text(raw)),
    "@uuid": lambda _, raw: uuid.UUID(_text(raw)),
    "@datetime": lambda _, raw: datetime.datetime.fromisoformat(_text(raw)),
    "@date": lambda _, raw: datetime.date.fromisoformat(_text(raw)),
    "@time": lambda _, raw: datetime.time.fromisoformat(_text(raw)),
    "@timedelta": lambda _, raw: _timedelta(raw),
}
