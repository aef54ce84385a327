"""A value on record is JSON, and the same value comes out of it again."""

from __future__ import annotations

import datetime
import decimal
import enum
import math
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.core.errors import DefinitionMissing, InvalidValue, NotShippable, ProtocolError
from ramet.wire.values.journal_values import MAX_BYTES, from_record, to_record


class Colour(enum.Enum):
    """One of two."""

    RED = "red"
    BLUE = "blue"


@dataclass
class Thing:
    """Something with fields of many types."""

    number: int
    colour: Colour
    raw: bytes = b""
    at: datetime.datetime | None = None
    parts: list[Thing] = field(default_factory=list)


NUMBERS = st.integers() | st.floats(allow_nan=False) | st.booleans() | st.none()
VALUES = st.recursive(
    NUMBERS | st.text() | st.binary(max_size=50) | st.decimals(allow_nan=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
THINGS = st.recursive(
    st.builds(Thing, st.integers(), st.sampled_from(Colour), st.binary(max_size=9), st.none() | st.datetimes()),
    lambda inner: st.builds(Thing, st.integers(), st.sampled_from(Colour), parts=st.lists(inner, max_size=3)),
    max_leaves=6,
)


def written(value: Any) -> Any:
    """As it comes out of a journal."""
    return msgspec.json.decode(msgspec.json.encode(to_record(value)))


@given(VALUES)
def test_data_comes_back_as_it_was(value: Any) -> None:
    """Bytes, large integers, decimals and keys that begin with "@" included."""
    assert from_record(written(value)) == value


@given(THINGS)
def test_objects_come_back_by_their_annotation(thing: Thing) -> None:
    """Nested ones, too."""
    assert from_record(written(thing), Thing) == thing
    assert from_record(written([thing]), list[Thing]) == [thing]


def test_numbers_that_some_readers_round_are_no_json_numbers() -> None:
    """They are inside of a body, and exact."""
    for number in (2**53 + 1, -(2**63), 10**40, math.inf, decimal.Decimal("0.1")):
        data = written({"n": number})
        assert not any(isinstance(each, int | float) and abs(each) > 2**53 for each in data.values())
        assert from_record(data) == {"n": number}


@pytest.mark.parametrize("value", [object(), lambda: 1, {"a": [object()]}, b"x" * (MAX_BYTES + 1)])
def test_what_is_no_data_is_not_kept(value: Any) -> None:
    """Nor what is too large for a line of a journal."""
    with pytest.raises(NotShippable):
        to_record(value)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        ({"@type": "m.Lock", "repr": "<lock>"}, DefinitionMissing),
        ({"@body": [3, "not base64!"]}, ProtocolError),
        ({"@body": None}, ProtocolError),
        ({"@body": [300, "MTIz"]}, ProtocolError),
        ({"@nobody": 1}, ProtocolError),
        ("text", InvalidValue),
    ],
)
def test_what_was_never_written_is_refused(data: Any, error: type[Exception]) -> None:
    """And what could not be kept is said to be missing."""
    with pytest.raises(error):
        from_record(data, Thing)
