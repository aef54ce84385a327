"""Read annotations of the receiver: the types that may be built for it, and the types of its parameters.

Only the receiver's own annotations are resolved here; data from a channel is never looked up or evaluated.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from typing import Any

from msgspec import Struct


def returned_type(function: Callable[..., Any]) -> Any:
    """Return the annotation of a function's return value, for `decode`; None if there is none that can be resolved."""
    return _hint(_unwrap(function), "return")


def parameter_types(function: Callable[..., Any]) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Return the annotations of a function's parameters, for `decode`: by position, and by name."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return (), {}
    bare = _unwrap(function)
    by_name = {each.name: _hint(bare, each.name) for each in parameters}
    positional = tuple(by_name[each.name] for each in parameters if each.kind <= each.POSITIONAL_OR_KEYWORD)
    return positional, by_name


def first_parameter(function: Callable[..., Any]) -> Any:
    """Return the annotation of a function's first parameter; None if there is none that can be resolved."""
    positional, _ = parameter_types(function)
    return positional[0] if positional else None


def _unwrap(function: Callable[..., Any]) -> Any:
    while isinstance(function, partial):
        function = function.func
    function = getattr(function, "__func__", function)
    return function if hasattr(function, "__annotations__") else vars(type(function)).get("__call__", function)


def _hint(function: Any, name: str) -> Any:
    hint = getattr(function, "__annotations__", {}).get(name, Any)
    if hint is None:
        return types.NoneType
    code, closure = getattr(function, "__code__", None), getattr(function, "__closure__", None)
    cells = zip(code.co_freevars, closure or (), strict=False) if code is not None else ()
    return _resolve_hint(hint, getattr(function, "__globals__", {}), {name: _content(cell) for name, cell in cells})


def type_name(cls: type) -> str:
    """Return the name of a type in encoded values."""
    return f"{cls.__module__}.{cls.__qualname__}"


def is_namedtuple(cls: type) -> bool:
    return issubclass(cls, tuple) and hasattr(cls, "_fields")


def is_pydantic(cls: type) -> bool:
    """Return whether a type is a pydantic model; the check does not import pydantic."""
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and issubclass(cls, pydantic.BaseModel)


def is_buildable(cls: type) -> bool:
    """Return whether values of a type are encoded as objects with fields, or as enum members."""
    return (
        dataclasses.is_dataclass(cls)
        or (issubclass(cls, Struct | enum.Enum) and cls.__module__ not in ("enum", "msgspec"))
        or is_namedtuple(cls)
        or is_pydantic(cls)
    )


def types_in(hint: Any) -> dict[str, type]:
    """Return the user's own types in an annotation and in the fields of these types, by `type_name`."""
    by_name: dict[str, type] = {}
    queue, seen_ids = [hint], set[int]()
    while queue:
        each = queue.pop()
        if id(each) in seen_ids:
            continue
        seen_ids.add(id(each))
        queue += _inner(each)
        origin = typing.get_origin(each) or each
        if isinstance(origin, type) and is_buildable(origin):
            by_name[type_name(origin)] = origin
            queue += fields_of(origin).values()
        elif typing.is_typeddict(origin):
            queue += fields_of(origin).values()
    return by_name


@lru_cache(maxsize=512)
def fields_of(cls: type) -> dict[str, Any]:
    """Return the fields of a type whose annotations can be resolved."""
    if is_pydantic(cls):
        fields: Any = cls.model_fields  # type: ignore[attr-defined]
        return {name: field.annotation for name, field in fields.items()}
    if issubclass(cls, enum.Enum):
        return {}
    try:
        return typing.get_type_hints(cls)
    except Exception:  # An unresolvable name, such as a function's local, affects only its own field.
        hints = {}
        for base in reversed(cls.__mro__):
            scope = vars(sys.modules.get(base.__module__, types))
            for name, hint in inspect.get_annotations(base).items():
                hints[name] = _resolve_hint(hint, scope, dict(vars(base)))
        return {name: hint for name, hint in hints.items() if hint is not None}


@lru_cache(maxsize=512)
def required_keys(cls: Any) -> frozenset[str]:
    """Return the keys that a TypedDict requires. Its own `__required_keys__` is wrong for annotations that are text."""
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except Exception:
        return frozenset()
    marks = {name: typing.get_origin(hint) for name, hint in hints.items()}
    return frozenset(
        name
        for name, mark in marks.items()
        if mark is typing.Required or (name in cls.__required_keys__ and mark is not typing.NotRequired)
    )


def plain_hint(hint: Any) -> Any:
    """Return the annotation without wrappers that do not affect the value: Annotated, NewType, Required, aliases."""
    while True:
        origin = typing.get_origin(hint)
        if origin in (typing.Annotated, typing.Final, typing.ClassVar, typing.Required, typing.NotRequired):
            hint = typing.get_args(hint)[0]
        elif isinstance(hint, typing.NewType):
            hint = hint.__supertype__
        elif type(hint).__name__ == "TypeAliasType":
            hint = hint.__value__
        elif type(hint).__name__ == "TypeVar":
            hint = hint.__bound__ or Any
        elif hint is None:
            return types.NoneType
        else:
            return hint


def _inner(hint: Any) -> Iterator[Any]:
    bare = plain_hint(hint)
    if bare is not hint:
        yield bare
    elif typing.get_origin(hint) is not typing.Literal:
        for each in typing.get_args(hint):
            if isinstance(each, list):
                yield from each
            else:
                yield each


def _resolve_hint(hint: Any, scope: dict[str, Any], local: dict[str, Any]) -> Any:
    """Return the annotation with its strings resolved; None if this fails."""
    try:
        return typing.get_type_hints(types.SimpleNamespace(__annotations__={"it": hint}), scope, local)["it"]
    except Exception:
        return None


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return Any
