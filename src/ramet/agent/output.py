"""The contract of a final answer: stated to the model, checked on the answer, and returned to the caller as a value.

The form is a pydantic model, a dataclass, any other type pydantic understands, or a JSON schema. The answer's JSON may
stand alone, in a fenced block, or in prose; the answer is accepted if one such part fits. pydantic and jsonschema are
imported when a contract is created, not before.
"""

from __future__ import annotations

import json
import math
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ramet.agent.schemas.schema import MAX_SCHEMA, JsonSchema
from ramet.agent.schemas.work_budget import TooManySteps, count_steps
from ramet.agent.typed.validation import DoesNotFitType, Validation
from ramet.core.errors import InvalidValue, RametError
from ramet.models.json_values import to_json_value

MAX_ANSWER = 1 << 20  #: characters of an answer that are read
MAX_PROBLEM = 2_000
MAX_CANDIDATES = 200  #: values in prose, and fenced blocks, that are checked: the last ones
_MAX_TRIES = 50  #: maximum brackets in prose that open no JSON
_MAX_PASSES = 5  #: maximum passes through the text for such brackets together
_OPENING = re.compile(r"[\[{]")

_INSTRUCTIONS = """\
Your final answer must be one JSON value that fits this JSON schema, and nothing else: no prose before or after it.

{schema}"""
_CORRECTION = """\
Your answer does not have the agreed form: {problem}
Answer again with the JSON value only, corrected. The schema is in your instructions."""


class DoesNotFit(RametError):
    """The error for an answer without the agreed form. `problem` is the text for the model."""

    def __init__(self, problem: str) -> None:
        self.problem = problem if len(problem) <= MAX_PROBLEM else problem[:MAX_PROBLEM] + "…"
        super().__init__(self.problem)


class OutputContract:
    """The contract of a final answer. Raises InvalidValue if no answer could fit the specification."""

    __slots__ = ("_form", "_schema_text", "schema")

    def __init__(self, spec: type[Any] | Mapping[str, Any]) -> None:
        self._form: _SchemaForm | _TypeForm = _SchemaForm(spec) if isinstance(spec, Mapping) else _TypeForm(spec)
        self.schema: Mapping[str, Any] = self._form.schema
        self._schema_text = json.dumps(self.schema, ensure_ascii=False)
        if len(self._schema_text) > MAX_SCHEMA:
            raise InvalidValue("output", spec, f"a schema of at most {MAX_SCHEMA} characters")

    def instructions(self) -> str:
        """Return the part of the system prompt about the form."""
        return _INSTRUCTIONS.format(schema=self._schema_text)

    def parse(self, text: str) -> Any:
        """Return the answer's value: an instance of the type, or data for a schema. Raises DoesNotFit if none fits."""
        if len(text) > MAX_ANSWER:
            raise DoesNotFit(f"it has {len(text)} characters; at most {MAX_ANSWER} are read")
        first: DoesNotFit | None = None
        with count_steps(len(text)):  # limits all candidates together
            for candidate in _candidates(text):
                try:
                    return self._form.value(to_json_value(candidate, "answer"))
                except DoesNotFit as refusal:
                    first = first or refusal
                except InvalidValue as refusal:  # JSON that cannot be kept, such as half of an emoji
                    first = first or DoesNotFit(str(refusal))
                except TooManySteps as refusal:
                    raise DoesNotFit(str(refusal)) from None
        raise first or DoesNotFit(_no_json(text))

    def problem(self, text: str) -> str | None:
        """Return the message to the model if its answer does not fit; None if it does."""
        try:
            self.parse(text)
        except DoesNotFit as refusal:
            return _CORRECTION.format(problem=refusal.problem)
        return None

    def data(self, value: Any) -> Any:
        """Return a parsed value as plain JSON, for journals and other processes."""
        return self._form.data(value)


