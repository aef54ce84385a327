"""Tests of `isolation/transport/join_keys.py`: a key works once, for one pod, for a time, and is stored as a hash."""

from __future__ import annotations

import hashlib

from ramet.isolation.transport.join_keys import JoinKeys, new_key


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_key_is_valid_until_the_next_one_has_arrived() -> None:
    """A pod that lost the answer uses the old key again, and the lost key becomes invalid."""
    book = JoinKeys(Clock())
    join = new_key()
    assert book.admit("uid", join) is None
    book.expect("uid", join_s=10, key=join)
    next_key = book.admit("uid", join)
    following = book.admit("uid", join)

    assert next_key
    assert following
    assert book.admit("uid", next_key) is None
    assert not book.confirm("uid", next_key)
    assert book.confirm("uid", following)
    assert book.admit("uid", join) is None
    assert book.admit("uid", following)


def test_using_the_next_key_confirms_its_arrival() -> None:
    """The earlier key is invalid before a message was sent."""
    book = JoinKeys(Clock())
    join = book.expect("uid", join_s=10)
    following = book.admit("uid", join)
    assert following
    assert book.admit("uid", following)
    assert book.admit("uid", join) is None


def test_a_join_key_expires_and_a_session_key_does_not() -> None:
    """The key of a pod that never connected is invalid later."""
    clock = Clock()
    book = JoinKeys(clock)
    join, late = book.expect("uid", join_s=10), book.expect("late", join_s=10)
    clock.now += 10
    key = book.admit("uid", join)
    assert key
    assert book.confirm("uid", key)
    clock.now += 10_000
    assert book.admit("late", late) is None
    assert book.admit("uid", key)


def test_a_key_is_invalid_for_other_pods_and_removed_pods() -> None:
    """A hash, a part of a key, and an empty key are invalid, too."""
    book = JoinKeys(Clock())
    key, other = book.expect("uid", join_s=10), book.expect("other", join_s=10)
    for bad in (other, key[:-1], key + "=", "", hashlib.sha256(key.encode()).hexdigest(), "\udcff"):
        assert book.admit("uid", bad) is None
    assert book.admit("nobody", key) is None
    book.forget("other")
    assert book.admit("other", other) is None
    assert book.admit("uid", key)
