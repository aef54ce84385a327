"""Convert between values of types and their JSON data."""

from __future__ import annotations

import contextlib
import enum
import functools
import json
import typing
from collections.abc import Iterator
from typing import Any

from ramet.agent.schemas.work_budget import TooManySteps, count_steps, spend_steps
from ramet.agent.typed.cache import SizedCache
from ramet.agent.typed.validation import DoesNotFitType, Validation, extent_of
from ramet.core.errors import InvalidValue

_STEPS_OF_A_DEFAULT = 4  #: a list or an object, checked separately; plus one for each of its parts
_CHARACTERS = 64  #: characters of a default that take one more step
#: Size of the adapter cache, in objects of JSON schemas. Each takes up to 2 KB; one recipe has at most half as many.
_CACHED_PARTS = 20_000
_PARTS_OF_A_CHECKER = 20  #: constant size of an adapter


def type_hints(obj: Any, path: str) -> dict[str, Any]:
    """Return the resolved annotations of a function or class. Raises InvalidValue if one cannot be resolved."""
    try:
        return typing.get_type_hints(obj, include_extras=True)
    except Exception as problem:  # annotations are the user's expressions
        name = getattr(obj, "__qualname__", repr(obj))
        raise InvalidValue(path, name, f"annotations that can be resolved: {problem}") from None


_validations = SizedCache[Any, Validation](_CACHED_PARTS)


def _validation(hint: Any) -> Validation:
    import pydantic

    validation = _validations.get(hint)
    if validation is None:
        validation = Validation(pydantic.TypeAdapter(hint))
        _validations.put(hint, validation, validation.tries.parts + _PARTS_OF_A_CHECKER)
    return validation


def _value(hint: Any, data: Any) -> Any:
    return _validation(hint).validate_data(data, json.dumps(data, allow_nan=False))


@contextlib.contextmanager
def _report_misfits(path: str, value: Any, accepted: str) -> Iterator[None]:
    """Raise InvalidValue, with the place in the value, for an error inside."""
    try:
        yield
    except TooManySteps as problem:
        raise InvalidValue(path, value, f"a value whose check is less work: {problem}") from None
    except DoesNotFitType as refusal:
        first = refusal.problems[0]
        raise InvalidValue(first.path_below(path), value, first.message) from None
    except (TypeError, ValueError, RecursionError) as problem:
        raise InvalidValue(path, value, f"{accepted}: {problem}") from None


def decode_value(hint: Any, value: Any, path: str) -> Any:
    """Return JSON data as a value of a type. Raises InvalidValue, with the place in the value, if it does not fit."""
    with _report_misfits(path, value, "JSON data"):
        return _value(hint, value)


class Default:
    """The default of a field as data: it creates a new value for each object, and counts it by its size.

    A short value with many objects would otherwise create as many uncounted copies of a large default.
    """

    def __init__(self, hint: Any, data: Any) -> None:
        self.hint, self.data = hint, data
        self._is_shared = not isinstance(data, list | dict)  # its value is immutable

    def __call__(self) -> Any:
        if self._is_shared:
            spend_steps(1)  # of the check that needs the default
            return self._shared_value
        spend_steps(self._steps)
        return self._validation.validate_data(self.data, self._text)

    @functools.cached_property
    def _shared_value(self) -> Any:
        return _value(self.hint, self.data)

    @functools.cached_property
    def _validation(self) -> Validation:
        return _validation(self.hint)

    @functools.cached_property
    def _text(self) -> str:
        return json.dumps(self.data, allow_nan=False)

    @functools.cached_property
    def _steps(self) -> int:
        return _STEPS_OF_A_DEFAULT + extent_of(self.data).parts + len(self._text) // _CHARACTERS


def encode_argument(hint: Any, value: Any, path: str) -> Any:
    """Return a caller's value for a type, as JSON data. Raises InvalidValue if it does not fit the type."""
    import pydantic

    accepted = "a value that can be written as JSON"
    try:
        with _report_misfits(path, value, accepted):
            validation = _validation(hint)
            with count_steps():
                data: Any = validation.adapter.dump_python(validation.validate_value(value), mode="json")
            json.dumps(data, allow_nan=False)
            return data
    except pydantic.PydanticUserError as problem:
        raise InvalidValue(path, value, f"{accepted}: {problem}") from None


def as_data(value: Any, path: str) -> Any:
    """Return a default as JSON data. Raises InvalidValue if it cannot be encoded."""
    if isinstance(value, enum.Enum):
        return value.value
    return encode_argument(type(value), value, path)
