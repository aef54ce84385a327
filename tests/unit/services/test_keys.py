"""Keys: one owner, narrower keys with an end, and records that reveal no key."""

from __future__ import annotations

import base64
import itertools
import math
from datetime import UTC, datetime, timedelta

import pytest

from ramet.core.errors import InvalidValue, Unknown
from ramet.services.contract import RIGHTS, Right
from ramet.services.teams import keys
from ramet.services.teams.keys import Keyring

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(seconds=60)


def a_ring() -> Keyring:
    return Keyring(owner=keys.hash_of("owner's"))


def with_key(
    keyring: Keyring, key: str, *rights: Right, seconds: float | None = None, by: str = keys.OWNER, now: datetime = NOW
) -> Keyring:
    return keys.delegate(keyring, id=key, hash=keys.hash_of(key), rights=rights, seconds=seconds, by=by, now=now)


def rights_of(keyring: Keyring, key: str, now: datetime = NOW) -> tuple[Right, ...]:
    held_key = keys.rights_of_hash(keyring, keys.hash_of(key), now)
    return () if held_key is None else held_key.rights


def test_a_key_has_a_kind_and_256_random_bits() -> None:
    """The key holds all of the entropy, and no character that a URL or a header must escape."""
    lengths: list[int] = []

    def entropy(size: int) -> bytes:
        lengths.append(size)
        return bytes(range(255, 255 - size, -1))

    key = keys.new_key("agent", entropy)
    kind, _, rest = key.partition("_")
    assert (kind, lengths) == ("agent", [32])
    assert base64.urlsafe_b64decode(rest + "=") == bytes(range(255, 223, -1))
    assert key.replace("_", "").replace("-", "").isalnum()


def test_two_keys_are_different() -> None:
    """Each key takes new entropy."""
    numbers = itertools.count()

    def entropy(size: int) -> bytes:
        return next(numbers).to_bytes(size, "big")

    assert keys.new_key("team", entropy) != keys.new_key("team", entropy)


def test_a_stored_hash_does_not_reveal_the_key() -> None:
    """The hash matches its key only: not itself, not a part of the key, and not an empty text."""
    hash = keys.hash_of("agent_secret")
    assert "secret" not in hash
    assert keys.key_matches("agent_secret", hash)
    assert not any(keys.key_matches(other, hash) for other in ("", hash, "agent_secre", "agent_secret ", "\ud800"))


def test_the_owner_has_all_rights_and_an_unknown_key_has_none() -> None:
    """AC-S3-4: An empty key has no rights either."""
    assert rights_of(a_ring(), "owner's") == RIGHTS
    assert keys.rights_of_hash(a_ring(), keys.hash_of("somebody's"), NOW) is None
    assert keys.rights_of_hash(a_ring(), keys.hash_of(""), NOW) is None


def test_a_narrower_key_has_its_rights_until_it_is_revoked() -> None:
    """Other narrower keys keep their rights."""
    keyring = with_key(with_key(a_ring(), "reader", "info", "history"), "other", "turn")
    assert rights_of(keyring, "reader") == ("history", "info")
    keyring = keys.revoke(keyring, "reader", by=keys.OWNER)
    assert rights_of(keyring, "reader") == ()
    assert rights_of(keyring, "other") == ("turn",)


def test_a_narrower_key_ends_at_its_time() -> None:
    """The key works until just before; the next delegation removes its record."""
    keyring = with_key(a_ring(), "short", "turn", seconds=60)
    assert rights_of(keyring, "short", LATER - timedelta(microseconds=1)) == ("turn",)
    assert rights_of(keyring, "short", LATER) == ()
    assert [each.id for each in with_key(keyring, "next", "turn", now=LATER).delegated] == ["next"]


def test_a_narrower_key_delegates_no_more_than_it_has() -> None:
    """A key made by a narrower key has no more rights and no more time, and ends with its maker."""
    keyring = with_key(a_ring(), "lent", "turn", "delegate", seconds=60)
    with pytest.raises(InvalidValue) as refusal:
        with_key(keyring, "wider", "kill", by="lent")
    assert refusal.value.field == "rights"
    keyring = with_key(with_key(keyring, "lent on", "turn", "delegate", by="lent"), "and on", "turn", by="lent on")
    assert rights_of(keyring, "and on", LATER - timedelta(seconds=1)) == ("turn",)
    assert rights_of(keyring, "and on", LATER) == ()
    assert [each.id for each in keys.revoke(keyring, "lent", by=keys.OWNER).delegated] == []


def test_a_narrower_key_revokes_only_what_it_made() -> None:
    """Keys of other makers are unknown to the narrower key."""
    keyring = with_key(with_key(with_key(a_ring(), "a", "delegate"), "b", "turn"), "c", "delegate", by="a")
    for id in ("b", "a", "owner", "nobody"):
        with pytest.raises(Unknown) as unknown:
            keys.revoke(keyring, id, by="a")
        assert unknown.value.known == ("c",)
    assert [each.id for each in keys.revoke(keyring, "c", by="a").delegated] == ["a", "b"]


def test_a_transfer_makes_every_older_key_void() -> None:
    """AC-S3-4: The former owner keeps no access."""
    keyring = keys.transfer(with_key(a_ring(), "reader", "info"), keys.hash_of("new owner's"))
    assert rights_of(keyring, "new owner's") == RIGHTS
    assert keys.rights_of_hash(keyring, keys.hash_of("owner's"), NOW) is None
    assert keys.rights_of_hash(keyring, keys.hash_of("reader"), NOW) is None


def test_a_rotated_owner_key_leaves_narrower_keys() -> None:
    """The old owner key alone becomes void."""
    keyring = keys.rotate(with_key(a_ring(), "reader", "info"), keys.hash_of("new"))
    assert keys.rights_of_hash(keyring, keys.hash_of("owner's"), NOW) is None
    assert rights_of(keyring, "new") == RIGHTS
    assert rights_of(keyring, "reader") == ("info",)


@pytest.mark.parametrize("rights", [(), ("own",), ("turn", "")], ids=repr)
def test_only_known_rights_can_be_delegated(rights: tuple[Right, ...]) -> None:
    """A delegation without rights is refused too."""
    with pytest.raises(InvalidValue, match="rights"):
        with_key(a_ring(), "k", *rights)


@pytest.mark.parametrize("seconds", [0, -1, math.nan, math.inf, True, 1e12, "60"], ids=repr)
def test_the_lifetime_of_a_key_must_be_finite_and_positive(seconds: float) -> None:
    """A time beyond the calendar is refused too."""
    with pytest.raises(InvalidValue, match="seconds"):
        with_key(a_ring(), "k", "turn", seconds=seconds)


def test_keys_of_one_agent_are_bounded() -> None:
    """Expired keys do not count."""
    keyring = a_ring()
    for number in range(keys.MAX_KEYS):
        keyring = with_key(keyring, str(number), "turn", seconds=60)
    with pytest.raises(InvalidValue, match="revoke"):
        with_key(keyring, "one more", "turn")
    assert len(with_key(keyring, "one more", "turn", now=LATER).delegated) == 1
