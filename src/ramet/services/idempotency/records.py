"""Documents of a store that tell of requests with an `Idempotency-Key`, and of the answers that are kept for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

import msgspec
from msgspec import Struct

from ramet.core.errors import Damaged
from ramet.store.contract import Document

REQUEST: Final = "idempotent request"
ANSWER: Final = "idempotent answer"  #: of the same key; its data are the body
KEEP_S: Final = 24 * 3600.0
ANSWER_BYTES: Final = 256 * 1024  #: of one answer that is kept


class RequestRecord(Struct, frozen=True, kw_only=True):
    """A request. `begun` with the `life` of another process is one whose end was not put on record."""

    version: int = 1
    owner: str  #: the team of the key that asked; "" for the operator's
    digest: str  #: of query and body; "" while a body that is streamed was not read to its end
    at: float  #: seconds since 1970
    state: Literal["begun", "turn", "answered"] = "begun"
    kernel: str
    epoch: int
    life: str
    salt: str
    turn: str = ""
    status: int = 0
    headers: Mapping[str, str] = {}
    size: int = 0  #: of the answer, in bytes
    is_kept: bool = False  #: the answer


class Answered(NamedTuple):
    """The first answer to a request."""

    record: RequestRecord
    body: bytes | None  #: None for one that was too large to be kept


def decoded(document: Document) -> RequestRecord:
    """A record as it is in the store. Raises Damaged."""
    try:
        return msgspec.json.decode(document.data, type=RequestRecord)
    except (msgspec.DecodeError, UnicodeError) as problem:
        raise Damaged(document.kind, document.key, str(problem)) from None
