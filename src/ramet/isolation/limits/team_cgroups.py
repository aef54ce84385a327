"""The control groups of reservations: each holds and jointly bounds the groups of the sandboxes that share it."""

from __future__ import annotations

import asyncio
from typing import TypedDict

from ramet.core.policy.reservation import Reservation
from ramet.isolation import spawn_thread
from ramet.isolation.limits.cgroups import Cgroup, Cgroups

#: the parts of a reservation, by the controllers that bound them
_RESOURCES = {"cpu": "cpu_cores", "memory": "memory_mb"}


class SandboxLimits(TypedDict):
    """The limits of one sandbox."""

    memory_mb: float
    cpu_cores: float
    pids: int


def shared_limits(groups: Cgroups | None) -> frozenset[str]:
    """Return the parts of a reservation that these groups bound; none without groups."""
    return frozenset(_RESOURCES[each] for each in groups.controllers & _RESOURCES.keys()) if groups else frozenset()


class MemoryBounds:
    """The limits of memory around one sandbox in a control group: its own, and that of its reservation."""

    def __init__(
        self, memory_mb: float, reservation: Reservation | None = None, team_group: Cgroup | None = None
    ) -> None:
        """Record the limits, and begin to count how often the reservation's limit is reached.

        `team_group` is the group of the `reservation`.
        """
        self._memory_mb, self._reservation, self._team_group = memory_mb, reservation, team_group
        self._times_before = team_group.start_count() if team_group is not None else 0

    def describe_exceeded(self, own_group: Cgroup) -> str:
        """Return which limit a sandbox met that was ended for lack of memory; `own_group` is its group.

        Raises SandboxFailed.

        In version 1 files that are only cached may have reached the other limit before: then both limits are named.
        """
        bounds = []
        if own_group.times_at_limit():
            bounds.append(f"more than {self._memory_mb:g} MiB of memory: policy.memory_mb is {self._memory_mb:g}")
        if self._has_met_reservation:
            assert self._reservation is not None, "it has a group"
            name, memory_mb = self._reservation.name, self._reservation.memory_mb
            bounds.append(f"more than its sandboxes may use together: reservation {name!r}: memory_mb is {memory_mb:g}")
        return "; or ".join(bounds) or "the memory of the control groups around its sandbox was used up"

    @property
    def _has_met_reservation(self) -> bool:
        is_bounded = self._reservation is not None and self._reservation.memory_mb is not None
        return is_bounded and self._team_group is not None and self._team_group.times_at_limit() > self._times_before


class ReservationGroups:
    """The groups of reservations, made when their first sandbox starts."""

    def __init__(self) -> None:
        self._groups: dict[str, Cgroup] = {}
        self._count = 0

    async def make(self, groups: Cgroups, reservation: Reservation, limits: SandboxLimits) -> Cgroup:
        """Return an empty group for one more sandbox of the reservation. Raises SandboxFailed."""
        creation = spawn_thread.call(lambda: self._make(groups, reservation, limits))
        try:
            return await asyncio.shield(creation)
        except asyncio.CancelledError:
            creation.add_done_callback(lambda done: done.exception() or done.result().try_remove())
            raise

    def bounds(self, memory_mb: float, reservation: Reservation | None) -> MemoryBounds:
        """Return the memory limits of a sandbox that has just entered the group of its reservation, if it has one."""
        team_group = self._groups.get(reservation.name) if reservation is not None else None
        return MemoryBounds(memory_mb, reservation, team_group)

    async def disband(self, name: str) -> None:
        """Remove the group of a reservation; processes that are still in it after a while are killed. Idempotent."""
        if (group := self._groups.pop(name, None)) is not None:
            await group.remove()

    def _make(self, groups: Cgroups, reservation: Reservation, limits: SandboxLimits) -> Cgroup:
        """Make the group; all calls run in one thread."""
        self._count += 1
        team_group = self._groups.get(reservation.name)
        if team_group is None:
            team_group = groups.make(f"together-{self._count}")
            try:
                team_group.enable_children()
                team_group.limit(memory_mb=reservation.memory_mb, cpu_cores=reservation.cpu_cores, dies_whole=False)
            except BaseException:
                team_group.try_remove()
                raise
            self._groups[reservation.name] = team_group
        group = team_group.child(f"agent-{self._count}")
        group.make()
        try:
            group.limit(**limits)
        except BaseException:
            group.try_remove()
            raise
        return group
