"""The trees of a runtime: opened, kept until somebody ends them or nobody lives in them, and fenced off."""

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
#: Trees that closed with their root and whose handles can still be asked for by id.
KEPT_TREES = 256
_OVER = frozenset({"completed", "failed", "cancelled", "timeout", "budget_exhausted", "oom", "crashed", "lost"})


class Trees:
    """Those that one runtime owns."""

    def __init__(self, opening: TreeFactory, journal: Journal | None, clock: Clock, keep: int = KEPT_TREES) -> None:
        """Keep the newest `keep` trees that closed with their root, to be asked for."""
        self._keep = keep
        self._opening, self._journal, self._clock = opening, journal, clock
        self._open: dict[RunId, OpenTree] = {}
        self._closing: dict[RunId, asyncio.Task[None]] = {}
        self._finished: OrderedDict[RunId, OpenTree] = OrderedDict()  #: that closed with their root, for `handle`
        self.is_stopped = False  #: none is opened any more
        self.fenced: StoreFailed | None = None  #: set once the trees on record may be another kernel's

    def open_ones(self) -> Mapping[RunId, OpenTree]:
        """By the id of their root: a copy."""
        return dict(self._open)

    @property
    def finished(self) -> int:
        """How many that closed with their root are kept, to be asked for."""
        return len(self._finished)

    def at_work(self) -> dict[RunId, list[dict[str, Any]]]:
        """The living runs of each open tree."""
        return {
            root: [view._asdict() for view in opened.tree.views() if view.state not in _OVER]
            for root, opened in self._open.items()
        }

    def of(self, run: str) -> list[OpenTree]:
        """The tree that a run is in, if it is one of them, open or just over."""
        known = (*self._open.values(), *self._finished.values())
        return [opened for opened in known if RunId(run) in opened.tree.register.runs]

    def handle(self, run: str) -> Handle:
        """A handle on any run of them, by id. Raises Unknown."""
        for opened in self.of(run):
            return opened.tree.handle(opened.tree.register.runs[RunId(run)])
        raise Unknown("run", run)

    def can_go_on(self, root: RunId, run: RunId) -> bool | None:
        """Whether a run of an open tree can have another turn; None for a tree that is not open."""
        if (opened := self._open.get(root)) is None:
            return None
        found = opened.tree.register.runs.get(run)
        return found is not None and found.can_go_on

    # ---- beginning

    def open(self, plan: TreeOptions) -> OpenTree:
        """One without a root yet. Raises RametError once stopped, StoreFailed once fenced."""
        self.check_open()
        return self._opening.open(plan)

    def check_open(self) -> None:
        """Raise RametError once stopped, StoreFailed once fenced: nothing begins any more."""
        if self.is_stopped:
            raise RametError("this runtime was stopped; start() it again, or make another")
        if self.fenced is not None:
            raise StoreFailed(self.fenced.where, self.fenced.why)

    def keep(self, opened: OpenTree, root: Run) -> None:
        """Own one from now on."""
        self._open[root.info.id] = opened
        if self._journal is not None:
            self._journal.living.add(root.info.id)
        _log.info("Agent session started", extra={"session_id": root.info.id})

    # ---- ending

    def fence(self, error: StoreFailed) -> None:
        """Another kernel may own those on record: open none, and end what is at work."""
        self.fenced = error
        _log.critical("another kernel may own what is on record, so %d trees end here: %s", len(self._open), error)
        for root in list(self._open):
            self._closing_of(root, f"its journal is lost: {error}")

    def fence_tree(self, root: str, error: OwnedElsewhere) -> None:
        """Another kernel owns that one, and goes on with it: end what is at work here."""
        if RunId(root) in self._open:
            _log.critical("a tree ends here: %s", error)
            self._closing_of(RunId(root), f"another kernel goes on with it: {error}")

    async def close(self, root: RunId, reason: str) -> None:
        """End one, wait until it is gone, and let its readers end. Whoever gives up waiting does not stop that."""
        closing = self._closing_of(root, reason)
        if closing is not None:
            await asyncio.shield(closing)

    async def close_all(self, reason: str) -> None:
        """End all of them, and forget those that have ended."""
        await asyncio.gather(*(self.close(root, reason) for root in list(self._open)))
        self._finished.clear()

    def _closing_of(self, root: RunId, reason: str) -> asyncio.Task[None] | None:
        """The task that ends a tree, begun if it was not; None for a tree that is not open."""
        opened = self._open.get(root)
        if opened is not None and root not in self._closing:
            self._closing[root] = asyncio.create_task(self._close(root, opened, reason), name="ramet close")
        return self._closing.get(root)

    async def _close(self, root: RunId, opened: OpenTree, reason: str) -> None:
        try:
            await opened.tree.supervisor.close(reason)
            if opened.recorder.durable is not None:
                with suppress(StoreFailed):  # Whoever waited for an end was told.
                    await opened.recorder.durable()
        finally:
            opened.close()
            self._open.pop(root, None)
            noting = self._let_go(root)
            self._closing.pop(root, None)
        if noting is not None:
            await asyncio.wait({noting})  # From then on another kernel may open its conversation.

    def _let_go(self, root: RunId) -> asyncio.Task[None] | None:
        return self._journal.tree_over(root, self._clock.now()) if self._journal is not None else None

    def leave(self, root: RunId) -> Run | None:
        """Let go of a tree in which nobody lives any more, else say who does; the newest stay to be asked for."""
        opened = self._open.get(root)
        if opened is None or root in self._closing:
            return None
        detached = next(iter(opened.tree.register.living()), None)
        if detached is not None:
            return detached
        opened.close()
        self._let_go(root)
        self._finished[root] = self._open.pop(root)
        while len(self._finished) > self._keep:
            self._finished.popitem(last=False)
        return None
