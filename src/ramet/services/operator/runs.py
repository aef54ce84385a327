"""The runs of a server's kernel according to its journal, running and ended."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import NamedTuple, Protocol

from msgspec.structs import replace

from ramet.core.errors import DamagedTree, InvalidValue, Unknown
from ramet.core.events import MailPushed, RunEnded, RunResumed, RunSpawned, StateChanged, TurnStarted
from ramet.core.replay.replay import TreeReplay
from ramet.host.control.operator import OperatorControl
from ramet.host.control.run_queries import LOOK_S, NO_SAMPLES, RunRow, SandboxUsage, rows_of
from ramet.host.journal.blobs import load_blob
from ramet.host.journal.journal import TREES
from ramet.host.journal.stored_events import decode_stored, replay_tree, stored_events
from ramet.host.journal.ttl import Lifetime, lifetimes_of
from ramet.services.operator.contract import MOST, EventOptions, Paging, RunFilter, RunPage
from ramet.services.turns.tree_events import TreeEvent, require_local_owner
from ramet.store.contract import Store, StoredEvent

_log = logging.getLogger("ramet.services")
_BLOB_NAME = re.compile(r"[0-9a-f]{64}\Z")
PAGE = 1_000  #: events that are read at a time
IsElsewhere = Callable[[str], Awaitable[bool]]
AgentPaths = Callable[[], Mapping[str, str]]


class RecordedTrees(Protocol):
    """The journal of a running kernel, or one that is only read."""

    @property
    def store(self) -> Store:
        """The open store."""

    @property
    def living(self) -> Collection[str]:
        """The roots of the trees that are active."""


class RunPlace(NamedTuple):
    """The tree of a run, and the run's path there."""

    root: str
    path: str


class RunViews:
    """Queries of recorded runs. Everything that runs of this kernel have sent is recorded before a query."""

    def __init__(
        self,
        journal: RecordedTrees,
        steering: OperatorControl,
        is_elsewhere: IsElsewhere,
        agent_paths: AgentPaths = lambda: {},
        samples: Callable[[], Mapping[str, SandboxUsage]] = lambda: NO_SAMPLES,
    ) -> None:
        """Keep `journal` open during the use of the views. `is_elsewhere` returns whether another kernel runs a tree.

        `agent_paths` returns the paths of the server's agents, by the roots of their trees, `samples` the newest
        measurements of processes, by run.
        """
        self._journal, self._steering, self._is_elsewhere = journal, steering, is_elsewhere
        self._agent_paths, self._samples = agent_paths, samples
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
        start = next((index for index, (root, _) in enumerate(roots) if root == last), 0)
        page_rows: list[RunRow] = []
        for root, lifetime in roots[start:]:
            if request.ended or not lifetime.over or root == last:
                try:
                    tree_rows = await self._rows(root)
                except DamagedTree as problem:
                    if root not in self._damaged_roots:
                        _log.error("a tree is skipped: %s", problem)
                    self._damaged_roots.add(root)
                    continue
                rows = _rows_after(tree_rows, request.after if root == last else "")
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
        run, replay = None if request.tree else id, TreeReplay()
        cursor = 0 if request.follow else request.after  # To follow, the earlier ends must be known.
        while True:
            is_live = root in self._journal.living
            if not is_live:
                await self._wait_persisted(root)
            head = await self._store.head()  # Read before the events, so that no event is missed.
            async with aclosing(stored_events(self._store, root, run=run, after=cursor, page=PAGE)) as events:
                async for each in events:
                    if request.follow and ends_or_wakes(each, replay):
                        replay.apply(decode_stored(self._store, each))
                    cursor = each.cursor
                    if cursor > request.after:
                        yield TreeEvent(cursor, each.data)
            if not request.follow or (replay.runs and replay.is_over):
                return
            if not is_live:
                await require_local_owner(self._store, root)
                return
            await self._store.wait(head, timeout_s=LOOK_S)

    async def blob(self, id: str, name: str) -> bytes:
        """Return bytes that a message of the tree of a run names by their hash, such as an image.

        Raises InvalidValue for a name that is no hash, and Unknown for a blob that this tree does not have.
        """
        if not _BLOB_NAME.match(name):
            raise InvalidValue("blob", name[:100], "the hash of a blob: 64 digits from 0 to f")
        content = await load_blob(self._store, await self.tree_of(id), name)
        if content is None:
            raise Unknown("blob", name)
        return content

    async def replay(self, id: str) -> TreeReplay:
        """Return the replay of the tree that contains a run. Raises Unknown."""
        return await replay_tree(self._store, await self.tree_of(id), page=PAGE)

    async def tree_of(self, run: str) -> str:
        """Return the root of the tree that contains a run. Raises Unknown."""
        return (await self._first_event(run)).tree

    async def place_of(self, run: str) -> RunPlace:
        """Return where a run is. Raises Unknown."""
        first = await self._first_event(run)
        return RunPlace(first.tree, decode_stored(self._store, first).path)

    async def _first_event(self, run: str) -> StoredEvent:
        await self._wait_persisted(run)
        events = await self._store.read(run=run, limit=1) if "\0" not in run else []
        if not events:
            raise Unknown("run", run, tuple(self._journal.living)[-20:])
        return events[0]

    async def _roots(self) -> list[tuple[str, Lifetime]]:
        """Return each recorded tree that was not set aside, in the order of their beginnings."""
        lifetimes = [each for each in lifetimes_of(await self._store.list(TREES)).items() if not each[1].set_aside]
        return sorted(lifetimes, key=lambda each: (each[1].began, each[0]))

    async def _rows(self, root: str) -> list[RunRow]:
        replay = await replay_tree(self._store, root, page=PAGE)
        is_here = root in self._journal.living
        streaming = self._steering.streaming(root) if is_here else {}
        is_active = is_here or await self._is_elsewhere(root)
        rows = rows_of(replay, is_active=is_active, streaming=streaming, samples=self._samples())
        path = self._agent_paths().get(root)
        return rows if path is None else [replace(row, agent_path=path) for row in rows]

    async def _wait_persisted(self, run: str) -> None:
        """Wait until the work of a run of this kernel is recorded, also if the run has just ended."""
        with suppress(Unknown):
            await self._steering.find(run).run.context.wait_persisted()


def ends_or_wakes(stored: StoredEvent, replay: TreeReplay) -> bool:
    """Return whether a replay needs an event to know which runs have ended. The text of other mail is not kept."""
    if stored.type == _MAIL:
        return stored.run in replay.runs and replay.runs[stored.run].is_over
    return stored.type in _LIFECYCLE


_MAIL = str(MailPushed.__struct_config__.tag)
_LIFECYCLE = frozenset(
    str(each.__struct_config__.tag) for each in (RunSpawned, RunResumed, StateChanged, TurnStarted, RunEnded)
)


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