class _SchemaForm:
    """An output form given by a JSON schema; values are data."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self._checks = JsonSchema(spec)
        self.schema: Mapping[str, Any] = self._checks.schema

    def value(self, data: Any) -> Any:
        problem = self._checks.problem(data)
        if problem is not None:
            raise DoesNotFit(problem)
        return data

    def data(self, value: Any) -> Any:
        return value


class _TypeForm:
    """An output form given by a type; values are its instances."""

    def __init__(self, spec: Any) -> None:
        from pydantic import TypeAdapter
        from pydantic.errors import PydanticUndefinedAnnotation, PydanticUserError

        accepted = "a pydantic model, a dataclass or a JSON schema"
        if spec is None or spec is str or spec is Any:
            raise InvalidValue("output", spec, f"{accepted}; for plain text leave it out")
        try:
            self._adapter: TypeAdapter[Any] = TypeAdapter(spec)
            self.schema: Mapping[str, Any] = self._adapter.json_schema()
        except (PydanticUserError, PydanticUndefinedAnnotation, TypeError, ValueError, NameError) as error:
            raise InvalidValue("output", spec, f"{accepted}: {str(error).splitlines()[0]}") from None
        self._validation = Validation(self._adapter)

    def value(self, data: Any) -> Any:
        try:
            return self._validation.validate_data(data, json.dumps(data))
        except RecursionError:
            raise DoesNotFit("it is nested too deeply") from None
        except DoesNotFitType as refusal:
            lines = [f"{each.path_below('$')}: {each.message}" for each in refusal.problems[:10]]
            more = len(refusal.problems) - len(lines) + refusal.more
            raise DoesNotFit("; ".join([*lines, f"and {more} more"] if more else lines)) from None

    def data(self, value: Any) -> Any:
        return self._adapter.dump_python(value, mode="json")


def _candidates(text: str) -> Iterator[Any]:
    """Yield the JSON values of an answer, the likeliest first: all of it, fenced blocks, prose; the last ones first."""
    for part in [text, *reversed(_find_fenced_blocks(text))]:
        try:
            value = _decoder.decode(part.strip())
        except (ValueError, RecursionError):
            continue
        yield value
        if part is text and isinstance(value, dict | list):
            return  # the search in prose would find the same value again
    yield from reversed(_in_prose(text))


def _find_fenced_blocks(text: str) -> Sequence[str]:
    """Return the contents of the last fenced blocks; an unclosed block ends at the end of the text."""
    blocks: deque[str] = deque(maxlen=MAX_CANDIDATES)
    fence, lines = "", list[str]()
    for line in text.splitlines():
        mark = line.strip()
        if not fence and mark.startswith(("```", "~~~")):
            fence, lines = mark[0] * (len(mark) - len(mark.lstrip(mark[0]))), []
        elif fence and mark == fence:
            blocks.append("\n".join(lines))
            fence = ""
        elif fence:
            lines.append(line)
    if fence:
        blocks.append("\n".join(lines))
    return blocks


def _in_prose(text: str) -> Sequence[Any]:
    """Return the last objects and arrays in prose."""
    values: deque[Any] = deque(maxlen=MAX_CANDIDATES)
    at, tries, remaining_steps = 0, 0, _MAX_PASSES * len(text)
    while tries < _MAX_TRIES and remaining_steps >= 0 and (opening := _OPENING.search(text, at)) is not None:
        start = opening.start()
        try:
            value, at = _decoder.raw_decode(text, start)
            values.append(value)
        except (ValueError, RecursionError) as problem:
            remaining_steps -= _stop_offset(problem, len(text)) - start
            at, tries = start + 1, tries + 1
    return values


def _stop_offset(problem: Exception, end: int) -> int:
    """Return where a decoder stopped, or `end` if unknown: an unterminated string is reported by its start."""
    if isinstance(problem, json.JSONDecodeError) and not problem.msg.startswith("Unterminated"):
        return problem.pos
    return end


def _no_json(text: str) -> str:
    if not text.strip():
        return "it is empty"
    try:
        _decoder.decode(text.strip())
    except RecursionError:
        return "it is nested too deeply"
    except ValueError as error:
        return f"it holds no complete JSON value ({error})"
    return "it holds no JSON value"


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is too large a number")
    return value


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


_decoder = json.JSONDecoder(parse_float=_number, parse_constant=_refuse)
