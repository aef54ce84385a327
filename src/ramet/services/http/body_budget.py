"""The budget of bytes for the bodies of all requests that are being read, and the share of it for one team.

A body that is complete at once is not counted while it is small. Any other counts in the share of its owner with at
least `FREE_BYTES`; what it has beyond these counts in the budget of all. So a small body never waits for the large
bodies of others.
"""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus

from ramet.services.http.responses import Refusal

FREE_BYTES = 64 * 1024  #: of each body, in the budget of all
_RETRY = {"retry-after": "1"}


class BodyBudget:
    """Bytes of bodies in memory: `total_bytes` of all owners, `share_bytes` of one."""

    def __init__(self, *, total_bytes: int, share_bytes: int) -> None:
        self.total_bytes, self.share_bytes = total_bytes, share_bytes
        self.held_bytes = 0
        self.held_by_owner: dict[str, int] = {}


class BodyHold:
    """The bytes that one request holds, until `release`. `owner` says whose share they are in; "" has no share."""

    def __init__(self, budget: BodyBudget, owner: Callable[[], str]) -> None:
        self._budget, self._find_owner = budget, owner
        self._owner = ""
        self._size = 0

    def take(self, size: int, *, is_whole: bool) -> None:
        """Hold more bytes; `is_whole` for a body that came in one piece. Raises Refusal, and holds what it held."""
        if not self._size:
            if is_whole and size <= FREE_BYTES:
                return
            self._owner = self._find_owner()
        budget, new = self._budget, self._size + size
        share = max(new, FREE_BYTES) - (max(self._size, FREE_BYTES) if self._size else 0)
        beyond = max(new - FREE_BYTES, 0) - max(self._size - FREE_BYTES, 0)
        held = budget.held_by_owner.get(self._owner, 0)
        if self._owner and held + share > budget.share_bytes:
            raise _refusal(HTTPStatus.TOO_MANY_REQUESTS, f"of one team at most {budget.share_bytes} bytes")
        if beyond and budget.held_bytes + beyond > budget.total_bytes:
            raise _refusal(HTTPStatus.SERVICE_UNAVAILABLE, f"at most {budget.total_bytes} bytes")
        budget.held_bytes += beyond
        if self._owner:
            budget.held_by_owner[self._owner] = held + share
        self._size = new

    def release(self) -> None:
        """Give all of it back. Idempotent."""
        if not self._size:
            return
        budget, size, self._size = self._budget, self._size, 0
        budget.held_bytes -= max(size - FREE_BYTES, 0)
        if self._owner:
            budget.held_by_owner[self._owner] -= max(size, FREE_BYTES)
            if not budget.held_by_owner[self._owner]:
                del budget.held_by_owner[self._owner]


def _refusal(status: HTTPStatus, most: str) -> Refusal:
    return Refusal(status, f"{most} of bodies are read at once; nothing was done, ask again", _RETRY)
