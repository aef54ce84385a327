"""Forms of MCP servers: what an answer may be, and schemas that are none."""

from __future__ import annotations

from typing import Any

import pytest

from ramet.core.errors import InvalidValue
from ramet.tools.mcp.answer_form import form_of

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 2, "pattern": "(a+)+$", "description": "Who?"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "colour": {"type": "string", "enum": ["red", "blue"]},
        "parts": {"type": "array", "items": {"anyOf": [{"const": "a", "title": "A"}, {"const": "b"}]}, "maxItems": 1},
        "sure": {"type": "boolean"},
    },
    "required": ["name"],
}


def test_an_answer_has_the_fields_of_its_form() -> None:
    """Values are of their kind, within bounds and choices; what is required is there; nothing else is."""
    form = form_of(SCHEMA)
    answer = form.parse('{"name": "Ada", "age": 36, "colour": "red", "parts": ["a"], "sure": true}')

    assert answer == {"name": "Ada", "age": 36, "colour": "red", "parts": ["a"], "sure": True}
    assert form.describe()["colour"] == "string, optional, one of red, blue"
    for text, field in {
        "Ada": "answer",
        "[1]": "answer",
        "": "answer.name",
        '{"name": "Ada", "x": 1}': "answer",
        '{"name": "A"}': "answer.name",
        '{"name": "Ada", "age": 1.5}': "answer.age",
        '{"name": "Ada", "age": true}': "answer.age",
        '{"name": "Ada", "age": 151}': "answer.age",
        '{"name": "Ada", "age": 1e400}': "answer.age",
        '{"name": "Ada", "colour": "green"}': "answer.colour",
        '{"name": "Ada", "parts": ["a", "b"]}': "answer.parts",
        '{"name": "Ada", "parts": [1]}': "answer.parts",
        '{"name": "Ada", "sure": "yes"}': "answer.sure",
        "[" * 10_000: "answer",
    }.items():
        with pytest.raises(InvalidValue) as refusal:
            form.parse(text)
        assert refusal.value.field == field, text[:50]


@pytest.mark.parametrize(
    "schema",
    [
        None,
        [],
        {"type": "object"},
        {"properties": {f"x{number}": {"type": "string"} for number in range(31)}},
        {"properties": {"x" * 101: {"type": "string"}}},
        {"properties": {"x": {"type": "object"}}},
        {"properties": {"x": {"type": ["string"]}}},
        {"properties": {"x": {"$ref": "#/x"}}},
        {"properties": {"x": {"type": "string", "enum": ["y"] * 101}}},
        {"properties": {"x": {"type": "string", "enum": [{}]}}},
        {"properties": {"x": {"type": "string", "enum": "abc"}}},
    ],
)
def test_a_schema_that_is_no_form_is_refused(schema: Any) -> None:
    """A server cannot make a person read much, or the host follow references and patterns."""
    with pytest.raises(InvalidValue, match="requestedSchema"):
        form_of(schema)
