"""Trees that cannot be read: found, and set aside, so that the other trees stay usable."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from ramet.core.errors import Damaged, DamagedTree, Unknown
from ramet.core.replay.replay import TreeReplay
from ramet.host.control.run_queries import JournalReader
from ramet.host.journal.journal import TREES
from ramet.host.journal.stored_events import location_of
from ramet.host.journal.ttl import Lifetime, read_lifetime
from ramet.host.session_ids import unregister
from ramet.store.contract import Document, Store

_MOST_KEPT = 100_000  #: bytes of a damaged document that are kept in its replacement


class JournalCheck(NamedTuple):
    """The readable and the damaged trees of a journal."""

    readable_count: int
    damage_errors: tuple[Damaged, ...]


async def check(records: JournalReader) -> JournalCheck:
    """Read every tree that was not set aside; return the number of readable trees, and all damage."""
    readable = 0
    for each in await records.store.list(TREES):
        try:
            read_lifetime(each, location_of(records.store))
        except DamagedTree as problem:
            records.damage_by_root[each.key] = problem
    for root in await records.trees(ended=True):
        replay = TreeReplay()
        try:
            async for event in records.events(root):
                replay.apply(event)
        except DamagedTree as problem:
            records.damage_by_root[root] = problem
        else:
            readable += root not in records.damage_by_root
    return JournalCheck(readable, tuple(records.damage_by_root.values()))


async def set_aside(store: Store, run: str, now: datetime) -> str:
    """Exclude a tree from listing and resuming, by its root or any of its runs; return its root's id. Raises Unknown.

    The events of the tree stay. The tree is over from now on, and is removed like others; the id of its session is free
    again. No other kernel may have the tree.
    """
    root = await _root_of(store, run)
    document = await store.get(TREES, root)
    facts = _known_facts(document) if document is not None else {}
    session = facts.get("session") or facts.get("was_session")  # A kill may have come before its id was released.
    new_facts = {**facts, "over": True, "ended": now, "set_aside": True, "session": None, "conversation": False}
    if session is not None:
        new_facts["was_session"] = session
    await store.put(
        TREES, root, msgspec.json.encode(new_facts), expected=document.version if document is not None else 0
    )
    if session is not None:
        await unregister(store, session, root)
    await store.release(root)
    return root


async def _root_of(store: Store, run: str) -> str:
    if await store.get(TREES, run) is not None:
        return run
    try:
        events = await store.read(run=run, limit=1)
    except DamagedTree as problem:
        return problem.tree
    if not events:
        raise Unknown("run", run)
    return events[0].tree


def _known_facts(tree: Document) -> dict[str, Any]:
    """Return the facts of a tree's document; of an unreadable document its text, under `damaged`."""
    try:
        msgspec.json.decode(tree.data, type=Lifetime)
        facts: dict[str, Any] = msgspec.json.decode(tree.data, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return {"damaged": tree.data[:_MOST_KEPT].decode("utf-8", "replace")}
    return facts
