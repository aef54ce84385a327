"""Trees whose notifications nobody sends: their process was killed, or ended before everything was delivered."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any

from msgspec import Struct

from ramet.core.errors import Damaged
from ramet.host.journal.journal import TREES
from ramet.host.notifications.delivery_record import DELIVERIES, TreeRecord, living_notifiers
from ramet.store.contract import Store


class TreeFacts(Struct, frozen=True, kw_only=True):
    """The facts in a tree's document that matter to notifications."""

    notify: tuple[str, ...] = ()  #: targets that were configured when the tree began
    notified: dict[str, Any] = {}  #: `seq`: newest event at that end of the tree, whose time is `ended`
    over: bool = False
    ended: str | None = None

    def has_rest(self, longest: timedelta, now: datetime) -> bool:
        """Return whether something may have to be delivered that is not older than `longest`."""
        if not self.over or self.ended is None:
            return True
        is_done = self.notified.get("ended") == self.ended
        return not is_done and datetime.fromisoformat(self.ended) + longest >= now

    def starts(self, names: Collection[str], newest: int) -> dict[str, int]:
        """Return the event after which each target begins: a target that is new begins after the newest one."""
        known = int(self.notified.get("seq", 0))
        return {name: known if name in self.notify else newest for name in names}


async def unsent_trees(
    store: Store, handled: Collection[str], names: Collection[str], longest: timedelta, now: datetime
) -> list[str]:
    """Return the trees with notifications to these targets that nobody sends, except for trees in `handled`.

    Trees of other living kernels are theirs. Records of trees that need none are removed. Raises StoreFailed.
    """
    records = {each.key: each.decode(TreeRecord) for each in await store.list(DELIVERIES)}
    living = await living_notifiers(store, [each.notifier for each in records.values()]) if records else set[str]()
    unsent = list[str]()
    documents = await store.list(TREES)
    for document in documents:
        root, record = document.key, records.get(document.key)
        if root in handled or (record is not None and record.notifier in living):
            continue
        try:
            facts = document.decode(TreeFacts)
        except Damaged:  # The operation that resumes all trees reports it.
            continue
        known_names = {*facts.notify, *(record.targets if record is not None else ())}
        if not facts.has_rest(longest, now):
            if record is not None:
                await store.delete(DELIVERIES, root)
        elif known_names.isdisjoint(names):
            continue
        elif facts.over or not await _is_elsewhere(store, root):
            unsent.append(root)
    for root in records.keys() - {each.key for each in documents}:  # Their trees were removed.
        if records[root].notifier not in living:
            await store.delete(DELIVERIES, root)
    return unsent


async def _is_elsewhere(store: Store, root: str) -> bool:
    """Return whether another living kernel has a tree."""
    owner = await store.owner_of(root)
    return owner is not None and owner.alive and owner.name != store.kernel


async def newest_seq(store: Store, root: str) -> int:
    """Return the number of a tree's newest event."""
    newest, cursor = 0, 0
    while page := await store.read(cursor, tree=root):
        newest, cursor = page[-1].seq, page[-1].cursor
    return newest


def end_facts(seq: int, ended: datetime | str | None) -> Mapping[str, Any]:
    """Return the facts for the document of a tree of which everything was delivered up to its end."""
    return {"notified": {"seq": seq, "ended": ended}}
