"""Numbers of one hash are found wherever they are, and small values are not looked at twice."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.wire.values import hash_bounds
from ramet.wire.values.hash_bounds import can_be_hashed
from ramet.wire.values.validators import Keys

MANY = [each * (2**61 - 1) for each in range(1, 200)]  #: the hash of each is 0
NAMED = {str(each): None for each in MANY}

JSON = st.recursive(
    st.none() | st.sampled_from([*MANY[:12], *map(str, MANY[:12]), "text"]),
    lambda part: st.lists(part, max_size=12) | st.dictionaries(st.sampled_from([*map(str, MANY[:12]), "a"]), part),
)


@pytest.mark.parametrize("data", [MANY, NAMED, [[[MANY]]], {"a": [1, {"b": MANY}]}, [NAMED], {"a": NAMED}])
def test_many_numbers_of_one_hash_are_found_at_any_depth(data: Any) -> None:
    """In a list, as keys, and below small lists and mappings."""
    assert not can_be_hashed(data)


def test_the_numbers_of_several_data_are_counted_together() -> None:
    """Many sets of some numbers each take as long as one large set."""
    keys = Keys()
    found = [can_be_hashed(MANY[:90], keys) for _ in range(1000)]
    assert found[0]
    assert not found[-1]


@given(JSON)
def test_small_values_have_the_same_outcome_as_with_a_look_at_their_hashes(data: Any) -> None:
    """The quick look accepts only what the whole look accepts."""
    count = hash_bounds._Count(Keys())
    count.hashes(data)
    assert can_be_hashed(data) is count.is_bounded
