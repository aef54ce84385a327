"""Types made again from what was written down: the same words give the same class, whoever asks."""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from typing import Any, Literal, Union, cast

from ramet.agent.typed.forms import FORMATS, MAX_DEPTH, MAX_PARTS, REFERENCE, SCALARS, TASK, is_type_name
from ramet.agent.typed.values import Default, checked
from ramet.core.errors import InvalidValue

#: Made with arguments that are only known when they are read.
_TUPLE, _SET, _LIST, _DICT = cast(Any, tuple), cast(Any, set), cast(Any, list), cast(Any, dict)
_BY_NAME = {name: kind for kind, name in SCALARS.items()}


def hint_of(schema: Mapping[str, Any], known: Mapping[str, Mapping[str, Any]], where: str = "type") -> Any:
    """The type of a form. The same definition gives the same class, whoever asks. Raises InvalidValue."""
    return TypeReader(known).hint(schema, where)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Class:
    """A class that was read, and what a class that mentions it must know."""

    kind: type
    height: int  #: levels of types in it


class TypeReader:
    """Reads types that share their classes: each class is read once, and the work for all of them is bounded."""

    def __init__(self, known: Mapping[str, Mapping[str, Any]]) -> None:
        self._known = known
        self._classes: dict[str, _Class] = {}
        self._deepest = 0
        self._own: Counter[str] = Counter()  #: parts of each class, without those of other classes
        self._holds: defaultdict[str, set[str]] = defaultdict(set)  #: classes that each class is made of, and itself
        self._left = MAX_PARTS

    def hint(self, schema: Any, where: str, inside: tuple[str, ...] = ()) -> Any:
        """The type of a form. Raises InvalidValue."""
        owner = next((each for each in reversed(inside) if each), "")
        self._deepest = max(self._deepest, len(inside))
        self._own[owner] += 1
        if not isinstance(schema, Mapping) or len(inside) > MAX_DEPTH:
            raise InvalidValue(where, schema, f"a type as data, at most {MAX_DEPTH} deep")
        said = {key: value for key, value in schema.items() if key not in ("default", "description", "title")}
        deeper = (*inside, "")
        match said:
            case {} if not said:
                return Any
            case {"$ref": str(reference)} if len(said) == 1 and reference.startswith(REFERENCE):
                name = reference.removeprefix(REFERENCE)
                kind = self._class(name, where, inside)
                if owner and name not in self._holds[owner]:
                    self._holds[owner] |= self._holds[name]
                elif inside and not owner:  # a container of the class, which is not made once like a class
                    self._take(name, where)
                return kind
            case {"type": "string", "format": str(name)} if len(said) == 2 and name == TASK:
                return Callable
            case {"type": "string", "format": str(name)} if len(said) == 2 and name in FORMATS:
                return FORMATS[name]
            case {"type": str(name)} if len(said) == 1 and name in _BY_NAME:
                return _BY_NAME[name]
            case {"anyOf": [_, *_] as each} if len(said) == 1:
                parts = tuple(self.hint(one, f"{where}.anyOf[{at}]", deeper) for at, one in enumerate(each))
                return Union[parts]  # noqa: UP007 - of as many as there are
            case {"enum": [_, *_] as values} if len(said) == 1 and all(type(each) in SCALARS for each in values):
                return Literal[tuple(values)]
            case {"type": "array", "prefixItems": list(each), "items": False, "minItems": int(count)} if len(
                said
            ) == 4 and count == len(each):
                parts = tuple(self.hint(one, f"{where}[{at}]", deeper) for at, one in enumerate(each))
                return _TUPLE[parts or ()]
            case {"type": "array", "items": items, "format": "tuple"} if len(said) == 3:
                return _TUPLE[self.hint(items, f"{where}[]", deeper), ...]
            case {"type": "array", "items": items, "uniqueItems": True} if len(said) == 3:
                return _SET[self.hint(items, f"{where}[]", deeper)]
            case {"type": "array", "items": items} if len(said) == 2:
                return _LIST[self.hint(items, f"{where}[]", deeper)]
            case {"type": "object", "additionalProperties": values} if len(said) == 2:
                return _DICT[str, self.hint(values, where, deeper)]
        raise InvalidValue(where, schema, "a type in the forms of ramet.agent.typed.forms")

    def _class(self, name: str, where: str, inside: tuple[str, ...]) -> type:
        if name in inside:
            raise InvalidValue(where, name, "a class that does not hold itself")
        definition = self._known.get(name)
        if definition is None or not is_type_name(name):
            raise InvalidValue(where, name, f"one of the types: {', '.join(sorted(self._known))[:500]}")
        read = self._classes.get(name)
        if read is None:
            outer, self._deepest = self._deepest, len(inside)
            kind = self._new_class(name, definition, f"{where}.{name}", inside)
            read = self._classes[name] = _Class(kind=kind, height=self._deepest - len(inside))
            self._deepest = max(outer, self._deepest)
        elif len(inside) + read.height > MAX_DEPTH:
            raise InvalidValue(where, name, f"a type as data, at most {MAX_DEPTH} deep")
        else:
            self._deepest = max(self._deepest, len(inside) + read.height)
        return read.kind

    def _take(self, name: str, where: str) -> None:
        """Count the parts of a class and of all that it is made of: making it, or a check of it, costs as much."""
        self._left -= sum(self._own[each] for each in self._holds[name])
        if self._left < 0:
            accepted = f"classes of at most {MAX_PARTS} parts, each counted with the classes that it is made of"
            raise InvalidValue(where, name, accepted)

    def _new_class(self, name: str, definition: Mapping[str, Any], place: str, inside: tuple[str, ...]) -> type:
        parts = (*inside, name)
        self._own[name], self._holds[name] = 1, {name}
        if definition.get("kind") == "enum":
            values = definition.get("values")
            if set(definition) != {"kind", "values"} or not isinstance(values, Mapping) or not values:
                raise InvalidValue(place, definition, "an enum of names and values")
            if not all(is_type_name(each) and type(value) in (str, int, float) for each, value in values.items()):
                raise InvalidValue(place, values, "names, with text or numbers")
            return _made_or_refused("enum", name, json.dumps(dict(values)), (), place)
        fields = definition.get("fields")
        if set(definition) != {"kind", "fields"} or not isinstance(fields, Mapping):
            raise InvalidValue(place, definition, "a kind, and fields")
        if definition["kind"] not in ("dataclass", "model"):
            raise InvalidValue(f"{place}.kind", definition["kind"], "dataclass, model or enum")
        hints = []
        for field, schema in fields.items():
            if not is_type_name(field) or field.startswith("_") or not isinstance(schema, Mapping):
                raise InvalidValue(f"{place}.{field}", schema, "a field with a plain name and a type")
            hints.append((field, self.hint(schema, f"{place}.{field}", parts)))
        self._take(name, place)
        defaults = {field: schema["default"] for field, schema in fields.items() if "default" in schema}
        kind = _made_or_refused(definition["kind"], name, json.dumps(defaults, sort_keys=True), tuple(hints), place)
        for field, value in defaults.items():
            checked(dict(hints)[field], value, f"{place}.{field}.default")
        return kind


