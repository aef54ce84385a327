"""Tests of JSON objects as bodies: a plain object arrives equal, anything else is a typed error."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.core.errors import InvalidValue, ProtocolError
from ramet.wire.values.json_object import MAX_DEPTH, json_body, json_object

MAX_BYTES = 10_000
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=5), plain, max_size=4))
def test_an_object_arrives_equal(fields: dict[str, Any]) -> None:
    """Keys that begin with "@" have no special meaning."""
    fields["@type"] = "x"
    assert json_object(json_body(fields, "it"), "it", max_bytes=MAX_BYTES) == fields


@given(st.binary(max_size=200))
def test_any_bytes_are_an_object_or_a_typed_error(body: bytes) -> None:
    """No other error than InvalidValue or ProtocolError is raised."""
    with contextlib.suppress(InvalidValue, ProtocolError):
        assert type(json_object(body, "it", max_bytes=100)) is dict


@pytest.mark.parametrize("body", [b"", b"null", b"[]", b'"x"', b"{", b'{"a": NaN}', b'{"a": "\\ud800"}', b"\xff{}"])
def test_a_body_that_is_no_object_raises_protocol_error(body: bytes) -> None:
    """Invalid JSON, invalid Unicode, and other JSON types are refused."""
    with pytest.raises(ProtocolError):
        json_object(body, "it", max_bytes=MAX_BYTES)


def test_size_and_depth_are_bounded() -> None:
    """The error says the accepted size or depth."""
    deep = b'{"a":' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"}"
    assert json_object(deep[:5] + deep[6:-2] + b"}", "it", max_bytes=MAX_BYTES)
    for body in (deep, b'{"a":' + b"[" * 4_000 + b"]" * 4_000 + b"}"):
        with pytest.raises(InvalidValue, match=f"at most {MAX_DEPTH} levels"):
            json_object(body, "it", max_bytes=MAX_BYTES)
    with pytest.raises(InvalidValue, match=r"10001 bytes.*at most 10000 bytes"):
        json_object(b" " * 10_001, "it", max_bytes=MAX_BYTES)


def test_the_number_of_parts_is_bounded() -> None:
    """An object of too many parts is refused before one of its parts is built."""
    body = b'{"a":[' + b"0," * 500_001 + b"0]}"

    with pytest.raises(InvalidValue, match=r"it.*at most 500000 parts"):
        json_object(body, "it", max_bytes=len(body))


def test_json_body_refuses_data_that_is_no_json() -> None:
    """The caller gets InvalidValue."""
    for value in ({"a": object()}, {"a": "\ud800"}, {1j: 2}):
        with pytest.raises(InvalidValue, match="JSON data"):
            json_body(value, "it")  # type: ignore[arg-type]
    assert msgspec.json.decode(json_body({"a": [1]}, "it")) == {"a": [1]}
