"""A request with an `Idempotency-Key`: the key of its record, and the ids and keys that it returns.

The ids and keys of created objects are derived from the sender's key, from the `Idempotency-Key` and from a recorded
salt. A repetition after a kill therefore creates the same ids and keys, and the record contains no secret.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import dataclass
from typing import Final

from ramet.core.errors import InvalidValue

MOST_CHARS: Final = 255
SECRET_CHARS: Final = 32  #: of an `Idempotency-Key` that cannot be guessed, such as a UUID
SECRET_BYTES: Final = 32
HEADER: Final = "Idempotency-Key"
_CUT: Final = b"\0"  #: replaces the secret in a recorded answer; JSON has no such byte


@dataclass(frozen=True)
class Sender:
    """The identity of a request, by which its record is found.

    It consists of the sender's key `presented_key`, the route, and the `Idempotency-Key`.
    """

    presented_key: str
    route: str
    key: str

    @property
    def place(self) -> str:
        """The key of the record in the store."""
        holder = hashlib.sha256(self.presented_key.encode("utf-8", "surrogatepass")).hexdigest()
        return hashlib.sha256("\n".join((holder, self.route, self.key)).encode("utf-8", "surrogatepass")).hexdigest()

    def hasher(self, query: bytes) -> hmac.HMAC:
        """Return the running digest of query and body.

        It is keyed, because a plain recorded digest would let values be guessed.
        """
        secret = f"{self.presented_key}\n{self.key}".encode("utf-8", "surrogatepass")
        return hmac.new(secret, query + b"\n", hashlib.sha256)

    @property
    def is_secret(self) -> bool:
        """True if the `Idempotency-Key` is too long to be guessed."""
        return len(self.key) >= SECRET_CHARS


class Attempt:
    """A request that is being executed. `is_repeated`: it was begun before, and no answer is recorded."""

    def __init__(
        self, sender: Sender, salt: bytes, *, version: int, is_again: bool, has_begun_turn: bool = False
    ) -> None:
        """Set `version`, the version of its record.

        With `has_begun_turn`, the turn `turn_id` was begun and is recorded.
        """
        self.sender, self.version, self.is_repeated = sender, version, is_again
        self.has_begun_turn = has_begun_turn
        self.is_released = False  #: whether it is no longer being executed
        self._salt = salt
        self._secret = f"{sender.presented_key}\n{sender.key}".encode("utf-8", "surrogatepass")

    def entropy(self, size: int) -> bytes:
        """Derive bytes, at most 64: the same bytes for the same size, in each repetition."""
        return hmac.digest(self._secret, self._salt + bytes([size]), hashlib.sha512)[:size]

    @property
    def turn_id(self) -> str:
        return f"turn-{self.entropy(12).hex()}"

    def redact(self, answer: bytes) -> bytes:
        """Remove the derived secret from an answer, before it is recorded."""
        return answer.replace(self._text, _CUT)

    def unredact(self, answer: bytes) -> bytes:
        return answer.replace(_CUT, self._text)

    @property
    def _text(self) -> bytes:
        return base64.urlsafe_b64encode(self.entropy(SECRET_BYTES)).rstrip(b"=")


def checked_key(key: str) -> str:
    """Return an `Idempotency-Key`. Raises InvalidValue for a key that is empty, too long, or not printable ASCII."""
    if not 1 <= len(key) <= MOST_CHARS or not key.isascii() or not key.isprintable():
        raise InvalidValue(HEADER, key[:80], f"1 to {MOST_CHARS} printable characters of ASCII")
    return key
