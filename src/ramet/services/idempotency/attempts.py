"""One request with an `Idempotency-Key`: where its record is, and the ids and keys that it gives away.

Ids and keys of what the request makes are derived from the key that its sender showed, from the `Idempotency-Key` and
from a salt on record. So a repetition after a kill makes the same ones, while the record holds none of the secrets.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import dataclass
from typing import Final

from ramet.core.errors import InvalidValue

MOST_CHARS: Final = 255
SECRET_CHARS: Final = 32  #: of an `Idempotency-Key` that nobody guesses, such as a UUID
SECRET_BYTES: Final = 32
HEADER: Final = "Idempotency-Key"
_CUT: Final = b"\0"  #: stands for the secret in a kept answer; JSON has no such byte


@dataclass(frozen=True)
class Sender:
    """A request as its record is found by: who asks (`shown`, the sender's key), for which route, under which key."""

    shown: str
    route: str
    key: str

    @property
    def place(self) -> str:
        """The key of the record in the store."""
        holder = hashlib.sha256(self.shown.encode("utf-8", "surrogatepass")).hexdigest()
        return hashlib.sha256("\n".join((holder, self.route, self.key)).encode("utf-8", "surrogatepass")).hexdigest()

    def hasher(self, query: bytes) -> hmac.HMAC:
        """The digest of query and body, in the making: keyed, as a digest on record would let values be guessed."""
        secret = f"{self.shown}\n{self.key}".encode("utf-8", "surrogatepass")
        return hmac.new(secret, query + b"\n", hashlib.sha256)

    @property
    def is_secret(self) -> bool:
        """Whether the `Idempotency-Key` is too long to be guessed."""
        return len(self.key) >= SECRET_CHARS


class Attempt:
    """A request that is being done. `is_again`: it was begun before, and no answer is on record."""

    def __init__(
        self, sender: Sender, salt: bytes, *, version: int, is_again: bool, has_begun_turn: bool = False
    ) -> None:
        """`version` is that of its record; with `has_begun_turn` the turn `turn_id` was begun, and is on record."""
        self.sender, self.version, self.is_again = sender, version, is_again
        self.has_begun_turn = has_begun_turn
        self.is_released = False  #: it is under way no more
        self._salt = salt
        self._secret = f"{sender.shown}\n{sender.key}".encode("utf-8", "surrogatepass")

    def entropy(self, size: int) -> bytes:
        """Derive bytes, at most 64: the same ones for the same size, in each repetition."""
        return hmac.digest(self._secret, self._salt + bytes([size]), hashlib.sha512)[:size]

    @property
    def turn_id(self) -> str:
        """The id of the turn that the request begins."""
        return f"turn-{self.entropy(12).hex()}"

    def cut(self, answer: bytes) -> bytes:
        """Remove the derived secret from an answer, for keeping."""
        return answer.replace(self._text, _CUT)

    def mend(self, kept: bytes) -> bytes:
        """Undo `cut`."""
        return kept.replace(_CUT, self._text)

    @property
    def _text(self) -> bytes:
        return base64.urlsafe_b64encode(self.entropy(SECRET_BYTES)).rstrip(b"=")


def checked_key(given: str) -> str:
    """An `Idempotency-Key`. Raises InvalidValue for one that is empty, too long, or not printable ASCII."""
    if not 1 <= len(given) <= MOST_CHARS or not given.isascii() or not given.isprintable():
        raise InvalidValue(HEADER, given[:80], f"1 to {MOST_CHARS} printable characters of ASCII")
    return given
