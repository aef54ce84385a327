"""The recorded events of a tree: read page by page, decoded, and replayed.

An event that cannot be decoded is an error that names its file, tree and cursor.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

from ramet.core import events
from ramet.core.errors import DamagedTree, InvalidValue
from ramet.core.events import Event
from ramet.core.replay import codec
from ramet.core.replay.replay import TreeReplay
from ramet.store.contract import Store, StoredEvent

PAGE = 10_000  #: events that are read at once


async def stored_pages(
    store: Store, tree: str, *, run: str | None = None, after: int = 0, page: int = PAGE
) -> AsyncGenerator[list[StoredEvent]]:
    """Yield the events of a tree, or of one run of it, behind a cursor, in order, in lists of at most `page` events."""
    more = True
    while more:
        stored = await store.read(after, tree=tree, run=run, limit=page)
        yield stored
        if more := len(stored) == page:
            after = stored[-1].cursor


async def stored_events(
    store: Store, tree: str, *, run: str | None = None, after: int = 0, page: int = PAGE
) -> AsyncGenerator[StoredEvent]:
    """Yield the events of a tree, or of one run of it, behind a cursor, in order; `page` of them are read at once."""
    async for stored in stored_pages(store, tree, run=run, after=after, page=page):
        for each in stored:
            yield each


async def replay_tree(store: Store, tree: str, *, at: int | None = None, page: int = PAGE) -> TreeReplay:
    """Return the recorded state of a tree, up to an event's number. Raises DamagedTree, also for a newer event."""
    replay = TreeReplay()
    async for stored in stored_pages(store, tree, page=page):
        for each in stored:
            if at is not None and each.seq > at:
                continue
            if each.type in codec.IGNORED_TAGS:
                replay.skip(each.seq)
                continue
            try:
                replay.apply(codec.decode(each.data))
            except InvalidValue as problem:  # Messages are checked as they are replayed.
                raise damage_error(store, each, problem) from None
    return replay


def decode_stored(store: Store, stored: StoredEvent) -> Event:
    """Return the event that a store keeps. Raises DamagedTree for bytes that are not an event of this version."""
    try:
        return events.decode(stored.data)
    except InvalidValue as problem:
        raise damage_error(store, stored, problem) from None


def damage_error(store: Store, stored: StoredEvent, problem: InvalidValue) -> DamagedTree:
    """Return the error for a stored event whose content is not accepted."""
    return DamagedTree(stored.tree, location_of(store), f"it is not {problem.accepted}", cursor=stored.cursor)


def location_of(store: Store) -> str:
    """Return the location of a store, for errors: the path of its file, if it has one."""
    return str(getattr(store, "path", store.name))
