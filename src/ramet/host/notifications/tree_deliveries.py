"""The notifications of one tree: which events become notifications for which target, and which of these are done.

Events come from the tree's recorder. Those that it did not report here, because another kernel had the tree or because
a queue was full, are read from the journal. Either way each target gets those of a run in order.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from ramet.core.errors import InvalidValue
from ramet.core.events import Event, decode
from ramet.host.notifications.delivery_queue import DeliveryQueue, Entry
from ramet.host.notifications.delivery_record import RecordWriter, TargetRecord
from ramet.host.notifications.notification import ANSWERED_TAG, KIND_BY_TAG, NotificationWriter, answered_approval
from ramet.store.contract import Store, StoredEvent

_PAGE: Final = 1_000  #: events that are read at a time
#: The tags of the events that matter to notifications.
TAGS: Final = frozenset((*KIND_BY_TAG, ANSWERED_TAG))

_log = logging.getLogger("ramet.notifications")


@dataclass(eq=False)
class _Line:
    """The notifications of one tree for one target."""

    queue: DeliveryQueue
    seen: int = 0  #: every event up to this number is queued, or needs no notification
    reported: int = 0  #: newest event that the recorder reported
    cursor: int = 0  #: of the newest event that was read from the journal
    is_behind: bool = False  #: events after `seen` are to be read from the journal
    waiting: set[int] = field(default_factory=set)  #: numbers of queued events that are not done
    delivered: set[int] = field(default_factory=set)  #: numbers of events that are done, above one that waits

    def record(self) -> TargetRecord:
        """Return what is done, and forget the numbers that its `seq` covers."""
        low = min(self.waiting) - 1 if self.waiting else self.seen
        self.delivered = {each for each in self.delivered if each > low}
        return TargetRecord(seq=low, delivered=tuple(sorted(self.delivered)))


class TreeDeliveries:
    """The notifications of one tree for all targets, from the first one until all are done."""

    def __init__(
        self,
        root: str,
        queues: Sequence[DeliveryQueue],
        writer: NotificationWriter,
        record: RecordWriter | None,
        on_done: Callable[[TreeDeliveries], None],
        on_behind: Callable[[TreeDeliveries, DeliveryQueue], None],
    ) -> None:
        """Prepare the deliveries. Without a `record`, whatever is not delivered ends with the process."""
        self.root, self.record = root, record
        self.closed_at: datetime | str | None = None  #: the end in the tree's document, once that has one
        self.is_noted = False  #: the tree's document says that everything was delivered
        self.last_seq = 0  #: newest event of the tree that is known here
        self._lines = {each.name: _Line(each) for each in queues}
        self._writer, self._on_done, self._on_behind = writer, on_done, on_behind
        self._is_ready = record is None
        self._early_events: list[Event] = []  #: reported before the record was taken

    @property
    def is_done(self) -> bool:
        """Return whether nothing known is left to be delivered."""
        return self._is_ready and not any(each.waiting or each.is_behind for each in self._lines.values())

    @property
    def is_lost(self) -> bool:
        """Return whether another notifier delivers the rest."""
        return self.record is not None and self.record.is_lost

    def close(self, ended: datetime | str, *, was_reported: bool) -> None:
        """Note that the tree is over: nothing more is reported. If it `was_reported`, all its events were."""
        self.closed_at = ended
        for line in self._lines.values():
            if not was_reported and self._is_ready and self.record is not None:
                line.is_behind = True
                self._on_behind(self, line.queue)
        self._check_done()

    def is_behind(self, queue: DeliveryQueue) -> bool:
        """Return whether events of a target are still to be read from the journal."""
        return self._lines[queue.name].is_behind

    async def take(self, *, by_force: bool, is_new: bool, starts: Mapping[str, int]) -> bool:
        """Take the record, and begin to deliver; return False if another notifier delivers.

        All events of a tree that `is_new` are reported here. `starts` has, by target, the number of the event after
        which a target begins that the record does not name.
        """
        assert self.record is not None, "there is a journal"
        before = await self.record.take(by_force=by_force)
        if before is None:
            return False
        for name, line in self._lines.items():
            known = before.targets.get(name)
            line.seen = starts.get(name, 0) if known is None else known.seq
            line.delivered = set() if known is None else set(known.delivered)
            line.is_behind = not is_new
        self._is_ready = True
        early_events, self._early_events = self._early_events, []
        for event in early_events:
            self.report(event)
        for line in self._lines.values():
            if line.is_behind:
                self._on_behind(self, line.queue)
        return True

    def report(self, event: Event) -> None:
        """Take an event that the recorder published. Does not wait."""
        self.last_seq = max(self.last_seq, event.seq)
        if not self._is_ready:
            self._early_events.append(event)
            return
        for line in self._lines.values():
            line.reported = max(line.reported, event.seq)
            if not line.is_behind and event.seq > line.seen and self._offer(line, event):
                line.seen = event.seq
            if line.is_behind:
                self._on_behind(self, line.queue)
        self._check_done()

    async def read(self, store: Store, queue: DeliveryQueue) -> None:
        """Read events of a target from the journal, as many as its queue has room for. Raises StoreFailed."""
        line = self._lines[queue.name]
        while line.is_behind and not self.is_lost:
            page = await store.read(line.cursor, tree=self.root, limit=_PAGE)
            for each in page:
                if each.seq > line.seen and each.type in TAGS:
                    event = _decode(each)
                    if event is not None and not self._offer(line, event):
                        return
                line.cursor, line.seen = each.cursor, max(line.seen, each.seq)
            self.last_seq = max(self.last_seq, line.seen)
            if len(page) < _PAGE and line.seen >= line.reported:
                line.is_behind = False
        self._check_done()

    def _offer(self, line: _Line, event: Event) -> bool:
        """Queue the notification about an event, if there is one; return False if the queue has no room."""
        if answered_id := answered_approval(event):
            for entry in line.queue.take_back(lambda each: each.approval == answered_id and each.order == event.run):
                line.waiting.discard(entry.seq)
                line.delivered.add(entry.seq)
                line.queue.outcomes["answered"] += 1
            return True
        target = line.queue.target
        if event.seq in line.delivered or not target.accepts(event):
            return True
        if not line.queue.has_room:
            if self.record is not None:
                line.is_behind = True
                return False
            line.queue.drop()
            return True
        notification = self._writer.from_event(event, with_text=target.with_text)
        assert notification is not None, "its kind is accepted"
        line.waiting.add(event.seq)
        line.queue.push(
            Entry(
                notification=notification,
                order=event.run,
                record=self._record_done(line),
                seq=event.seq,
                approval=notification.approval,
            )
        )
        return True

    def _record_done(self, line: _Line) -> Callable[[Entry], Awaitable[bool]]:
        async def record(entry: Entry) -> bool:
            line.waiting.discard(entry.seq)
            line.delivered.add(entry.seq)
            is_mine = await self._write()
            if not is_mine:
                self._give_up()
            self._check_done()
            return is_mine

        return record

    async def _write(self) -> bool:
        targets = {name: line.record() for name, line in self._lines.items()}
        return True if self.record is None else await self.record.write(targets)

    def _give_up(self) -> None:
        """Leave the rest to the notifier that has taken over."""
        for line in self._lines.values():
            line.queue.take_back(lambda each: each.seq in line.waiting and each.notification.tree == self.root)  # noqa: B023 - called at once
            line.waiting.clear()
            line.is_behind = False

    def _check_done(self) -> None:
        if self.closed_at is not None and self.is_done and not self.is_lost:
            self._on_done(self)


class TreeListener:
    """The listener to one tree's recorder: it knows the tree's root, and whether the tree began here."""

    def __init__(self, report: Callable[[Event, bool], None], close: Callable[[str], None]) -> None:
        """Set `report`, called with each event and whether the tree's first event was one, and `close`."""
        self._report, self._close = report, close
        self._first_seq, self._root = 0, ""

    def on_event(self, event: Event) -> None:
        """Pass an event on."""
        if not self._root:
            self._first_seq, self._root = event.seq, event.root
        self._report(event, self._first_seq == 1)

    def on_close(self) -> None:
        """Pass on that the tree was closed, unless it had no event."""
        if self._root:
            self._close(self._root)


class JournalFeeder:
    """A reader that fills the queue of one target from the journal, one tree after the other."""

    def __init__(self, queue: DeliveryQueue) -> None:
        self._queue = queue
        self._trees: dict[TreeDeliveries, None] = {}
        self._wake = asyncio.Event()
        queue.on_room = self._wake.set

    def add(self, tree: TreeDeliveries) -> None:
        """Read a tree when its turn comes."""
        if tree not in self._trees:
            self._trees[tree] = None
            self._wake.set()

    async def run(self, store: Store) -> None:
        """Read until cancelled. Raises StoreFailed."""
        while True:
            self._wake.clear()
            while self._trees and self._queue.has_room:
                tree = next(iter(self._trees))
                await tree.read(store, self._queue)
                del self._trees[tree]
                if tree.is_behind(self._queue):
                    self._trees[tree] = None
            await self._wake.wait()


def _decode(stored: StoredEvent) -> Event | None:
    """Return a stored event; None, after a line in the log, for one of a version that is not known here."""
    try:
        return decode(stored.data)
    except InvalidValue as problem:
        _log.error("there is no notification about event %d of tree %s: %s", stored.seq, stored.tree, problem)
        return None
