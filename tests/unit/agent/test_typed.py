"""Types of tasks as data and back."""

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
        """Code, which would be lost."""


class Strict(pydantic.BaseModel):
    x: int

    @pydantic.field_validator("x")
    @classmethod
    def _positive(cls, value: int) -> int:
        return abs(value)


def made_again(hint: Any) -> Any:
    """The same type, as another process makes it from what was written down."""
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
def test_a_type_comes_back_and_takes_the_same_values(hint: Any, value: Any) -> None:
    """What one process wrote another reads: data of a value fits the type that was made again, and is the same data."""
    again = made_again(hint)
    data = encode_argument(hint, value, "x")

    there = decode_value(again, json.loads(json.dumps(data)), "x")

    assert encode_argument(again, there, "x") == data


def test_the_same_words_give_the_same_class() -> None:
    """AC-S4-6: a dataclass that an agent defined is one class, however often it is read: its values are equal."""
    one, other = made_again(Drawing), made_again(Drawing)

    assert one is other
    assert decode_value(one, {"title": "t", "points": []}, "x") == decode_value(
        other, {"title": "t", "points": []}, "x"
    )
    types: Types = {}
    mine: Types = {}
    assert schema_of(one, types, "x") == schema_of(Drawing, mine, "x")
    assert types == mine


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
def test_what_cannot_be_written_as_data_is_refused_when_it_is_declared(hint: Any) -> None:
    """Code in a class, cycles and live objects: the error names the place."""
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
def test_whatever_comes_as_a_type_is_a_type_or_refused(schema: Any, types: Any) -> None:
    """Forms from outside never crash, and never make anything but the types that are listed."""
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
def test_names_that_a_class_cannot_have_are_refused(definition: dict[str, Any]) -> None:
    """A recipe of a hostile agent costs the host nothing but an answer."""
    with pytest.raises(InvalidValue, match=r"^x\.A"):
        hint_of({"$ref": "#/types/A"}, {"A": definition}, "x")


@pytest.mark.parametrize(
    ("hint", "data", "place"),
    [(Page, {"drawing": {"title": 1, "points": []}}, "x.drawing.title"), (list[int], [1, "b"], "x[1]")],
)
def test_a_wrong_value_is_named_by_its_place(hint: Any, data: Any, place: str) -> None:
    """The error says where in the value it does not fit."""
    with pytest.raises(InvalidValue) as refusal:
        decode_value(made_again(hint), data, "x")

    assert refusal.value.field == place
