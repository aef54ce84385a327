"""The runs of a server's kernel according to its journal, running and ended."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from msgspec.structs import replace

from ramet.core.errors import DamagedTree, InvalidValue, Unknown
from ramet.core.events import MailPushed, RunEnded, RunResumed, RunSpawned, TurnStarted, decode
from ramet.core.replay.replay import TreeReplay
from ramet.host.control.operator import OperatorControl
from ramet.host.control.run_queries import LOOK_S, RunRow, TreeFold
from ramet.host.journal.journal import TREES, Journal
from ramet.host.journal.stored_events import decode_stored
from ramet.host.journal.ttl import lifetimes_of
from ramet.services.operator.contract import MOST, EventOptions, Paging, RunFilter, RunPage
from ramet.services.turns.tree_events import TreeEvent, require_local_owner
from ramet.store.contract import Store, StoredEvent

_log = logging.getLogger("ramet.services")
PAGE = 1_000  #: events that are read at a time
IsElsewhere = Callable[[str], Awaitable[bool]]
AgentPaths = Callable[[], Mapping[str, str]]


class _Root(NamedTuple):
    id: str
    is_over: bool


class RunViews:
    """Queries of recorded runs. Everything that runs of this kernel have sent is recorded before a query."""

    def __init__(
        self,
        journal: Journal,
        steering: OperatorControl,
        is_elsewhere: IsElsewhere,
        agent_paths: AgentPaths = lambda: {},
    ) -> None:
        """Keep `journal` open during the use of the views. `is_elsewhere` returns whether another kernel runs a tree.

        `agent_paths` returns the paths of the server's agents, by the roots of their trees.
        """
        self._journal, self._steering, self._is_elsewhere = journal, steering, is_elsewhere
        self._agent_paths = agent_paths
        self._damaged_roots = set[str]()  #: roots of damaged trees that were logged

    @property
    def _store(self) -> Store:
        return self._journal.store

    async def runs(self, request: RunFilter) -> RunPage:
        """Return a page of all runs, those of the oldest tree first.

        Raises InvalidValue, and Unknown for an unknown `after`. A tree that cannot be read is skipped, and logged once.
        Without `ended`, the page has only runs that have not ended: running, waiting, or interrupted.
        """
        limit, roots = checked_limit(request.limit), await self._roots()
        last = await self.tree_of(request.after) if request.after else ""
        start = next((index for index, each in enumerate(roots) if each.id == last), 0)
        page_rows: list[RunRow] = []
        for root in roots[start:]:
            if request.ended or not root.is_over or root.id == last:
                try:
                    tree_rows = await self._rows(root.id)
                except DamagedTree as problem:
                    if root.id not in self._damaged_roots:
                        _log.error("a tree is skipped: %s", problem)
                    self._damaged_roots.add(root.id)
                    continue
                rows = _rows_after(tree_rows, request.after if root.id == last else "")
                page_rows += [row for row in rows if request.ended or not row.is_over]
            if len(page_rows) > limit:
                break
        return _page(page_rows, limit)

    async def run(self, id: str) -> RunRow:
        """Return one run, with its result. Raises Unknown."""
        return next(row for row in await self._rows(await self.tree_of(id)) if row.id == id)

    async def tree(self, id: str, request: Paging) -> RunPage:
        """Return a page of the runs of the same tree, in the order of their spawns. Raises Unknown."""
        limit = checked_limit(request.limit)
        return _page(_rows_after(await self._rows(await self.tree_of(id)), request.after), limit)

    async def events(self, id: str, request: EventOptions) -> AsyncGenerator[TreeEvent]:
        """Yield the recorded events of a run, or of its tree, after a cursor; with `follow`, also new ones.

        The stream ends with the run, with all runs of the tree, or when the tree ends in this kernel. Raises Unknown,
        and OwnedElsewhere if the tree continues in another kernel.
        """
        root = await self.tree_of(id)
        run, ends = None if request.tree else id, _Ends()
        cursor = 0 if request.follow else request.after  # To follow, the earlier ends must be known.
        while True:
            is_live = root in self._journal.living
            if not is_live:
                await self._wait_persisted(root)
            head = await self._store.head()  # Read before the events, so that no event is missed.
            while page := await self._store.read(cursor, tree=root, run=run, limit=PAGE):
                for each in page:
                    ends.tell(each)
                    if each.cursor > request.after:
                        yield TreeEvent(each.cursor, each.data)
                cursor = page[-1].cursor
            if not request.follow or ends.is_over:
                return
            if not is_live:
                await require_local_owner(self._store, root)
                return
            await self._store.wait(head, timeout_s=LOOK_S)

    async def replay(self, id: str) -> TreeReplay:
        """Return the replay of the tree that contains a run. Raises Unknown."""
        return (await self._fold(await self.tree_of(id))).replay

    async def tree_of(self, run: str) -> str:
        """Return the root of the tree that contains a run. Raises Unknown."""
        await self._wait_persisted(run)
        events = await self._store.read(run=run, limit=1) if "\0" not in run else []
        if not events:
            raise Unknown("run", run, tuple(self._journal.living)[-20:])
        return events[0].tree

    async def _roots(self) -> list[_Root]:
        """Return each recorded tree that was not set aside, in the order of their beginnings."""
        lifetimes = sorted(
            lifetimes_of(await self._store.list(TREES)).items(), key=lambda each: (each[1].began, each[0])
        )
        return [_Root(id, about.over) for id, about in lifetimes if not about.set_aside]

    async def _rows(self, root: str) -> list[RunRow]:
        fold = await self._fold(root)
        rows = fold.rows(root in self._journal.living or await self._is_elsewhere(root))
        path = self._agent_paths().get(root)
        return rows if path is None else [replace(row, agent_path=path) for row in rows]

    async def _fold(self, root: str) -> TreeFold:
        fold = TreeFold()
        async for each in self._read_events(root):
            fold.apply(decode_stored(self._store, each))
        return fold

    async def _read_events(self, root: str) -> AsyncIterator[StoredEvent]:
        after = 0
        while page := await self._store.read(after, tree=root, limit=PAGE):
            for each in page:
                yield each
            after = page[-1].cursor

    async def _wait_persisted(self, run: str) -> None:
        """Wait until the work of a run of this kernel is recorded, also if the run has just ended."""
        with suppress(Unknown):
            await self._steering.find(run).run.context.wait_persisted()


class _Ends:
    """The runs that have ended, like `ramet.core.replay.replay`, but without decoding all events."""

    def __init__(self) -> None:
        self.ended_by_run: dict[str, bool] = {}

    @property
    def is_over(self) -> bool:
        """True if all runs have ended."""
        return bool(self.ended_by_run) and all(self.ended_by_run.values())

    def tell(self, stored_event: StoredEvent) -> None:
        """Process the next event."""
        if stored_event.type == _TAGS[RunEnded]:
            self.ended_by_run[stored_event.run] = True
        elif stored_event.type in _BEGINS or (self.ended_by_run.get(stored_event.run) and _wakes(stored_event)):
            self.ended_by_run[stored_event.run] = False


_TAGS = {each: str(each.__struct_config__.tag) for each in (RunSpawned, TurnStarted, RunResumed, RunEnded, MailPushed)}
_BEGINS = frozenset(_TAGS[each] for each in (RunSpawned, TurnStarted, RunResumed))


def _wakes(stored_event: StoredEvent) -> bool:
    """Return whether an event is mail that wakes an ended run."""
    event = decode(stored_event.data) if stored_event.type == _TAGS[MailPushed] else None
    return isinstance(event, MailPushed) and event.kind not in ("notice", "note")


def checked_limit(limit: int) -> int:
    """Return the number of entries of a page. Raises InvalidValue."""
    if not 1 <= limit <= MOST:
        raise InvalidValue("limit", limit, f"a whole number from 1 to {MOST}")
    return limit


def _rows_after(rows: Sequence[RunRow], after: str) -> Sequence[RunRow]:
    """Return the rows after the run of that id. Raises Unknown if it is not one of the rows."""
    if not after:
        return rows
    for index, row in enumerate(rows):
        if row.id == after:
            return rows[index + 1 :]
    raise Unknown("run", after)


def _page(rows: Sequence[RunRow], limit: int) -> RunPage:
    page_rows = [replace(row, result=None) for row in rows[:limit]]
    return RunPage(runs=page_rows, more=page_rows[-1].id if len(rows) > limit else "")