def _made_or_refused(kind: str, name: str, data: str, hints: tuple[tuple[str, Any], ...], where: str) -> type:
    """The class, or InvalidValue for names that Python or pydantic keep for themselves, such as `mro` in an enum."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return _made(kind, name, data, hints)
    except Exception as problem:  # each kind of class refuses in its own way
        raise InvalidValue(where, name, f"names that a {kind} can have: {problem}") from None


@functools.lru_cache(maxsize=4096)
def _made(kind: str, name: str, data: str, hints: tuple[tuple[str, Any], ...]) -> type:
    """A class of data alone. The same words give the same class, so that values of it are equal."""
    said: dict[str, Any] = json.loads(data)
    if kind == "enum":
        return cast(type, enum.Enum(name, said, module=__name__))
    if kind == "model":
        import pydantic

        taken = [field for field, _ in hints if hasattr(pydantic.BaseModel, field)]
        if taken:
            raise ValueError(f"{taken[0]} means something else in every model")
        given: dict[str, Any] = {field: (hint, said[field] if field in said else ...) for field, hint in hints}
        config = pydantic.ConfigDict(protected_namespaces=())
        return cast(type, pydantic.create_model(name, __config__=config, **given))
    plain = [(field, hint) for field, hint in hints if field not in said]
    optional = [
        (field, hint, dataclasses.field(default_factory=Default(hint, said[field])))
        for field, hint in hints
        if field in said
    ]
    return dataclasses.make_dataclass(name, [*plain, *optional], kw_only=False)
