"""Values cross a channel unchanged; any other bytes raise ProtocolError, or InvalidValue for a named type."""

from __future__ import annotations

import datetime
import enum
import math
import uuid
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from msgspec import Struct
from pydantic import BaseModel

from ramet.core.errors import InvalidValue, ProtocolError
from ramet.wire.values.values import decode, encode


class Colour(enum.Enum):
    RED = "red"
    BLUE = 2


class Mark(enum.Flag):
    A = 1
    B = 2


class Point(NamedTuple):
    x: float
    y: float


@dataclass(frozen=True)
class Row:
    name: str
    at: datetime.datetime | None
    tags: frozenset[str]
    points: tuple[Point, ...] = ()
    inner: Row | None = None


class Model(BaseModel):
    rows: list[Row]
    colour: Colour
    pair: tuple[int, str]


class Box(Struct):
    data: bytes
    marks: set[Mark]


Everything = list[Row | Model | Box | Colour | Mark | Point | Any]

any_text = (
    st.text(max_size=20) | st.text(st.characters(codec=None), max_size=6) | st.sampled_from(["@", "@type", "@@x"])
)
whole = st.integers() | st.integers(-(2**80), 2**80) | st.sampled_from([2**53 + 1, 2**64, -(2**64)])
aware = st.datetimes(
    timezones=st.sampled_from([datetime.UTC, datetime.timezone(datetime.timedelta(hours=-7, minutes=13))])
)
scalars = (
    st.none()
    | st.booleans()
    | whole
    | st.floats(allow_nan=False)
    | any_text
    | st.binary(max_size=40)
    | st.binary(max_size=9).map(bytearray)
    | st.complex_numbers(allow_nan=False)
    | st.datetimes()
    | aware
    | st.dates()
    | st.times()
    | st.timedeltas()
    | st.decimals(allow_nan=False)
    | st.uuids()
)
keys = (
    any_text
    | whole
    | st.booleans()
    | st.none()
    | st.dates()
    | st.binary(max_size=5)
    | st.tuples(st.integers(0, 3), any_text, st.tuples(st.none()))
)
data = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(any_text, inner, max_size=4)
        | st.dictionaries(keys, inner, max_size=4)
    ),
    max_leaves=20,
)
points = st.builds(Point, st.floats(allow_nan=False), st.floats(allow_nan=False))
rows: st.SearchStrategy[Row] = st.deferred(
    lambda: st.builds(
        Row,
        any_text,
        st.none() | st.datetimes(),
        st.frozensets(any_text, max_size=3),
        st.lists(points, max_size=3).map(tuple),
        st.none() | rows,
    )
)
models = st.builds(
    Model, rows=st.lists(rows, max_size=2), colour=st.sampled_from(Colour), pair=st.tuples(whole, st.text(max_size=9))
)
marks = st.sampled_from([Mark.A, Mark.B, Mark.A | Mark.B, Mark(0)])
boxes = st.builds(Box, data=st.binary(max_size=9), marks=st.sets(marks))
typed = st.lists(rows | models | boxes | st.sampled_from(Colour) | marks | points | scalars, max_size=5)
numbers = arrays.arrays(
    dtype=arrays.boolean_dtypes()
    | arrays.integer_dtypes(endianness="?")
    | arrays.unsigned_integer_dtypes(endianness="?")
    | arrays.floating_dtypes(endianness="?", sizes=(16, 32, 64))
    | arrays.complex_number_dtypes(endianness="?", sizes=(64, 128)),
    shape=arrays.array_shapes(min_dims=0, min_side=0, max_side=4),
)


def round_trip(value: Any, returns: Any = None) -> Any:
    json_size, body = encode(value)
    return decode(body, json_size, returns=returns)


