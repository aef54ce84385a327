"""Who may be born now: living runs are counted, and a birth above a count waits or is refused, never half done.

A birth may wait only if somebody else's end can make room for it. A run that waits for a birth cannot end, and neither
can its ancestors, which wait for it. So when every run whose end would help is among those, waiting would be for ever:
the birth is refused instead. The check is made whenever a run begins to wait and whenever one has ended; hence no
limit can deadlock a tree.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from ramet.core.errors import SpawnRefused
from ramet.core.limits import SpawnLimits


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

    def above(self) -> Iterable[Asker]:
        """Itself and all that cannot end before it does."""


class Place:
    """One counted place among the living. Released once; later releases do nothing."""

    __slots__ = ("held", "parent")

    def __init__(self, parent: Asker | None) -> None:
        self.parent = parent
        self.held = True


class _Asking:
    __slots__ = ("granted", "parent")

    def __init__(self, parent: Asker) -> None:
        self.parent = parent
        self.granted: asyncio.Future[Place] = asyncio.get_running_loop().create_future()


class Admission:
    """The counts of one tree, changed only between awaits."""

    __slots__ = ("_asking", "_children", "_living", "limits", "taken")

    def __init__(self, limits: SpawnLimits, living: Callable[[], Iterable[Asker]]) -> None:
        self.limits = limits
        self.taken = 0  #: places held, births under way included
        self._children: dict[int, int] = {}  #: places held below each parent
        self._living = living
        self._asking: list[_Asking] = []

    @property
    def queued(self) -> int:
        """How many births wait for room."""
        return len(self._asking)

    def admit_root(self) -> Place:
        """The root's place."""
        return self._take(None)

    def try_admit(self, parent: Asker) -> Place | None:
        """Take a place if there is room now."""
        return self._take(parent) if self._full(parent) is None else None

    async def admit(self, parent: Asker) -> Place:
        """Take a place below `parent`, waiting for room if the limits say so. Raises SpawnRefused."""
        full = self._full(parent)
        if full is None:
            return self._take(parent)
        if self.limits.when_full == "refuse":
            raise self._refusal(parent, full)
        asking = _Asking(parent)
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

    def admit_nowait(self, parent: Asker) -> Place:
        """Take a place or raise SpawnRefused: for a run that comes back, whose sender is told at once."""
        full = self._full(parent)
        if full is not None:
            raise self._refusal(parent, full)
        return self._take(parent)

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
            else:
                del self._children[id(place.parent)]
        if self._asking:
            self._serve()

    def _take(self, parent: Asker | None) -> Place:
        self.taken += 1
        if parent is not None:
            self._children[id(parent)] = self._children.get(id(parent), 0) + 1
        return Place(parent)

    def _full(self, parent: Asker) -> str | None:
        if self._children.get(id(parent), 0) >= self.limits.children:
            return "children"
        return "runs" if self.taken >= self.limits.runs else None

    def _refusal(self, parent: Asker, full: str, why: str = "") -> SpawnRefused:
        limit = self.limits.children if full == "children" else self.limits.runs
        whose = f"living children of {parent.path}" if full == "children" else "living runs in this tree"
        return SpawnRefused(full, f"{limit} {whose} is the limit{why}", free=0)

    def _serve(self) -> None:
        """Let in, in order, those who fit; refuse, newest first, those for whom no end could make room."""
        for asking in list(self._asking):
            if self._full(asking.parent) is None:
                self._asking.remove(asking)
                if not asking.granted.done():
                    asking.granted.set_result(self._take(asking.parent))
        while self._asking:
            hopeless = self._newest_hopeless()
            if hopeless is None:
                return
            self._asking.remove(hopeless)
            if not hopeless.granted.done():
                full = self._full(hopeless.parent)
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
            if self._full(asking.parent) == "runs":
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
