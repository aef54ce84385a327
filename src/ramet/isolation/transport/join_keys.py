"""The registry of pods that may connect, and of their keys: each key is valid once, and only hashes are stored."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass

_NOBODY = (bytes(32), bytes(32))  #: hashes of no key that can be found


@dataclass(slots=True)
class _Pod:
    hashes: tuple[bytes, ...]
    join_by: float | None


class JoinKeys:
    """The keys of all pods that may connect. `now` is a monotonic clock.

    A pod that connects with a key gets the next one. The old key stays valid until the new one is known to have
    arrived: otherwise, a connection that breaks at that moment would lock the pod out. After that, the old key is void.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._pods: dict[str, _Pod] = {}

    def expect(self, pod: str, *, join_s: float, key: str | None = None) -> str:
        """Set and return the join key of a pod, a new one if none is given. Older keys of the pod are void."""
        key = key or new_key()
        self._pods[pod] = _Pod((_hash(key),), self._now() + join_s)
        return key

    def admit(self, pod: str, key: str) -> str | None:
        """Return the next key if `key` is valid; None, after the same amount of work, if it is not."""
        known = self._pods.get(pod)
        hashes = _NOBODY if known is None else (known.hashes * 2)[:2]
        key_hash = _hash(key)
        is_valid = hmac.compare_digest(hashes[0], key_hash) | hmac.compare_digest(hashes[1], key_hash)
        is_late = known is None or (known.join_by is not None and self._now() > known.join_by)
        next_key = new_key()
        next_hash = _hash(next_key)
        if known is None or is_late or not is_valid:
            return None
        known.hashes = (key_hash, next_hash)
        return next_key

    def confirm(self, pod: str, key: str) -> bool:
        """Record that the next key has arrived: all keys before it are void.

        Return False if that key is void itself by now.
        """
        known, key_hash = self._pods.get(pod), _hash(key)
        if known is None or not any(hmac.compare_digest(each, key_hash) for each in known.hashes):
            return False
        known.hashes, known.join_by = (key_hash,), None
        return True

    def forget(self, pod: str) -> None:
        """Revoke all keys of a pod. Idempotent."""
        self._pods.pop(pod, None)


def new_key() -> str:
    """Return a new random key, which is not valid yet."""
    return secrets.token_urlsafe(32)


def _hash(key: str) -> bytes:
    """Return the SHA-256 hash of a key. Keys are 256 random bits, so no slower hash is needed against guessing."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
