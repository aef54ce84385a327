"""The token of a page: a secret of one start of `ramet ui`, which ends after a time without requests."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager

BYTES = 32


class PageToken:
    """The present token. After `idle_s` seconds without a request it is replaced, and `on_renewal` is called."""

    def __init__(self, idle_s: float, now: Callable[[], float], on_renewal: Callable[[], None] = lambda: None) -> None:
        """Set the time that counts as idle, 0 for no end, and a monotonic clock."""
        self._idle_s, self._now, self._on_renewal = idle_s, now, on_renewal
        self._open_requests = 0
        self._renew()

    @property
    def text(self) -> str:
        """The token, for the link of the page."""
        return self._text

    def is_valid(self, token: str) -> bool:
        """Return whether this is the token, in a time that tells nothing about it. If it is, it is not idle now."""
        self.expire()
        is_valid = hmac.compare_digest(token.encode(), self._text.encode())
        if is_valid:
            self._last_use = self._now()
        return is_valid

    @contextmanager
    def use(self) -> Iterator[None]:
        """Count a request with the valid token, such as an open stream: meanwhile the token is not idle."""
        self._open_requests += 1
        try:
            yield
        finally:
            self._open_requests -= 1
            self._last_use = self._now()

    def expire(self) -> float:
        """Replace the token if it was idle for too long; return the seconds after which it may have been."""
        if not self._idle_s or self._open_requests:
            return self._idle_s or 3600.0
        left_s = self._last_use + self._idle_s - self._now()
        if left_s > 0:
            return left_s
        self._renew()
        self._on_renewal()
        return self._idle_s

    def _renew(self) -> None:
        self._text = secrets.token_urlsafe(BYTES)
        self._last_use = self._now()
