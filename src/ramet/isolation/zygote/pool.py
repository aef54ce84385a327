"""Zygotes, by their imports and mounts: started when they are first needed, and replaced in time.

A replacement is ready before the old zygote stops forking; children of the old zygote live until their own end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

from ramet.concurrency.cancel import is_being_cancelled
from ramet.core.errors import SandboxFailed
from ramet.isolation.contract import Image
from ramet.isolation.zygote.client import ZygoteClient
from ramet.isolation.zygote.process import ZygoteChild

MAX_ZYGOTES = 6
ROTATE_AFTER_S = 600.0
ROTATE_AFTER_SPAWNS = 5_000
#: between two rotations because an agent crashed: otherwise crashes could be used to slow others down
ROTATE_PAUSE_S = 10.0

_log = logging.getLogger(__name__)

#: Starts a zygote with these mounts, which map a path to its source; children may write to those of the last argument.
Start = Callable[[Image, Mapping[str, str], Collection[str]], Awaitable[ZygoteClient]]


@dataclass(eq=False)
class ZygoteKind:
    """A kind of zygote: its image and mounts, and the current zygote of that kind."""

    image: Image
    mounts: Mapping[str, str]  #: with their sources: two runs may have been granted different sources for the same path
    zygote: ZygoteClient | None = None
    starting: asyncio.Task[ZygoteClient] | None = None
    used_at: float = 0.0
    rotated_at: float = field(default=float("-inf"))  #: the time of the last rotation because of a crash
    is_tainted: bool = False
    writable: frozenset[str] = frozenset()  #: those of the mounts that children may write to

    def serves(
        self,
        image: Image,
        mounts: Mapping[str, str],
        protected_paths: Sequence[str],
        writable: Collection[str] = (),
    ) -> bool:
        """Return whether children can have these mounts: all exist here, and the others can be removed separately."""
        return (
            image == self.image
            and mounts.items() <= self.mounts.items()
            and self.writable.intersection(mounts) == set(writable)
            and not any(
                _overlap(extra, path) for extra in self.mounts.keys() - mounts for path in (*mounts, *protected_paths)
            )
        )


class Pool:
    """Children from warm zygotes. `protected_paths` are paths that every child has, whatever its mounts."""

    def __init__(self, start: Start, *, parked_count: int, protected_paths: Sequence[str]) -> None:
        self._start, self._parked_count, self._protected_paths = start, parked_count, protected_paths
        self._kinds: list[ZygoteKind] = []
        self._zygotes: set[ZygoteClient] = set()  #: all zygotes that may still have children
        self._tasks: set[asyncio.Task[ZygoteClient]] = set()
        self._is_closed = False

    async def take(
        self, image: Image, mounts: Mapping[str, str], writable: Collection[str]
    ) -> tuple[ZygoteClient, ZygoteChild]:
        """Return a child and its zygote. Raises SandboxFailed."""
        if self._is_closed:
            raise SandboxFailed("the backend is closed")
        now = asyncio.get_running_loop().time()
        kinds = (kind for kind in self._kinds if kind.serves(image, mounts, self._protected_paths, writable))
        kind = next(kinds, None)
        if kind is None:
            self._make_room()
            kind = ZygoteKind(image, dict(mounts), writable=frozenset(writable))
            self._kinds.append(kind)
        kind.used_at = now
        zygote = kind.zygote
        if zygote is None or not zygote.is_open:
            zygote = await self._wait_renewed(kind)
        elif self._is_due(kind, zygote, now):
            self._renew(kind)
        return zygote, await zygote.take_child()

    def rotate_after_crash(self, zygote: ZygoteClient) -> None:
        """Rotate a zygote after an agent crashed like an attacker: the zygote's address space may be known by now."""
        now = asyncio.get_running_loop().time()
        for kind in self._kinds:
            if kind.zygote is zygote and now - kind.rotated_at >= ROTATE_PAUSE_S:
                kind.rotated_at, kind.is_tainted = now, True
                self._renew(kind)

    async def close(self) -> None:
        """End all zygotes and their children. Idempotent."""
        self._is_closed = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(zygote.close() for zygote in self._zygotes))
        self._kinds.clear()
        self._zygotes.clear()

    def _is_due(self, kind: ZygoteKind, zygote: ZygoteClient, now: float) -> bool:
        return kind.is_tainted or now - zygote.started_at >= ROTATE_AFTER_S or zygote.spawn_count >= ROTATE_AFTER_SPAWNS

    def _make_room(self) -> None:
        """Retire the least recently used zygote if there are too many; its agents live on."""
        if len(self._kinds) >= MAX_ZYGOTES:
            oldest = min(self._kinds, key=lambda kind: kind.used_at)
            self._kinds.remove(oldest)
            if oldest.zygote is not None:
                oldest.zygote.retire()

    async def _wait_renewed(self, kind: ZygoteKind) -> ZygoteClient:
        """Wait for a new zygote, together with all callers that need the same kind."""
        starting = self._renew(kind)
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            if self._is_closed and not is_being_cancelled():
                raise SandboxFailed("the backend is closed") from None
            raise

    def _renew(self, kind: ZygoteKind) -> asyncio.Task[ZygoteClient]:
        if kind.starting is None:
            kind.starting = asyncio.get_running_loop().create_task(self._replace(kind))
            self._tasks.add(kind.starting)
            kind.starting.add_done_callback(self._tasks.discard)
            kind.starting.add_done_callback(_look)
        return kind.starting

    async def _replace(self, kind: ZygoteKind) -> ZygoteClient:
        try:
            zygote = await self._start(kind.image, kind.mounts, kind.writable)
        finally:
            kind.starting = None
        self._zygotes = {each for each in self._zygotes if not each.has_exited}
        self._zygotes.add(zygote)
        previous, kind.zygote, kind.is_tainted = kind.zygote, zygote, False
        if previous is not None:
            previous.retire()
        zygote.park(self._parked_count)
        return zygote


def _look(task: asyncio.Task[ZygoteClient]) -> None:
    """Mark the exception as retrieved and log it: waiters see it, and the next caller repeats a failed rotation."""
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.warning("no new zygote: %s", error)


def _overlap(path: str, other: str) -> bool:
    """Return whether one path is inside the other."""
    return PurePath(path).is_relative_to(other) or PurePath(other).is_relative_to(path)
