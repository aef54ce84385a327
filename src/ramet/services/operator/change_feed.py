"""The changes of all runs as messages for a reader: first a whole picture, or what changed after a cursor."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import NamedTuple

import msgspec

from ramet.core.errors import InvalidValue
from ramet.host.journal.journal import TREES
from ramet.host.journal.ttl import lifetimes_of
from ramet.services.operator.changes import ChangeOptions
from ramet.services.operator.live_rows import Activity, LiveRows, RunEntry
from ramet.services.operator.tree_rows import PAGE, TreeRows
from ramet.store.contract import Store

ROWS = 500  #: of one message
MISSED_EVENTS = 100_000  #: a reader that missed more gets a whole picture
_CURSOR = re.compile(r"(\d{1,18})(?:-([0-9a-f]{8}))?")


class ChangeMessage(NamedTuple):
    """A message as JSON. A reader resumes after its cursor, or after that of an earlier message if it has none."""

    cursor: str
    data: bytes


class _Point(NamedTuple):
    """The progress of the rows of all runs at a moment."""

    version: int
    position: int
    events: int


class ChangeFeed:
    """The feed of a kernel's changes. Its rows are kept current only while it has readers."""

    def __init__(self, store: Callable[[], Store], activity: Activity) -> None:
        """Set `store`, which returns the open store."""
        self._store, self._activity = store, activity
        self.live: LiveRows | None = None  #: None without readers

    async def changes(
        self, options: ChangeOptions, root: str = "", path: str = ""
    ) -> AsyncGenerator[ChangeMessage, None]:
        """Yield messages without an end: of all runs, or of the run at a path of a tree and of all below it.

        Raises InvalidValue, StoreFailed.
        """
        position, epoch = parse_cursor(options.after)
        async with self._join() as live:
            reader = _Reader(live, options, root, path)
            async with aclosing(reader.messages(position, epoch)) as messages:
                async for each in messages:
                    yield each

    @asynccontextmanager
    async def _join(self) -> AsyncGenerator[LiveRows]:
        if self.live is None or self.live.failure is not None:
            self.live = LiveRows(self._store(), self._activity)
            self.live.start()
        live = self.live
        live.reader_count += 1
        try:
            await live.wait_loaded()
            yield live
        finally:
            live.reader_count -= 1
            if not live.reader_count:
                self.live = None if self.live is live else self.live
                await live.stop()


def parse_cursor(cursor: str) -> tuple[int, str]:
    """Return the position in the journal, and the name of the rows that were kept current then. Raises InvalidValue."""
    if not cursor:
        return 0, ""
    if (match := _CURSOR.fullmatch(cursor)) is None:
        raise InvalidValue("after", cursor, "the id of a message that was sent, or nothing")
    return int(match[1]), match[2] or ""


