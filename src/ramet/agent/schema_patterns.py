"""Patterns of JSON schemas, matched in linear time: by the engine that pydantic has, which never backtracks.

`jsonschema` itself uses `re`, whose work may double with each character of a text that an agent's model wrote.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from ramet.agent.steps import take
from ramet.core.errors import InvalidValue

MAX_PATTERN = 1_000  #: characters
MAX_MATCHED = 16 * 1024  #: characters of a text or name that is held against a pattern
_ACCEPTED = f"a regular expression of at most {MAX_PATTERN} characters, without look-around and backreferences"


def check(schema: Mapping[str, Any]) -> None:
    """Raise InvalidValue for a pattern of one schema, subschemas not counted, that cannot be matched in linear time."""
    named = schema.get("patternProperties")
    if isinstance(named, dict):
        for pattern in named:
            _check(f"output.patternProperties.{pattern[:100]}", pattern)
    if isinstance(pattern := schema.get("pattern"), str):
        _check("output.pattern", pattern)


def linear(dialect: Any) -> Any:
    """Return a class of validators of a dialect that hands no pattern to `re`."""
    from jsonschema.validators import extend

    changed = {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
    }
    return extend(dialect, changed)  # type: ignore[no-untyped-call]  # of jsonschema


@lru_cache(maxsize=256)
def _matcher(pattern: str) -> Any:
    from pydantic_core import SchemaValidator, core_schema

    return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))


def _check(field: str, pattern: str) -> None:
    from pydantic_core import SchemaError

    if len(pattern) > MAX_PATTERN:
        raise InvalidValue(field, f"{len(pattern)} characters", _ACCEPTED)
    try:
        _matcher(pattern)
    except SchemaError as error:
        reason = str(error).strip().splitlines()[-1].removeprefix("error: ")
        raise InvalidValue(field, pattern, f"{_ACCEPTED}: {reason.strip()}") from None


def _fits(pattern: str, text: str) -> bool:
    take(1 + len(text) // 64)
    return len(text) <= MAX_MATCHED and bool(_matcher(pattern).isinstance_python(text))


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[Any]:
    from jsonschema import ValidationError

    if validator.is_type(instance, "string") and not _fits(pattern, instance):
        too_long = f" (of at most {MAX_MATCHED} characters)" if len(instance) > MAX_MATCHED else ""
        yield ValidationError(f"{instance[:100]!r} does not match {pattern!r}{too_long}")


def _pattern_properties(validator: Any, patterns: Mapping[str, Any], instance: Any, schema: Any) -> Iterator[Any]:
    from jsonschema import ValidationError

    if not validator.is_type(instance, "object"):
        return
    for name, value in instance.items():
        if len(name) > MAX_MATCHED:
            yield ValidationError(f"the name {name[:100]!r}… has more than {MAX_MATCHED} characters")
        for pattern, subschema in patterns.items():
            if _fits(pattern, name):
                yield from validator.descend(value, subschema, path=name, schema_path=pattern)


def _additional_properties(validator: Any, accepted: Any, instance: Any, schema: Any) -> Iterator[Any]:
    from jsonschema import ValidationError

    if not validator.is_type(instance, "object"):
        return
    patterns = schema.get("patternProperties", {})
    known = schema.get("properties", {})
    more = [name for name in instance if name not in known and not any(_fits(each, name) for each in patterns)]
    if validator.is_type(accepted, "object"):
        for name in more:
            yield from validator.descend(instance[name], accepted, path=name)
    elif not accepted and more:
        yield ValidationError(f"additional properties are not allowed: {', '.join(each[:100] for each in more[:10])}")
