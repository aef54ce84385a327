"""Where a store is checked: a place that is empty at first, and can be opened again and from beside."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from ramet.store.contract import Entry, Store, StoredEvent

PATIENCE_S = 60.0  #: how long anything that must happen may take; passed in full only by a store that fails


class Violation(AssertionError):
    """A store that does not do what the contract promises."""


class NotHere(Exception):
    """A promise that this store does not make: says why."""


@dataclass(frozen=True)
class StoreFixture:
    """Where one store is, empty at first.

    `make` gives a store there that is not open yet: another object each time, except for one that is kept in memory.
    `watch` gives one that only reads, as another process would; None where no other process can. `another` gives the
    store of a further kernel of that name; None where there is exactly one.
    """

    make: Callable[[], Store]
    watch: Callable[[], Store] | None = None
    another: Callable[[str], Store] | None = None

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[Store]:
        """The store, open; closed in the end."""
        store = self.make()
        try:
            yield await store.open()
        finally:
            await store.close()

    @contextlib.asynccontextmanager
    async def beside(self) -> AsyncIterator[Store]:
        """One that reads, open. Raises NotHere."""
        if self.watch is None:
            raise NotHere("no other process can see it")
        store = self.watch()
        try:
            yield await store.open()
        finally:
            await store.close()

    @contextlib.asynccontextmanager
    async def kernel(self, name: str) -> AsyncIterator[Store]:
        """That of a further kernel, open. Raises NotHere."""
        if self.another is None:
            raise NotHere("there is exactly one kernel")
        store = self.another(name)
        try:
            yield await store.open()
        finally:
            await store.close()


Check = Callable[[StoreFixture], Awaitable[None]]


def holds(condition: object, promise: str) -> None:
    """Raises Violation, with the promise, unless the condition holds."""
    if not condition:
        raise Violation(promise)


async def raises(kind: type[Exception], what: Awaitable[object], promise: str) -> Any:
    """The error that `what` ends with. Raises Violation if there is none, or another."""
    try:
        came = await what
    except kind as error:
        return error
    except Exception as error:
        raise Violation(f"{promise}: {kind.__name__} was promised, {error!r} came") from error
    raise Violation(f"{promise}: {kind.__name__} was promised, {came!r} came")


def raises_now(kind: type[Exception], what: Callable[[], object], promise: str) -> None:
    """Likewise, for what does not wait."""
    try:
        came = what()
    except kind:
        return
    except Exception as error:
        raise Violation(f"{promise}: {kind.__name__} was promised, {error!r} came") from error
    raise Violation(f"{promise}: {kind.__name__} was promised, {came!r} came")


def entry(number: int, *, tree: str = "tree", run: str = "run", data: bytes | None = None) -> Entry:
    """An entry like any other."""
    return Entry(tree, run, number, "notice", b'{"n":%d}' % number if data is None else data)


def told(events: list[StoredEvent]) -> list[Entry]:
    """What was appended, of what is read."""
    return [Entry(*event[1:]) for event in events]


async def keep(store: Store, *entries: Entry) -> int:
    """Append, and wait until all of it is durable; the last ticket."""
    ticket = 0
    for each in entries:
        ticket = store.append(each)
    await store.durable(ticket)
    return ticket


async def cancelled(task: asyncio.Future[Any]) -> bool:
    """Cancel a task, wait for its end, and say whether it was cancelled."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError, Exception):
        await task
    return task.cancelled()


async def comes_true(condition: Callable[[], Awaitable[object]], promise: str) -> None:
    """Return once the condition holds; what never does fails by the time that a check has."""
    for _ in range(int(PATIENCE_S / 0.005)):
        if await condition():
            return
        await asyncio.sleep(0.005)
    raise Violation(promise)
