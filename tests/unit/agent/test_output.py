"""Typed final answers: found in a model's text, checked, and returned as values."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, field
from datetime import date
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel, field_validator, model_validator

from ramet.agent.output import MAX_ANSWER, DoesNotFit, OutputContract
from ramet.core.errors import InvalidValue


class Finding(BaseModel):
    """A pydantic form."""

    file: str
    line: int
    seen: date | None = None

    @field_validator("line")
    @classmethod
    def counts_from_one(cls, line: int) -> int:
        if line < 1:
            raise ValueError("lines count from 1")
        return line


@dataclass
class Report:
    """A dataclass form."""

    title: str
    findings: list[Finding] = field(default_factory=list)


class Node(BaseModel):
    """A form that refers to itself."""

    name: str
    children: list[Node] = []


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"cause": {"type": "string"}, "sure": {"$ref": "#/$defs/share"}},
    "required": ["cause"],
    "additionalProperties": False,
    "$defs": {"share": {"type": "number", "minimum": 0, "maximum": 1}},
}
GOOD = '{"cause": "disk", "sure": 0.5}'


@pytest.mark.parametrize(
    ("spec", "text", "value"),
    [
        (Finding, '{"file": "a.py", "line": 3}', Finding(file="a.py", line=3)),
        (Finding, '{"file": "a", "line": 1, "seen": "2026-11-20"}', Finding(file="a", line=1, seen=date(2026, 11, 20))),
        (Report, '{"title": "t", "findings": [{"file": "a", "line": 1}]}', Report("t", [Finding(file="a", line=1)])),
        (Node, '{"name": "a", "children": [{"name": "b"}]}', Node(name="a", children=[Node(name="b")])),
        (list[int], "[1, 2]", [1, 2]),
        (bool, "true", True),
        (SCHEMA, GOOD, {"cause": "disk", "sure": 0.5}),
        ({}, "null", None),
    ],
)
def test_an_answer_becomes_a_value_of_its_type(spec: Any, text: str, value: Any) -> None:
    """The value is an instance of the type, or data for a schema; it can be written as JSON again."""
    contract = OutputContract(spec)

    parsed = contract.parse(text)

    assert parsed == value
    assert type(parsed) is type(value)
    assert contract.parse(json.dumps(contract.data(parsed))) == value
    assert contract.problem(text) is None


@pytest.mark.parametrize(
    "text",
    [
        f"\n  {GOOD}\n",
        f"```json\n{GOOD}\n```",
        f"Here it is:\n\n```\n{GOOD}\n```\nDone.",
        f"~~~~json\n{GOOD}\n~~~~",
        f"```json\n{GOOD}",
        f"The answer is {GOOD}, I think.",
        f"I looked at logs[3] and {{x}}; so: {GOOD}",
        f'An example would be {{"cause": "an example"}}. But really: {GOOD}',
        f'```json\n{{"cause": "first"}}\n```\nNo, rather:\n```json\n{GOOD}\n```',
        f'```python\nprint({{"a": 1}})\n```\n{GOOD}',
        f'{{"note": "not the form"}} {GOOD} {{"note": "neither"}}',
        "[" * 5_000 + "\n```json\n" + GOOD + "\n```",
    ],
)
def test_the_json_is_found_anywhere_in_the_text(text: str) -> None:
    """JSON may be the whole text, a fenced block, or between words; of several that fit, the last counts."""
    assert OutputContract(SCHEMA).parse(text) == {"cause": "disk", "sure": 0.5}


@pytest.mark.parametrize(
    ("spec", "text", "problem"),
    [
        (SCHEMA, "", "empty"),
        (SCHEMA, "I could not find out.", "no complete JSON value"),
        (SCHEMA, '{"cause": "disk"', "no complete JSON value"),
        (SCHEMA, '{"sure": 0.5}', "'cause' is a required property"),
        (SCHEMA, '{"cause": "disk", "sure": 2}', r"\$\.sure: 2 is greater than the maximum of 1"),
        (SCHEMA, '{"cause": "disk", "sure": NaN}', "NaN is not JSON"),
        (SCHEMA, '{"cause": "disk", "sure": 1e999}', "too large"),
        (SCHEMA, '{"cause": "\\ud83d"}', "answer.cause"),
        (SCHEMA, "[" * 100_000, "nested too deeply|no complete"),
        (SCHEMA, "[" * 300 + "]" * 300, "levels of nesting"),
        (SCHEMA, '{"cause": "disk"} ' + " " * MAX_ANSWER, "at most"),
        (Finding, '{"file": "a.py", "line": 0}', r"\$\.line: .*lines count from 1"),
        (Finding, '{"file": "a.py"}', r"\$\.line: Field required"),
        (Report, '{"title": "t", "findings": [{"file": "a"}]}', r"\$\.findings\[0\]\.line"),
    ],
)
def test_the_problem_names_the_place_and_what_is_wrong(spec: Any, text: str, problem: str) -> None:
    """A model can act on the message."""
    with pytest.raises(DoesNotFit, match=problem):
        OutputContract(spec).parse(text)


def test_the_model_gets_the_schema_first_and_the_problem_after() -> None:
    """The correction says what to do next."""
    contract = OutputContract(SCHEMA)

    assert json.dumps(SCHEMA) in contract.instructions()
    problem = contract.problem('{"sure": 0.5}')
    assert problem is not None
    assert "'cause' is a required property" in problem
    assert "Answer again" in problem


def test_the_problem_of_a_hostile_answer_is_short() -> None:
    """The model receives neither the answer's size nor its number of errors."""
    text = json.dumps({f"k{n}" * 50: n for n in range(1_000)})

    problem = OutputContract(SCHEMA).problem(text)

    assert problem is not None
    assert len(problem) < 4_000


