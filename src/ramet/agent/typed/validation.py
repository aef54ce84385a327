"""Values checked by pydantic, in memory that is bounded also where nearly everything in a value is wrong.

pydantic collects all errors of a value. Each has the names on the way to its place, and the values that its type
accepts: the fields that empty objects lack, or many wrong items below one long name, make gigabytes of a short text.
Where they could, the value is held first against the same type with lists, dicts and classes that stop at their first
error.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

from ramet.agent.steps import counted
from ramet.agent.typed.tries import Tries

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

MAX_ERRORS = 1_000  #: that are told apart; each takes about 1 KB
_ERRORS_SIZE = 32 << 20  #: characters that all errors of a value may have together
_ERROR = 500  #: characters of an error, besides long names and accepted values
_LISTS = frozenset({"list", "tuple", "set", "frozenset"})
_CLASSES = frozenset({"model", "dataclass"})
_OBJECTS = frozenset({"dict", "typed-dict", "call"})
_FIELDS = frozenset({"model-field", "dataclass-field", "typed-dict-field"})
#: Parts of a core schema that are no core schemas.
_OPAQUE = frozenset({"metadata", "serialization", "cls", "default", "expected"})
_has_failed: ContextVar[list[bool]] = ContextVar("has_failed")


class Problem(NamedTuple):
    """One thing that is wrong with a value."""

    place: tuple[int | str, ...]
    message: str


class DoesNotFitType(Exception):
    """A value that is not of a type: the first problems, and how many more there are at least."""

    def __init__(self, problems: list[Problem], more: int) -> None:
        self.problems, self.more = problems, more
        super().__init__(problems[0].message)


class Validation:
    """The checks of values against one type, given as its pydantic adapter."""

    def __init__(self, adapter: TypeAdapter[Any]) -> None:
        self.adapter = adapter
        self.tries = Tries(adapter)
        self._stopping: Any = None  # made when it is needed

    def of_data(self, data: Any, text: str) -> Any:
        """JSON data, also given as text, as a value of the type.

        Raises DoesNotFitType, TooManySteps, RecursionError.
        """
        # From text, not from Python: only so are dates, sets and strict types read as JSON means them.
        from pydantic import ValidationError

        try:
            with counted(len(text)) as steps:
                tries = self.tries.count(data, steps)
                if self.tries.longest_errors(data, tries, _ERROR) > _ERRORS_SIZE:
                    self._stop_early("validate_json", text)
                return self.adapter.validate_json(text)
        except ValidationError as error:
            raise self._refusal(error, "validate_json", text) from None

    def of_value(self, value: Any) -> Any:
        """A value of a caller's as one of the type: no data from outside, and perhaps a list that holds itself.

        Raises as `of_data`.
        """
        from pydantic import ValidationError

        try:
            with counted() as steps:
                self.tries.count(value, steps)
                return self.adapter.validate_python(value)
        except ValidationError as error:
            raise self._refusal(error, "validate_python", value) from None

    def _refusal(self, error: ValidationError, method: str, given: Any) -> DoesNotFitType:
        count = error.error_count()
        if count <= MAX_ERRORS:
            return _told(error)
        try:
            self._stop_early(method, given)
        except DoesNotFitType as first:
            return DoesNotFitType(first.problems[:1], count - 1)
        return DoesNotFitType([Problem((), f"{count} parts are missing or wrong")], 0)

    def _stop_early(self, method: str, given: Any) -> None:
        """Raise DoesNotFitType for the first error of a value, if it has one."""
        from pydantic import ValidationError

        if self._stopping is None:
            core_schema = self.adapter.core_schema
            self._stopping = _validator(_stopping(core_schema, is_strict=_has_strict(core_schema)))
        try:
            getattr(self._stopping, method)(given)
        except ValidationError as error:
            if error.error_count() <= MAX_ERRORS:
                raise _told(error) from None
            message = f"{error.error_count()} parts are missing or wrong"
            raise DoesNotFitType([Problem((), message)], 0) from None


def _told(error: ValidationError) -> DoesNotFitType:
    found = error.errors(include_url=False, include_input=False, include_context=False)
    return DoesNotFitType([Problem(each["loc"], each["msg"]) for each in found], 0)


def _validator(core_schema: Any) -> Any:
    from pydantic_core import SchemaValidator

    try:
        # Otherwise each model brings the validator that it has, which does not stop.
        return SchemaValidator(core_schema, _use_prebuilt=False)
    except TypeError:  # of a version that has no such validators
        return SchemaValidator(core_schema)


def _stopping(schema: Any, *, is_strict: bool) -> Any:
    """A core schema whose lists, dicts and classes stop at the first of their parts that is wrong.

    Of strict types only lists do: what a function sees is Python, in which a strict type has no dates.
    """
    if isinstance(schema, list | tuple):
        return type(schema)(_stopping(each, is_strict=is_strict) for each in schema)
    if not isinstance(schema, dict):
        return schema
    kind = schema.get("type")
    if not isinstance(kind, str):  # fields, or arguments
        new = {key: _stopping(value, is_strict=is_strict) for key, value in schema.items()}
        return _one_part(new, "schema") if "mode" in new and not is_strict else new
    new = {key: value if key in _OPAQUE else _stopping(value, is_strict=is_strict) for key, value in schema.items()}
    if kind in _LISTS:
        return {**new, "fail_fast": True}
    if is_strict:
        return new
    if kind == "union":
        return {**new, "choices": list(map(_labelled, schema["choices"], new["choices"]))}
    if kind in _FIELDS:
        return _one_part(new, "schema")
    if kind in _CLASSES:  # within, so that the class keeps its name in errors
        return {**new, "schema": _wrapped(_object, new["schema"])}
    if kind in _OBJECTS:
        reference = {"ref": new.pop("ref")} if "ref" in new else {}
        return {**_wrapped(_object, _one_part(new, "values_schema")), **reference}
    return new


def _labelled(choice: Any, stopping: Any) -> Any:
    """A choice under the name that errors of it have without the functions around it."""
    if isinstance(choice, tuple) or choice.get("type") not in _OBJECTS:
        return stopping
    return stopping, choice["cls"].__name__ if "cls" in choice else choice["type"]


def _one_part(schema: dict[str, Any], key: str) -> dict[str, Any]:
    """A schema that has another one for a part of an object, which is checked unless one before it was wrong."""
    part = schema.get(key)
    if not isinstance(part, dict):
        return schema
    if part.get("type") == "default":  # which its owner has to find
        return {**schema, key: {**part, "schema": _wrapped(_part, part["schema"])}}
    return {**schema, key: _wrapped(_part, part)}


def _has_strict(schema: Any) -> bool:
    """Whether anything in a core schema is strict."""
    if isinstance(schema, dict):
        return schema.get("strict") is True or any(_has_strict(v) for k, v in schema.items() if k != "metadata")
    return isinstance(schema, list | tuple) and any(map(_has_strict, schema))


def _wrapped(function: Callable[[Any, Callable[[Any], Any]], Any], schema: Any) -> dict[str, Any]:
    return {"type": "function-wrap", "function": {"type": "no-info", "function": function}, "schema": schema}


def _object(value: Any, validate: Callable[[Any], Any]) -> Any:
    token = _has_failed.set([False])
    try:
        return validate(value)
    finally:
        _has_failed.reset(token)


def _part(value: Any, validate: Callable[[Any], Any]) -> Any:
    failed = _has_failed.get()
    if failed[0]:
        return value
    try:
        return validate(value)
    except ValueError:
        failed[0] = True
        raise
