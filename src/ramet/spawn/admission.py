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


class Share(NamedTuple):
    """Capacity that a living run takes up, or has to give to those below it."""

    memory_mb: float = 0.0
    cpu_cores: float = 0.0


NO_SHARE = Share()


class Asker(Protocol):
    """What admission must know of a run: who stands above it, who below, and what it is called."""

    @property
    def path(self) -> str: ...
    @property
    def persistent(self) -> bool: ...
    @property
    def below_now(self) -> Iterable[Asker]:
        """Its living children."""

    @property
    def waits_for(self) -> Sequence[Asker]:
        """Runs that it waits for, wherever they stand."""

    @property
    def envelope(self) -> Share | None:
        """What its living children may take up together; None if nobody counts."""

    def above(self) -> Iterable[Asker]:
        """Itself and all that cannot end before it does."""


class Place:
    """One counted place among the living. Released once; later releases do nothing."""

    __slots__ = ("held", "parent", "share")

    def __init__(self, parent: Asker | None, share: Share) -> None:
        self.parent, self.share = parent, share
        self.held = True


class _Asking:
    __slots__ = ("granted", "parent", "share")

    def __init__(self, parent: Asker, share: Share) -> None:
        self.parent, self.share = parent, share
        self.granted: asyncio.Future[Place] = asyncio.get_running_loop().create_future()


class Admission:
    """The counts of one tree, changed only between awaits."""

    __slots__ = ("_asking", "_children", "_living", "_shares", "limits", "taken")

    def __init__(self, limits: SpawnLimits, living: Callable[[], Iterable[Asker]]) -> None:
        self.limits = limits
        self.taken = 0  #: places held, births under way included
        self._children: dict[int, int] = {}  #: places held below each parent
        self._shares: dict[int, Share] = {}  #: of those places together
        self._living = living
        self._asking: list[_Asking] = []

    @property
    def queued(self) -> int:
        """How many births wait for room."""
        return len(self._asking)

    def admit_root(self) -> Place:
        """The root's place."""
        return self._take(None)

    def try_admit(self, parent: Asker, share: Share = NO_SHARE) -> Place | None:
        """Take a place if there is room now."""
        return self._take(parent, share) if self._full(parent, share) is None else None

    async def admit(self, parent: Asker, share: Share = NO_SHARE) -> Place:
        """Take a place below `parent`, waiting for room if the limits say so. Raises SpawnRefused."""
        full = self._full(parent, share)
        if full is None:
            return self._take(parent, share)
        if self.limits.when_full == "refuse":
            raise self._refusal(parent, full)
        asking = _Asking(parent, share)
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

    def admit_nowait(self, parent: Asker, share: Share = NO_SHARE) -> Place:
        """Take a place or raise SpawnRefused: for a run that comes back, whose sender is told at once."""
        full = self._full(parent, share)
        if full is not None:
            raise self._refusal(parent, full)
        return self._take(parent, share)

    def admit_again(self, parent: Asker | None, share: Share = NO_SHARE) -> Place:
        """The place of a run that lived in another process, whatever the limits are now."""
        return self._take(parent, share if parent is not None else NO_SHARE)

    @staticmethod
    def no_place() -> Place:
        """The place of a run that has ended: none."""
        place = Place(None, NO_SHARE)
        place.held = False
        return place

    def look_again(self) -> None:
        """Refuse those who have nothing to hope for any more, now that somebody has begun to wait for somebody."""
        if self._asking:
            self._serve()

    def release(self, place: Place) -> None:
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
                    self._shares[id(place.parent)] = Share(*(a - b for a, b in zip(held, place.share, strict=True)))
            else:
                del self._children[id(place.parent)]
                self._shares.pop(id(place.parent), None)
        if self._asking:
            self._serve()

    def _take(self, parent: Asker | None, share: Share = NO_SHARE) -> Place:
        self.taken += 1
        if parent is not None:
            self._children[id(parent)] = self._children.get(id(parent), 0) + 1
            if share != NO_SHARE:
                held = self._shares.get(id(parent), NO_SHARE)
                self._shares[id(parent)] = Share(*(a + b for a, b in zip(held, share, strict=True)))
        return Place(parent, share)

    def _full(self, parent: Asker, share: Share) -> str | None:
        if self._children.get(id(parent), 0) >= self.limits.children:
            return "children"
        if share != NO_SHARE:
            for name, asked, free in zip(Share._fields, share, self._free(parent), strict=True):
                if asked > free + _SLACK:
                    return name
        return "runs" if self.taken >= self.limits.runs else None

    def _free(self, parent: Asker) -> Share:
        envelope = parent.envelope
        if envelope is None:
            return Share(math.inf, math.inf)
        held = self._shares.get(id(parent), NO_SHARE)
        return Share(*(max(0.0, a - b) for a, b in zip(envelope, held, strict=True)))

    def _refusal(self, parent: Asker, full: str, why: str = "") -> SpawnRefused:
        if full in Share._fields:
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

    def _newest_hopeless(self) -> _Asking | None:
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

    def _stuck(self, living: list[Asker]) -> set[int]:
        """Those that cannot end before a queued birth is decided: who asks, who waits for them, and all above these."""
        stuck: set[int] = set()
        pending: list[Asker] = [asking.parent for asking in self._asking]
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