def test_prose_full_of_brackets_is_read_in_bounded_work() -> None:
    """The number of tries is bounded."""
    with pytest.raises(DoesNotFit):
        OutputContract(SCHEMA).parse("see " + '{"a": [' * 100_000)


class Counted(BaseModel):
    """A form that no answer fits, which counts its tries."""

    tries: ClassVar[int] = 0

    @model_validator(mode="before")
    @classmethod
    def count(cls, data: Any) -> Any:
        cls.tries += 1
        raise ValueError("not this one")


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1}' * 2_000,
        "[1] " * 2_000,
        "```\n[1]\n```\n" * 2_000,
        "~~~\n{}\n~~~\n[1]{}\n" * 2_000,
    ],
)
def test_the_number_of_tried_values_is_bounded(text: str) -> None:
    """Each value in prose and each fenced block is a candidate, and checking one costs more than reading it."""
    Counted.tries = 0

    with pytest.raises(DoesNotFit, match="not this one"):
        OutputContract(Counted).parse(text)

    assert Counted.tries <= 400


def test_an_answer_that_is_one_value_is_tried_once() -> None:
    """The search in prose would find the same value again."""
    Counted.tries = 0

    with pytest.raises(DoesNotFit, match="not this one"):
        OutputContract(Counted).parse('{"a": [{"b": 1}]}')

    assert Counted.tries == 1


@pytest.mark.parametrize("note", ["[12] says so. ", "```\n[1]\n```\n", '{"cause": 1} '])
def test_the_last_of_many_values_is_found(note: str) -> None:
    """The answer may follow thousands of notes, and fifty notes may follow the answer."""
    contract = OutputContract(SCHEMA)

    assert contract.parse(f"{note * 5_000}\n{GOOD}") == {"cause": "disk", "sure": 0.5}
    assert contract.parse(f"{note * 5_000}\n{GOOD} {note * 50}") == {"cause": "disk", "sure": 0.5}


@pytest.mark.parametrize(
    "brackets", ["[" * 20 + "1.5," * 1_000, "[" * 20 + "1.5," * 1_000 + "[" * 5_000, "[" * 20 + "1.5," * 1_000 + "NaN,"]
)
def test_unclosed_brackets_end_the_search(brackets: str) -> None:
    """The characters that are read for unclosed brackets are counted together."""
    with pytest.raises(DoesNotFit, match="JSON"):
        OutputContract(SCHEMA).parse(f"see {brackets}\n{GOOD}")


class Odd:
    """No form: pydantic has no JSON schema for its instances."""


class Forward(BaseModel):
    """No form: its annotation names something that does not exist."""

    other: Missing  # type: ignore[name-defined]  # noqa: F821 - what is tested


