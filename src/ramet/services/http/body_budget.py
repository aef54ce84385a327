"""The budget of bytes for the bodies of all requests that are being read, and the share of one team.

A small body that arrives in one piece is not counted. Any other body counts at least `FREE_BYTES` in the share of its
owner. Only the part beyond `FREE_BYTES` counts in the budget of all owners. So a small body never waits for the large
bodies of others.
"""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus

from ramet.services.http.responses import Refusal

FREE_BYTES = 64 * 1024  #: the part of each body that the budget of all owners does not count
_RETRY = {"retry-after": "1"}


class BodyBudget:
    """The bytes of bodies in memory: at most `total_bytes` for all owners, and `share_bytes` for one."""

    def __init__(self, *, total_bytes: int, share_bytes: int) -> None:
        self.total_bytes, self.share_bytes = total_bytes, share_bytes
        self.held_bytes = 0
        self.held_by_owner: dict[str, int] = {}


class BodyHold:
    """The bytes that one request holds until `release`. `owner` returns the owner of the share; "" has no share."""

    def __init__(self, budget: BodyBudget, owner: Callable[[], str]) -> None:
        self._budget, self._find_owner = budget, owner
        self._owner = ""
        self._size = 0

    def take(self, size: int, *, is_whole: bool) -> None:
        """Hold more bytes; `is_whole` is set for a body in one piece.

        Raises Refusal, and then holds no more than before.
        """
        if not self._size:
            if is_whole and size <= FREE_BYTES:
                return
            self._owner = self._find_owner()
        budget, new = self._budget, self._size + size
        share = max(new, FREE_BYTES) - (max(self._size, FREE_BYTES) if self._size else 0)
        charge = max(new - FREE_BYTES, 0) - max(self._size - FREE_BYTES, 0)
        held_bytes = budget.held_by_owner.get(self._owner, 0)
        if self._owner and held_bytes + share > budget.share_bytes:
            raise _refusal(HTTPStatus.TOO_MANY_REQUESTS, f"of one team at most {budget.share_bytes} bytes")
        if charge and budget.held_bytes + charge > budget.total_bytes:
            raise _refusal(HTTPStatus.SERVICE_UNAVAILABLE, f"at most {budget.total_bytes} bytes")
        budget.held_bytes += charge
        if self._owner:
            budget.held_by_owner[self._owner] = held_bytes + share
        self._size = new

    def release(self) -> None:
        """Return all held bytes to the budget. Idempotent."""
        if not self._size:
            return
        budget, size, self._size = self._budget, self._size, 0
        budget.held_bytes -= max(size - FREE_BYTES, 0)
        if self._owner:
            budget.held_by_owner[self._owner] -= max(size, FREE_BYTES)
            if not budget.held_by_owner[self._owner]:
                del budget.held_by_owner[self._owner]


def _refusal(status: HTTPStatus, most: str) -> Refusal:
    return Refusal(status, f"{most} of request bodies are read concurrently; nothing was done, try again", _RETRY)
