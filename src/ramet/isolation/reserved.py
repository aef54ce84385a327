"""The control groups of reservations: each holds those of the sandboxes that share it, and bounds them together."""

from __future__ import annotations

import asyncio
from typing import TypedDict

from ramet.core.reservation import Reservation
from ramet.isolation import lifeline
from ramet.isolation.cgroups import Cgroup, Cgroups

_RESOURCES = {"cpu": "cpu_cores", "memory": "memory_mb"}  #: by the controllers that bound them


class Limits(TypedDict):
    """What one sandbox may use."""

    memory_mb: float
    cpu_cores: float
    pids: int


def together(groups: Cgroups | None) -> frozenset[str]:
    """What of a reservation is bounded by these; nothing without any."""
    return frozenset(_RESOURCES[each] for each in groups.controllers & _RESOURCES.keys()) if groups else frozenset()


class Reserved:
    """The groups of reservations, made when their first sandbox starts."""

    def __init__(self) -> None:
        self._groups: dict[str, Cgroup] = {}
        self._made = 0

    async def make(self, groups: Cgroups, reservation: Reservation, limits: Limits) -> Cgroup:
        """An empty group for one more sandbox of it. Raises SandboxFailed."""
        making = lifeline.call(lambda: self._make(groups, reservation, limits))
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            making.add_done_callback(lambda done: done.exception() or done.result().try_remove())
            raise

    async def disband(self, name: str) -> None:
        """Remove the group of a reservation; what is still in it after a while is killed. Idempotent."""
        if (group := self._groups.pop(name, None)) is not None:
            await group.remove()

    def _make(self, groups: Cgroups, reservation: Reservation, limits: Limits) -> Cgroup:
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
