"""The documents of a store for requests with an `Idempotency-Key`, and for their recorded answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

from msgspec import Struct

REQUEST: Final = "idempotent request"
ANSWER: Final = "idempotent answer"  #: under the same key; its data are the body
KEEP_S: Final = 24 * 3600.0
ANSWER_BYTES: Final = 256 * 1024  #: of one recorded answer


class RequestRecord(Struct, frozen=True, kw_only=True):
    """A request. The end of a request with state `begun` and the `life` of another process was not recorded."""

    version: int = 1
    owner: str  #: the team of the sender's key; "" for the operator's key
    digest: str  #: of query and body; "" until a streamed body was read to its end
    at: float  #: seconds since 1970
    state: Literal["begun", "turn", "answered"] = "begun"
    kernel: str
    epoch: int
    life: str
    salt: str
    turn: str = ""
    status: int = 0
    headers: Mapping[str, str] = {}
    size: int = 0  #: size of the answer in bytes
    is_kept: bool = False  #: whether the answer is recorded


class StoredAnswer(NamedTuple):
    """The first answer to a request."""

    record: RequestRecord
    body: bytes | None  #: None if it was too large to be recorded