@pytest.mark.parametrize(
    "spec",
    [
        None,
        str,
        Any,
        7,
        "Finding",
        Odd,
        Forward,
        Finding(file="a", line=1),
        {"type": "objekt"},
        {"type": object},
        {"minimum": float("nan")},
        {"$schema": "https://example.com/own"},
        {"$schema": 7},
        {"$ref": "https://example.com/schema.json"},
        {"properties": {"a": {"$ref": "other.json#/a"}}},
        {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/missing"}]},
        {"$ref": "#"},
        {"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"$ref": "#/$defs/a"}}},
        {"$defs": {"a": {"$id": "https://example.com/a", "$ref": "#/b"}}},
        {"pattern": "("},
        {"description": "x" * 70_000},
    ],
)
def test_an_impossible_output_type_is_refused_when_it_is_declared(spec: Any) -> None:
    """Wrong types, unknown dialects, external or missing references and endless ones are refused."""
    with pytest.raises(InvalidValue, match="output"):
        OutputContract(spec)


def test_properties_named_like_references_are_not_references() -> None:
    """A `$ref` counts in the place of a schema alone."""
    schema = {"properties": {"$ref": {"type": "string"}}, "examples": [{"$ref": "https://example.com"}]}

    assert OutputContract(schema).parse('{"$ref": "anything"}') == {"$ref": "anything"}


def test_jsonschema_is_imported_only_with_the_first_contract() -> None:
    """The import costs start-up time that most agents never need."""
    code = "import sys, ramet.agent.output; print('jsonschema' in sys.modules)"

    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert output.strip() == "False"


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "string", "pattern": "^(a+)+$"}, '"{}!"'),
        ({"type": "object", "patternProperties": {"^(a+)+$": True}, "additionalProperties": False}, '{{"{}!": 1}}'),
        ({"type": "object", "patternProperties": {"^(a+)+$": True}}, '{{"{}!": 1}}'),
    ],
    ids=["pattern", "patternProperties and additionalProperties", "patternProperties"],
)
def test_a_pattern_is_matched_in_linear_time(schema: dict[str, Any], text: str) -> None:
    """A backtracking engine would need exponential time for these patterns."""
    code = (
        "import json, resource, sys\n"
        "from ramet.agent.output import OutputContract\n"
        "resource.setrlimit(resource.RLIMIT_CPU, (30, 30))\n"
        "OutputContract(json.loads(sys.argv[1])).problem(sys.argv[2])\n"
    )
    argv = [sys.executable, "-c", code, json.dumps(schema), text.format("a" * 5_000)]

    assert subprocess.run(argv, check=False).returncode == 0


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"pattern": "(a)\\1"}, "backreferences are not supported"),
        ({"items": {"pattern": "(?=a)b"}}, "look-around"),
        ({"patternProperties": {"a\\Z": {}}}, "unrecognized escape"),
        ({"pattern": "a" * 1_001}, "1000 characters"),
        ({"pattern": "(((a{100}){100}){100}){100}"}, "size limit"),
        ({"patternProperties": {"a": {}}, "unevaluatedProperties": False}, "additionalProperties"),
    ],
)
def test_a_pattern_that_needs_backtracking_is_refused_when_it_is_declared(schema: dict[str, Any], message: str) -> None:
    """The error says what is not accepted."""
    with pytest.raises(InvalidValue) as refusal:
        OutputContract(schema)

    assert message in refusal.value.accepted


@pytest.mark.parametrize(
    ("data", "fits"),
    [
        ({"x-a": 1}, True),
        ({"x-a": "text"}, False),
        ({"name": "2026-11"}, True),
        ({"name": "2026"}, False),
        ({"name": f"2026-11{' ' * 20_000}"}, False),
        ({"other": 1}, False),
        ({"o" * 20_000: 1}, False),
    ],
)
def test_patterns_check_texts_and_names(data: dict[str, Any], fits: bool) -> None:
    """Patterns work as JSON Schema defines; a text too long to match does not fit."""
    schema = {
        "properties": {"name": {"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}"}},
        "patternProperties": {"^x-": {"type": "integer"}},
        "additionalProperties": False,
    }

    assert (OutputContract(schema).problem(json.dumps(data)) is None) == fits
