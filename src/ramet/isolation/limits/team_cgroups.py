"""The control groups of reservations: each holds those of the sandboxes that share it, and bounds them together."""

from __future__ import annotations

import asyncio
from typing import TypedDict

from ramet.core.policy.reservation import Reservation
from ramet.isolation import spawn_thread
from ramet.isolation.limits.cgroups import Cgroup, Cgroups

_RESOURCES = {"cpu": "cpu_cores", "memory": "memory_mb"}  #: by the controllers that bound them


class SandboxLimits(TypedDict):
    """What one sandbox may use."""

    memory_mb: float
    cpu_cores: float
    pids: int


def shared_limits(groups: Cgroups | None) -> frozenset[str]:
    """What of a reservation is bounded by these; nothing without any."""
    return frozenset(_RESOURCES[each] for each in groups.controllers & _RESOURCES.keys()) if groups else frozenset()


class MemoryBounds:
    """The limits of memory around one sandbox in a control group: its own, and that of its reservation."""

    def __init__(self, memory_mb: float, reservation: Reservation | None = None, whole: Cgroup | None = None) -> None:
        """`whole` is the group of the `reservation`."""
        self._memory_mb, self._reservation, self._whole = memory_mb, reservation, whole
        self._times_before = whole.begin_anew() if whole is not None else 0

    def met(self, own: Cgroup) -> str:
        """Say which limit the sandbox met that was ended for want of memory; `own` is its group. Raises SandboxFailed.

        In version 1 the other limit may have been reached before, by files that are only cached: then both are named.
        """
        bounds = []
        if own.times_at_limit():
            bounds.append(f"more than {self._memory_mb:g} MiB of memory: policy.memory_mb is {self._memory_mb:g}")
        if self._has_met_reservation:
            assert self._reservation is not None, "it has a group"
            name, memory_mb = self._reservation.name, self._reservation.memory_mb
            bounds.append(f"more than its sandboxes may use together: reservation {name!r}: memory_mb is {memory_mb:g}")
        return "; or ".join(bounds) or "the memory of the control groups around its sandbox was used up"

    @property
    def _has_met_reservation(self) -> bool:
        is_bounded = self._reservation is not None and self._reservation.memory_mb is not None
        return is_bounded and self._whole is not None and self._whole.times_at_limit() > self._times_before


class Reserved:
    """The groups of reservations, made when their first sandbox starts."""

    def __init__(self) -> None:
        self._groups: dict[str, Cgroup] = {}
        self._made = 0

    async def make(self, groups: Cgroups, reservation: Reservation, limits: SandboxLimits) -> Cgroup:
        """An empty group for one more sandbox of it. Raises SandboxFailed."""
        making = spawn_thread.call(lambda: self._make(groups, reservation, limits))
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            making.add_done_callback(lambda done: done.exception() or done.result().try_remove())
            raise

    def bounds(self, memory_mb: float, reservation: Reservation | None) -> MemoryBounds:
        """The limits of memory around a sandbox that has just come into the group of its reservation, if it has one."""
        whole = self._groups.get(reservation.name) if reservation is not None else None
        return MemoryBounds(memory_mb, reservation, whole)

    async def disband(self, name: str) -> None:
        """Remove the group of a reservation; what is still in it after a while is killed. Idempotent."""
        if (group := self._groups.pop(name, None)) is not None:
            await group.remove()

    def _make(self, groups: Cgroups, reservation: Reservation, limits: SandboxLimits) -> Cgroup:
        """In one thread for all."""
        self._made += 1
        whole = self._groups.get(reservation.name)
        if whole is None:
            whole = groups.make(f"together-{self._made}")
            try:
                whole.open_below()
                whole.limit(memory_mb=reservation.memory_mb, cpu_cores=reservation.cpu_cores, dies_whole=False)
            except BaseException:
                whole.try_remove()
                raise
            self._groups[reservation.name] = whole
        group = whole.below(f"agent-{self._made}")
        group.make()
        try:
            group.limit(**limits)
        except BaseException:
            group.try_remove()
            raise
        return group
