"""JSON schemas from outside: validated on creation, self-contained, and never fetched.

Their patterns are matched without backtracking (`ramet.agent.schemas.patterns`), and the steps of every check are
counted (`ramet.agent.schemas.work_budget`), since each level can double the work: no schema and no answer can keep the
host busy.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ramet.agent.schemas.patterns import Patterns
from ramet.agent.schemas.work_budget import TooManySteps, count_steps, spend_steps
from ramet.core.errors import InvalidValue

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

MAX_SCHEMA = 64 * 1024  #: characters of a schema, which is part of every prompt
MAX_MIXED = 300  #: members of a list, unless all are texts or all are numbers: others are compared each with each
MAX_PARTS = 5_000  #: objects, lists, true and false in a schema: each is checked against the meta-schema
_DIALECT = "https://json-schema.org/draft/2020-12/schema"  #: of a schema without a dialect
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_LISTS_OF_SCHEMAS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems", "items"})
_MAPS_OF_SCHEMAS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_DATA_KEYWORDS = frozenset({"enum", "const", "default", "examples"})
#: Values to try every schema on: an endless self-reference shows on one of them.
_PROBES: tuple[Any, ...] = (None, {}, [], "", 0)
_UNIT = 64  #: characters, items or names that cost about one step
#: Keywords whose values are compared as text, to the end.
_COMPARED_KEYWORDS = frozenset({"enum", "const", "required", "dependentRequired", "dependencies"})
#: Keywords that jsonschema evaluates by an uncounted walk of the schema, with a list of all names or places at each
#: step.
_UNCOUNTED_KEYWORDS = {
    "unevaluatedProperties": "additionalProperties, with all properties in the same schema",
    "unevaluatedItems": "items, with all prefixItems in the same schema",
}


class JsonSchema:
    """A usable schema. Raises InvalidValue if the specification is invalid, or has external references."""

    __slots__ = ("_validator", "schema")

    def __init__(self, spec: Mapping[str, Any]) -> None:
        import jsonschema
        import referencing
        import referencing.exceptions
        from jsonschema.validators import validator_for
        from referencing.jsonschema import UnknownDialect, specification_with

        try:
            text = json.dumps(dict(spec), ensure_ascii=False, allow_nan=False)
            if len(text) > MAX_SCHEMA:
                raise InvalidValue("output", spec, f"a schema of at most {MAX_SCHEMA} characters")
            schema: dict[str, Any] = json.loads(text)
            specification = specification_with(str(schema.get("$schema", _DIALECT)))
            dialect = validator_for(schema, default=jsonschema.Draft202012Validator)
            if _parts(schema) > MAX_PARTS:
                raise InvalidValue("output", spec, f"a schema of at most {MAX_PARTS} parts")
            if _has_long_mixed_list(schema):
                raise InvalidValue("output", spec, f"lists of at most {MAX_MIXED} members of different kinds")
            patterns = Patterns(_subschemas(schema))
            # Without formats: `re` would compile each pattern, which takes milliseconds per large range of letters.
            no_formats = jsonschema.FormatChecker(formats=())
            dialect.check_schema(schema, format_checker=no_formats)  # type: ignore[call-arg]  # of every dialect
            for subschema in _subschemas(schema):
                for keyword, accepted in _UNCOUNTED_KEYWORDS.items():
                    if keyword in subschema:
                        raise InvalidValue(f"output.{keyword}", subschema[keyword], accepted)
                if subschema is not schema and isinstance(subschema.get("$schema"), str):
                    raise InvalidValue("output.$schema", subschema["$schema"], "one dialect, named at the root")
            registry: referencing.Registry[Any] = referencing.Registry()
            resolver = registry.resolver_with_root(specification.create_resource(schema))
            for keyword, target in _pointers(schema, root=True):
                if keyword == "$id" or not target.startswith("#"):
                    raise InvalidValue(f"output.{keyword}", target, "references within the schema ('#/…') only")
                resolver.lookup(target)
            self.schema = schema
            validators = _counting_validator(patterns.linear_validator(dialect))
            # jsonschema would continue with its own validators at each schema with a dialect.
            plain = {keyword: value for keyword, value in schema.items() if keyword != "$schema"}
            self._validator: Validator = validators(plain, registry=registry)
            with count_steps():
                for probe in _PROBES:
                    self._problem(probe)
        except UnknownDialect as error:
            raise InvalidValue("output.$schema", error.uri, "a known JSON schema dialect") from None
        except jsonschema.SchemaError as error:
            raise InvalidValue("output", spec, f"a JSON schema: at {error.json_path}, {error.message[:300]}") from None
        except referencing.exceptions.Unresolvable as error:
            raise InvalidValue("output.$ref", error.ref, "a reference to something in the schema") from None
        except TooManySteps as error:
            raise InvalidValue("output", spec, f"a schema that is checked in fewer steps: {error}") from None
        except RecursionError:
            raise InvalidValue("output", spec, "a schema that does not refer to itself without end") from None
        except (TypeError, ValueError) as error:
            if isinstance(error, InvalidValue):
                raise
            raise InvalidValue("output", spec, f"a JSON schema: {error}") from None

    def problem(self, data: Any) -> str | None:
        """Return the errors of `data`, for a reader who can correct them; None if it fits.

        Raises TooManySteps if the check takes too many steps.
        """
        try:
            with count_steps():
                return self._problem(data)
        except RecursionError:
            return "it cannot be checked: it, or the schema, is nested too deeply"

    def _problem(self, data: Any) -> str | None:
        problems = []
        for error in self._validator.iter_errors(data):
            problems.append(f"{error.json_path}: {error.message[:300]}")
            if len(problems) == 10:
                break
        return "; ".join(problems) or None


def _subschemas(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield every schema of a schema, and objects that only look like one: a reference can use them as schemas."""
    if isinstance(schema, list):
        for each in schema:
            yield from _subschemas(each)
    if isinstance(schema, dict):
        yield schema
        for each in schema.values():
            yield from _subschemas(each)


