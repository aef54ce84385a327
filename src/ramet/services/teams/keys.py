"""Keys and their rights. Only hashes are stored, and they are compared in constant time.

An agent has one owner, whose key has all rights. The owner may make narrower keys. These become invalid when their time
is over, when they are revoked, or when the key that made them is revoked. The owner may transfer the ownership, which
invalidates every older key.
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

OWNER = "owner"  #: stands for the owner's key in place of the id of a key
OPERATOR = "operator"  #: stands for the operator's key in place of the hash of a key
MAX_KEYS = 100  #: delegated keys of an agent: each is in its row, and is compared with every key that is presented
_BYTES = 32


class KeyRecord(Struct, frozen=True, kw_only=True):
    """A narrower key. `by` is the id of the key that made it, which precedes it and has at least its rights."""

    id: str
    hash: str
    rights: tuple[Right, ...]
    until: datetime | None = None
    by: str = OWNER


class Keyring(Struct, frozen=True, kw_only=True):
    """The keys of one agent, as hashes."""

    owner: str
    delegated: tuple[KeyRecord, ...] = ()


class ValidKey(Struct, frozen=True):
    """The id of a valid key, and its rights."""

    id: str
    rights: tuple[Right, ...]


def new_key(kind: Literal["team", "agent", "op"], entropy: Callable[[int], bytes]) -> str:
    """Return a new key of 256 bits, safe in URLs and headers; it begins with its kind."""
    return f"{kind}_{base64.urlsafe_b64encode(entropy(_BYTES)).decode().rstrip('=')}"


def hash_of(key: str) -> str:
    """Return the hash of a key, which is stored instead of the key."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def key_matches(key: str, hash: str) -> bool:
    return hmac.compare_digest(hash_of(key), hash)


def rights_of_hash(ring: Keyring, hash: str, now: datetime) -> ValidKey | None:
    """Return the rights of the key with this hash, or None if it has none. The whole ring is searched in every case."""
    match = ValidKey(OWNER, RIGHTS) if hmac.compare_digest(hash, ring.owner) else None
    for each in ring.delegated:
        if hmac.compare_digest(hash, each.hash) and not is_expired(each, now):
            match = ValidKey(each.id, each.rights)
    return match


def seconds_left(ring: Keyring, hash: str, now: datetime) -> float | None:
    """Return for how long the key with this hash is valid; None if it has no end, or is not in the ring."""
    expires_at = next((each.until for each in ring.delegated if hmac.compare_digest(each.hash, hash)), None)
    return None if expires_at is None else (expires_at - now).total_seconds()


def delegate(
    ring: Keyring, *, id: str, hash: str, rights: Sequence[Right], seconds: float | None, by: str, now: datetime
) -> Keyring:
    """Add a narrower key, made by the key `by`.

    Raises InvalidValue if `rights` is empty, or has rights that the key `by` does not have. Raises InvalidValue for too
    many keys.
    """
    parent_key = next((each for each in ring.delegated if each.id == by), None)
    allowed = RIGHTS if parent_key is None else parent_key.rights
    if not rights or any(right not in allowed for right in rights):
        raise InvalidValue("rights", list(rights), f"some of {', '.join(allowed)}")
    expires_at = _expires_at(seconds, now)
    if parent_key is not None and parent_key.until is not None:
        expires_at = parent_key.until if expires_at is None else min(expires_at, parent_key.until)
    active_keys = tuple(each for each in ring.delegated if not is_expired(each, now))
    if len(active_keys) >= MAX_KEYS:
        raise InvalidValue("rights", f"{len(active_keys)} delegated keys", f"at most {MAX_KEYS}: revoke some")
    granted_rights = tuple(right for right in RIGHTS if right in rights)
    return replace(
        ring, delegated=(*active_keys, KeyRecord(id=id, hash=hash, rights=granted_rights, until=expires_at, by=by))
    )


def revoke(ring: Keyring, id: str, *, by: str) -> Keyring:
    """Remove a narrower key and the keys that it made. `by` is the owner or a key above it. Raises Unknown."""
    descendants = {by}
    for each in ring.delegated:  # A key follows the key that made it.
        if each.by in descendants:
            descendants.add(each.id)
    if id not in descendants - {by}:
        raise Unknown("key", id, tuple(sorted(descendants - {by})))
    revoked = {id}
    for each in ring.delegated:
        if each.by in revoked:
            revoked.add(each.id)
    return replace(ring, delegated=tuple(each for each in ring.delegated if each.id not in revoked))


def rotate(ring: Keyring, hash: str) -> Keyring:
    """Replace the owner's key for the same owner: the old key is invalid, narrower keys stay."""
    return replace(ring, owner=hash)


def transfer(ring: Keyring, hash: str) -> Keyring:
    """Return the keyring of a new owner: all older keys are invalid."""
    return Keyring(owner=hash)


def is_expired(key: KeyRecord, now: datetime) -> bool:
    """Return whether the time of a narrower key is over."""
    return key.until is not None and key.until <= now


def _expires_at(seconds: float | None, now: datetime) -> datetime | None:
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= 100 * 366 * 86400:
        raise InvalidValue("seconds", seconds, "a number above 0, at most a hundred years, or None")
    return now + timedelta(seconds=seconds)
