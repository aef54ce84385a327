"""The record of deliveries: a document for each tree that had a notification, until all of its notifications are done.

The document has one writer, the notifier that it names. Another notifier takes over the document if that one is dead,
or if it works for the kernel that has the tree. A notifier is known by its id and the seat of its kernel, like a
scheduler.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from msgspec import Struct
from msgspec.json import encode

from ramet.core.errors import Conflict
from ramet.store.contract import Document, KernelInfo, Store

DELIVERIES: Final = "notification_deliveries"
#: The notifiers that are open in this process.
open_notifiers: set[str] = set()


class TargetRecord(Struct, frozen=True, kw_only=True):
    """The deliveries of one tree to one target."""

    seq: int = 0  #: nothing up to this event's number needs to be delivered any more
    delivered: tuple[int, ...] = ()  #: numbers of later events whose notifications are done


class TreeRecord(Struct, frozen=True, kw_only=True):
    """The deliveries of one tree, and the notifier that makes them."""

    notifier: str
    targets: Mapping[str, TargetRecord] = {}


async def living_notifiers(store: Store, among: Iterable[str]) -> set[str]:
    """Return the notifiers that are open in this process, or that belong to another living kernel."""
    asked, own_seat = set(among), await seat_of(store)
    seats = {seat_name(each) for each in await store.kernels() if each.alive} - {own_seat}
    return {each for each in asked if each in open_notifiers or _seat_in(each) in seats}


async def seat_of(store: Store) -> str:
    """Return the name of this kernel and its epoch, by which other kernels know its notifiers."""
    return next(seat_name(each) for each in await store.kernels() if each.name == store.kernel)


def seat_name(kernel: KernelInfo) -> str:
    return f"{kernel.epoch}/{kernel.name}"


def _seat_in(notifier: str) -> str:
    return notifier.partition("@")[2]


class RecordWriter:
    """The writer of one tree's record, for one notifier."""

    def __init__(self, store: Store, root: str, notifier: Callable[[], str]) -> None:
        """Prepare a writer. `notifier` returns the id, which is known once the store is open."""
        self._store, self._root, self._notifier = store, root, notifier
        self._document: Document | None = None
        self._writing = asyncio.Lock()
        self.is_lost = False  #: another notifier has the record

    async def take(self, *, by_force: bool) -> TreeRecord | None:
        """Become the writer, and return the record before that; an empty one if there was none.

        Returns None if another living notifier is the writer, unless `by_force`: then this kernel has the tree.
        """
        while True:
            document = await self._store.get(DELIVERIES, self._root)
            before = TreeRecord(notifier="") if document is None else document.decode(TreeRecord)
            if not by_force and before.notifier and await living_notifiers(self._store, [before.notifier]):
                self.is_lost = True
                return None
            with contextlib.suppress(Conflict):
                await self._put(TreeRecord(notifier=self._notifier(), targets=before.targets), document)
                return before

    async def write(self, targets: Mapping[str, TargetRecord]) -> bool:
        """Write what has been delivered; return False if another notifier has taken over. Raises StoreFailed."""
        async with self._writing:
            if self.is_lost:
                return False
            try:
                await self._put(TreeRecord(notifier=self._notifier(), targets=targets), self._document)
            except Conflict:
                self.is_lost = True
        return not self.is_lost

    async def remove(self) -> None:
        """Remove the record: nothing of the tree is to be delivered any more."""
        async with self._writing:
            if not self.is_lost and self._document is not None:
                with contextlib.suppress(Conflict):
                    await self._store.delete(DELIVERIES, self._root, expected=self._document.version)
                self._document = None

    async def _put(self, record: TreeRecord, over: Document | None) -> None:
        expected = 0 if over is None else over.version
        self._document = await self._store.put(DELIVERIES, self._root, encode(record), expected=expected)
