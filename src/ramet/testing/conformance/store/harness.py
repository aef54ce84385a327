"""The environment of a store check: a store that is empty at first, and can be opened again and concurrently."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from ramet.store.contract import Entry, Store, StoredEvent
from ramet.testing.conformance.checks import NotHere, Violation

PATIENCE_S = 60.0  #: the time limit for any event that must happen; only a failing store needs all of it


@dataclass(frozen=True)
class StoreFixture:
    """Access to one store, empty at first.

    `make` returns the store, not open yet: another object each time, except for a store in memory. `make_reader`
    returns a read-only store, as another process would open it; None where no other process can. `make_kernel` returns
    the store of a further kernel with the given name; None where there is exactly one kernel.
    """

    make: Callable[[], Store]
    make_reader: Callable[[], Store] | None = None
    make_kernel: Callable[[str], Store] | None = None

    def open(self) -> AbstractAsyncContextManager[Store]:
        """Open the store, and close it afterwards."""
        return _opened(self.make())

    def open_reader(self) -> AbstractAsyncContextManager[Store]:
        """Open a read-only store concurrently. Raises NotHere."""
        if self.make_reader is None:
            raise NotHere("no other process can read this store")
        return _opened(self.make_reader())

    def open_kernel(self, name: str) -> AbstractAsyncContextManager[Store]:
        """Open the store of a further kernel. Raises NotHere."""
        if self.make_kernel is None:
            raise NotHere("there is exactly one kernel")
        return _opened(self.make_kernel(name))


@contextlib.asynccontextmanager
async def _opened(store: Store) -> AsyncIterator[Store]:
    try:
        yield await store.open()
    finally:
        await store.close()


Check = Callable[[StoreFixture], Awaitable[None]]


def entry(number: int, *, tree: str = "tree", run: str = "run", data: bytes | None = None) -> Entry:
    """Return an ordinary entry."""
    return Entry(tree, run, number, "notice", b'{"n":%d}' % number if data is None else data)


def entries_of(events: list[StoredEvent]) -> list[Entry]:
    """Return the appended entries of read events."""
    return [Entry(*event[1:]) for event in events]


async def append_durably(store: Store, *entries: Entry) -> int:
    """Append entries, wait until all are durable, and return the last ticket."""
    ticket = 0
    for each in entries:
        ticket = store.append(each)
    await store.durable(ticket)
    return ticket


async def cancel_and_wait(task: asyncio.Future[Any]) -> bool:
    """Cancel a task, wait for its end, and return whether it was cancelled."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError, Exception):
        await task
    return task.cancelled()


async def wait_until(condition: Callable[[], Awaitable[object]], promise: str) -> None:
    """Wait until the condition holds. If it never does, the check fails at its own time limit."""
    for _ in range(int(PATIENCE_S / 0.005)):
        if await condition():
            return
        await asyncio.sleep(0.005)
    raise Violation(promise)
