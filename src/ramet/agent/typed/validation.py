"""Validate values with pydantic in bounded memory, even if nearly everything in a value is wrong.

pydantic collects all errors of a value. Each has the names on the path to its place, and the values that its type
accepts. The fields that empty objects lack, or many wrong items below one long name, take gigabytes for a short text.
If that could happen, the value is first checked against the same type with lists, dicts and classes that stop at their
first error.

pydantic cannot be stopped during a check. So the steps are computed before, from the JSON schema of the type, if every
choice of every union is tried fully: each pair of a part of the type and a part of the value is computed once, however
often pydantic checks it. For types with sets, and with dicts whose keys are not texts, numbers with equal hashes are
also searched for before.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ramet.agent.schemas.work_budget import Steps, TooManySteps, count_steps
from ramet.wire.values.first_errors import stopping_validator
from ramet.wire.values.hash_bounds import ACCEPTED, can_be_hashed, needs_hashes

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

MAX_ERRORS = 1_000  #: maximum separate errors; each takes about 1 KB
_ERRORS_SIZE = 32 << 20  #: maximum characters of all errors of a value together
_ERROR = 500  #: characters of an error, without long names and accepted values
_CHOICE_KEYWORDS = ("anyOf", "oneOf", "allOf")
_TEXT_STEP = 64  #: characters that count as one more step
_LONG_CHOICE = 200  #: characters of a choice that has a long name in errors


class ValidationProblem(NamedTuple):
    path: tuple[int | str, ...]
    message: str

    def path_below(self, root: str) -> str:
        """Return the path as text, for a value whose own path is `root`."""
        return root + "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in self.path)


class DoesNotFitType(Exception):
    """The error for a value that does not fit a type: the first problems, and the minimum number of further ones."""

    def __init__(self, problems: list[ValidationProblem], more: int) -> None:
        self.problems, self.more = problems, more
        super().__init__(problems[0].message)


class Validation:
    """The checks of values against one type, given as its pydantic adapter."""

    def __init__(self, adapter: TypeAdapter[Any]) -> None:
        self.adapter = adapter
        self.tries = Tries(adapter)
        self._stopping: Any = None  # created on first use

    def validate_data(self, data: Any, text: str) -> Any:
        """Return JSON data, also given as text, as a value of the type.

        Raises DoesNotFitType, TooManySteps, RecursionError.
        """
        # From text, not from Python: only then are dates, sets and strict types read as in JSON.
        from pydantic import ValidationError

        try:
            with count_steps(len(text)) as steps:
                tries = self.tries.count(data, steps)
                if self.tries.longest_errors(data, tries) > _ERRORS_SIZE:
                    self._stop_early("validate_json", text)
                return self.adapter.validate_json(text)
        except ValidationError as error:
            raise self._refusal(error, "validate_json", text) from None

    def validate_value(self, value: Any) -> Any:
        """Return a caller's value as one of the type: it is no data from outside, and may contain itself.

        Raises the errors of `validate_data`.
        """
        from pydantic import ValidationError

        try:
            with count_steps() as steps:
                self.tries.count(value, steps)
                return self.adapter.validate_python(value)
        except ValidationError as error:
            raise self._refusal(error, "validate_python", value) from None

    def _refusal(self, error: ValidationError, method: str, value: Any) -> DoesNotFitType:
        count = error.error_count()
        if count <= MAX_ERRORS:
            return _does_not_fit(error)
        try:
            self._stop_early(method, value)
        except DoesNotFitType as first:
            return DoesNotFitType(first.problems[:1], count - 1)
        return DoesNotFitType([ValidationProblem((), f"{count} parts are missing or wrong")], 0)

    def _stop_early(self, method: str, value: Any) -> None:
        """Raise DoesNotFitType for the first error of a value, if there is one."""
        from pydantic import ValidationError

        if self._stopping is None:
            self._stopping = stopping_validator(self.adapter.core_schema)
        try:
            getattr(self._stopping, method)(value)
        except ValidationError as error:
            if error.error_count() <= MAX_ERRORS:
                raise _does_not_fit(error) from None
            message = f"{error.error_count()} parts are missing or wrong"
            raise DoesNotFitType([ValidationProblem((), message)], 0) from None


def _does_not_fit(error: ValidationError) -> DoesNotFitType:
    errors = error.errors(include_url=False, include_input=False, include_context=False)
    return DoesNotFitType([ValidationProblem(each["loc"], each["msg"]) for each in errors], 0)


class Tries:
    """The steps of checks against one type, given as its pydantic adapter."""

    def __init__(self, adapter: Any) -> None:
        from pydantic.errors import PydanticUserError
        from pydantic.json_schema import GenerateJsonSchema

        class Quiet(GenerateJsonSchema):
            ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012 - as pydantic has it

        try:
            schema = adapter.json_schema(schema_generator=Quiet)
            by_name = adapter.json_schema(schema_generator=Quiet, by_alias=False)
        except PydanticUserError:  # a type with parts that JSON cannot represent, such as a Callable
            schema = by_name = {}
        text = json.dumps(schema)
        #: objects in the JSON schema, as a measure of the size of the type and its adapter
        self.parts = text.count("{")
        self._has_aliases = schema != by_name
        self._has_choices = any(f'"{each}"' in text for each in _CHOICE_KEYWORDS)
        self._schema: Mapping[str, Any] = schema if self._has_choices else {}
        self._needs_hashes = needs_hashes(adapter.core_schema)
        # An error contains the accepted values, and the names of choices, which may contain all of their types.
        self._accepted_chars = max(map(_count_accepted_chars, _parts(schema)), default=0) + sum(
            map(_choice_names, _parts(schema))
        )
        self._most_fields = max(map(_fields, _parts(schema)), default=0)

    def count(self, data: Any, steps: Steps) -> int:
        """Take the steps of checking JSON data, and return the number of pairs of a part and a value.

        For a type without choices, return 1 per part of the data. Raises TooManySteps.
        """
        if self._needs_hashes and not can_be_hashed(data):
            raise TooManySteps(f"its sets, and its keys that are numbers, must contain {ACCEPTED}")
        if not self._has_choices:
            return 1
        tries = _Count(self._schema, steps, has_aliases=self._has_aliases).tries(self._schema, data)
        steps.spend(tries)
        return tries

    def longest_errors(self, data: Any, tries: int) -> int:
        """Return the maximum total characters of the errors of data."""
        parts, objects, names = extent_of(data)
        if self._has_choices:
            parts = objects = tries
        return (parts + objects * self._most_fields) * (_ERROR + self._accepted_chars + names)


class _Count:
    def __init__(self, schema: Mapping[str, Any], steps: Steps, *, has_aliases: bool) -> None:
        self._defs: Mapping[str, Any] = schema.get("$defs", {})
        self._steps, self._has_aliases = steps, has_aliases
        self._tries_by_pair: dict[tuple[int, int], int] = {}

    def tries(self, schema: Any, data: Any) -> int:
        if not isinstance(schema, Mapping):
            return 1
        pair = (id(schema), id(data))
        if pair in self._tries_by_pair:
            return self._tries_by_pair[pair]
        tries = 1 + len(data) // _TEXT_STEP if isinstance(data, str) else 1  # an error may contain a text
        self._tries_by_pair[pair] = (
            tries  # final for a type that leads to itself at the same value: pydantic refuses it
        )
        for part, value in self._parts(schema, data):
            tries += self.tries(part, value)
            if max(tries, len(self._tries_by_pair)) > self._steps.remaining:
                self._steps.spend(tries + len(self._tries_by_pair))
        self._tries_by_pair[pair] = tries
        return tries

    def _parts(self, schema: Mapping[str, Any], data: Any) -> Iterator[tuple[Any, Any]]:
        if "$ref" in schema:
            yield self._target(schema["$ref"]), data
        for choice in self._choices(schema, data):
            yield choice, data
        places = schema.get("prefixItems", ())
        if isinstance(data, dict):
            properties, others = schema.get("properties", {}), schema.get("additionalProperties")
            # Names that are not in the schema: another alias of a field, or a field of a named tuple.
            unknown = [*(properties.values() if self._has_aliases else ()), *places]
            for name, value in data.items():
                yield properties.get(name, others), value
                yield from ((each, value) for each in schema.get("patternProperties", {}).values())
                if name not in properties:
                    yield from ((each, value) for each in unknown)
        elif isinstance(data, list):
            for at, value in enumerate(data):
                yield places[at] if at < len(places) else schema.get("items"), value

    def _choices(self, schema: Mapping[str, Any], data: Any) -> Iterator[Any]:
        discriminator = schema.get("discriminator")
        if isinstance(discriminator, Mapping) and isinstance(data, dict):
            targets, tag = discriminator.get("mapping", {}), data.get(discriminator.get("propertyName"))
            if isinstance(tag, str) and tag in targets:  # pydantic tries only this one
                yield self._target(targets[tag])
                return
        for keyword in _CHOICE_KEYWORDS:
            yield from schema.get(keyword, ())

    def _target(self, reference: str) -> Any:
        return self._defs.get(reference.removeprefix("#/$defs/"))


def _parts(schema: Any) -> Iterator[Mapping[str, Any]]:
    """Yield every object of a JSON schema."""
    stack = [schema]
    while stack:
        part = stack.pop()
        if isinstance(part, Mapping):
            yield part
            stack.extend(part.values())
        elif isinstance(part, list):
            stack.extend(part)


def _count_accepted_chars(schema: Mapping[str, Any]) -> int:
    """Return the number of characters of the accepted values, as in an error: values, or the name of a class."""
    accepted_values = [schema[each] for each in ("enum", "const", "title", "pattern") if each in schema]
    return len(json.dumps(accepted_values, default=str))


def _choice_names(schema: Mapping[str, Any]) -> int:
    """Return the number of characters of choices with long names. Those of classes are short."""
    choices = [each for keyword in _CHOICE_KEYWORDS for each in schema.get(keyword, ()) if "$ref" not in each]
    return sum(length for each in choices if (length := len(json.dumps(each, default=str))) > _LONG_CHOICE)


def _fields(schema: Mapping[str, Any]) -> int:
    """Return the number of values that an empty object or list lacks."""
    required_lists = [schema[each] for each in ("required", "prefixItems") if isinstance(schema.get(each), list)]
    return max(map(len, required_lists), default=0)


class Extent(NamedTuple):
    """The number of parts of data, of objects and lists among them, and the characters of the longest path of names."""

    parts: int
    objects: int
    names: int


def extent_of(data: Any) -> Extent:
    parts = objects = longest = 0
    stack = [(data, 0)]
    while stack:
        part, names = stack.pop()
        parts += 1
        longest = max(longest, names)
        if isinstance(part, dict):
            objects += 1
            stack.extend((value, names + len(str(name))) for name, value in part.items())
        elif isinstance(part, list):
            objects += 1
            stack.extend((value, names) for value in part)
    return Extent(parts, objects, longest)
