"""Values of types, and the JSON data that they travel as."""

from __future__ import annotations

import enum
import functools
import json
import typing
from typing import Any

from ramet.agent.steps import TooManySteps, counted, take
from ramet.agent.typed.tries import Tries
from ramet.core.errors import InvalidValue

_STEPS_OF_A_DEFAULT = 20  #: a list or an object, checked by itself


def hints_of(thing: Any, where: str) -> dict[str, Any]:
    """The annotations of a function or class, resolved. Raises InvalidValue for one that names nothing here."""
    try:
        return typing.get_type_hints(thing, include_extras=True)
    except Exception as problem:  # annotations are expressions of the user's
        name = getattr(thing, "__qualname__", repr(thing))
        raise InvalidValue(where, name, f"annotations that can be resolved: {problem}") from None


@functools.lru_cache(maxsize=4096)
def _adapter(hint: Any) -> Any:
    import pydantic

    return pydantic.TypeAdapter(hint)


@functools.lru_cache(maxsize=4096)
def _tries(hint: Any) -> Tries:
    return Tries(_adapter(hint))


def _value(hint: Any, data: Any) -> Any:
    text = json.dumps(data, allow_nan=False)
    with counted(len(text)) as steps:
        _tries(hint).count(data, steps)
        return _adapter(hint).validate_json(text)


def checked(hint: Any, value: Any, where: str) -> Any:
    """JSON data as a value of a type. Raises InvalidValue, saying at which place of the value it does not fit."""
    import pydantic

    try:
        return _value(hint, value)
    except TooManySteps as problem:
        raise InvalidValue(where, value, f"a value that is checked in fewer steps: {problem}") from None
    except pydantic.ValidationError as refusal:
        first = refusal.errors(include_url=False, include_input=False, include_context=False)[0]
        place = where + "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in first["loc"])
        raise InvalidValue(place, value, first["msg"]) from None
    except (TypeError, ValueError, RecursionError) as problem:
        raise InvalidValue(where, value, f"JSON data: {problem}") from None


class Default:
    """A default of a field as data: makes a value of its own for each."""

    def __init__(self, hint: Any, data: Any) -> None:
        self.hint, self.data = hint, data
        self._is_shared = not isinstance(data, list | dict)  # its value cannot be changed

    def __call__(self) -> Any:
        if self._is_shared:
            return self._value
        take(_STEPS_OF_A_DEFAULT)  # of the check that needs the default
        return _value(self.hint, self.data)

    @functools.cached_property
    def _value(self) -> Any:
        return _value(self.hint, self.data)


def given(hint: Any, value: Any, where: str) -> Any:
    """A value that a caller gave for a type, as JSON data. Raises InvalidValue: neither of the type nor fit for it."""
    import pydantic

    try:
        adapter = _adapter(hint)
        with counted() as steps:
            _tries(hint).count(value, steps)
            data: Any = adapter.dump_python(adapter.validate_python(value), mode="json")
        json.dumps(data, allow_nan=False)
        return data
    except TooManySteps as problem:
        raise InvalidValue(where, value, f"a value that is checked in fewer steps: {problem}") from None
    except pydantic.ValidationError as refusal:
        first = refusal.errors(include_url=False, include_input=False, include_context=False)[0]
        place = where + "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in first["loc"])
        raise InvalidValue(place, value, first["msg"]) from None
    except (TypeError, ValueError, RecursionError, pydantic.PydanticUserError) as problem:
        raise InvalidValue(where, value, f"a value that can be written as JSON: {problem}") from None


def as_data(value: Any, where: str) -> Any:
    """A default as JSON data. Raises InvalidValue."""
    if isinstance(value, enum.Enum):
        return value.value
    return given(type(value), value, where)
