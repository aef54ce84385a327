"""Build types from their schemas: equal definitions give the same class."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from typing import Any, Literal, Union, cast

from ramet.agent.schemas.work_budget import count_steps
from ramet.agent.typed.classes import class_from_data
from ramet.agent.typed.schema import (
    FORMATS,
    MAX_CLASS_PARTS,
    MAX_DEPTH,
    MAX_PARTS,
    REFERENCE,
    SCALARS,
    TASK,
    is_type_name,
)
from ramet.agent.typed.values import decode_value
from ramet.core.errors import InvalidValue
from ramet.wire.values import hash_bounds

#: Used with arguments that are only known at run time.
_TUPLE, _SET, _LIST, _DICT = cast(Any, tuple), cast(Any, set), cast(Any, list), cast(Any, dict)
_BY_NAME = {name: kind for kind, name in SCALARS.items()}
_PARTS_OF_A_CLASS = 20  #: constant cost of a class: it takes as long to create as this many fields


def hint_of(schema: Mapping[str, Any], definitions: Mapping[str, Mapping[str, Any]], path: str = "type") -> Any:
    """Return the type of a schema. Equal definitions give the same class. Raises InvalidValue."""
    with count_steps(len(json.dumps(definitions, default=str))):
        return TypeReader(definitions).hint(schema, path)


class _UncachedParts(tuple[Any, ...]):
    """The parts of a union. Before Python 3.14, `typing` caches unions of hashable parts, with all their classes."""

    __hash__ = None  # type: ignore[assignment]


def _union(parts: tuple[Any, ...]) -> Any:
    # Python 3.14 caches no unions, and takes only a plain tuple for several parts.
    return Union[parts if sys.version_info >= (3, 14) else _UncachedParts(parts)]  # noqa: UP007 - a variable number


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Class:
    """A class that was read, and what other classes need to know of it."""

    kind: type
    height: int  #: levels of types in it


class TypeReader:
    """A reader of types that share their classes: each class is read once, with bounded total work.

    The checks of all defaults take steps of the outer check, if there is one.
    """

    def __init__(self, definitions: Mapping[str, Mapping[str, Any]]) -> None:
        self._definitions = definitions
        self._classes: dict[str, _Class] = {}
        self._deepest = 0
        self._own_parts: Counter[str] = Counter()  #: parts of each class, without those of other classes
        #: classes that each class contains, including itself
        self._contained_classes: defaultdict[str, set[str]] = defaultdict(set)
        self._field_classes = set[str]()  #: classes that the current field contains
        self._remaining_parts = MAX_PARTS

    def hint(self, schema: Any, path: str, enclosing: tuple[str, ...] = ()) -> Any:
        """Return the type of a schema. Raises InvalidValue if the schema is invalid."""
        owner = next((each for each in reversed(enclosing) if each), "")
        self._deepest = max(self._deepest, len(enclosing))
        self._count(owner, 1, path)
        if not isinstance(schema, Mapping) or len(enclosing) > MAX_DEPTH:
            raise InvalidValue(path, schema, f"a type as data, at most {MAX_DEPTH} deep")
        keywords = {key: value for key, value in schema.items() if key not in ("default", "description", "title")}
        deeper = (*enclosing, "")
        match keywords:
            case {} if not keywords:
                return Any
            case {"$ref": str(reference)} if len(keywords) == 1 and reference.startswith(REFERENCE):
                name = reference.removeprefix(REFERENCE)
                kind = self._class(name, path, enclosing)
                self._field_classes |= self._contained_classes[name]
                if owner and name not in self._contained_classes[owner]:
                    self._contained_classes[owner] |= self._contained_classes[name]
                elif enclosing and not owner:  # a container of the class, which is not shared like a class
                    self._spend_parts(self._parts_of(self._contained_classes[name]), path)
                return kind
            case {"type": "string", "format": str(name)} if len(keywords) == 2 and name == TASK:
                return Callable
            case {"type": "string", "format": str(name)} if len(keywords) == 2 and name in FORMATS:
                return FORMATS[name]
            case {"type": str(name)} if len(keywords) == 1 and name in _BY_NAME:
                return _BY_NAME[name]
            case {"anyOf": [_, *_] as each} if len(keywords) == 1:
                parts = tuple(
                    self.hint(part_schema, f"{path}.anyOf[{at}]", deeper) for at, part_schema in enumerate(each)
                )
                return _union(parts)
            case {"enum": [_, *_] as values} if len(keywords) == 1 and all(type(each) in SCALARS for each in values):
                self._count_values(owner, values, path)
                return Literal[tuple(values)]
            case {"type": "array", "prefixItems": list(each), "items": False, "minItems": int(count)} if len(
                keywords
            ) == 4 and count == len(each):
                parts = tuple(self.hint(part_schema, f"{path}[{at}]", deeper) for at, part_schema in enumerate(each))
                return _TUPLE[parts or ()]
            case {"type": "array", "items": items, "format": "tuple"} if len(keywords) == 3:
                return _TUPLE[self.hint(items, f"{path}[]", deeper), ...]
            case {"type": "array", "items": items, "uniqueItems": True} if len(keywords) == 3:
                return _SET[self.hint(items, f"{path}[]", deeper)]
            case {"type": "array", "items": items} if len(keywords) == 2:
                return _LIST[self.hint(items, f"{path}[]", deeper)]
            case {"type": "object", "additionalProperties": values} if len(keywords) == 2:
                return _DICT[str, self.hint(values, path, deeper)]
        raise InvalidValue(path, schema, "a type in the forms of ramet.agent.typed.schema")

    def _class(self, name: str, path: str, enclosing: tuple[str, ...]) -> type:
        if name in enclosing:
            raise InvalidValue(path, name, "a class that does not contain itself")
        definition = self._definitions.get(name)
        if definition is None or not is_type_name(name):
            raise InvalidValue(path, name, f"one of the types: {', '.join(sorted(self._definitions))[:500]}")
        known_class = self._classes.get(name)
        if known_class is None:
            outer, self._deepest = self._deepest, len(enclosing)
            kind = self._new_class(name, definition, f"{path}.{name}", enclosing)
            known_class = self._classes[name] = _Class(kind=kind, height=self._deepest - len(enclosing))
            self._deepest = max(outer, self._deepest)
        elif len(enclosing) + known_class.height > MAX_DEPTH:
            raise InvalidValue(path, name, f"a type as data, at most {MAX_DEPTH} deep")
        else:
            self._deepest = max(self._deepest, len(enclosing) + known_class.height)
        return known_class.kind

    def _count(self, owner: str, parts: int, path: str) -> None:
        """Count parts of a class, or of a type outside of all classes."""
        if not owner:
            self._spend_parts(parts, path)
            return
        self._own_parts[owner] += parts
        if self._own_parts[owner] > MAX_CLASS_PARTS:
            accepted = f"a class of at most {MAX_CLASS_PARTS} parts: fields, types in them, values to choose from"
            raise InvalidValue(path, owner, accepted)

    def _count_values(self, owner: str, values: list[Any], path: str) -> None:
        """Count the values of an enum or a Literal, which become keys of a dict."""
        self._count(owner, len(values), path)
        if not hash_bounds.can_be_hashed(values):
            raise InvalidValue(path, values, hash_bounds.ACCEPTED)

    def _parts_of(self, names: set[str]) -> int:
        return sum(self._own_parts[each] for each in names)

    def _spend_parts(self, parts: int, path: str) -> None:
        """Count parts that are created or checked. A class counts with all the classes that it contains."""
        self._remaining_parts -= parts
        if self._remaining_parts < 0:
            accepted = f"at most {MAX_PARTS} parts, each class counted with the classes that it contains"
            raise InvalidValue(path, "types of more parts", accepted)

    def _new_class(self, name: str, definition: Mapping[str, Any], path: str, enclosing: tuple[str, ...]) -> type:
        parts = (*enclosing, name)
        self._own_parts[name], self._contained_classes[name] = 0, {name}
        if definition.get("kind") == "enum":
            values = definition.get("values")
            if set(definition) != {"kind", "values"} or not isinstance(values, Mapping) or not values:
                raise InvalidValue(path, definition, "an enum of names and values")
            if not all(is_type_name(each) and type(value) in (str, int, float) for each, value in values.items()):
                raise InvalidValue(path, values, "names, with text or numbers")
            self._count_values(name, list(values.values()), path)
            self._spend_parts(self._own_parts[name] + _PARTS_OF_A_CLASS, path)
            return class_from_data("enum", name, dict(values), {}, path, self._own_parts[name] + _PARTS_OF_A_CLASS)
        fields = definition.get("fields")
        if set(definition) != {"kind", "fields"} or not isinstance(fields, Mapping):
            raise InvalidValue(path, definition, "a kind, and fields")
        if definition["kind"] not in ("dataclass", "model"):
            raise InvalidValue(f"{path}.kind", definition["kind"], "dataclass, model or enum")
        hints = dict[str, Any]()
        for field, schema in fields.items():
            if not is_type_name(field) or field.startswith("_") or not isinstance(schema, Mapping):
                raise InvalidValue(f"{path}.{field}", schema, "a field with a plain name and a type")
            hints[field] = self._field(schema, f"{path}.{field}", parts)
        self._spend_parts(self._parts_of(self._contained_classes[name]) + _PARTS_OF_A_CLASS, path)
        defaults = {field: schema["default"] for field, schema in fields.items() if "default" in schema}
        kind = class_from_data(
            definition["kind"], name, defaults, hints, path, self._own_parts[name] + _PARTS_OF_A_CLASS
        )
        for field, value in defaults.items():
            decode_value(hints[field], value, f"{path}.{field}.default")
        return kind

    def _field(self, schema: Mapping[str, Any], path: str, enclosing: tuple[str, ...]) -> Any:
        """Return the type of a field. A field with a default has a separate check, which covers all its classes."""
        owner, outer = enclosing[-1], self._field_classes
        parts_before, self._field_classes = self._own_parts[owner], set()
        kind = self.hint(schema, path, enclosing)
        if "default" in schema:
            self._spend_parts(self._own_parts[owner] - parts_before + self._parts_of(self._field_classes), path)
        self._field_classes |= outer
        return kind
