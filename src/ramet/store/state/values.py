"""Values as data: the accepted types, their canonical JSON, and other types by a type that the caller names."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Final

import msgspec

from ramet.core.arguments import is_unicode
from ramet.core.errors import InvalidValue, RametError

MOST_DEPTH: Final = 100  #: levels of nested lists and dicts
MOST_SIZE: Final = 16 * 2**20  #: bytes of one value as JSON
_MOST_INT: Final = 2**53
_ACCEPTED: Final = "None, bool, int, float, str, list, or dict with keys of str; other types by as_=Type"
_json = msgspec.json.Encoder(order="sorted")


class Missing(Enum):
    """A marker for no value, since None is a value."""

    MISSING = "missing"

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = Missing.MISSING


def encode(value: Any, field_path: str, as_: Any = None) -> bytes:
    """Return the canonical JSON of a value: equal data, equal bytes.

    Raises InvalidValue, with the path in the value.
    """
    if as_ is not None:
        return _encode_typed(value, field_path, as_)
    _JsonValidator(field_path).at(value)
    return _encode_bounded(value, field_path)


def _encode_bounded(data: Any, field_path: str) -> bytes:
    raw = _json.encode(data)
    if len(raw) > MOST_SIZE:
        raise InvalidValue(field_path, f"{len(raw)} bytes of JSON", f"at most {MOST_SIZE}")
    return raw


def decode(raw: bytes, field_path: str, as_: Any = None) -> Any:
    """Return a new value from its JSON. Raises InvalidValue if it does not fit the type."""
    if as_ is None:
        return msgspec.json.decode(raw)
    try:
        return msgspec.json.decode(raw, type=as_, dec_hook=_from_model)
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        value = msgspec.json.decode(raw)
        raise InvalidValue(field_path, value, f"what fits {_format_type(as_)}: {_first_line(error)}") from None


def _encode_typed(value: Any, field_path: str, as_: Any) -> bytes:
    expected = f"what {_format_type(as_)} holds, all of it, as data"
    try:
        data = msgspec.to_builtins(value, order="deterministic", str_keys=True, enc_hook=_of_model)
    except RametError:
        raise
    except Exception as problem:  # a model's own serialiser failed, or there is a cycle
        raise InvalidValue(field_path, value, f"{expected}: {_first_line(problem)}") from None
    _JsonValidator(field_path, tuples=True).at(data)
    raw = _encode_bounded(data, field_path)
    decoded = decode(raw, field_path, as_)
    # A reader must find what was written: no less, and no other type.
    if type(decoded) is not type(value) or encode_plain(decoded) != raw:
        raise InvalidValue(field_path, value, expected)
    return raw


def encode_entries(entries: Mapping[str, Any], field_path: str) -> bytes:
    """Return bytes that identify the entries of a directory; each entry is encoded separately."""
    return b"\n".join(
        _json.encode(name) + encode(each, f"{field_path}[{name}]") for name, each in sorted(entries.items())
    )


def encode_plain(value: Any) -> bytes:
    """Return the JSON of a value that was accepted before, of any type; other values may raise any error."""
    return _json.encode(msgspec.to_builtins(value, order="deterministic", str_keys=True, enc_hook=_of_model))


def _of_model(value: Any) -> Any:
    """Return the data of a pydantic model, recognised by its methods: nothing here imports pydantic."""
    if callable(dump := getattr(value, "model_dump_json", None)):
        return msgspec.json.decode(dump())
    raise NotImplementedError(f"{type(value).__name__} is not data")


def _from_model(kind: Any, data: Any) -> Any:
    validate: Callable[[bytes], Any] | None = getattr(kind, "model_validate_json", None)
    if validate is None:
        raise NotImplementedError(f"{_format_type(kind)} cannot be made of data")
    return validate(_json.encode(data))


class _JsonValidator:
    """A validator of every part of a value, which keeps the current path for an error."""

    def __init__(self, field_path: str, *, tuples: bool = False) -> None:
        self._field_path, self._list_types = field_path, (list, tuple) if tuples else (list,)
        self._path: list[str | int] = []
        self._enclosing_ids: set[int] = set()
        self._remaining_bytes = MOST_SIZE  #: shared parts count each time, because each is written

    def at(self, value: Any) -> None:
        kind = type(value)
        self._remaining_bytes -= 1
        if kind is str:
            self._text(value)
        elif kind is int:
            if not -_MOST_INT <= value <= _MOST_INT:
                raise self._refusal(
                    value, "an int of at most 2^53 either way: other readers of JSON change larger ones"
                )
        elif kind is float:
            if not math.isfinite(value):
                raise self._refusal(value, "a finite float")
        elif kind is dict or kind in self._list_types:
            self._check_parts(value)
        elif kind is not bool and value is not None:
            raise self._refusal(value, _ACCEPTED)
        if self._remaining_bytes < 0:
            raise self._refusal(f"a {kind.__name__}", f"at most {MOST_SIZE} bytes of JSON for all of the value")

    def _check_parts(self, value: Any) -> None:
        if id(value) in self._enclosing_ids:
            raise self._refusal(f"a {type(value).__name__} that contains itself", "a value without cycles")
        if len(self._path) >= MOST_DEPTH:
            raise self._refusal(f"a {type(value).__name__}", f"at most {MOST_DEPTH} levels")
        self._enclosing_ids.add(id(value))
        for step, part in value.items() if type(value) is dict else enumerate(value):
            if type(step) is not int or type(value) is dict:
                if type(step) is not str:
                    raise self._refusal(step, "keys of str in a dict")
                self._text(step)
            self._path.append(step)
            self.at(part)
            self._path.pop()
        self._enclosing_ids.discard(id(value))

    def _text(self, text: str) -> None:
        self._remaining_bytes -= len(text)
        if not text.isascii() and not is_unicode(text):
            raise self._refusal(text, "text that UTF-8 can hold (no half of a pair of surrogates)")

    def _refusal(self, value: object, expected: str) -> InvalidValue:
        path = "".join(
            f"[{step}]" if isinstance(step, int) else f".{step}" if step.isidentifier() else f"[{step!r}]"
            for step in self._path
        )
        return InvalidValue(f"{self._field_path}{path}", value, expected)


def _format_type(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) else str(kind)


def _first_line(problem: BaseException) -> str:
    return (str(problem) or type(problem).__name__).splitlines()[0][:200]
