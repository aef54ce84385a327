"""Types of tasks: written as data and read back."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import json
import pathlib
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

import pydantic
import pytest
from hypothesis import given as examples
from hypothesis import strategies as st

from ramet.agent.typed.from_schema import hint_of
from ramet.agent.typed.schema import Types
from ramet.agent.typed.to_schema import schema_of
from ramet.agent.typed.values import decode_value, encode_argument
from ramet.core.errors import InvalidValue


class Color(enum.Enum):
    RED = "r"
    BLUE = "b"


@dataclasses.dataclass
class Point:
    x: float
    y: float = 0.0


@dataclasses.dataclass
class Drawing:
    title: str
    points: list[Point]
    color: Color = Color.RED
    day: datetime.date | None = None
    size: tuple[int, int] = (1, 2)
    tags: dict[str, set[str]] = dataclasses.field(default_factory=dict)


class Page(pydantic.BaseModel):
    drawing: Drawing
    number: Literal[1, 2, "last"] = 1


@dataclasses.dataclass
class Node:
    children: list[Node]


@dataclasses.dataclass
class Checked:
    x: int

    def __post_init__(self) -> None:
        """Code that would be lost as data."""


class Strict(pydantic.BaseModel):
    x: int

    @pydantic.field_validator("x")
    @classmethod
    def _positive(cls, value: int) -> int:
        return abs(value)


def rebuild(hint: Any) -> Any:
    """Return the type that another process makes from the written data."""
    types: Types = {}
    schema = schema_of(hint, types, "x")
    return hint_of(json.loads(json.dumps(schema)), json.loads(json.dumps(types)))


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (int, 3),
        (float, 0.5),
        (bool, True),
        (str, "é"),
        (None, None),
        (Any, {"a": [1]}),
        (list[int], [1, 2]),
        (Sequence[str], ["a"]),
        (tuple[int, str], (1, "a")),
        (tuple[int, ...], (1, 2, 3)),
        (tuple[()], ()),
        (set[int], {1}),
        (dict[str, list[float]], {"a": [1.0]}),
        (Mapping[str, int], {"a": 1}),
        (int | str | None, "a"),
        (Literal["a", 1, None], None),
        (datetime.datetime, datetime.datetime(2026, 11, 22, tzinfo=datetime.UTC)),
        (datetime.timedelta, datetime.timedelta(seconds=3)),
        (uuid.UUID, uuid.UUID(int=7)),
        (decimal.Decimal, decimal.Decimal("0.1")),
        (pathlib.Path, pathlib.Path("a/b")),
        (Annotated[int, "how many"], 3),
        (Color, Color.BLUE),
        (Point, Point(1.0)),
        (Page, Page(drawing=Drawing("t", [Point(1.0, 2.0)]))),
        (list[Drawing] | None, [Drawing("t", [], tags={"a": {"b"}})]),
    ],
)
def test_a_type_survives_a_round_trip_with_its_values(hint: Any, value: Any) -> None:
    """A value's data fits the rebuilt type, and is written as equal data."""
    rebuilt_type = rebuild(hint)
    data = encode_argument(hint, value, "x")

    decoded_value = decode_value(rebuilt_type, json.loads(json.dumps(data)), "x")

    assert encode_argument(rebuilt_type, decoded_value, "x") == data


def test_equal_type_data_gives_one_class() -> None:
    """AC-S4-6: An agent's dataclass is one class however often it is read, so that its values are equal."""
    one, other = rebuild(Drawing), rebuild(Drawing)

    assert one is other
    assert decode_value(one, {"title": "t", "points": []}, "x") == decode_value(
        other, {"title": "t", "points": []}, "x"
    )
    types: Types = {}
    other_types: Types = {}
    assert schema_of(one, types, "x") == schema_of(Drawing, other_types, "x")
    assert types == other_types


@pytest.mark.parametrize(
    "hint",
    [
        object,
        dict[int, str],
        Annotated[int, pydantic.Field(gt=1)],
        TypeVar("T"),
        "int",
        type,
        list[Callable[[], int]],
        Node,
        Checked,
        Strict,
        int | object,
    ],
    ids=str,
)
def test_a_type_that_is_not_data_is_refused_when_it_is_declared(hint: Any) -> None:
    """Code in a class, cycles and live objects are refused; the error names the place."""
    with pytest.raises(InvalidValue, match=r"^solve\.x"):
        schema_of(hint, {}, "solve.x")


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
_keys = st.sampled_from(
    ["type", "items", "anyOf", "enum", "$ref", "format", "kind", "fields", "values", "prefixItems", "default"]
)
_words = st.sampled_from(
    ["array", "object", "string", "integer", "#/types/A", "#/types/B", "dataclass", "enum", "date"]
)
_forms = st.recursive(
    _json | _words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_keys, inner, max_size=4),
    max_leaves=16,
)


@examples(_forms, st.dictionaries(st.sampled_from(["A", "B"]), _forms, max_size=2))
def test_any_data_is_a_listed_type_or_refused(schema: Any, types: Any) -> None:
    """Foreign data never crashes, and makes only the listed types."""
    try:
        hint_of(schema, {name: each for name, each in types.items() if isinstance(each, dict)})
    except InvalidValue:
        pass


@pytest.mark.parametrize(
    "definition",
    [
        {"kind": "enum", "values": {"mro": 1}},
        {"kind": "enum", "values": {"class": 1}},
        {"kind": "dataclass", "fields": {"class": {"type": "string"}}},
        {"kind": "model", "fields": {"model_config": {"type": "string"}}},
        {"kind": "model", "fields": {"model_fields": {"type": "string"}}},
        {"kind": "model", "fields": {"copy": {"type": "string"}}},
    ],
)
def test_invalid_names_of_a_class_are_refused(definition: dict[str, Any]) -> None:
    """A hostile agent's recipe only gets an error."""
    with pytest.raises(InvalidValue, match=r"^x\.A"):
        hint_of({"$ref": "#/types/A"}, {"A": definition}, "x")


@pytest.mark.parametrize(
    ("hint", "data", "field"),
    [(Page, {"drawing": {"title": 1, "points": []}}, "x.drawing.title"), (list[int], [1, "b"], "x[1]")],
)
def test_a_wrong_value_is_refused_by_its_place(hint: Any, data: Any, field: str) -> None:
    """The error names the place within the value."""
    with pytest.raises(InvalidValue) as refusal:
        decode_value(rebuild(hint), data, "x")

    assert refusal.value.field == field
