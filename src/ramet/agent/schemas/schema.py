"""JSON schemas from outside: validated on creation, self-contained, and never fetched.

Their patterns are matched without backtracking (`ramet.agent.schemas.patterns`), and the steps of every check are
counted (`ramet.agent.schemas.work_budget`): no schema and no answer can keep the host busy.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ramet.agent.schemas import counted_checks
from ramet.agent.schemas.patterns import Patterns
from ramet.agent.schemas.work_budget import TooManySteps, count_steps
from ramet.core.errors import InvalidValue

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

MAX_SCHEMA = 64 * 1024  #: characters of a schema, which is part of every prompt
MAX_PARTS = 5_000  #: objects, lists, true and false in a schema: each is checked against the meta-schema
_DIALECT = "https://json-schema.org/draft/2020-12/schema"  #: of a schema without a dialect
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_MAPS_OF_SCHEMAS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_DATA_KEYWORDS = frozenset({"enum", "const", "default", "examples"})
#: Values to try every schema on: an endless self-reference shows on one of them.
_PROBES: tuple[Any, ...] = (None, {}, [], "", 0)


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
            patterns = Patterns(_subschemas(schema))
            # Without formats: `re` would compile each pattern, which takes milliseconds per large range of letters.
            no_formats = jsonschema.FormatChecker(formats=())
            dialect.check_schema(schema, format_checker=no_formats)  # type: ignore[call-arg]  # of every dialect
            for subschema in _subschemas(schema):
                counted_checks.check(subschema)
                if subschema is not schema and isinstance(subschema.get("$schema"), str):
                    raise InvalidValue("output.$schema", subschema["$schema"], "one dialect, named at the root")
            registry: referencing.Registry[Any] = referencing.Registry()
            resolver = registry.resolver_with_root(specification.create_resource(schema))
            for keyword, target in _pointers(schema, root=True):
                if keyword == "$id" or not target.startswith("#"):
                    raise InvalidValue(f"output.{keyword}", target, "references within the schema ('#/…') only")
                resolver.lookup(target)
            self.schema = schema
            validators = counted_checks.counting_validator(patterns.linear_validator(dialect))
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
