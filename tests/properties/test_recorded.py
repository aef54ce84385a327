"""Recorded values are JSON, and the same value is read back from it."""

from __future__ import annotations

import datetime
import decimal
import enum
import math
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ramet.agent.definition import Agent
from ramet.agent.result_codec import decode_result, encode_result
from ramet.core.errors import DefinitionMissing, InvalidValue, NotShippable, ProtocolError
from ramet.wire.values.journal_values import MAX_BYTES, from_record, record_json, to_record


class Colour(enum.Enum):
    """Enum of two members."""

    RED = "red"
    BLUE = "blue"


@dataclass
class Thing:
    """Dataclass with fields of many types."""

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


def record_as_json(value: Any) -> Any:
    """Return the record of a value as it comes out of a journal."""
    return msgspec.json.decode(msgspec.json.encode(to_record(value)))


@given(VALUES)
def test_data_is_read_back_unchanged(value: Any) -> None:
    """Bytes, large integers, decimals and keys that begin with "@" are read back unchanged."""
    assert from_record(record_as_json(value)) == value


def no_result() -> Any:
    """Return a value of no declared type."""


@given(VALUES)
@example({"@x": 1})
@example([{"@type": "a.B", "repr": "b"}])
def test_the_result_of_a_function_is_read_back_unchanged(value: Any) -> None:
    """Also a result with keys that begin with "@": a resumed run must not take them for a type of ramet's."""
    agent = Agent(name="f", function=no_result)
    assert decode_result(agent, msgspec.json.decode(msgspec.json.encode(encode_result(agent, value)))) == value


@given(VALUES)
@example([2**53 + 1])
@example([{"a": -(2**53) - 1}, (1, "\ud800")])
@example({"x": [None, math.inf]})
def test_the_json_text_of_a_record_is_the_record(value: Any) -> None:
    """A value that needs more than plain JSON has no such text."""
    text = record_json(value)

    assert msgspec.json.decode(text) == to_record(value) if text is not None else is_more_than_plain(value)


def is_more_than_plain(value: Any) -> bool:
    """Return whether a value is encoded in a body, or has a tag."""
    data = msgspec.json.encode(to_record(value))
    return data.startswith(b'{"@body"') or b'"@' in data


@given(THINGS)
def test_objects_are_read_back_by_their_annotation(value: Thing) -> None:
    """Objects are read back by their annotation, nested ones and lists of them, too."""
    assert from_record(record_as_json(value), Thing) == value
    assert from_record(record_as_json([value]), list[Thing]) == [value]


def test_numbers_that_json_readers_may_round_stay_exact() -> None:
    """Large integers, infinity and decimals are encoded in a body instead of as JSON numbers."""
    for number in (2**53 + 1, -(2**63), 10**40, math.inf, decimal.Decimal("0.1")):
        data = record_as_json({"n": number})
        assert not any(isinstance(each, int | float) and abs(each) > 2**53 for each in data.values())
        assert from_record(data) == {"n": number}


@pytest.mark.parametrize("value", [object(), lambda: 1, {"a": [object()]}, b"x" * (MAX_BYTES + 1)])
def test_a_value_that_is_no_data_is_refused(value: Any) -> None:
    """Objects that are no data, and values too large for a line of a journal, raise NotShippable."""
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
def test_a_malformed_record_is_refused(data: Any, error: type[Exception]) -> None:
    """A malformed record raises a typed error.

    A record of an object that could not be encoded raises DefinitionMissing.
    """
    with pytest.raises(error):
        from_record(data, Thing)
