"""The documents of a store for requests with an `Idempotency-Key`, and for their recorded answers.

They are kept for 24 hours, and of each team the newest, up to its limits.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ramet.concurrency.clock import Clock
from ramet.core.errors import Conflict, Damaged
from ramet.store.contract import Document, Store

REQUEST: Final = "idempotent request"
ANSWER: Final = "idempotent answer"  #: under the same key; its data are the body
KEEP_S: Final = 24 * 3600.0
ANSWER_BYTES: Final = 256 * 1024  #: of one recorded answer
MOST_RECORDS: Final = 10_000  #: records of one team
MOST_BYTES: Final = 16 * 1024 * 1024  #: bytes of the answers of one team
_SWEEP_RECORDS, _SWEEP_BYTES = 512, 4 * 1024 * 1024
_log = logging.getLogger("ramet.serve")


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


class Retention:
    """The removal of expired and excess records at intervals: a team may exceed its limits between two sweeps."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        most_records: int = MOST_RECORDS,
        most_bytes: int = MOST_BYTES,
        sweep_records: int = _SWEEP_RECORDS,
    ) -> None:
        self._store, self._clock = store, clock
        self._most_records, self._most_bytes, self._sweep_records = most_records, most_bytes, sweep_records
        self._new, self._new_bytes = sweep_records, 0  # So that the first request sweeps.
        self._swept_at = 0.0

    async def count(self, *, records: int = 0, answer_bytes: int = 0) -> None:
        """Count new records, and the bytes of new answers. Sweep after enough of them, and each hour."""
        self._new += records
        self._new_bytes += answer_bytes
        is_time = self._clock.monotonic() >= self._swept_at + 3600
        if is_time or self._new >= self._sweep_records or self._new_bytes >= _SWEEP_BYTES:
            self._new = self._new_bytes = 0
            self._swept_at = self._clock.monotonic()
            await self.sweep()

    async def sweep(self) -> None:
        """Remove expired records, and the oldest records of each team beyond its limits."""
        now, shares = self._clock.now().timestamp(), dict[str, list[tuple[RequestRecord, Document]]]()
        for each in await self._store.list(REQUEST):
            try:
                record = each.decode(RequestRecord)
            except Damaged as problem:
                _log.error("%s", problem)
                continue
            if record.at + KEEP_S <= now:
                await self._remove(each)
                continue
            if record.at > now and record.state == "answered":  # The clock was ahead, and was set back.
                record, each = await self._set_date(record, each, now)
            shares.setdefault(record.owner, []).append((record, each))
        for share in shares.values():
            share.sort(key=lambda each: min(each[0].at, now), reverse=True)
            size = 0
            for number, (record, document) in enumerate(share):
                size += record.size
                is_beyond = number >= self._most_records or size > self._most_bytes
                # A begun request may be running; their number is bounded.
                if is_beyond and (record.state != "begun" or number >= 2 * self._most_records):
                    await self._remove(document)

    async def _set_date(self, record: RequestRecord, document: Document, now: float) -> tuple[RequestRecord, Document]:
        """Set the date of a record to `now`, so that it expires.

        Only answered records: no kernel uses their version.
        """
        dated_record = replace(record, at=now)
        with contextlib.suppress(Conflict):
            data = msgspec.json.encode(dated_record)
            document = await self._store.put(REQUEST, document.key, data, expected=document.version)
        return dated_record, document

    async def _remove(self, document: Document) -> None:
        """Remove a record unless it changed meanwhile.

        The answer is removed first, so that no answer lacks a record.
        """
        with contextlib.suppress(Conflict):
            await self._store.delete(ANSWER, document.key)
            await self._store.delete(document.kind, document.key, expected=document.version)
