"""JSON schemas whose checks are counted (`ramet.agent.schemas.work_budget`): each level can double the work."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ramet.agent.schemas.work_budget import spend_steps
from ramet.core.errors import InvalidValue

_UNIT = 64  #: characters, items or names that cost about one step
#: Keywords whose values are compared as text, to the end.
_COMPARED_KEYWORDS = frozenset({"enum", "const", "required", "dependentRequired", "dependencies"})
#: Keywords that jsonschema evaluates by an uncounted walk of the schema, with a list of all names or places at each
#: step.
_UNCOUNTED_KEYWORDS = {
    "unevaluatedProperties": "additionalProperties, with all properties in the same schema",
    "unevaluatedItems": "items, with all prefixItems in the same schema",
}


def check(schema: Mapping[str, Any]) -> None:
    """Raise InvalidValue for a keyword of one schema whose work cannot be counted."""
    for keyword, accepted in _UNCOUNTED_KEYWORDS.items():
        if keyword in schema:
            raise InvalidValue(f"output.{keyword}", schema[keyword], accepted)


def counting_validator(dialect: Any) -> Any:
    """Return a validator class of a dialect that counts each keyword, and compares items in linear time."""
    from jsonschema.validators import extend

    keywords = {**dialect.VALIDATORS, "uniqueItems": _unique_items}
    wrapped_checks = {keyword: _wrap_check(keyword, function) for keyword, function in keywords.items()}
    return extend(dialect, wrapped_checks)  # type: ignore[no-untyped-call]  # of jsonschema


def _wrap_check(keyword: str, function: Callable[..., Any]) -> Callable[..., Iterator[Any]]:
    def run_check(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        compared_text = json.dumps(value) if keyword in _COMPARED_KEYWORDS else value
        spend_steps(1 + _cost(compared_text) + _cost(instance))
        if keyword == "contains" and isinstance(instance, list):
            spend_steps(len(instance))  # each item has a validator of its own
        for error in function(validator, value, instance, schema) or ():
            spend_steps(1 + len(error.message) // _UNIT)  # a message quotes the value
            yield error

    return run_check


def _cost(value: Any) -> int:
    """Return the steps of one pass through a text, a list or the names of an object."""
    return len(value) // _UNIT if isinstance(value, str | list | dict) else 0


def _unique_items(validator: Any, unique: Any, instance: Any, schema: Any) -> Iterator[Any]:
    from jsonschema import ValidationError

    if not unique or not validator.is_type(instance, "array"):
        return
    known_texts = set[str]()
    for item in instance:
        text = json.dumps(_numbers(item), sort_keys=True)
        spend_steps(1 + len(text) // _UNIT)
        if text in known_texts:
            yield ValidationError(f"the items are not unique: {text[:100]} occurs twice")
            return
        known_texts.add(text)


def _numbers(value: Any) -> Any:
    """Return a value with one notation per number: JSON does not distinguish integers from other numbers."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_numbers(each) for each in value]
    if isinstance(value, dict):
        return {name: _numbers(each) for name, each in value.items()}
    return value