class _Reader:
    """A reader, and what it has been sent."""

    def __init__(self, live: LiveRows, options: ChangeOptions, root: str, path: str) -> None:
        self._live, self._options, self._root, self._path = live, options, root, path
        self._version = self._events = 0
        self._position = 0  #: in the journal: everything before it was sent

    async def messages(self, position: int, epoch: str) -> AsyncGenerator[ChangeMessage]:
        """Yield the messages after a position in the journal; after 0, a whole picture first."""
        self._position, self._events = position, self._live.events
        async with aclosing(self._since(epoch) if position else self._whole()) as beginning:
            async for each in beginning:
                yield each
        while True:
            await asyncio.sleep(self._options.interval_ms / 1000)
            await self._live.wait(self._version)
            if self._version < self._live.dropped:
                async with aclosing(self._since(self._live.epoch)) as missed:
                    async for each in missed:
                        yield each
            else:
                for each in self._batch(self._live.changed_after(self._version), self._point()):
                    yield each

    async def _whole(self, *, reset: bool = False) -> AsyncGenerator[ChangeMessage]:
        """Yield all rows; with `reset`, the reader drops those that it has."""
        live, point = self._live, self._point()
        closed = {root for root, each in live.trees.items() if each.is_closed}
        entries = [each for each in live.entries.values() if self._options.ended or each.tree.root not in closed]
        if self._options.ended:
            documents = lifetimes_of(await live.store.list(TREES))
            roots = [root for root, each in documents.items() if not each.set_aside and root not in live.trees]
            for root in sorted(roots, key=lambda each: (documents[each].began, each)):
                if self._root in ("", root) and (loaded := await live.read_tree(root)) is not None:
                    for rows in _parts(self._rows_of(loaded[0])):
                        yield self._message(rows, complete=False, reset=reset)
                        reset = False
        for each in self._batch(entries, point, complete=False, reset=reset, always=True):
            yield each

    async def _since(self, epoch: str) -> AsyncGenerator[ChangeMessage]:
        """Yield the rows that changed after the position of this reader."""
        live, position, point = self._live, self._position, self._point()
        missed = await self._missed_runs(position)
        if missed is None or position > await live.store.head():
            async with aclosing(self._whole(reset=True)) as messages:
                async for each in messages:
                    yield each
            return
        for root, runs in missed.items():
            if (loaded := await live.read_tree(root)) is not None:
                upwards = {above.id for run in runs for above in loaded[0].upwards(run)}
                for rows in _parts(self._rows_of(loaded[0], upwards)):
                    yield self._message(rows)
        # While nobody followed, trees may have become active, or inactive: no event reports that.
        was_followed = epoch == live.epoch
        entries = [
            entry
            for entry in live.entries.values()
            if entry.cursor > position or not (was_followed or entry.tree.runs[entry.run].is_over)
        ]
        for each in self._batch(entries, point, always=True):
            yield each

    async def _missed_runs(self, position: int) -> dict[str, set[str]] | None:
        """Return the runs with events after a position whose trees have no entries; None if there are too many."""
        missed, count = dict[str, set[str]](), 0
        while count < MISSED_EVENTS:
            page = await self._live.store.read(position, limit=PAGE)
            count += len(page)
            for each in page:
                position = each.cursor
                if self._root in ("", each.tree):
                    missed.setdefault(each.tree, set()).add(each.run)
            if len(page) < PAGE:
                return {root: runs for root, runs in missed.items() if root not in self._live.trees}
        return None

    def _point(self) -> _Point:
        return _Point(self._live.version, self._live.cursor, self._live.events)

    def _batch(
        self,
        entries: Iterable[RunEntry],
        point: _Point,
        *,
        complete: bool = True,
        reset: bool = False,
        always: bool = False,
    ) -> Iterator[ChangeMessage]:
        """Yield the rows of entries as of a point. The last message has a cursor, and `complete` is for the others.

        If there are none, there is a message only with `always`.
        """
        live = self._live
        wanted = sorted((each for each in entries if self._is_wanted(each.tree, each.run)), key=lambda each: each.order)
        removed = [
            root for root, at in live.removed.items() if complete and at > self._version and self._root in ("", root)
        ]
        last = max(0, len(wanted) - 1) // ROWS * ROWS
        for start in range(0, last, ROWS):
            rows = [live.row(each) for each in wanted[start : start + ROWS]]
            yield self._message(rows, complete=complete, reset=reset)
            reset = False
        events, self._events = point.events - self._events, point.events
        self._version, self._position = point.version, point.position
        if wanted or removed or always:
            rows = [live.row(each) for each in wanted[last:]]
            cursor = f"{point.position}-{live.epoch}"
            yield self._message(rows, removed, events, reset=reset, cursor=cursor)

    def _is_wanted(self, tree: TreeRows, run: str) -> bool:
        if not self._root:
            return True
        path = tree.runs[run].spawn_event.path
        return tree.root == self._root and (path == self._path or path.startswith(f"{self._path}/"))

    def _rows_of(self, tree: TreeRows, only: Collection[str] | None = None) -> list[bytes]:
        """Return the rows of a tree without entries."""
        runs = [run for run in tree.runs if (only is None or run in only) and self._is_wanted(tree, run)]
        return [msgspec.json.encode(tree.row(run, None)) for run in runs]

    def _message(
        self,
        rows: Sequence[bytes],
        removed: Sequence[str] = (),
        events: int = 0,
        *,
        complete: bool = True,
        reset: bool = False,
        cursor: str = "",
    ) -> ChangeMessage:
        rest = {"removed": removed, "events": events, "complete": complete, **({"reset": True} if reset else {})}
        data = b'{"runs":[%s],%s' % (b",".join(rows), msgspec.json.encode(rest)[1:])
        return ChangeMessage(cursor, data)


def _parts(rows: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    for start in range(0, len(rows), ROWS):
        yield rows[start : start + ROWS]
