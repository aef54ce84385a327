"""One-time codes: the secret of a link of `ramet ui`, which a page exchanges for the token once, within a short time.

A browser's history keeps the link. Whoever finds it there has a code that was used, or that has ended.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import deque
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from msgspec import Struct

from ramet.services.http.responses import Refusal

LIFE_S: Final = 600.0
BYTES: Final = 32
MOST: Final = 16  #: codes that are valid at the same time; a new one ends the oldest
HINT: Final = "press Enter where `ramet ui` runs, and open the link that it prints"
_REMEMBERED: Final = 100  #: codes that are no longer valid, of which an error can say why


class PageSession(Struct):
    """The answer to a valid code."""

    token: str


class LinkCodes:
    """The codes that are valid. They are kept as hashes, and compared in a time that tells nothing about them."""

    def __init__(self, now: Callable[[], float]) -> None:
        """Set a monotonic clock."""
        self._now = now
        self._valid = deque[tuple[bytes, float]](maxlen=MOST)
        self._used = deque[bytes](maxlen=_REMEMBERED)
        self._issued = deque[bytes](maxlen=_REMEMBERED)

    def issue(self) -> str:
        """Return a new code."""
        code = secrets.token_urlsafe(BYTES)
        self._valid.append((_hash(code), self._now() + LIFE_S))
        self._issued.append(_hash(code))
        return code

    def end(self) -> None:
        """End the codes that nobody has used."""
        self._valid.clear()

    def use(self, code: str) -> None:
        """Use up a code. Raises Refusal, with the reason and a way to another link, if it is not valid."""
        given = _hash(code)
        found = [each for each in self._valid if hmac.compare_digest(each[0], given)]
        if found and found[0][1] > self._now():
            self._valid.remove(found[0])
            self._used.append(given)
            return
        if any([hmac.compare_digest(each, given) for each in self._used]):  # A list: all of them are compared.
            raise Refusal(HTTPStatus.GONE, f"this link was used already, and works only once: {HINT}")
        if any([hmac.compare_digest(each, given) for each in self._issued]):
            raise Refusal(HTTPStatus.GONE, f"this link is too old: {HINT}")
        raise Refusal(HTTPStatus.UNAUTHORIZED, f"this link is not of this `ramet ui`: {HINT}")


def _hash(code: str) -> bytes:
    return hashlib.sha256(code.encode("utf-8", "surrogatepass")).digest()
