"""The trees of a runtime: opened, kept until they are closed or their last run has ended, and fenced."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ramet.concurrency.clock import Clock
from ramet.core.errors import OwnedElsewhere, RametError, StoreFailed, Unknown
from ramet.core.ids import RunId
from ramet.host.journal.journal import Journal
from ramet.host.trees.factory import OpenTree, TreeFactory, TreeOptions
from ramet.spawn.handle import Handle
from ramet.spawn.run import Run

_log = logging.getLogger("ramet.runtime")
#: Trees that closed with their root and whose handles can still be looked up by id.
KEPT_TREES = 256
_FINAL_STATES = frozenset({"completed", "failed", "cancelled", "timeout", "budget_exhausted", "oom", "crashed", "lost"})


class Trees:
    """The trees that one runtime owns."""

    def __init__(self, factory: TreeFactory, journal: Journal | None, clock: Clock, keep: int = KEPT_TREES) -> None:
        """Keep the newest `keep` trees that closed with their root, for lookups."""
        self._keep = keep
        self._factory, self._journal, self._clock = factory, journal, clock
        self._open: dict[RunId, OpenTree] = {}
        self._closing: dict[RunId, asyncio.Task[None]] = {}
        self._finished_trees: OrderedDict[RunId, OpenTree] = (
            OrderedDict()
        )  #: trees that closed with their root, for `handle`
        self.is_stopped = False  #: no tree is opened any more
        self.fencing_error: StoreFailed | None = None  #: set once the recorded trees may belong to another kernel

    def open_trees(self) -> Mapping[RunId, OpenTree]:
        """Return a copy of the open trees, by the id of their root."""
        return dict(self._open)

    @property
    def finished_count(self) -> int:
        """The number of kept trees that closed with their root."""
        return len(self._finished_trees)

    def active_runs(self) -> dict[RunId, list[dict[str, Any]]]:
        """Return the living runs of each open tree."""
        return {
            root: [view._asdict() for view in opened.tree.views() if view.state not in _FINAL_STATES]
            for root, opened in self._open.items()
        }

    def of(self, run: str) -> list[OpenTree]:
        """Return the tree of a run in a list, if the tree is open or kept; else an empty list."""
        trees = (*self._open.values(), *self._finished_trees.values())
        return [opened for opened in trees if RunId(run) in opened.tree.register.runs]

    def handle(self, run: str) -> Handle:
        """Return a handle on any run of these trees, by id. Raises Unknown."""
        for opened in self.of(run):
            return opened.tree.handle(opened.tree.register.runs[RunId(run)])
        raise Unknown("run", run)

    def can_continue(self, root: str, run: str) -> bool | None:
        """Return whether a run of an open tree can have another turn; None for a tree that is not open."""
        if (opened := self._open.get(RunId(root))) is None:
            return None
        active_run = opened.tree.register.runs.get(RunId(run))
        return active_run is not None and active_run.can_continue

    # ---- opening

    def open(self, plan: TreeOptions) -> OpenTree:
        """Open a tree without a root. Raises RametError once stopped, StoreFailed once fenced."""
        self.check_open()
        return self._factory.open(plan)

    def check_open(self) -> None:
        """Raise RametError once stopped, StoreFailed once fenced: nothing begins any more."""
        if self.is_stopped:
            raise RametError("this runtime was stopped; start() it again, or create another")
        if self.fencing_error is not None:
            raise StoreFailed(self.fencing_error.where, self.fencing_error.why)

    def keep(self, opened: OpenTree, root: Run) -> None:
        """Own a tree from now on."""
        self._open[root.info.id] = opened
        if self._journal is not None:
            self._journal.living.add(root.info.id)
        _log.info("Agent session started", extra={"session_id": root.info.id})

    # ---- closing

    def fence(self, error: StoreFailed) -> None:
        """Open no more trees, and end the open ones: nothing is recorded any more, and another kernel may own them."""
        self.fencing_error = error
        _log.critical("nothing more can be recorded here, and open trees end (%d): %s", len(self._open), error)
        for root in list(self._open):
            self._closing_of(root, f"its journal is lost: {error}")

    def fence_tree(self, root: str, error: OwnedElsewhere) -> None:
        """End the work on a tree here: another kernel owns and continues the tree."""
        if RunId(root) in self._open:
            _log.critical("a tree ends here: %s", error)
            self._closing_of(RunId(root), f"another kernel continues it: {error}")

    async def close(self, root: RunId, reason: str) -> None:
        """End a tree, wait until the tree has ended, and end its readers.

        Cancelling the wait does not stop the closing.
        """
        closing = self._closing_of(root, reason)
        if closing is not None:
            await asyncio.shield(closing)

    async def close_all(self, reason: str) -> None:
        """End all trees, and forget those that have ended."""
        await asyncio.gather(*(self.close(root, reason) for root in list(self._open)))
        self._finished_trees.clear()

    def _closing_of(self, root: RunId, reason: str) -> asyncio.Task[None] | None:
        """Return the task that ends a tree, started if necessary; None for a tree that is not open."""
        opened = self._open.get(root)
        if opened is not None and root not in self._closing:
            self._closing[root] = asyncio.create_task(self._close(root, opened, reason), name="ramet close")
        return self._closing.get(root)

    async def _close(self, root: RunId, opened: OpenTree, reason: str) -> None:
        try:
            await opened.tree.supervisor.close(reason)
            if opened.recorder.durable is not None:
                with suppress(StoreFailed):  # The waiters for an end have received the error.
                    await opened.recorder.durable()
        finally:
            opened.close()
            self._open.pop(root, None)
            marking = self._mark_over(root)
            self._closing.pop(root, None)
        if marking is not None:
            await asyncio.wait({marking})  # From then on another kernel may open its conversation.

    def _mark_over(self, root: RunId) -> asyncio.Task[None] | None:
        if self._journal is None:
            return None
        now, notifier = self._clock.now(), self._factory.notifier
        if notifier is None:
            return self._journal.mark_over(root, now)
        return self._journal.mark_over(root, now, **notifier.facts_at_end(root, now))

    def close_if_idle(self, root: RunId) -> Run | None:
        """Release a tree without living runs, else return a living run; the newest released trees stay available."""
        opened = self._open.get(root)
        if opened is None or root in self._closing:
            return None
        detached = next(iter(opened.tree.register.living()), None)
        if detached is not None:
            return detached
        opened.close()
        self._mark_over(root)
        self._finished_trees[root] = self._open.pop(root)
        while len(self._finished_trees) > self._keep:
            self._finished_trees.popitem(last=False)
        return None
