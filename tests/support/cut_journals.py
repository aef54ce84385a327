"""A journal that ends after one of its events, as a killed kernel leaves it."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from ramet.core.events import Event, decode
from ramet.host.journal.journal import TREES
from ramet.store.contract import Entry
from ramet.store.memory import MemoryStore


async def cut_behind(store: MemoryStore, is_last: Callable[[Event], bool], nth: int = 1) -> MemoryStore:
    """Return a store with all events up to the `nth` for which `is_last` is true; no tree is marked as over."""
    await store.open()
    left = await MemoryStore().open()
    for each in await store.list(TREES):
        about = msgspec.json.decode(each.data)
        await left.put(TREES, each.key, msgspec.json.encode({**about, "over": False}))
    for event in await store.read(limit=10_000):
        left.append(Entry(event.tree, event.run, event.seq, event.type, event.data))
        nth -= is_last(decode(event.data))
        if not nth:
            break
    assert not nth, "there were fewer"
    await store.close()
    await left.close()
    return left
