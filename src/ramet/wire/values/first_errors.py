"""Build pydantic validators that stop at the first error of each list, dict and class.

pydantic collects all errors of a value, and may need gigabytes for a short text in which nearly everything is wrong.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from itertools import islice
from typing import Any
from weakref import WeakKeyDictionary

_LISTS = frozenset({"list", "tuple", "set", "frozenset"})
_CLASSES = frozenset({"model", "dataclass"})
_OBJECTS = frozenset({"dict", "typed-dict", "call"})
_FIELDS = frozenset({"model-field", "dataclass-field", "typed-dict-field"})
#: Parts of a core schema that are not core schemas.
_OPAQUE = frozenset({"metadata", "serialization", "cls", "default", "expected"})
_has_failed: ContextVar[list[bool]] = ContextVar("has_failed")


def stopping_validator(core_schema: Any) -> Any:
    """Return a validator of a core schema that stops early and accepts exactly the values that the schema accepts."""
    return _validator(_make_stopping(core_schema, is_strict=_has_strict(core_schema)))


def _validator(core_schema: Any) -> Any:
    pydantic_core: Any = sys.modules["pydantic_core"]  # The module that made the schema is loaded already.
    try:
        # Otherwise each model uses its prebuilt validator, which does not stop early.
        return pydantic_core.SchemaValidator(core_schema, _use_prebuilt=False)
    except TypeError:  # a version without prebuilt validators
        return pydantic_core.SchemaValidator(core_schema)


def _make_stopping(schema: Any, *, is_strict: bool) -> Any:
    """Return a core schema whose lists, dicts and classes stop at their first wrong part.

    For strict types only lists stop early: a wrapping function passes on Python data, in which a strict type accepts no
    dates.
    """
    if isinstance(schema, list | tuple):
        return type(schema)(_make_stopping(each, is_strict=is_strict) for each in schema)
    if not isinstance(schema, dict):
        return schema
    kind = schema.get("type")
    if not isinstance(kind, str):  # the schema of fields, or of arguments
        new_schema = {key: _make_stopping(value, is_strict=is_strict) for key, value in schema.items()}
        return _wrap_part(new_schema, "schema") if "mode" in new_schema and not is_strict else new_schema
    new_schema = {
        key: value if key in _OPAQUE else _make_stopping(value, is_strict=is_strict) for key, value in schema.items()
    }
    if kind in _LISTS:
        return {**new_schema, "fail_fast": True}
    if is_strict:
        return new_schema
    if kind == "union":
        return {**new_schema, "choices": list(map(_add_label, schema["choices"], new_schema["choices"]))}
    if kind in _FIELDS:
        return _wrap_part(new_schema, "schema")
    if kind in _CLASSES:  # inside the class, so that errors keep its name
        return {**new_schema, "schema": _wrap(_object, new_schema["schema"])}
    if kind in _OBJECTS:
        reference = {"ref": new_schema.pop("ref")} if "ref" in new_schema else {}
        return {**_wrap(_object, _wrap_part(new_schema, "values_schema")), **reference}
    return new_schema


def _add_label(choice: Any, stopping: Any) -> Any:
    """Return a choice of a union with the label that its errors have without the wrapping functions."""
    if isinstance(choice, tuple) or choice.get("type") not in _OBJECTS:
        return stopping
    return stopping, choice["cls"].__name__ if "cls" in choice else choice["type"]


def _wrap_part(schema: dict[str, Any], key: str) -> dict[str, Any]:
    """Return a schema whose part at `key` is checked only if no earlier part of the object was wrong."""
    part = schema.get(key)
    if not isinstance(part, dict):
        return schema
    if part.get("type") == "default":  # kept outermost, because the owner of the schema looks for it
        return {**schema, key: {**part, "schema": _wrap(_part, part["schema"])}}
    return {**schema, key: _wrap(_part, part)}


def _has_strict(schema: Any) -> bool:
    """Return whether any part of a core schema is strict."""
    if isinstance(schema, dict):
        return schema.get("strict") is True or any(_has_strict(v) for k, v in schema.items() if k != "metadata")
    return isinstance(schema, list | tuple) and any(map(_has_strict, schema))


def _wrap(function: Callable[[Any, Callable[[Any], Any]], Any], schema: Any) -> dict[str, Any]:
    return {"type": "function-wrap", "function": {"type": "no-info", "function": function}, "schema": schema}


def _object(value: Any, validate: Callable[[Any], Any]) -> Any:
    token = _has_failed.set([False])
    try:
        return validate(value)
    finally:
        _has_failed.reset(token)


def _part(value: Any, validate: Callable[[Any], Any]) -> Any:
    failure_flag = _has_failed.get()
    if failure_flag[0]:
        return value
    try:
        return validate(value)
    except ValueError:
        failure_flag[0] = True
        raise


_SMALL = 200  #: parts of a value up to which all errors may be collected
_validators: WeakKeyDictionary[type, Any] = WeakKeyDictionary()


def check_large(cls: Any, value: Any, **options: Any) -> None:
    """Raise pydantic's ValidationError for the first error of a large value of a model; small values are not checked.

    The caller then has pydantic check the value, which collects all errors. `options` are those of `validate_python`.
    """
    if is_small(value):
        return
    validator = _validators.get(cls)
    if validator is None:
        validator = _validators[cls] = stopping_validator(cls.__pydantic_core_schema__)
    validator.validate_python(value, **options)


def is_small(value: Any) -> bool:
    """Return whether a value has so few parts that all its errors may be collected."""
    pending, count = [value], 0
    while pending:
        part = pending.pop()
        count += 1
        if isinstance(part, Mapping | list | tuple | set | frozenset):
            pending.extend(islice(part.values() if isinstance(part, Mapping) else part, _SMALL))
            count += max(0, len(part) - _SMALL)
        if count + len(pending) > _SMALL:
            return False
    return True
