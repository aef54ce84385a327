"""Encode types as schemas, so that another process can rebuild them (`ramet.agent.typed.schema`).

Classes are dataclasses, pydantic models and enums whose parts can be encoded themselves. A class with code (validators,
computed defaults) is refused when a task is declared, instead of being changed silently.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import inspect
import types
import typing
from typing import Annotated, Any, Literal, Union

from ramet.agent.typed.schema import FORMATS, MAX_DEPTH, REFERENCE, SCALARS, TASK, Types, is_type_name
from ramet.agent.typed.values import Default, as_data, type_hints
from ramet.core.errors import InvalidValue

_LISTS = (list, collections.abc.Sequence, collections.abc.Iterable, collections.abc.Collection)
_SETS = (set, frozenset, collections.abc.Set)
_MAPS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)
_ACCEPTED = (
    "JSON types, dates, UUID, Decimal, Path, lists, tuples, sets, dicts with text for keys, Literal, unions, "
    "dataclasses, pydantic models and enums without code of their own, or a Callable"
)


def schema_of(hint: Any, types_by_name: Types, path: str) -> dict[str, Any]:
    """Return the schema of a type; the classes that it contains are added to `types_by_name`.

    Raises InvalidValue, with the place.
    """
    return _Writer(types_by_name).schema(hint, path, ())


class _Writer:
    def __init__(self, types_by_name: Types) -> None:
        self._types_by_name = types_by_name
        self._classes: dict[str, type] = {}

    def schema(self, hint: Any, path: str, enclosing: tuple[type, ...]) -> dict[str, Any]:
        if len(enclosing) > MAX_DEPTH:
            raise InvalidValue(path, hint, f"types at most {MAX_DEPTH} deep")
        if hint is None:
            hint = type(None)
        if hint is Any:
            return {}
        if isinstance(hint, str) or hint is inspect.Parameter.empty:
            raise InvalidValue(path, hint, f"an annotation: {_ACCEPTED}")
        if isinstance(hint, typing.TypeAliasType if hasattr(typing, "TypeAliasType") else ()):
            hint = hint.__value__
        origin, parts = typing.get_origin(hint), typing.get_args(hint)
        if origin is Annotated:
            if not all(isinstance(each, str) for each in parts[1:]):
                raise InvalidValue(path, hint, "a type without constraints: they are code, and would be lost")
            return self.schema(parts[0], path, enclosing)
        if hint in SCALARS:
            return {"type": SCALARS[hint]}
        for name, kind in FORMATS.items():
            if hint is kind:
                return {"type": "string", "format": name}
        if (origin or hint) is collections.abc.Callable:
            if enclosing:
                raise InvalidValue(path, hint, "a Callable by itself: within another type it cannot be resolved")
            return {"type": "string", "format": TASK}
        if origin in (Union, types.UnionType):
            return {"anyOf": [self.schema(each, path, (*enclosing, object)) for each in parts]}
        if origin is Literal:
            if not all(type(each) in SCALARS for each in parts):
                raise InvalidValue(path, hint, "a Literal of text, numbers, True, False and None")
            return {"enum": list(parts)}
        container = self._container(hint, origin, parts, path, enclosing)
        if container is not None:
            return container
        if isinstance(hint, type):
            return self._reference(hint, path, enclosing)
        raise InvalidValue(path, hint, _ACCEPTED)

    def _container(
        self, hint: Any, origin: Any, parts: tuple[Any, ...], path: str, enclosing: tuple[type, ...]
    ) -> dict[str, Any] | None:
        kind, deeper = origin or hint, (*enclosing, object)
        if kind in _LISTS:
            return {"type": "array", "items": self.schema(parts[0] if parts else Any, f"{path}[]", deeper)}
        if kind is tuple:
            if not parts or parts[-1] is Ellipsis:
                items = self.schema(parts[0] if parts else Any, f"{path}[]", deeper)
                return {"type": "array", "items": items, "format": "tuple"}
            each = [self.schema(part, f"{path}[{at}]", deeper) for at, part in enumerate(parts) if part != ()]
            return {"type": "array", "prefixItems": each, "items": False, "minItems": len(each)}
        if kind in _SETS:
            items = self.schema(parts[0] if parts else Any, f"{path}[]", deeper)
            return {"type": "array", "items": items, "uniqueItems": True}
        if kind in _MAPS:
            if parts and parts[0] not in (str, Any):
                raise InvalidValue(path, hint, "a dict with text keys, as in JSON")
            return {"type": "object", "additionalProperties": self.schema(parts[1] if parts else Any, path, deeper)}
        return None

    def _reference(self, kind: type, path: str, enclosing: tuple[type, ...]) -> dict[str, Any]:
        name = kind.__name__
        if kind in enclosing:
            raise InvalidValue(path, name, "a class that does not contain itself: cycles cannot be written as data")
        if not is_type_name(name):
            raise InvalidValue(path, name, "a class with a plain name")
        if self._classes.get(name, kind) is not kind:
            raise InvalidValue(path, name, "one class of each name")
        if name not in self._types_by_name or name not in self._classes:
            definition = self._class(kind, f"{path}.{name}", (*enclosing, kind))
            if self._types_by_name.setdefault(name, definition) != definition:
                raise InvalidValue(path, name, "one class of each name")
            self._classes[name] = kind
        return {"$ref": f"{REFERENCE}{name}"}

    def _class(self, kind: type, path: str, enclosing: tuple[type, ...]) -> dict[str, Any]:
        if issubclass(kind, enum.Enum):
            values = {each.name: each.value for each in kind}
            if issubclass(kind, enum.Flag) or not all(type(each) in (str, int, float) for each in values.values()):
                raise InvalidValue(path, kind.__name__, "an enum of text or numbers")
            return {"kind": "enum", "values": values}
        if dataclasses.is_dataclass(kind):
            return {"kind": "dataclass", "fields": self._dataclass_fields(kind, path, enclosing)}
        if _is_model(kind):
            return {"kind": "model", "fields": self._model_fields(kind, path, enclosing)}
        raise InvalidValue(path, kind.__name__, _ACCEPTED)

    def _dataclass_fields(self, kind: type, path: str, enclosing: tuple[type, ...]) -> dict[str, Any]:
        if hasattr(kind, "__post_init__"):
            raise InvalidValue(path, kind.__name__, "a dataclass without __post_init__: code would be lost")
        hints, fields = type_hints(kind, path), dict[str, Any]()
        for each in dataclasses.fields(kind):
            field = self.schema(hints[each.name], f"{path}.{each.name}", enclosing)
            if each.default is not dataclasses.MISSING:
                field = {**field, "default": as_data(each.default, f"{path}.{each.name}")}
            elif each.default_factory is not dataclasses.MISSING:
                field = {**field, "default": _data_from_factory(each.default_factory, f"{path}.{each.name}")}
            fields[each.name] = field
        return fields

    def _model_fields(self, kind: Any, path: str, enclosing: tuple[type, ...]) -> dict[str, Any]:
        decorators = kind.__pydantic_decorators__
        if any(
            getattr(decorators, part)
            for part in ("validators", "field_validators", "root_validators", "model_validators")
        ):
            raise InvalidValue(path, kind.__name__, "a model without validators: code would be lost")
        fields = dict[str, Any]()
        for name, each in kind.model_fields.items():
            field_path = f"{path}.{name}"
            if each.metadata:
                raise InvalidValue(field_path, each.metadata, "a field without constraints: they would be lost")
            field = self.schema(each.annotation, field_path, enclosing)
            if each.default_factory is not None:
                field = {**field, "default": _data_from_factory(each.default_factory, field_path)}
            elif not each.is_required():
                field = {**field, "default": as_data(each.default, field_path)}
            fields[name] = field
        return fields


def _data_from_factory(factory: Any, path: str) -> Any:
    """Return the default of a field that a factory creates, as data."""
    if isinstance(factory, Default):
        return factory.data
    if factory not in (list, dict, set, tuple):
        raise InvalidValue(path, factory, "a default that is data")
    return {} if factory is dict else []


def _is_model(kind: type) -> bool:
    return hasattr(kind, "model_fields") and hasattr(kind, "__pydantic_decorators__")
