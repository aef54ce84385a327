"""Keys: who has one may do what it is for. Only hashes are kept, and they are compared in constant time.

An agent has one owner, whose key does all. The owner may make narrower keys, which stop when their time is up, when
they are revoked, or when the key that made them is; and may hand over the ownership, by which every older key dies.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from ramet.core.errors import InvalidValue, Unknown
from ramet.services.contract import RIGHTS, Right

OWNER = "owner"  #: stands for the owner's key where ids of keys are told
OPERATOR = "operator"  #: stands for the operator's key where hashes of keys are kept
MOST_KEYS = 100  #: delegated ones of an agent: each is on its record, and is compared with every key that is shown
_BYTES = 32


class Delegated(Struct, frozen=True, kw_only=True):
    """A narrower key. `by` is the id of the key that made it, which goes before it and has at least its rights."""

    id: str
    hash: str
    rights: tuple[Right, ...]
    until: datetime | None = None
    by: str = OWNER


class Keyring(Struct, frozen=True, kw_only=True):
    """All keys of one agent, as hashes."""

    owner: str
    delegated: tuple[Delegated, ...] = ()


class Held(Struct, frozen=True):
    """What a key turned out to be: its id, and what it may."""

    id: str
    rights: tuple[Right, ...]


def new_key(kind: Literal["team", "agent", "op"], entropy: Callable[[int], bytes]) -> str:
    """A key of 256 bits, safe in URLs and headers; it begins with what it is for."""
    return f"{kind}_{base64.urlsafe_b64encode(entropy(_BYTES)).decode().rstrip('=')}"


def hash_of(key: str) -> str:
    """What is kept of a key."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def key_matches(key: str, hash: str) -> bool:
    """Whether a key is the one of this hash."""
    return hmac.compare_digest(hash_of(key), hash)


def held(ring: Keyring, key: str, now: datetime) -> Held | None:
    """What a key may, None for one that is nothing here. All of the ring is looked at, whichever it is."""
    return held_by(ring, hash_of(key), now)


def held_by(ring: Keyring, hash: str, now: datetime) -> Held | None:
    """What the key of this hash may."""
    found = Held(OWNER, RIGHTS) if hmac.compare_digest(hash, ring.owner) else None
    for each in ring.delegated:
        if hmac.compare_digest(hash, each.hash) and not _is_over(each, now):
            found = Held(each.id, each.rights)
    return found


def seconds_left(ring: Keyring, hash: str, now: datetime) -> float | None:
    """How long the key of this hash is valid; None where it has no end, or is not there."""
    until = next((each.until for each in ring.delegated if hmac.compare_digest(each.hash, hash)), None)
    return None if until is None else (until - now).total_seconds()


def delegate(
    ring: Keyring, *, id: str, hash: str, rights: Sequence[Right], seconds: float | None, by: str, now: datetime
) -> Keyring:
    """Add a narrower key, made by the key `by`. Raises InvalidValue for rights that this one has not, or for none."""
    above = next((each for each in ring.delegated if each.id == by), None)
    allowed = RIGHTS if above is None else above.rights
    if not rights or any(right not in allowed for right in rights):
        raise InvalidValue("rights", list(rights), f"some of {', '.join(allowed)}")
    until = _until(seconds, now)
    if above is not None and above.until is not None:
        until = above.until if until is None else min(until, above.until)
    living = tuple(each for each in ring.delegated if not _is_over(each, now))
    if len(living) >= MOST_KEYS:
        raise InvalidValue("rights", f"{len(living)} delegated keys", f"at most {MOST_KEYS}: revoke some")
    kept = tuple(right for right in RIGHTS if right in rights)
    return replace(ring, delegated=(*living, Delegated(id=id, hash=hash, rights=kept, until=until, by=by)))


def revoke(ring: Keyring, id: str, *, by: str) -> Keyring:
    """Remove a narrower key and those that it made, by the owner or by a key that made it. Raises Unknown."""
    mine = {by}
    for each in ring.delegated:  # A key stands behind the one that made it.
        if each.by in mine:
            mine.add(each.id)
    if id not in mine - {by}:
        raise Unknown("key", id, tuple(sorted(mine - {by})))
    gone = {id}
    for each in ring.delegated:
        if each.by in gone:
            gone.add(each.id)
    return replace(ring, delegated=tuple(each for each in ring.delegated if each.id not in gone))


def rotate(ring: Keyring, hash: str) -> Keyring:
    """Another key for the same owner: the old one is dead, narrower ones stay."""
    return replace(ring, owner=hash)


def transfer(ring: Keyring, hash: str) -> Keyring:
    """Another owner: all older keys are dead."""
    return Keyring(owner=hash)


def _is_over(key: Delegated, now: datetime) -> bool:
    return key.until is not None and key.until <= now


def _until(seconds: float | None, now: datetime) -> datetime | None:
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= 100 * 366 * 86400:
        raise InvalidValue("seconds", seconds, "a number above 0, at most a hundred years, or None")
    return now + timedelta(seconds=seconds)
