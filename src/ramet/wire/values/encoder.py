"""Encode values of `ramet.wire.values.values` as JSON data and binary parts."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import math
import pathlib
import sys
import types
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

from msgspec import Struct

from ramet.core.arguments import is_unicode
from ramet.core.errors import NotShippable
from ramet.wire.values.annotations import is_namedtuple, is_pydantic, type_name
from ramet.wire.values.validators import safe_repr

#: Maximum levels of JSON, on both sides of a channel.
MAX_DEPTH: Final = 200
#: The dtypes of arrays that can be sent: machines of different kinds agree on them.
DTYPES: Final = frozenset(
    {"|b1", "|i1", "|u1"}
    | {f"{order}{kind}{size}" for order in "<>" for kind in "iuf" for size in (2, 4, 8)}
    | {f"{order}c{size}" for order in "<>" for size in (8, 16)}
)
_LEAVES: Final = frozenset({bool, type(None)})
_KEYS: Final = (
    str,
    int,
    float,
    bytes,
    enum.Enum,
    pathlib.PurePath,
    datetime.date,
    datetime.time,
    datetime.timedelta,
    decimal.Decimal,
    uuid.UUID,
    type(None),
)
_VALUES: Final = "return JSON types, bytes, dates, dataclasses, pydantic models or numpy arrays"
#: The remedy in errors about values that are too large.
TOO_LARGE_REMEDY: Final = (
    "return less, write it to a file in the working directory, or raise max_output_bytes in the policy"
)


class ValueTooLarge(NotShippable):
    """A value that takes at least `size` bytes, where `limit` are allowed."""

    def __init__(self, what: str, size: int, limit: int) -> None:
        self.size, self.limit = size, limit
        super().__init__(what, f"it takes {size} bytes or more, and {limit} are allowed", TOO_LARGE_REMEDY)


class Writer:
    """A writer that turns a value into JSON data, and collects its binary parts."""

    def __init__(self, label: str, limit: int, *, careful: bool = False) -> None:
        self.parts: list[bytes | memoryview] = []
        self._label, self._limit, self._careful = label, limit, careful
        self._simple = _LEAVES if careful else _LEAVES | {str, int}  #: types whose values are written unchanged
        self._remaining = limit  #: upper bound of the bytes that are still allowed
        self._path: list[str | int] = []
        self._open_ids: list[int] = []  #: ids of the containers around the current value
        self._levels = 0  #: levels of JSON around the current value

    def data(self, value: Any) -> Any:
        """Return the value as JSON data. Raises NotShippable if a part cannot be encoded."""
        kind: Any = type(value)
        if kind in self._simple:
            return value
        write = _write_method(kind)
        if write is None:
            raise self._refusal(value)
        return write(self, value)

    # ---- errors and bounds

    def _refusal(self, value: Any, reason: str | None = None, do: str | None = None) -> NotShippable:
        return NotShippable(
            self.path,
            reason or f"its type is {type_name(type(value))}",
            do or _remedy(value),
        )

    @property
    def path(self) -> str:
        return self._label + "".join(f"[{step}]" if type(step) is int else str(step) for step in self._path)

    def _spend(self, size: int) -> None:
        self._remaining -= size
        if self._remaining < 0:
            raise ValueTooLarge(self._label, self._limit - self._remaining, self._limit)

    def _enter(self, value: Any, levels: int = 1) -> None:
        self._spend(len(value) + 1)
        self._levels += levels
        self._open_ids.append(id(value))
        if self._levels > MAX_DEPTH:
            is_cyclic = len(set(self._open_ids)) < len(self._open_ids)
            reason = "it contains itself" if is_cyclic else f"it is nested deeper than {MAX_DEPTH} levels"
            raise NotShippable(self.path, reason, "return a flatter value")

    def _leave(self, levels: int = 1) -> None:
        self._levels -= levels
        self._open_ids.pop()

    def _part(self, tag: str, part: bytes | memoryview, *before: Any) -> dict[str, Any]:
        self._spend(len(part))
        self.parts.append(part)
        return {tag: [*before, len(part)] if before else len(part)}

    # ---- scalars

    def _text(self, value: str) -> Any:
        if self._careful and not is_unicode(value):
            return self._part("@str", value.encode("utf-8", "surrogatepass"))
        return value

    def _int(self, value: int) -> Any:
        value = int.__int__(value)
        return {"@int": format(value, "x")} if self._careful and value.bit_length() > 64 else value

    def _float(self, value: float) -> Any:
        value = float.__float__(value)
        return value if math.isfinite(value) else {"@float": str(value)}

    def _complex(self, value: complex) -> Any:
        return {"@complex": [self._float(value.real), self._float(value.imag)]}

    def _binary(self, value: bytes | bytearray | memoryview) -> Any:
        if isinstance(value, memoryview):
            value = value.tobytes()
        return self._part("@bytearray" if isinstance(value, bytearray) else "@bytes", memoryview(value))

    def _enum(self, value: enum.Enum) -> Any:
        kind, plain = type(value), value.value
        name = value.name if value.name in kind.__members__ else None  # A combination of flags has no name.
        return {"@enum": [type_name(kind), name, self.data(plain if isinstance(plain, str | int | float) else name)]}

    # ---- containers

    def _sequence(self, value: Collection[Any]) -> list[Any]:
        self._enter(value)
        out = list(value)
        if not set(map(type, out)) <= self._simple:
            for index, item in enumerate(out):
                kind = type(item)
                if kind not in self._simple and not (kind is float and math.isfinite(item)):
                    self._path.append(index)
                    out[index] = self.data(item)
                    self._path.pop()
        self._leave()
        return out

    def _dict(self, value: dict[Any, Any]) -> dict[str, Any]:
        if not set(map(type, value)) <= {str} or (self._careful and not all(map(is_unicode, value))):
            return self._map(value)
        self._enter(value)
        out = {"@" + name if name[:1] == "@" else name: item for name, item in value.items()}
        self._leave_fields(out, "[{!r}]")
        return out

    def _map(self, value: dict[Any, Any]) -> dict[str, Any]:
        self._enter(value, 3)
        out = []
        for key, item in value.items():
            self._path.append(f"[{safe_repr(key)!r}]"[:80])
            out.append([self._key(key), self.data(item)])
            self._path.pop()
        self._leave(3)
        return {"@map": out}

    def _key(self, key: Any) -> Any:
        if type(key) is tuple:
            self._enter(key)
            keys = [self._key(each) for each in key]
            self._leave()
            return keys
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(key, numpy.generic):
            key = key.item()
        if not isinstance(key, _KEYS):
            raise self._refusal(
                key, f"a key of type {type_name(type(key))}", "use text, numbers, dates or tuples of them as keys"
            )
        return self.data(key)

    def _object(self, value: Any) -> dict[str, Any]:
        kind: Any = type(value)
        name, fields = _fields_of(kind)
        out: dict[str, Any] = {"@type": name}
        self._enter(fields)
        self._open_ids[-1] = id(value)
        for field in fields:
            try:
                out[field] = getattr(value, field)
            except AttributeError:  # never set: the receiver's constructor chooses the value
                continue
        self._leave_fields(out, ".{}")
        return out

    def _model(self, value: Any) -> dict[str, Any]:
        fields = vars(value) | (value.__pydantic_extra__ or {})
        self._enter(fields)
        self._open_ids[-1] = id(value)
        escaped_fields = {"@" + name if name[:1] == "@" else name: item for name, item in fields.items()}
        out = {"@type": type_name(type(value)), **escaped_fields}
        self._leave_fields(out, ".{}")
        return out

    def _leave_fields(self, fields: dict[str, Any], path_format: str) -> None:
        for name, item in fields.items():
            kind = type(item)
            if kind not in self._simple and not (kind is float and math.isfinite(item)):
                self._path.append(path_format.format(name.removeprefix("@"))[:80])
                fields[name] = self.data(item)
                self._path.pop()
        self._leave()

    # ---- numpy

    def _array(self, value: Any) -> dict[str, Any]:
        numpy, dtype = sys.modules["numpy"], self._dtype(value)
        data = memoryview(numpy.ascontiguousarray(value).reshape(-1).view(numpy.uint8))
        return self._part("@array", data, dtype, list(value.shape))

    def _scalar(self, value: Any) -> dict[str, Any]:
        return self._part("@scalar", value.tobytes(), self._dtype(value))

    def _dtype(self, value: Any) -> str:
        name: str = value.dtype.str
        if name not in DTYPES:
            raise self._refusal(
                value,
                f"its dtype is {value.dtype!s}"[:200],
                "use an array of booleans, integers, floats or complex numbers of at most 8 bytes each (.astype), "
                "or return .tolist()",
            )
        return name


_WriteMethod = Callable[[Writer, Any], Any]


@lru_cache(maxsize=1024)
def _write_method(kind: type) -> _WriteMethod | None:
    """Return the method that writes values of a type; None for a type that cannot be sent."""
    if is_pydantic(kind):
        return Writer._model
    if issubclass(kind, Struct) or dataclasses.is_dataclass(kind) or is_namedtuple(kind):
        return Writer._object
    numpy = sys.modules.get("numpy")
    if numpy is not None and not issubclass(kind, str | bytes):
        if kind is numpy.ndarray:
            return Writer._array
        if issubclass(kind, numpy.generic):
            return Writer._scalar
    return next((method for base, method in _WRITE_METHODS if issubclass(kind, base)), None)


_WRITE_METHODS: Final[tuple[tuple[Any, _WriteMethod], ...]] = (
    (enum.Enum, Writer._enum),
    (str, lambda writer, value: writer._text(str.__str__(value))),
    (int, Writer._int),
    (float, Writer._float),
    (complex, Writer._complex),
    ((bytes, bytearray, memoryview), Writer._binary),
    (dict, Writer._dict),
    ((list, tuple, set, frozenset), Writer._sequence),
    (pathlib.PurePath, lambda writer, value: writer._text(str(value))),
    (datetime.datetime, lambda _, value: {"@datetime": datetime.datetime.isoformat(value)}),
    (datetime.date, lambda _, value: {"@date": datetime.date.isoformat(value)}),
    (datetime.time, lambda _, value: {"@time": datetime.time.isoformat(value)}),
    (datetime.timedelta, lambda _, value: {"@timedelta": [value.days, value.seconds, value.microseconds]}),
    (decimal.Decimal, lambda _, value: {"@decimal": decimal.Decimal.__str__(value)}),
    (uuid.UUID, lambda _, value: {"@uuid": value.hex}),
)


@lru_cache(maxsize=1024)
def _fields_of(kind: Any) -> tuple[str, tuple[str, ...]]:
    name = type_name(kind)
    if issubclass(kind, Struct):
        return name, kind.__struct_fields__
    if dataclasses.is_dataclass(kind):
        return name, tuple(each.name for each in dataclasses.fields(kind))
    return name, kind._fields


def _remedy(value: Any) -> str:
    """Return a remedy for a value that is not data."""
    if isinstance(value, types.CoroutineType):
        return "await it and return what it gives"
    if isinstance(value, Iterator):
        return "return list(...) of it"
    if isinstance(value, Mapping):
        return "return dict(...) of it"
    if isinstance(value, BaseException):
        return "raise it, or return str(...) of it"
    if isinstance(value, type | types.FunctionType | types.MethodType | types.ModuleType | types.BuiltinFunctionType):
        return "return its name, or what it computes"
    if callable(getattr(value, "fileno", None)):
        return "return what was read from it, or the name of a file in the working directory"
    top = type(value).__module__.partition(".")[0]
    if top in ("pandas", "polars"):
        return "return .to_dict() of it, or a numpy array"
    if top == "numpy":
        return "return numpy.asarray(...) of it"
    if top == "torch":
        return "return .numpy() of it"
    return f"{_VALUES}, such as vars(...) of it" if hasattr(value, "__dict__") else _VALUES
