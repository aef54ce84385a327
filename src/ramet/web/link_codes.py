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
from starlette.types import Receive, Scope

from ramet.services.contract import decode
from ramet.services.http.responses import Refusal
from ramet.web.forwarding_api import read_body

LIFE_S: Final = 600.0
BYTES: Final = 32
MOST: Final = 16  #: codes that are valid at the same time; a new one ends the oldest
MAX_BODY: Final = 1024
HINT: Final = "press Enter where `ramet ui` runs, and open the link that it prints"
_REMEMBERED: Final = 100  #: codes that are no longer valid, of which an error can say why


class CodeExchange(Struct, forbid_unknown_fields=True):
    """The request of a page for the token."""

    code: str


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


async def read_code(scope: Scope, receive: Receive) -> str:
    """Return the code of a request for the token. Raises Refusal, InvalidValue."""
    if scope["method"] != "POST":
        raise Refusal(HTTPStatus.METHOD_NOT_ALLOWED, "POST is possible here", {"allow": "POST"})
    request: CodeExchange = decode(CodeExchange, await read_body(receive, MAX_BODY), "body", within="")
    return request.code


def _hash(code: str) -> bytes:
    return hashlib.sha256(code.encode("utf-8", "surrogatepass")).digest()
