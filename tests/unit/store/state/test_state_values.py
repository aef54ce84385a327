"""Tests of values of a state: accepted ones, and refusals at the write with the path inside the value."""

from __future__ import annotations

import datetime
import enum
import math
import uuid
from dataclasses import dataclass, field
from typing import Any

import pydantic
import pytest

from ramet.core.errors import InvalidValue
from ramet.store.state import values
from ramet.store.state.versioned import Versioned


class Colour(enum.Enum):
    RED = "red"


class Kind(enum.StrEnum):
    A = "a"


@dataclass
class Point:
    x: int
    at: datetime.datetime | None = None
    tags: set[str] = field(default_factory=set)
    raw: bytes = b""


@dataclass
class Point3(Point):
    z: int = 0


class Model(pydantic.BaseModel):
    name: str
    day: datetime.date = datetime.date(2026, 1, 2)


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        -1,
        2**53,
        -(2**53),
        1.5,
        -0.0,
        1e308,
        "",
        "ä\0\U0010ffff",
        [],
        {},
        {"": [[{"a": None}]]},
        [1, 1.0],
    ],
    ids=repr,
)
def test_json_data_is_read_back_with_its_types(value: Any) -> None:
    """The values of JSON keep their exact types."""
    state = Versioned()
    state.set("a", value)
    state.commit_sync()

    assert repr(state.get("a")) == repr(value)


def _cyclic_value() -> Any:
    value: dict[str, Any] = {"a": []}
    value["a"].append(value)
    return value


def _nested_value(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def _shared_value() -> Any:
    value: Any = "x" * 1_000
    for _ in range(60):
        value = [value, value]
    return value


REFUSED_VALUES: dict[str, tuple[Any, str]] = {
    "a function": ({"a": [0, {"b": print}]}, "notes.a[1].b"),
    "a module": ([math], "notes[0]"),
    "a live object": ({"x y": object()}, "notes['x y']"),
    "NaN": ({"a": [math.nan]}, "notes.a[0]"),
    "infinity": (-math.inf, "notes"),
    "an int above 2^53": ({"n": 2**53 + 1}, "notes.n"),
    "half a pair of surrogates": (["\ud800"], "notes[0]"),
    "such a key": ({"\ud800": 1}, "notes"),
    "a key that is no text": ({"a": {1: 2}}, "notes.a"),
    "bytes": ({"b": b""}, "notes.b"),
    "a tuple": ({"t": (1,)}, "notes.t"),
    "a set": ({"t": {1}}, "notes.t"),
    "an enum": ([Colour.RED], "notes[0]"),
    "a kind of text": ([Kind.A], "notes[0]"),
    "a moment": (datetime.datetime.now(datetime.UTC), "notes"),
    "a dataclass": ({"p": Point(1)}, "notes.p"),
    "a model": ({"m": Model(name="a")}, "notes.m"),
    "a cycle": (_cyclic_value(), "notes.a[0]"),
    "101 levels": (_nested_value(101), "notes" + "[0]" * 100),
    "too much": ("x" * (values.MOST_SIZE + 1), "notes"),
    "too much, by sharing": (_shared_value(), "notes[0][0][0]"),
}


@pytest.mark.parametrize("case", REFUSED_VALUES)
def test_a_value_that_cannot_be_stored_is_refused_with_its_path(case: str) -> None:
    """AC rows 119 and 131: the write is refused, and nothing has changed."""
    value, path = REFUSED_VALUES[case]
    state = Versioned()
    state.set("notes", "before")

    with pytest.raises(InvalidValue) as refusal:
        state.set("notes", value)

    assert refusal.value.field.startswith(path) if "sharing" in case else refusal.value.field == path
    assert state.get("notes") == "before"


def test_a_value_of_a_hundred_levels_is_accepted() -> None:
    """The limit of levels is inclusive."""
    state = Versioned()
    state.set("a", _nested_value(100))
    assert state.get("a") == _nested_value(100)


@pytest.mark.parametrize(
    ("value", "as_"),
    [
        (b"\0\xff", bytes),
        ((1, "a"), tuple[int, str]),
        ({2, 1}, set[int]),  # of a form that is the same in every process
        ({1: "a"}, dict[int, str]),
        (Colour.RED, Colour),
        (datetime.datetime(2026, 1, 2, 3, 4, 5, 6, datetime.UTC), datetime.datetime),
        (uuid.UUID(int=1), uuid.UUID),
        (Point(1, datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC), {"a"}, b"\xff"), Point),
        ([Point(1)], list[Point]),
        (None, Point | None),
        (Model(name="a"), Model),
        ({"m": Model(name="a")}, dict[str, Model]),
    ],
    ids=repr,
)
async def test_a_named_type_is_stored_as_data_and_read_back(value: Any, as_: Any) -> None:
    """A read without the type returns plain data."""
    state = Versioned()
    state.set("a", value, as_=as_)
    await state.commit()

    second_value = state.get("a", as_=as_)

    assert (second_value, type(second_value)) == (value, type(value))
    assert await state.read("a", as_=as_) == value
    values.encode(state.get("a"), "a")  # without the type it is plain data


@pytest.mark.parametrize(
    ("value", "as_"),
    [
        (1, str),
        ("YQ==", bytes),
        (Point3(1, z=2), Point),
        (Point("x"), Point),  # type: ignore[arg-type]
        (math.nan, float),
        (2**60, int),
        (print, Any),
        ({"m": object()}, dict[str, object]),
    ],
    ids=lambda each: getattr(each, "__name__", type(each).__name__),  # the same in every process
)
def test_a_value_that_is_not_of_the_named_type_is_refused(value: Any, as_: Any) -> None:
    """The read would return less, more, or another value."""
    with pytest.raises(InvalidValue):
        Versioned().set("a", value, as_=as_)


def test_a_stored_value_that_does_not_fit_the_type_is_refused_at_the_read() -> None:
    """The error names the expected type."""
    state = Versioned()
    state.set("a", {"x": "no number"})

    with pytest.raises(InvalidValue, match="Point"):
        state.get("a", as_=Point)


@pytest.mark.parametrize(
    "key",
    ["", "a\0b", "/a", "a/", "a//b", "a/../b", "..", ".", "a/./b", "\ud800", "x" * 1_025, None, 1, b"a"],
    ids=lambda key: repr(key)[:12],
)
def test_an_invalid_key_is_refused(key: Any) -> None:
    """No key may alias another one or leave its namespace."""
    state = Versioned()
    with pytest.raises(InvalidValue):
        state.set(key, 1)
    with pytest.raises(InvalidValue):
        state.get(key)


@pytest.mark.parametrize("name", ["", "a/b", "..", "x" * 201, "a\0", "0" * 64, 1], ids=lambda name: repr(name)[:12])
async def test_an_invalid_name_of_a_state_or_branch_is_refused(name: Any) -> None:
    """A name with a slash is refused for states; other invalid names for branches, too."""
    state = Versioned()
    with pytest.raises(InvalidValue):
        await Versioned.open(state._line.blob_cache.store, name)
    if name != "a/b":
        with pytest.raises(InvalidValue):
            await state.fork(name)
