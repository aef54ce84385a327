"""The rows of all runs of open trees, kept current for any number of readers.

They follow the journal, with one entry for each run, in the order of the newest changes. A reader holds only a number:
how many changes it has seen. So changes coalesce for a slow reader, and its slowness costs nothing here. A row is
computed when a reader needs it, once for all readers.

The entries of a tree that has ended are dropped after a while. A reader that has not seen its end by then reads the
journal from its own cursor on, like a reader that returns after a break.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import msgspec

from ramet.core.errors import Bug, DamagedTree, RametError
from ramet.host.control.run_queries import SandboxUsage
from ramet.host.journal.journal import TREES
from ramet.host.journal.ttl import lifetimes_of
from ramet.services.operator.tree_rows import PAGE, TreeRows
from ramet.store.contract import Store, StoredEvent

_log = logging.getLogger("ramet.services")
TICK_S = 0.05  #: the shortest time between two reads of the journal
SAMPLE_S = 2.0  #: seconds between measurements of processes
CHECK_S = 1.0  #: seconds between searches for changes that no event reports
LIST_S = 10.0  #: seconds between searches for trees that were removed
OWNERS = 20  #: trees of other kernels whose owners are checked at a time
ENDED_RUNS, ENDED_S = 2_000, 10.0  #: more entries of ended trees are dropped, that many seconds after the end
REMOVED = 10_000  #: removed trees that are remembered


class Activity(Protocol):
    """The state of trees that no event reports: which are active now, and which replies stream."""

    def is_here(self, root: str) -> bool:
        """Return whether a tree is active in this kernel."""

    def is_elsewhere(self, root: str) -> Awaitable[bool]:
        """Return whether a tree is active in another kernel."""

    def streaming(self) -> Mapping[str, datetime]:
        """Return the times of the newest parts of replies that stream here, by run."""

    def agent_paths(self) -> Mapping[str, str]:
        """Return the paths of the server's agents, by the roots of their trees."""

    def samples(self) -> Mapping[str, SandboxUsage]:
        """Return the newest measurements of processes here, by run."""

    def measure(self) -> Awaitable[Collection[str]]:
        """Measure some processes again; return the runs whose measurement changed."""

    def clear_samples(self) -> None:
        """Forget all measurements."""


@dataclass(slots=True, eq=False)
class RunEntry:
    """A run, when it changed last, and its row once a reader has needed it."""

    tree: TreeRows
    run: str
    order: tuple[int, int]  #: of its tree and of its spawn: a parent comes before its children
    version: int = 0  #: number of its newest change
    cursor: int = 0  #: a reader at an earlier position in the journal has not seen that change
    row: bytes | None = None  #: None: not computed since its newest change