def is_same(one: Any, other: Any) -> bool:
    """Return whether two values are equal and of the same types at every depth: 1 is not True, 0.0 is not -0.0."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(one, dict):
        return is_same([*one], [*other]) and is_same([*one.values()], [*other.values()])
    if isinstance(one, float):
        return one == other and math.copysign(1, one) == math.copysign(1, other)
    return bool(one == other)


@given(data)
def test_data_arrives_unchanged(value: Any) -> None:
    """Types, order and the signs of zeros arrive unchanged."""
    assert is_same(round_trip(value), value)


@given(typed)
def test_objects_of_named_types_arrive_unchanged(value: Any) -> None:
    """Dataclasses, models, structs, named tuples and enum members arrive unchanged, nested in each other, too."""
    assert is_same(round_trip(value, Everything), value)


@given(typed)
def test_objects_of_unnamed_types_arrive_as_data(value: Any) -> None:
    """Objects without a named type arrive as data that can be sent on unchanged."""
    arrived = round_trip(value)

    assert is_same(round_trip(arrived), arrived)


@given(numbers)
def test_arrays_arrive_bit_by_bit(value: numpy.ndarray[Any, Any]) -> None:
    """Arrays keep shape and byte order, and are writable."""
    arrived = round_trip({"it": value})["it"]

    assert (arrived.dtype, arrived.shape, arrived.tobytes()) == (value.dtype, value.shape, value.tobytes())
    assert arrived.flags.writeable


@given(st.floats(), st.floats(), st.sampled_from([numpy.float32, numpy.float64, numpy.complex128]))
def test_every_float_arrives(one: float, other: float, kind: type) -> None:
    """NaN and the infinities arrive, alone and in numpy's own scalars."""
    arrived = round_trip([one, {"x": other}, None, complex(one, other), kind(1.5)])

    assert repr(arrived) == repr([one, {"x": other}, None, complex(one, other), kind(1.5)])


@given(st.binary(max_size=200), st.integers(-1, 220), st.sampled_from([None, Everything, Row, dict[str, int]]))
def test_noise_is_refused(body: bytes, json_size: int, returns: Any) -> None:
    """Random bytes raise ProtocolError or InvalidValue, or are a value by chance."""
    try:
        decode(body, json_size, returns=returns)
    except ProtocolError:
        pass
    except InvalidValue:
        assert returns is not None


@given(typed | data | numbers.map(lambda value: [value, value]), st.data(), st.sampled_from([None, Everything, Model]))
def test_a_corrupted_value_is_refused(value: Any, spoil: st.DataObject, returns: Any) -> None:
    """A corrupted value raises ProtocolError or InvalidValue, or is another value."""
    json_size, body = encode(value)
    spoiled = bytearray(body)
    for _ in range(spoil.draw(st.integers(1, 4))):
        at = spoil.draw(st.integers(0, len(spoiled)))
        change = spoil.draw(st.binary(max_size=3) | st.sampled_from([b"@", b'"', b"{", b"9", b"-", b"null", b"[["]))
        spoiled[at : at + spoil.draw(st.integers(0, 3))] = change
    try:
        decode(bytes(spoiled), json_size + spoil.draw(st.integers(-2, 2)), returns=returns)
    except ProtocolError:
        pass
    except InvalidValue:
        assert returns is not None


tag = st.sampled_from(
    "@type @enum @map @array @scalar @bytes @bytearray @str @int @float @complex @decimal @uuid @datetime @date @time "
    "@timedelta @other @@type".split()
)
names = st.sampled_from([f"{Row.__module__}.{name}" for name in ("Row", "Model", "Box", "Colour", "Mark", "Point")])
pieces = (
    st.none()
    | st.booleans()
    | st.integers(-3, 60)
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["<f8", "|b1", "|O", "nan", "RED", "1e999999999", "2020-01-01", "0x1_f", "1" * 5000, "name", ""])
    | names
)
tagged = st.recursive(
    pieces,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.builds(lambda key, value: {key: value}, tag, inner)
        | st.builds(
            lambda name, value: {"@type": name, **value},
            names | pieces,
            st.dictionaries(st.text(max_size=4), inner, max_size=3),
        )
    ),
    max_leaves=12,
)


@given(tagged, st.binary(max_size=60), st.sampled_from([None, Everything, Model, Row, set[Colour]]))
def test_hostile_json_raises_only_known_errors(raw: Any, parts: bytes, returns: Any) -> None:
    """JSON of the format's own tags, wrongly combined, is a value or raises ProtocolError or InvalidValue."""
    import msgspec

    text = msgspec.json.encode(raw)
    try:
        decode(text + parts, len(text), returns=returns)
    except ProtocolError:
        pass
    except InvalidValue:
        assert returns is not None


def test_one_value_of_each_kind_arrives() -> None:
    """A fixed value of each kind arrives, in case a strategy narrows. An unknown tag is refused."""
    value = [Row("a", None, frozenset()), Colour.BLUE, Mark.A | Mark.B, uuid.UUID(int=5), Decimal("1.50"), 10**5000]

    assert is_same(round_trip(value, Everything), value)
    with pytest.raises(ProtocolError):
        decode(b'{"@other":1}', 12)
