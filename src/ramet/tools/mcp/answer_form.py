"""A form that a server of the Model Context Protocol wants a person to fill in: its fields, and the check of an answer.

The schema comes from the server: it is bounded, no pattern of it is applied, and no reference followed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ramet.core.errors import InvalidValue

MAX_FIELDS, MAX_CHOICES = 30, 100
MAX_NAME, MAX_HINT, MAX_ANSWER = 100, 300, 16 * 1024
_KINDS: Final = ("string", "integer", "number", "boolean", "array")
_BOUNDS: Final = ("minLength", "maxLength", "minimum", "maximum", "minItems", "maxItems")
_MAX_BOUND: Final = 1e300  #: a whole number above may be no float
Value = str | int | float | bool | list[str]


@dataclass(frozen=True, kw_only=True)
class FormField:
    """A field of a form."""

    name: str
    kind: str
    is_required: bool
    hint: str
    choices: tuple[str, ...]  #: empty: any text
    bounds: Mapping[str, float]

    def describe(self) -> str:
        """Return the kind of the field, for a person."""
        facts = [self.kind] if self.is_required else [self.kind, "optional"]
        facts += [f"{name} {bound:g}" for name, bound in self.bounds.items()]
        facts += ["one of " + ", ".join(self.choices)] if self.choices else []
        return ", ".join(facts) + (f": {self.hint}" if self.hint else "")

    def accepts(self, value: object) -> bool:
        """Return whether the field may have this value."""
        match self.kind:
            case "string":
                return isinstance(value, str) and self._is_choice(value) and self._is_within("Length", len(value))
            case "boolean":
                return isinstance(value, bool)
            case "array":
                is_list = isinstance(value, list) and all(isinstance(each, str) for each in value)
                return is_list and all(map(self._is_choice, value)) and self._is_within("Items", len(value))  # type: ignore[call-overload,arg-type]  # checked before
        if not _is_number(value):
            return False
        assert isinstance(value, int | float)
        is_kind = self.kind == "number" or value == int(value)
        return is_kind and self.bounds.get("minimum", value) <= value <= self.bounds.get("maximum", value)

    def _is_choice(self, value: str) -> bool:
        return not self.choices or value in self.choices

    def _is_within(self, what: str, count: int) -> bool:
        return self.bounds.get(f"min{what}", 0) <= count <= self.bounds.get(f"max{what}", math.inf)


@dataclass(frozen=True)
class AnswerForm:
    """A form."""

    fields: tuple[FormField, ...]

    def describe(self) -> dict[str, str]:
        """Return the fields by name, for a person."""
        return {each.name: each.describe() for each in self.fields}

    def parse(self, text: str) -> dict[str, Value]:
        """Return the answer of a person, from JSON by the names of the fields. Raises InvalidValue."""
        accepted = "a JSON object with the fields of the question: " + json.dumps(self.describe())[:2_000]
        try:
            answer = json.loads(text or "{}") if len(text) <= MAX_ANSWER else None
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise InvalidValue("answer", text[:200], accepted)
        fields = {each.name: each for each in self.fields}
        for name, value in answer.items():
            if name not in fields:
                raise InvalidValue("answer", name[:200], accepted)
            if not fields[name].accepts(value):
                raise InvalidValue(f"answer.{name}", value, fields[name].describe())
        for field in self.fields:
            if field.is_required and field.name not in answer:
                raise InvalidValue(f"answer.{field.name}", "nothing", field.describe())
        return answer


def form_of(schema: object) -> AnswerForm:
    """Return the form of a requested schema. Raises InvalidValue for one that no person can be shown."""
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    if not isinstance(properties, Mapping) or len(properties) > MAX_FIELDS:
        raise InvalidValue("requestedSchema", "its properties", f"an object of at most {MAX_FIELDS} properties")
    required = schema.get("required") if isinstance(schema, Mapping) else None
    names = required if isinstance(required, list) else []
    return AnswerForm(tuple(_field(name, each, name in names) for name, each in properties.items()))


def _field(name: object, schema: object, is_required: bool) -> FormField:
    if not isinstance(name, str) or len(name) > MAX_NAME or not isinstance(schema, Mapping):
        raise InvalidValue("requestedSchema", str(name)[:MAX_NAME], f"names of at most {MAX_NAME} characters")
    kind = schema.get("type")
    if kind not in _KINDS:
        raise InvalidValue(f"requestedSchema.{name}", str(kind)[:100], f"one of the types {', '.join(_KINDS)}")
    source = schema.get("items") if kind == "array" else schema
    bounds = {each: schema[each] for each in _BOUNDS if _is_number(schema.get(each))}
    return FormField(
        name=name,
        kind=str(kind),
        is_required=is_required,
        hint=str(schema.get("description") or schema.get("title") or "")[:MAX_HINT],
        choices=_choices(name, source),
        bounds=bounds,
    )


def _choices(name: str, schema: object) -> tuple[str, ...]:
    if not isinstance(schema, Mapping):
        return ()
    titled = schema.get("oneOf") or schema.get("anyOf")
    values = schema.get("enum") or (
        [each.get("const") for each in titled if isinstance(each, Mapping)] if isinstance(titled, list) else []
    )
    is_bounded = isinstance(values, list) and len(values) <= MAX_CHOICES
    if not is_bounded or not all(isinstance(each, str) and len(each) <= MAX_HINT for each in values):
        raise InvalidValue(f"requestedSchema.{name}", "its choices", f"at most {MAX_CHOICES} short texts")
    return tuple(values)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -_MAX_BOUND <= value <= _MAX_BOUND
