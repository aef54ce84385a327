"""Tests of living kernels: which kernels a reaper counts as living."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ramet.isolation.kubernetes.kernels import KernelIdentity, KernelLease, Kernels


@pytest.fixture
def leases(tmp_path: Path) -> Iterator[tuple[KernelLease, KernelLease]]:
    leases = KernelLease(tmp_path), KernelLease(tmp_path)
    yield leases
    for each in leases:
        each.release()


async def test_kernels_of_a_folder_live_while_they_hold_its_locks(leases: tuple[KernelLease, KernelLease]) -> None:
    one, other = (Kernels(each, None, None) for each in leases)

    assert one.place == other.place
    assert await one.living() == {one.kernel, other.kernel}
    assert await one.owners("agents") == {one.owner("agents"), other.owner("agents")}
    assert one.owner("agents") != one.owner("others"), "whose a pod is differs by namespace"
    other.lease.release()
    assert await one.living() == {one.kernel}


async def test_a_database_lists_its_living_kernels(leases: tuple[KernelLease, KernelLease]) -> None:
    """The database is asked each time, its answer overrides locks, and the asking kernel lives."""
    living = ["b@1"]

    async def ask() -> KernelIdentity:
        return KernelIdentity("place", "not asked again", tuple(living))

    kernels = Kernels(leases[0], KernelIdentity("place", "a@1", ()), ask)

    assert (kernels.place, kernels.kernel) == ("place", "a@1")
    assert await kernels.living() == {"a@1", "b@1"}
    living[:] = []
    assert await kernels.living() == {"a@1"}
    assert kernels.dead() == []
