"""isolation/transport/join_keys.py: a key opens once, for one pod, for a time; what is kept of it opens nothing."""

from __future__ import annotations

import hashlib

from ramet.isolation.transport.join_keys import JoinKeys, new_key


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_key_is_good_until_the_next_has_arrived() -> None:
    """Who lost the answer comes again with the old one; each time the one that was lost is void."""
    book = JoinKeys(Clock())
    join = new_key()
    assert book.admit("uid", join) is None
    book.expect("uid", join_s=10, key=join)
    lost = book.admit("uid", join)
    following = book.admit("uid", join)

    assert lost
    assert following
    assert book.admit("uid", lost) is None
    assert not book.confirm("uid", lost)
    assert book.confirm("uid", following)
    assert book.admit("uid", join) is None
    assert book.admit("uid", following)


def test_coming_with_the_next_key_shows_that_it_arrived() -> None:
    """The one before is void, before a word was said."""
    book = JoinKeys(Clock())
    join = book.expect("uid", join_s=10)
    following = book.admit("uid", join)
    assert following
    assert book.admit("uid", following)
    assert book.admit("uid", join) is None


def test_a_join_key_is_good_for_a_time_and_a_session_key_for_good() -> None:
    """Of a pod that never came, nothing opens later."""
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


def test_no_pods_key_opens_for_another_or_for_one_that_is_gone() -> None:
    """Nor does a hash, nor the beginning of a key, nor nothing."""
    book = JoinKeys(Clock())
    key, other = book.expect("uid", join_s=10), book.expect("other", join_s=10)
    for bad in (other, key[:-1], key + "=", "", hashlib.sha256(key.encode()).hexdigest(), "\udcff"):
        assert book.admit("uid", bad) is None
    assert book.admit("nobody", key) is None
    book.forget("other")
    assert book.admit("other", other) is None
    assert book.admit("uid", key)
