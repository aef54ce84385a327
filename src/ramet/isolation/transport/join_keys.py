"""Which pod may come, and by which key: each opens once, only hashes of them are kept."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable

_NOBODY = (bytes(32), bytes(32))  #: of no key that can be found


class _Pod:
    __slots__ = ("hashes", "join_by")

    def __init__(self, hashes: tuple[bytes, ...], join_by: float | None) -> None:
        self.hashes, self.join_by = hashes, join_by


class JoinKeys:
    """The keys of all pods that may come. `now` is a clock that only goes forward.

    Who comes with a key is given the next one. The old one is good until the new one is known to have arrived: else a
    connection that breaks in that moment would lock the pod out. Then it opens nothing any more.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._pods: dict[str, _Pod] = {}

    def expect(self, pod: str, *, join_s: float, key: str | None = None) -> str:
        """The join key of a pod, new if none is given; any other of it is void."""
        key = key or new_key()
        self._pods[pod] = _Pod((_hash(key),), self._now() + join_s)
        return key

    def admit(self, pod: str, key: str) -> str | None:
        """The next key, for who comes with a good one; None, after the same work, for any other."""
        known = self._pods.get(pod)
        hashes = _NOBODY if known is None else (known.hashes * 2)[:2]
        presented = _hash(key)
        is_good = hmac.compare_digest(hashes[0], presented) | hmac.compare_digest(hashes[1], presented)
        is_late = known is None or (known.join_by is not None and self._now() > known.join_by)
        following = new_key()
        due = _hash(following)
        if known is None or is_late or not is_good:
            return None
        known.hashes = (presented, due)
        return following

    def confirm(self, pod: str, key: str) -> bool:
        """The next key has arrived: all before it are void. False if it is void itself by now."""
        known, arrived = self._pods.get(pod), _hash(key)
        if known is None or not any(hmac.compare_digest(each, arrived) for each in known.hashes):
            return False
        known.hashes, known.join_by = (arrived,), None
        return True

    def forget(self, pod: str) -> None:
        """No key opens for it any more. Idempotent."""
        self._pods.pop(pod, None)


def new_key() -> str:
    """A key that opens nothing yet."""
    return secrets.token_urlsafe(32)


def _hash(key: str) -> bytes:
    """Keys are 256 random bits: nothing slower than SHA-256 is needed to keep them from being guessed."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
