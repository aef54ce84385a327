"""Notifications about lost kernels: another kernel notices the loss, records it once, and sends it to each target.

A kernel is lost if it ended without closing its store and has not begun again. The record of the loss names the
notifier that sends the notifications; a living one takes over from a dead one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from msgspec import Struct
from msgspec.json import encode
from msgspec.structs import replace

from ramet.concurrency.clock import Clock
from ramet.core.errors import Conflict
from ramet.host.notifications.delivery_queue import DeliveryQueue, Entry
from ramet.host.notifications.delivery_record import living_notifiers
from ramet.host.notifications.notification import KERNEL_LOST, NotificationWriter
from ramet.store.contract import Document, KernelInfo, Store

LOST_KERNELS: Final = "lost_kernel"
_KEEP: Final = timedelta(days=30)  #: how long the record of a loss stays


class LossRecord(Struct, frozen=True, kw_only=True):
    """The loss of a kernel, and the targets that know of it."""

    name: str
    epoch: int
    at: datetime  #: when it was noticed
    by: str  #: name of the kernel that noticed it
    notifier: str
    delivered: tuple[str, ...] = ()  #: names of targets


class KernelWatch:
    """A watch over the other kernels of a store, for one notifier."""

    def __init__(
        self, store: Store, notifier: str, queues: Mapping[str, DeliveryQueue], writer: NotificationWriter, clock: Clock
    ) -> None:
        self._store, self._notifier, self._writer, self._clock = store, notifier, writer, clock
        self._queues = {name: each for name, each in queues.items() if KERNEL_LOST in each.target.kinds}
        self._living: dict[str, KernelInfo] = {}  #: other kernels, as of the latest look
        self._sending: set[str] = set()  #: keys of records

    async def check(self) -> None:
        """Record new losses, and send the notifications that nobody else sends. Raises StoreFailed."""
        if not self._queues:
            return
        kernels = [each for each in await self._store.kernels() if each.name != self._store.kernel]
        living = {each.name: each for each in kernels if each.alive}
        candidates = {_key(each): each for each in (*self._living.values(), *kernels) if each.name not in living}
        self._living = living
        for each in candidates.values():
            if not await self._store.has_closed(each.name, each.epoch):
                await self._record(each)
        await self._send(set(candidates))

    async def _record(self, lost: KernelInfo) -> None:
        loss = LossRecord(
            name=lost.name,
            epoch=lost.epoch,
            at=self._clock.now(),
            by=self._store.kernel,
            notifier=self._notifier,
        )
        with contextlib.suppress(Conflict):  # It is recorded already.
            await self._store.put(LOST_KERNELS, _key(lost), encode(loss), expected=0)

    async def _send(self, candidates: set[str]) -> None:
        """Queue the notifications of this notifier, and those of dead notifiers; remove old records."""
        documents = await self._store.list(LOST_KERNELS)
        losses = [(each, each.decode(LossRecord)) for each in documents if each.key not in self._sending]
        living = await living_notifiers(self._store, [loss.notifier for _, loss in losses]) if losses else set()
        for document, loss in losses:
            if loss.notifier != self._notifier and loss.notifier in living:
                continue
            queues = [each for name, each in self._queues.items() if name not in loss.delivered]
            if queues:
                await self._claim(document, replace(loss, notifier=self._notifier), queues)
            elif document.key not in candidates and loss.at + _KEEP < self._clock.now():
                with contextlib.suppress(Conflict):
                    await self._store.delete(LOST_KERNELS, document.key, expected=document.version)

    async def _claim(self, document: Document, loss: LossRecord, queues: Sequence[DeliveryQueue]) -> None:
        with contextlib.suppress(Conflict):  # Another notifier has claimed it.
            await self._store.put(LOST_KERNELS, document.key, encode(loss), expected=document.version)
            self._sending.add(document.key)
            kernel = KernelInfo(loss.name, loss.epoch, "", alive=False)
            for queue in queues:
                notification = self._writer.of_lost_kernel(kernel, at=loss.at, by=loss.by)
                queue.push(
                    Entry(notification=notification, order=f"kernel {document.key}", record=self._recorder(queue.name))
                )

    def _recorder(self, target: str) -> _Recorder:
        return _Recorder(self._store, self._notifier, target)


class _Recorder:
    """Records that a target knows of a loss."""

    def __init__(self, store: Store, notifier: str, target: str) -> None:
        self._store, self._notifier, self._target = store, notifier, target

    async def __call__(self, entry: Entry) -> bool:
        key = entry.order.partition(" ")[2]
        while (document := await self._store.get(LOST_KERNELS, key)) is not None:
            loss = document.decode(LossRecord)
            if loss.notifier != self._notifier:
                return False
            done = replace(loss, delivered=(*loss.delivered, self._target))
            with contextlib.suppress(Conflict):
                await self._store.put(LOST_KERNELS, key, encode(done), expected=document.version)
                return True
        return True


def _key(kernel: KernelInfo) -> str:
    return f"{kernel.epoch}/{kernel.name}"
