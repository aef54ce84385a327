"""The begun and answered requests with an `Idempotency-Key`, in the store, so that a kill loses none of them.

A request is recorded before it is begun, and its answer is recorded before it is sent. A kernel that finds the record
of a request that no kernel is executing executes the request again, with the same ids and keys.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Final

import msgspec
from msgspec.structs import replace

from ramet.concurrency.clock import Clock
from ramet.core.errors import Conflict
from ramet.services.errors import KeyReused, RequestInProgress
from ramet.services.idempotency.attempts import Attempt, Sender
from ramet.services.idempotency.records import (
    ANSWER,
    ANSWER_BYTES,
    KEEP_S,
    REQUEST,
    RequestRecord,
    Retention,
    StoredAnswer,
)
from ramet.store.contract import Document, DocumentWrite, Store

_SALT_BYTES: Final = 16


class Ledger:
    """The requests of one server with an `Idempotency-Key`, in the store that all its kernels share."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        retention: Retention | None = None,
        entropy: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self._store, self._clock, self._entropy = store, clock, entropy
        self._retention = retention or Retention(store, clock)
        self._instance_id = entropy(8).hex()
        self._epoch: int | None = None
        self._running_attempts: dict[str, str] = {}  #: digests of running requests, by place

    async def is_known(self, sender: Sender) -> bool:
        """Return whether a request of this sender is recorded, and not expired."""
        return (await self._find(sender.place))[1] is not None

    async def claim(self, sender: Sender, owner: str, digest: str) -> Attempt | StoredAnswer:
        """Begin a request, or return its first answer.

        Raises KeyReused if the first request had another digest, and RequestInProgress while it is being executed.
        """
        slot = sender.place
        if (running := self._running_attempts.get(slot)) is not None:
            raise RequestInProgress() if running == digest else KeyReused(sender.key)
        self._running_attempts[slot] = digest
        try:
            result = await self._claim(sender, owner, digest)
        except BaseException:
            del self._running_attempts[slot]
            raise
        if isinstance(result, StoredAnswer):
            del self._running_attempts[slot]
        return result

    async def begin_turn(self, attempt: Attempt) -> None:
        """Record that the request began the turn `attempt.turn_id`: repetitions read that turn."""
        record = replace(await self._read_own_record(attempt), state="turn", turn=attempt.turn_id)
        data, place = msgspec.json.encode(record), attempt.sender.place
        attempt.version = (await self._store.put(REQUEST, place, data, expected=attempt.version)).version
        attempt.has_begun_turn = True

    async def answer(self, attempt: Attempt, digest: str, status: int, headers: dict[str, str], body: bytes) -> None:
        """Record an answer, and end the attempt. Of an answer above 256 KiB, only the fact is recorded."""
        redacted_body = attempt.redact(body)
        is_kept = len(redacted_body) <= ANSWER_BYTES
        record = replace(
            await self._read_own_record(attempt),
            digest=digest,
            state="answered",
            status=status,
            headers=headers,
            size=len(redacted_body) if is_kept else 0,
            is_kept=is_kept,
        )
        slot = attempt.sender.place
        puts = [DocumentWrite(REQUEST, slot, msgspec.json.encode(record), attempt.version)]
        if is_kept:
            puts.append(DocumentWrite(ANSWER, slot, redacted_body))
        await self._store.put_together([], puts)
        self.release(attempt)
        await self._retention.count(answer_bytes=record.size)

    async def drop(self, attempt: Attempt) -> None:
        """Remove the record of a refused request: nothing was done, and the same key may be used again."""
        try:
            await self._store.delete(REQUEST, attempt.sender.place, expected=attempt.version)
        except Conflict:  # Another kernel has taken over the request.
            pass
        finally:
            self.release(attempt)

    def release(self, attempt: Attempt) -> None:
        """Mark the attempt as no longer running. Its record stays. Idempotent."""
        if not attempt.is_released:  # Else the place may belong to a later attempt.
            attempt.is_released = True
            self._running_attempts.pop(attempt.sender.place, None)

    # ---- internal

    async def _claim(self, sender: Sender, owner: str, digest: str) -> Attempt | StoredAnswer:
        while True:
            document, record = await self._find(sender.place)
            is_repeated = record is not None
            if record is not None:
                if record.digest and digest and record.digest != digest:
                    raise KeyReused(sender.key)
                if record.state == "answered":
                    return await self._read_answer(sender, record)
                if record.state == "turn" and document is not None:
                    return _attempt(sender, record, document, is_again=True)
                if await self._is_at_work(record):
                    raise RequestInProgress()
            if record is None:
                await self._retention.count(records=1)
                record = await self._new_record(owner, digest)
            else:
                record = replace(
                    record, kernel=self._store.kernel, epoch=await self._own_epoch(), life=self._instance_id
                )
            version = document.version if document is not None else 0
            try:
                put = await self._store.put(REQUEST, sender.place, msgspec.json.encode(record), expected=version)
            except Conflict:
                continue
            return _attempt(sender, record, put, is_again=is_repeated)

    async def _read_answer(self, sender: Sender, record: RequestRecord) -> StoredAnswer:
        document = await self._store.get(ANSWER, sender.place) if record.is_kept else None
        if document is None:
            return StoredAnswer(record, None)
        return StoredAnswer(record, _attempt(sender, record, document, is_again=True).unredact(document.data))

    async def _find(self, place: str) -> tuple[Document | None, RequestRecord | None]:
        """Return the document at a place, and the record in it unless that has expired."""
        document = await self._store.get(REQUEST, place)
        record = document.decode(RequestRecord) if document is not None else None
        if record is not None and record.at + KEEP_S <= self._clock.now().timestamp():
            record = None
        return document, record

    async def _new_record(self, owner: str, digest: str) -> RequestRecord:
        return RequestRecord(
            owner=owner,
            digest=digest,
            at=self._clock.now().timestamp(),
            kernel=self._store.kernel,
            epoch=await self._own_epoch(),
            life=self._instance_id,
            salt=self._entropy(_SALT_BYTES).hex(),
        )

    async def _read_own_record(self, attempt: Attempt) -> RequestRecord:
        """Return the record of an attempt. Raises Conflict if another kernel has it."""
        document = await self._store.get(REQUEST, attempt.sender.place)
        if document is None or document.version != attempt.version:
            version = document.version if document is not None else 0
            raise Conflict(REQUEST, attempt.sender.place, expected=attempt.version, found=version)
        return document.decode(RequestRecord)

    async def _is_at_work(self, record: RequestRecord) -> bool:
        """Return whether another living kernel is executing a request.

        This kernel knows its own requests without the store.
        """
        if record.kernel == self._store.kernel:
            return False
        kernels = await self._store.kernels()
        return any(each.alive and (each.name, each.epoch) == (record.kernel, record.epoch) for each in kernels)

    async def _own_epoch(self) -> int:
        if self._epoch is None:
            kernels = await self._store.kernels()
            self._epoch = next((each.epoch for each in kernels if each.name == self._store.kernel), 0)
        return self._epoch


def _attempt(sender: Sender, record: RequestRecord, document: Document, *, is_again: bool) -> Attempt:
    return Attempt(
        sender,
        bytes.fromhex(record.salt),
        version=document.version,
        is_again=is_again,
        has_begun_turn=record.state == "turn",
    )