class LiveRows:
    """The entries of all runs of open trees, from the first reader until the last one has left."""

    def __init__(self, store: Store, activity: Activity) -> None:
        self.store, self._activity = store, activity
        self.reader_count = 0
        self.epoch = secrets.token_hex(4)  #: a name that no other such object has
        self.version = self.events = 0  #: numbers of changes, and of the events behind them
        self.cursor = 0  #: of the newest applied event
        self.trees: dict[str, TreeRows] = {}
        self.entries: dict[str, RunEntry] = {}  #: by run, in the order of their newest changes
        self.dropped = 0  #: newest version of an entry that was dropped
        self.removed: dict[str, int] = {}  #: roots of removed trees, each with the version of its removal
        self.failure: RametError | None = None
        self._skipped_roots: set[str] = set()  #: damaged, or set aside
        self._known_roots: set[str] = set()
        self._ended_at: dict[str, float] = {}  #: roots of trees that have ended, by the loop's clock
        self._tree_count = 0
        self._following: asyncio.Task[None] | None = None
        self._sampling: asyncio.Task[None] | None = None
        self._checked_owners = 0  #: position among the trees that are not active here
        self._kernels_changed = False
        self._streaming: dict[str, datetime] = {}
        self._change = asyncio.Event()
        self._loaded = asyncio.Event()

    def start(self) -> None:
        """Begin to follow the journal."""
        self._following = asyncio.create_task(self._follow(), name="ramet change feed")
        self._sampling = asyncio.create_task(self._sample(), name="ramet sandbox samples")

    async def stop(self) -> None:
        """End, and wait for the end; idempotent."""
        tasks = {each for each in (self._following, self._sampling) if each is not None}
        for each in tasks:
            each.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def wait_loaded(self) -> None:
        """Wait until every open tree has its entries. Raises StoreFailed."""
        await self._loaded.wait()
        self._check_failure()

    async def wait(self, version: int) -> None:
        """Wait for a change after a version. Raises StoreFailed."""
        while self.version <= version:
            self._check_failure()
            await self._change.wait()

    def changed_after(self, version: int) -> Iterator[RunEntry]:
        """Yield the entries that changed after a version, the newest change first."""
        for each in reversed(self.entries.values()):
            if each.version <= version:
                return
            yield each

    def row(self, entry: RunEntry) -> bytes:
        """Return the row of a run as JSON, as it is now."""
        if entry.row is None:
            sample = self._activity.samples().get(entry.run)
            entry.row = msgspec.json.encode(entry.tree.row(entry.run, self._streaming.get(entry.run), sample))
        return entry.row

    async def read_tree(self, root: str) -> tuple[TreeRows, dict[str, int]] | None:
        """Return the rows of a tree from the journal, and the cursor of each run's newest change.

        Return None if the tree cannot be read, which is logged once.
        """
        if root in self._skipped_roots:
            return None
        tree = TreeRows(root)
        try:
            changes = await tree.load(self.store)
        except DamagedTree as problem:
            _log.error("a tree is skipped: %s", problem)
            self._skipped_roots.add(root)
            return None
        tree.is_active = self._activity.is_here(root) or await self._activity.is_elsewhere(root)
        tree.agent_path = self._activity.agent_paths().get(root, "")
        return tree, changes

    # ---- internal

    def _check_failure(self) -> None:
        if self.failure is not None:
            raise self.failure

    def _note_kernels(self) -> None:
        self._kernels_changed = True

    def _publish(self) -> None:
        """Wake the readers: they look at the version."""
        self._change.set()
        self._change = asyncio.Event()

    async def _follow(self) -> None:
        """Follow the journal until this is cancelled, or the store fails."""
        loop = asyncio.get_running_loop()
        unsubscribe = self.store.on_kernels(self._note_kernels)
        try:
            await self._load()
            self._loaded.set()
            checked_at = listed_at = loop.time()
            while True:
                page = await self.store.read(self.cursor, limit=PAGE)
                for each in page:
                    await self._apply(each)
                if (now := loop.time()) - checked_at >= CHECK_S:
                    checked_at = now
                    await self._check_activity(now)
                if now - listed_at >= LIST_S:
                    listed_at = now
                    await self._find_removed()
                self._publish()
                if len(page) < PAGE:
                    await (asyncio.sleep(TICK_S) if page else self.store.wait(self.cursor, timeout_s=CHECK_S))
        except RametError as error:
            self.failure = error
        except Exception as error:  # A defect. Without an error, the readers would wait forever.
            _log.exception("the changes of runs can no longer be followed")
            self.failure = Bug(f"{type(error).__name__}: {error}")
        finally:
            unsubscribe()
            self._loaded.set()
            self._publish()

    async def _sample(self) -> None:
        """Measure processes from time to time, until this is cancelled."""
        await self._loaded.wait()
        try:
            while True:
                changed = [run for run in await self._activity.measure() if run in self.entries]
                for run in changed:
                    self._mark(self.entries[run].tree, run, self.cursor + 1)
                if changed:
                    self._publish()
                await asyncio.sleep(SAMPLE_S)
        finally:
            self._activity.clear_samples()

    async def _load(self) -> None:
        self.cursor = await self.store.head()  # Read before the trees, so that no event is missed.
        documents = await self.store.list(TREES)
        self._known_roots = {each.key for each in documents}
        lifetimes = lifetimes_of(documents)
        self._skipped_roots = {root for root, each in lifetimes.items() if each.set_aside}
        open_roots = [root for root, each in lifetimes.items() if not (each.over or each.set_aside)]
        for root in sorted(open_roots, key=lambda each: (lifetimes[each].began, each)):
            await self._add(root)

    async def _add(self, root: str) -> None:
        if (loaded := await self.read_tree(root)) is not None:
            tree, changes = loaded
            self._put(tree)
            for run in tree.runs:
                self._mark(tree, run, changes.get(run, 0))

    def _put(self, tree: TreeRows) -> None:
        self._tree_count += 1
        self.trees[tree.root], tree.number = tree, self._tree_count

    async def _apply(self, stored: StoredEvent) -> None:
        self.cursor, root = stored.cursor, stored.tree
        self.events += 1
        tree = self.trees.get(root)
        if tree is None:
            if root in self._skipped_roots:
                return
            if stored.seq > 1:  # It had ended, and continues.
                return await self._add(root)
            tree = TreeRows(root)
            self._put(tree)
            tree.is_active = self._activity.is_here(root) or await self._activity.is_elsewhere(root)
            tree.agent_path = self._activity.agent_paths().get(root, "")
        self._streaming.pop(stored.run, None)  # The event is newer.
        try:
            for run in tree.apply(self.store, stored):
                self._mark(tree, run, self.cursor)
        except DamagedTree as problem:
            _log.error("a tree is skipped: %s", problem)
            self._skipped_roots.add(root)
            self._drop(root)

    def _mark(self, tree: TreeRows, run: str, cursor: int) -> None:
        """Note a change of a run's row."""
        entry = self.entries.pop(run, None)
        if entry is None:
            tree.shown += 1
            entry = RunEntry(tree, run, (tree.number, tree.shown))
        self.version += 1
        entry.version, entry.cursor, entry.row = self.version, cursor, None
        self.entries[run] = entry

    def _mark_tree(self, tree: TreeRows) -> None:
        for run in tree.runs:
            self._mark(tree, run, self.cursor + 1)

    async def _check_activity(self, now: float) -> None:
        """Find what no event reports: replies that stream, and trees that became active or no longer are."""
        for run, at in self._activity.streaming().items():
            if self._streaming.get(run) != at and run in self.entries:
                self._streaming[run] = at
                self._mark(self.entries[run].tree, run, self.cursor + 1)
        paths, others = self._activity.agent_paths(), list[TreeRows]()
        for root, tree in self.trees.items():
            path, is_here = paths.get(root, tree.agent_path), self._activity.is_here(root)
            if (path, is_here) != (tree.agent_path, tree.is_active) and (is_here or path != tree.agent_path):
                tree.agent_path, tree.is_active = path, is_here or tree.is_active
                self._mark_tree(tree)
            if not is_here:
                others.append(tree)
        await self._check_owners(others)
        self._drop_ended(now)

    async def _check_owners(self, trees: list[TreeRows]) -> None:
        """Check which trees, not active here, are active elsewhere: all if a kernel came or went, else some of them."""
        first = 0 if self._kernels_changed or self._checked_owners >= len(trees) else self._checked_owners
        last = len(trees) if self._kernels_changed else first + OWNERS
        self._kernels_changed, self._checked_owners = False, last
        for tree in trees[first:last]:
            is_active = await self._activity.is_elsewhere(tree.root)
            if is_active != tree.is_active and not self._activity.is_here(tree.root):
                tree.is_active = is_active
                self._mark_tree(tree)

    def _drop_ended(self, now: float) -> None:
        """Drop the oldest ended trees if there are many."""
        for root, tree in self.trees.items():
            if not tree.is_over or tree.is_active:
                self._ended_at.pop(root, None)
            else:
                self._ended_at.setdefault(root, now)
        count = sum(len(self.trees[root].runs) for root in self._ended_at)
        for root, ended_at in list(self._ended_at.items()):
            if count <= ENDED_RUNS or now - ended_at < ENDED_S:
                break
            count -= len(self.trees[root].runs)
            self._drop(root)

    def _drop(self, root: str) -> None:
        self._ended_at.pop(root, None)
        for run in self.trees.pop(root).runs:
            self._streaming.pop(run, None)
            if (entry := self.entries.pop(run, None)) is not None:
                self.dropped = max(self.dropped, entry.version)

    async def _find_removed(self) -> None:
        """Find trees whose documents were removed, by this kernel or another process."""
        roots = {each.key for each in await self.store.list(TREES)}
        for root in self._known_roots - roots:
            self.version += 1
            self.removed[root] = self.version
            if root in self.trees:
                self._drop(root)
        while len(self.removed) > REMOVED:
            del self.removed[next(iter(self.removed))]
        self._known_roots = roots
