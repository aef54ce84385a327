"""JSON that does not match the expected structure, reported in the same words as other invalid values."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import inspect

from ramet.core.arguments import unknown_field
from ramet.core.errors import InvalidValue, MissingValue

_PATH = re.compile(r" - at `\$\.?([^`]*)`$")
_FIELD = re.compile(r"^Object (contains unknown|missing required) field `([^`]*)`")
_KIND = re.compile(r"^Expected `([^`]*)`, got `([^`]*)`$")
_STEP = re.compile(r"\.?([^.\[\]]+)|\[(\d+)\]")
_TYPE_STEP = re.compile(r"\.?([^.\[\]]+)|\[[^\]]*\]")
_OBJECTS = (inspect.StructType, inspect.TypedDictType, inspect.DataclassType)
_CHARS = 80  #: characters of a value that is repeated in an error
#: The fields above private values. A policy has other fields, too, which are shown.
_PRIVATE, _POLICY = frozenset({"env", "env_vars", "secrets"}), "policy"
_NAMES = re.compile(r"(?<![A-Za-z0-9_])(?:policy|env|env_vars|secrets)(?![A-Za-z0-9_])")


def hide(value: object) -> str:
    """Return the replacement for a value that may contain secrets: its type."""
    return f"({type(value).__name__}, not shown)"


def invalid_value_of(
    problem: msgspec.ValidationError, kind: Any, data: object, whole: str, within: str = ""
) -> InvalidValue:
    """Return an error for data that msgspec refused, JSON or plain: the field, its value, and the accepted values.

    `whole` names the data if the error concerns no field; `within` is the prefix of the names of fields.
    """
    message = str(problem)
    match = _PATH.search(message)
    path, message = (match[1], message[: match.start()]) if match is not None else ("", message)
    field_match = _FIELD.match(message)
    name = ".".join(part for part in (within, path, field_match[2] if field_match is not None else "") if part) or whole
    if field_match is None:
        return InvalidValue(name, _value_at(path, data, within), _words(message))
    fields = _fields_at(kind, path)
    if field_match[1] == "missing required":
        return MissingValue(name, _type_words(fields.get(field_match[2])))
    return unknown_field(name, field_match[2], tuple(fields))


def _fields_at(kind: Any, path: str) -> dict[str, inspect.Type]:
    """Return the fields of the object at a path, with their types. For a union of objects, return the fields of all."""
    infos = list(_alternatives(inspect.type_info(kind)))
    for step in _TYPE_STEP.finditer(path):
        infos = [one for each in infos for member in _member_types(each, step[1]) for one in _alternatives(member)]
    objects = [each for each in infos if isinstance(each, _OBJECTS)]
    return {field.encode_name: field.type for each in objects for field in each.fields}


def _alternatives(info: inspect.Type) -> Sequence[inspect.Type]:
    return info.types if isinstance(info, inspect.UnionType) else (info,)


def _member_types(info: inspect.Type, name: str | None) -> Sequence[inspect.Type]:
    """Return the type of a field or, without a name, of an item."""
    if name is not None:
        fields = info.fields if isinstance(info, _OBJECTS) else ()
        return [each.type for each in fields if each.encode_name == name]
    if isinstance(info, inspect.CollectionType):
        return [info.item_type]
    return [info.value_type] if isinstance(info, inspect.DictType) else []


def _type_words(info: inspect.Type | None) -> str:
    """Return the expected type in the terms of JSON."""
    texts = (
        (inspect.StrType, "text"),
        (inspect.BoolType, "true or false"),
        (inspect.IntType, "a whole number"),
        (inspect.FloatType, "a number"),
        (inspect.CollectionType, "a list"),
        ((inspect.DictType, *_OBJECTS), "an object"),
    )
    return next((text for kinds, text in texts if isinstance(info, kinds)), "a value")


def _words(message: str) -> str:
    kinds = _KIND.match(message)
    return f"{kinds[1]}, not {kinds[2]}" if kinds is not None else message.removeprefix("Expected ")


def _value_at(path: str, data: object, within: str) -> object:
    """Return the value at the path of an error, as far as the path can be followed.

    A value that may be secret is hidden.
    """
    value, end = data, 0
    if isinstance(data, bytes | msgspec.Raw):
        try:
            value = msgspec.json.decode(data)
        except (msgspec.DecodeError, RecursionError, UnicodeError):  # Another error, which is not reported.
            return hide(bytes(data))
    for step in _STEP.finditer(path):
        if step.start() != end:
            break
        end = step.end()
        try:
            value = value[int(step[2])] if step[2] else value[step[1]]  # type: ignore[index]
        except (LookupError, TypeError):
            break
    if _is_private(f"{within}.{path}"):
        return hide(value)
    if isinstance(value, str):
        return hide(value) if _NAMES.search(value) else value[:_CHARS]
    if value is None or isinstance(value, bool | float) or (isinstance(value, int) and abs(value) < 2**64):
        return value
    try:
        text = msgspec.json.encode(value).decode()
        return hide(value) if _NAMES.search(text) else text[:_CHARS]
    except (OverflowError, RecursionError):
        return f"a {type(value).__name__}"


def _is_private(path: str) -> bool:
    """Return whether a path is a policy, or leads to, or into, secrets or variables."""
    names = [step[1] for step in _STEP.finditer(path) if step[1]]
    return bool(_PRIVATE.intersection(names)) or names[-1:] == [_POLICY]
