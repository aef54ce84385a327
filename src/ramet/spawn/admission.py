"""Who may be born now: living runs are counted, and a birth above a count waits or is refused, never half done.

A birth may wait only if somebody else's end can make room for it. A run that waits for a birth cannot end, and neither
can its ancestors, which wait for it. So when every run whose end would help is among those, waiting would be for ever:
the birth is refused instead. The check is made whenever a run begins to wait and whenever one has ended; hence no
limit can deadlock a tree.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from ramet.core.errors import SpawnRefused
from ramet.core.limits import SpawnLimits

_SLACK = 1e-9  #: sums of fractions of a processor are off by less than this


class ResourceShare(NamedTuple):
    """Capacity that a living run takes up, or has to give to those below it."""

    memory_mb: float = 0.0
    cpu_cores: float = 0.0


NO_SHARE = ResourceShare()


class AdmissionParent(Protocol):
    """What admission must know of a run: who stands above it, who below, and what it is called."""

    @property
    def path(self) -> str: ...
    @property
    def persistent(self) -> bool: ...
    @property
    def below_now(self) -> Iterable[AdmissionParent]:
        """Its living children."""

    @property
    def waits_for(self) -> Sequence[AdmissionParent]:
        """Runs that it waits for, wherever they stand."""

    @property
    def envelope(self) -> ResourceShare | None:
        """What its living children may take up together; None if nobody counts."""

    def above(self) -> Iterable[AdmissionParent]:
        """Itself and all that cannot end before it does."""


class AdmissionSlot:
    """One counted place among the living. Released once; later releases do nothing."""

    __slots__ = ("held", "parent", "share")

    def __init__(self, parent: AdmissionParent | None, share: ResourceShare) -> None:
        self.parent, self.share = parent, share
        self.held = True


class Waiting:
    __slots__ = ("granted", "parent", "share")

    def __init__(self, parent: AdmissionParent, share: ResourceShare) -> None:
        self.parent, self.share = parent, share
        self.granted: asyncio.Future[AdmissionSlot] = asyncio.get_running_loop().create_future()


class Admission:
    """The counts of one tree, changed only between awaits."""

    __slots__ = ("_asking", "_children", "_living", "_shares", "limits", "taken")

    def __init__(self, limits: SpawnLimits, living: Callable[[], Iterable[AdmissionParent]]) -> None:
        self.limits = limits
        self.taken = 0  #: places held, births under way included
        self._children: dict[int, int] = {}  #: places held below each parent
        self._shares: dict[int, ResourceShare] = {}  #: of those places together
        self._living = living
        self._asking: list[Waiting] = []

    @property
    def queued(self) -> int:
        """How many births wait for room."""
        return len(self._asking)

    def admit_root(self) -> AdmissionSlot:
        """The root's place."""
        return self._take(None)

    def try_admit(self, parent: AdmissionParent, share: ResourceShare = NO_SHARE) -> AdmissionSlot | None:
        """Take a place if there is room now."""
        return self._take(parent, share) if self._full(parent, share) is None else None

    async def admit(self, parent: AdmissionParent, share: ResourceShare = NO_SHARE) -> AdmissionSlot:
        """Take a place below `parent`, waiting for room if the limits say so. Raises SpawnRefused."""
        full = self._full(parent, share)
        if full is None:
            return self._take(parent, share)
        if self.limits.when_full == "refuse":
            raise self._refusal(parent, full)
        asking = Waiting(parent, share)
        self._asking.append(asking)
        self._serve()
        try:
            return await asking.granted
        except asyncio.CancelledError:
            if asking.granted.done() and not asking.granted.cancelled() and not asking.granted.exception():
                self.release(asking.granted.result())
            raise
        finally:
            if asking in self._asking:
                self._asking.remove(asking)

    def admit_nowait(self, parent: AdmissionParent, share: ResourceShare = NO_SHARE) -> AdmissionSlot:
        """Take a place or raise SpawnRefused: for a run that comes back, whose sender is told at once."""
        full = self._full(parent, share)
        if full is not None:
            raise self._refusal(parent, full)
        return self._take(parent, share)

    def admit_again(self, parent: AdmissionParent | None, share: ResourceShare = NO_SHARE) -> AdmissionSlot:
        """The place of a run that lived in another process, whatever the limits are now."""
        return self._take(parent, share if parent is not None else NO_SHARE)

    @staticmethod
    def no_place() -> AdmissionSlot:
        """The place of a run that has ended: none."""
        place = AdmissionSlot(None, NO_SHARE)
        place.held = False
        return place

    def look_again(self) -> None:
        """Refuse those who have nothing to hope for any more, now that somebody has begun to wait for somebody."""
        if self._asking:
            self._serve()

    def release(self, place: AdmissionSlot) -> None:
        """Give a place back and let in whoever now fits."""
        if not place.held:
            return
        place.held = False
        self.taken -= 1
        if place.parent is not None:
            left = self._children[id(place.parent)] - 1
            if left:
                self._children[id(place.parent)] = left
                if place.share != NO_SHARE:
                    held = self._shares[id(place.parent)]
                    self._shares[id(place.parent)] = ResourceShare(
                        *(a - b for a, b in zip(held, place.share, strict=True))
                    )
            else:
                del self._children[id(place.parent)]
                self._shares.pop(id(place.parent), None)
        if self._asking:
            self._serve()

    def _take(self, parent: AdmissionParent | None, share: ResourceShare = NO_SHARE) -> AdmissionSlot:
        self.taken += 1
        if parent is not None:
            self._children[id(parent)] = self._children.get(id(parent), 0) + 1
            if share != NO_SHARE:
                held = self._shares.get(id(parent), NO_SHARE)
                self._shares[id(parent)] = ResourceShare(*(a + b for a, b in zip(held, share, strict=True)))
        return AdmissionSlot(parent, share)

    def _full(self, parent: AdmissionParent, share: ResourceShare) -> str | None:
        if self._children.get(id(parent), 0) >= self.limits.children:
            return "children"
        if share != NO_SHARE:
            for name, asked, free in zip(ResourceShare._fields, share, self._free(parent), strict=True):
                if asked > free + _SLACK:
                    return name
        return "runs" if self.taken >= self.limits.runs else None

    def _free(self, parent: AdmissionParent) -> ResourceShare:
        envelope = parent.envelope
        if envelope is None:
            return ResourceShare(math.inf, math.inf)
        held = self._shares.get(id(parent), NO_SHARE)
        return ResourceShare(*(max(0.0, a - b) for a, b in zip(envelope, held, strict=True)))

    def _refusal(self, parent: AdmissionParent, full: str, why: str = "") -> SpawnRefused:
        if full in ResourceShare._fields:
            free, envelope = self._free(parent), parent.envelope
            assert envelope is not None, "what is not limited is never full"
            left, limit = getattr(free, full), getattr(envelope, full)
            return SpawnRefused(full, f"the living children of {parent.path} share {limit:g} {full}{why}", free=left)
        limit = self.limits.children if full == "children" else self.limits.runs
        whose = f"living children of {parent.path}" if full == "children" else "living runs in this tree"
        return SpawnRefused(full, f"{limit} {whose} is the limit{why}", free=0)

    def _serve(self) -> None:
        """Let in, in order, those who fit; refuse, newest first, those for whom no end could make room."""
        for asking in list(self._asking):
            if self._full(asking.parent, asking.share) is None:
                self._asking.remove(asking)
                if not asking.granted.done():
                    asking.granted.set_result(self._take(asking.parent, asking.share))
        while self._asking:
            hopeless = self._newest_hopeless()
            if hopeless is None:
                return
            self._asking.remove(hopeless)
            if not hopeless.granted.done():
                full = self._full(hopeless.parent, hopeless.share)
                assert full is not None, "those who fit were let in"
                why = ", and only runs that wait for this very birth could make room"
                hopeless.granted.set_exception(self._refusal(hopeless.parent, full, why))

    def _newest_hopeless(self) -> Waiting | None:
        living = list(self._living())
        if len(living) < self.taken:
            return None  # A birth is under way: that run will end some day.
        stuck = self._stuck(living)
        runs_hopeless = all(id(run) in stuck or run.persistent for run in living)
        for asking in reversed(self._asking):
            if self._full(asking.parent, asking.share) == "runs":
                if runs_hopeless:
                    return asking
            elif all(id(run) in stuck for run in asking.parent.below_now):
                return asking
        return None

    def _stuck(self, living: list[AdmissionParent]) -> set[int]:
        """Those that cannot end before a queued birth is decided: who asks, who waits for them, and all above these."""
        stuck: set[int] = set()
        pending: list[AdmissionParent] = [asking.parent for asking in self._asking]
        waiting = [run for run in living if run.waits_for]
        while pending:
            for run in pending.pop().above():
                if id(run) in stuck:
                    break  # Those above it are in, too.
                stuck.add(id(run))
            if not pending:
                pending = [
                    run for run in waiting if id(run) not in stuck and any(id(each) in stuck for each in run.waits_for)
                ]
        return stuck
