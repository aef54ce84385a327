"""Admission of runs: living runs are counted; a spawn above a limit waits or is refused as a whole.

A spawn may wait only if the end of another run can make room for it. A run that waits for a spawn cannot end, and
neither can its ancestors, which wait for it. If every run whose end would help is among those runs, waiting would never
end, and the spawn is refused instead. The check is made whenever a run begins to wait and whenever a run has ended. So
no limit can deadlock a tree.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from ramet.core.errors import SpawnRefused
from ramet.core.limits import SpawnLimits

_SLACK = 1e-9  #: sums of fractions of a processor are off by less than this


class ResourceShare(NamedTuple):
    """The capacity that a living run uses, or that it can give to the runs below it."""

    memory_mb: float = 0.0
    cpu_cores: float = 0.0


NO_SHARE = ResourceShare()


class AdmissionParent(Protocol):
    """The view of a run that admission needs: its ancestors, its children, and its path."""

    @property
    def path(self) -> str: ...
    @property
    def persistent(self) -> bool: ...
    @property
    def living_descendants(self) -> Iterable[AdmissionParent]:
        """The living children."""

    @property
    def waits_for(self) -> Sequence[AdmissionParent]:
        """The runs that it waits for, anywhere in the tree."""

    @property
    def envelope(self) -> ResourceShare | None:
        """The capacity that its living children may use together; None if it is not counted."""

    def ancestors(self) -> Iterable[AdmissionParent]:
        """Return the run itself and all runs that cannot end before it does."""


class AdmissionSlot:
    """A counted place among the living runs.

    It is released once; later releases do nothing.
    """

    __slots__ = ("is_held", "parent", "share")

    def __init__(self, parent: AdmissionParent | None, share: ResourceShare) -> None:
        self.parent, self.share = parent, share
        self.is_held = True


class WaitingSpawn:
    __slots__ = ("parent", "share", "slot_future")

    def __init__(self, parent: AdmissionParent, share: ResourceShare) -> None:
        self.parent, self.share = parent, share
        self.slot_future: asyncio.Future[AdmissionSlot] = asyncio.get_running_loop().create_future()


class Admission:
    """The counts of one tree, changed only between awaits."""

    __slots__ = ("_children", "_living", "_other_count", "_queue", "_shares", "limits", "slot_count")

    def __init__(self, limits: SpawnLimits, living: Callable[[], Iterable[AdmissionParent]]) -> None:
        self.limits = limits
        self.slot_count = 0  #: places held, spawns in progress included
        self._other_count = 0  #: places of these that no run has
        self._children: dict[int, int] = {}  #: places held below each parent
        self._shares: dict[int, ResourceShare] = {}  #: the shares of those places together
        self._living = living
        self._queue: list[WaitingSpawn] = []

    @property
    def queue_length(self) -> int:
        """The number of spawns that wait for room."""
        return len(self._queue)

    def admit_root(self) -> AdmissionSlot:
        """Take the place of the root."""
        return self._hold_slot(None)

    def try_admit(self, parent: AdmissionParent, share: ResourceShare = NO_SHARE) -> AdmissionSlot | None:
        """Take a place if there is room now."""
        return self._hold_slot(parent, share) if self._full_resource(parent, share) is None else None

    async def admit(self, parent: AdmissionParent, share: ResourceShare = NO_SHARE) -> AdmissionSlot:
        """Take a place below `parent`, waiting for room if the limits say so.

        Raises SpawnRefused if there is no room, or if waiting could not help.
        """
        full = self._full_resource(parent, share)
        if full is None:
            return self._hold_slot(parent, share)
        if self.limits.when_full == "refuse":
            raise self._refusal(parent, full)
        waiting = WaitingSpawn(parent, share)
        self._queue.append(waiting)
        self._serve()
        try:
            return await waiting.slot_future
        except asyncio.CancelledError:
            if (
                waiting.slot_future.done()
                and not waiting.slot_future.cancelled()
                and not waiting.slot_future.exception()
            ):
                self.release(waiting.slot_future.result())
            raise
        finally:
            if waiting in self._queue:
                self._queue.remove(waiting)

    def admit_nowait(self, parent: AdmissionParent, share: ResourceShare = NO_SHARE) -> AdmissionSlot:
        """Take a place at once, for a run that is resumed by mail.

        Raises SpawnRefused if there is no room.
        """
        full = self._full_resource(parent, share)
        if full is not None:
            raise self._refusal(parent, full)
        return self._hold_slot(parent, share)

    @contextmanager
    def holding(self, parent: AdmissionParent, share: ResourceShare) -> Iterator[None]:
        """Hold a place for a sandbox of a run that is no run itself, and ends with it.

        Raises SpawnRefused if there is no room.
        """
        slot = self.admit_nowait(parent, share)
        self._other_count += 1
        try:
            yield
        finally:
            self._other_count -= 1
            self.release(slot)

    def admit_unchecked(self, parent: AdmissionParent | None, share: ResourceShare = NO_SHARE) -> AdmissionSlot:
        """Take a place for a run that lived in another process, whatever the limits are now."""
        return self._hold_slot(parent, share if parent is not None else NO_SHARE)

    @staticmethod
    def released_slot() -> AdmissionSlot:
        """Return a released slot, for a run that has ended."""
        slot = AdmissionSlot(None, NO_SHARE)
        slot.is_held = False
        return slot

    def recheck_queue(self) -> None:
        """Refuse the queued spawns for which no end can make room, after a run has begun to wait."""
        if self._queue:
            self._serve()

    def release(self, slot: AdmissionSlot) -> None:
        """Release a place and admit the queued spawns that now fit."""
        if not slot.is_held:
            return
        slot.is_held = False
        self.slot_count -= 1
        if slot.parent is not None:
            remaining = self._children[id(slot.parent)] - 1
            if remaining:
                self._children[id(slot.parent)] = remaining
                if slot.share != NO_SHARE:
                    used = self._shares[id(slot.parent)]
                    self._shares[id(slot.parent)] = ResourceShare(
                        *(a - b for a, b in zip(used, slot.share, strict=True))
                    )
            else:
                del self._children[id(slot.parent)]
                self._shares.pop(id(slot.parent), None)
        if self._queue:
            self._serve()

    def _hold_slot(self, parent: AdmissionParent | None, share: ResourceShare = NO_SHARE) -> AdmissionSlot:
        self.slot_count += 1
        if parent is not None:
            self._children[id(parent)] = self._children.get(id(parent), 0) + 1
            if share != NO_SHARE:
                used = self._shares.get(id(parent), NO_SHARE)
                self._shares[id(parent)] = ResourceShare(*(a + b for a, b in zip(used, share, strict=True)))
        return AdmissionSlot(parent, share)

    def _full_resource(self, parent: AdmissionParent, share: ResourceShare) -> str | None:
        if self._children.get(id(parent), 0) >= self.limits.children:
            return "children"
        if share != NO_SHARE:
            for name, requested, free in zip(ResourceShare._fields, share, self._free_share(parent), strict=True):
                if requested > free + _SLACK:
                    return name
        return "runs" if self.slot_count >= self.limits.runs else None

    def _free_share(self, parent: AdmissionParent) -> ResourceShare:
        envelope = parent.envelope
        if envelope is None:
            return ResourceShare(math.inf, math.inf)
        used = self._shares.get(id(parent), NO_SHARE)
        return ResourceShare(*(max(0.0, a - b) for a, b in zip(envelope, used, strict=True)))

    def _refusal(self, parent: AdmissionParent, full: str, why: str = "") -> SpawnRefused:
        if full in ResourceShare._fields:
            free, envelope = self._free_share(parent), parent.envelope
            assert envelope is not None, "a resource without a limit is never full"
            remaining, limit = getattr(free, full), getattr(envelope, full)
            return SpawnRefused(
                full, f"the living children of {parent.path} share {limit:g} {full}{why}", free=remaining
            )
        limit = self.limits.children if full == "children" else self.limits.runs
        scope = f"living children of {parent.path}" if full == "children" else "living runs in this tree"
        return SpawnRefused(full, f"{limit} {scope} is the limit{why}", free=0)

    def _serve(self) -> None:
        """Admit, in order, the queued spawns that fit; refuse, newest first, those for which no end could make room."""
        for waiting in list(self._queue):
            if self._full_resource(waiting.parent, waiting.share) is None:
                self._queue.remove(waiting)
                if not waiting.slot_future.done():
                    waiting.slot_future.set_result(self._hold_slot(waiting.parent, waiting.share))
        while self._queue:
            blocked = self._newest_blocked()
            if blocked is None:
                return
            self._queue.remove(blocked)
            if not blocked.slot_future.done():
                full = self._full_resource(blocked.parent, blocked.share)
                assert full is not None, "every waiting spawn that fits was admitted"
                why = ", and only runs that wait for this spawn could make room"
                blocked.slot_future.set_exception(self._refusal(blocked.parent, full, why))

    def _newest_blocked(self) -> WaitingSpawn | None:
        living = list(self._living())
        if len(living) < self.slot_count - self._other_count:
            return None  # A spawn is in progress: that run will end later.
        blocked_ids = self._blocked_runs(living)
        runs_blocked = all(id(run) in blocked_ids or run.persistent for run in living)
        for waiting in reversed(self._queue):
            if self._full_resource(waiting.parent, waiting.share) == "runs":
                if runs_blocked:
                    return waiting
            elif all(id(run) in blocked_ids for run in waiting.parent.living_descendants):
                return waiting
        return None

    def _blocked_runs(self, living: list[AdmissionParent]) -> set[int]:
        """Return the runs that cannot end before a queued spawn is decided.

        These are the runs that wait for a spawn, the runs that wait for them, and all runs above these.
        """
        blocked_ids: set[int] = set()
        pending: list[AdmissionParent] = [queued.parent for queued in self._queue]
        waiting = [run for run in living if run.waits_for]
        while pending:
            for run in pending.pop().ancestors():
                if id(run) in blocked_ids:
                    break  # The runs above are included already.
                blocked_ids.add(id(run))
            if not pending:
                pending = [
                    run
                    for run in waiting
                    if id(run) not in blocked_ids and any(id(each) in blocked_ids for each in run.waits_for)
                ]
        return blocked_ids
