"""Classes made of data alone: equal definitions give the same class, as long as it is in use.

An unused class is garbage-collected, so that the types of a tree end with the tree. The most recent classes are kept
for a while.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import warnings
import weakref
from collections.abc import Mapping
from typing import Any, cast

from ramet.agent.typed.cache import SizedCache
from ramet.agent.typed.values import Default
from ramet.core.errors import InvalidValue

#: The kind, the name, the defaults or values as JSON, and the names and types of the fields.
_ClassKey = tuple[str, str, str, tuple[tuple[str, Any], ...]]

_CACHED_PARTS = 10_000  #: of unused classes that are kept: a part takes up to 2 KB
_live_classes = weakref.WeakValueDictionary[_ClassKey, type]()
_recent_classes = SizedCache[_ClassKey, type](_CACHED_PARTS)


def class_from_data(
    kind: str, name: str, data: Mapping[str, Any], hints: Mapping[str, Any], path: str, parts: int
) -> type:
    """Return the class of these fields and defaults, or of the values of an enum; it counts as `parts` parts.

    Raises InvalidValue for names that Python or pydantic reserve, such as `mro` in an enum.
    """
    key: _ClassKey = (kind, name, json.dumps(data, sort_keys=kind != "enum"), tuple(hints.items()))
    class_ = _live_classes.get(key)
    if class_ is None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                class_ = _live_classes.setdefault(key, _new_class(kind, name, data, hints))
        except Exception as problem:  # each kind of class refuses in its own way
            raise InvalidValue(path, name, f"names that a {kind} can have: {problem}") from None
    _recent_classes.put(key, class_, parts)
    return class_


def _new_class(kind: str, name: str, data: Mapping[str, Any], hints: Mapping[str, Any]) -> type:
    if kind == "enum":
        return cast(type, enum.Enum(name, dict(data), module=__name__))
    defaults = {field: Default(hints[field], value) for field, value in data.items()}
    if kind == "model":
        return _model(name, hints, defaults)
    plain = [(field, hint) for field, hint in hints.items() if field not in defaults]
    optional = [
        (field, hint, dataclasses.field(default_factory=defaults[field]))
        for field, hint in hints.items()
        if field in defaults
    ]
    return dataclasses.make_dataclass(name, [*plain, *optional], kw_only=False)


def _model(name: str, hints: Mapping[str, Any], defaults: Mapping[str, Default]) -> type:
    import pydantic

    reserved = [field for field in hints if hasattr(pydantic.BaseModel, field)]
    if reserved:
        raise ValueError(f"{reserved[0]} means something else in every model")
    fields: dict[str, Any] = {
        field: (hint, _model_field(defaults[field]) if field in defaults else ...) for field, hint in hints.items()
    }
    return cast(type, pydantic.create_model(name, __config__=pydantic.ConfigDict(protected_namespaces=()), **fields))


def _model_field(default: Default) -> Any:
    """Return a field with the default factory of a dataclass; the JSON schema shows the default as in a model."""
    import pydantic

    return pydantic.Field(default_factory=default, json_schema_extra={"default": default.data})
