"""The retention of request records: 24 hours for each, and for each team the newest, up to its limits."""

from __future__ import annotations

import contextlib
import logging
from typing import Final

import msgspec
from msgspec.structs import replace

from ramet.concurrency.clock import Clock
from ramet.core.errors import Conflict, Damaged
from ramet.services.idempotency.records import ANSWER, KEEP_S, REQUEST, RequestRecord
from ramet.store.contract import Document, Store

MOST_RECORDS: Final = 10_000  #: records of one team
MOST_BYTES: Final = 16 * 1024 * 1024  #: bytes of the answers of one team
_SWEEP_RECORDS, _SWEEP_BYTES = 512, 4 * 1024 * 1024
_log = logging.getLogger("ramet.serve")


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