def _parts(schema: Any) -> int:
    if isinstance(schema, list | dict):
        return 1 + sum(_parts(each) for each in (schema.values() if isinstance(schema, dict) else schema))
    return int(isinstance(schema, bool))


def _has_long_mixed_list(schema: Any, keyword: str = "", holder: str = "") -> bool:
    """Return whether a list is long and cannot be sorted: whether its members are unique takes quadratic time."""
    if isinstance(schema, dict):
        return any(_has_long_mixed_list(value, key, keyword) for key, value in schema.items())
    if not isinstance(schema, list):
        return False
    kinds = {type(each) for each in schema}
    # Schemas may be equal. A list in "dependencies" is one of texts, whatever its name there.
    has_schemas = kinds <= {dict, bool} and keyword in _LISTS_OF_SCHEMAS and holder != "dependencies"
    is_compared = kinds != {str} and not kinds <= {int, float} and not has_schemas
    return (len(schema) > MAX_MIXED and is_compared) or any(map(_has_long_mixed_list, schema))


def _pointers(schema: Any, *, root: bool = False) -> Iterator[tuple[str, str]]:
    """Yield all references of a schema, and every `$id` below its root, which would change the references."""
    if isinstance(schema, list):
        for each in schema:
            yield from _pointers(each)
    if not isinstance(schema, dict):
        return
    for key, value in schema.items():
        if isinstance(value, str) and (key in _REFERENCES or (key == "$id" and not root)):
            yield key, value
        elif key in _MAPS_OF_SCHEMAS and isinstance(value, dict):
            for each in value.values():
                yield from _pointers(each)
        elif key not in _DATA_KEYWORDS:
            yield from _pointers(value)


def _counting_validator(dialect: Any) -> Any:
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
