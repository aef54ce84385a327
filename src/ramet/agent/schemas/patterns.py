"""Match the patterns of JSON schemas in linear time, with pydantic's regex engine, which never backtracks.

`jsonschema` itself uses `re`, whose work may double with each character of a text that an agent's model wrote. The
linear cost is counted first: the sizes of all patterns of a schema, and the places that a match may go through.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from weakref import WeakValueDictionary

from ramet.agent.schemas.pattern_cost import LETTERS, Cost, UnreadablePattern, cost_of
from ramet.agent.schemas.work_budget import spend_steps
from ramet.core.errors import InvalidValue

MAX_PATTERN = 1_000  #: characters
MAX_PATTERNS = 100  #: of a schema; duplicates count once
MAX_SIZE = 64_000  #: of all patterns of a schema, about 20 MB compiled, as much as the engine accepts for one
MAX_MATCHED = 16 * 1024  #: characters of a text or name that is matched
_UNIT = 256  #: places times bytes of a text that cost about one step
_SYNTAX = f"a regular expression of at most {MAX_PATTERN} characters, without look-around and backreferences"
_SIZE = (
    f"patterns within the size limit of {MAX_SIZE} for all of a schema, where a character counts 1 and a class of "
    f"letters, such as \\w, {LETTERS}, each as often as it is repeated"
)


class _CompiledPattern:
    __slots__ = ("__weakref__", "_places", "_validator")

    def __init__(self, pattern: str, cost: Cost) -> None:
        from pydantic_core import SchemaValidator, core_schema

        self._validator = SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))
        self._places = cost.places

    def fits(self, text: str) -> bool:
        """Return whether the pattern matches a text. Raises TooManySteps before the match."""
        length = len(text) if text.isascii() else 4 * len(text)
        spend_steps(1 + length * self._places // _UNIT)
        return bool(self._validator.isinstance_python(text))


#: Compiled patterns of existing schemas: a turn creates several contracts of one schema.
compiled_patterns: WeakValueDictionary[str, _CompiledPattern] = WeakValueDictionary()


class Patterns:
    """The patterns of one schema.

    Raises InvalidValue if a pattern cannot be matched in linear time, or if they are too many or too large.
    """

    def __init__(self, subschemas: Iterable[Mapping[str, Any]]) -> None:
        costs: dict[str, Cost] = {}
        self._compiled_patterns: dict[str, _CompiledPattern] = {}
        fields = dict[str, str]()
        for schema in subschemas:
            for field, pattern in _patterns_of(schema):
                if pattern not in fields:
                    fields[pattern] = field
                    costs[pattern] = _cost(field, pattern)
                    _check_sum(field, pattern, costs)
        for pattern, field in fields.items():
            self._compiled_patterns[pattern] = _compile(field, pattern, costs[pattern])

    def linear_validator(self, dialect: Any) -> Any:
        """Return a validator class of a dialect that matches with these patterns, and never with `re`."""
        from jsonschema.validators import extend

        linear_checks = {
            "pattern": self._pattern,
            "patternProperties": self._pattern_properties,
            "additionalProperties": self._additional_properties,
        }
        return extend(dialect, linear_checks)  # type: ignore[no-untyped-call]  # of jsonschema

    def _fits(self, pattern: str, text: str) -> bool:
        return len(text) <= MAX_MATCHED and self._compiled_patterns[pattern].fits(text)

    def _pattern(self, validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[Any]:
        from jsonschema import ValidationError

        if validator.is_type(instance, "string") and not self._fits(pattern, instance):
            too_long = f" (of at most {MAX_MATCHED} characters)" if len(instance) > MAX_MATCHED else ""
            yield ValidationError(f"{instance[:100]!r} does not match {pattern!r}{too_long}")

    def _pattern_properties(
        self, validator: Any, patterns: Mapping[str, Any], instance: Any, schema: Any
    ) -> Iterator[Any]:
        from jsonschema import ValidationError

        if not validator.is_type(instance, "object"):
            return
        for name, value in instance.items():
            if len(name) > MAX_MATCHED:
                yield ValidationError(f"the name {name[:100]!r}… has more than {MAX_MATCHED} characters")
            for pattern, subschema in patterns.items():
                if self._fits(pattern, name):
                    yield from validator.descend(value, subschema, path=name, schema_path=pattern)

    def _additional_properties(self, validator: Any, accepted: Any, instance: Any, schema: Any) -> Iterator[Any]:
        from jsonschema import ValidationError

        if not validator.is_type(instance, "object"):
            return
        patterns = schema.get("patternProperties", {})
        known_properties = schema.get("properties", {})
        more = [
            name
            for name in instance
            if name not in known_properties and not any(self._fits(each, name) for each in patterns)
        ]
        if validator.is_type(accepted, "object"):
            for name in more:
                yield from validator.descend(instance[name], accepted, path=name)
        elif not accepted and more:
            names = ", ".join(each[:100] for each in more[:10])
            yield ValidationError(f"additional properties are not allowed: {names}")


def _patterns_of(schema: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the patterns of one schema, without subschemas, each with its place."""
    property_patterns = schema.get("patternProperties")
    if isinstance(property_patterns, dict):
        for pattern in property_patterns:
            yield f"output.patternProperties.{pattern[:100]}", pattern
    if isinstance(pattern := schema.get("pattern"), str):
        yield "output.pattern", pattern


def _cost(field: str, pattern: str) -> Cost:
    if len(pattern) > MAX_PATTERN:
        raise InvalidValue(field, f"{len(pattern)} characters", _SYNTAX)
    try:
        return cost_of(pattern)
    except UnreadablePattern as problem:
        raise InvalidValue(field, pattern, f"{_SYNTAX}, {problem}") from None


def _check_sum(field: str, pattern: str, costs: Mapping[str, Cost]) -> None:
    if len(costs) > MAX_PATTERNS:
        raise InvalidValue(field, pattern, f"at most {MAX_PATTERNS} patterns in a schema")
    size = sum(each.size for each in costs.values())
    if size > MAX_SIZE:
        raise InvalidValue(field, pattern, f"{_SIZE}; this one brings them to {size}")


def _compile(field: str, pattern: str, cost: Cost) -> _CompiledPattern:
    from pydantic_core import SchemaError

    if (cached_pattern := compiled_patterns.get(pattern)) is not None:
        return cached_pattern
    try:
        compiled_patterns[pattern] = new = _CompiledPattern(pattern, cost)
    except SchemaError as error:
        reason = str(error).strip().splitlines()[-1].removeprefix("error: ")
        raise InvalidValue(field, pattern, f"{_SYNTAX}: {reason.strip()}") from None
    return new
