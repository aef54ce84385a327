"""Tests of resource shares: active children share exactly their parent's resources in any order."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.core.errors import SpawnRefused
from ramet.core.limits import SpawnLimits
from ramet.spawn.admission import Admission, AdmissionSlot, ResourceShare


@dataclass(eq=False)
class Node:
    """Run with the attributes that admission reads."""

    path: str = "main"
    parent: Node | None = None
    persistent: bool = False
    envelope: ResourceShare | None = None
    living_descendants: list[Node] = field(default_factory=list)
    waits_for: list[Node] = field(default_factory=list)

    def ancestors(self) -> Iterator[Node]:
        node: Node | None = self
        while node is not None:
            yield node
            node = node.parent


HALF_GIG = ResourceShare(512, 1.0)


def admission(*living: Node, full: str = "queue") -> Admission:
    admission = Admission(SpawnLimits(when_full=full), lambda: living)  # type: ignore[arg-type]
    admission.admit_root()
    return admission


async def test_a_share_above_the_free_resources_is_refused() -> None:
    """512 MB hold 300 MB and 200 MB, but not 300 MB twice; the refusal says how much is free."""
    parent = Node(envelope=HALF_GIG)
    count = admission(parent, full="refuse")
    await count.admit(parent, ResourceShare(300, 0.5))
    with pytest.raises(SpawnRefused) as refusal:
        await count.admit(parent, ResourceShare(300, 0.5))
    assert (refusal.value.limit, refusal.value.free) == ("memory_mb", 212)
    await count.admit(parent, ResourceShare(200, 0.5))
    with pytest.raises(SpawnRefused) as refusal:
        await count.admit(parent, ResourceShare(1, 0.5))
    assert (refusal.value.limit, refusal.value.free) == ("cpu_cores", 0)


async def test_the_end_of_a_run_frees_its_share_for_a_waiting_spawn() -> None:
    """A third child waits while its share does not fit, and is admitted after one child has ended."""
    parent = Node(envelope=HALF_GIG)
    child = Node("main/1", parent)
    parent.living_descendants.append(child)
    count = admission(parent, child)
    first = await count.admit(parent, ResourceShare(512, 0.5))
    third = asyncio.create_task(count.admit(parent, ResourceShare(256, 0.5)))
    await asyncio.sleep(0)
    assert not third.done()
    count.release(first)
    assert (await third).share == ResourceShare(256, 0.5)


async def test_a_share_that_only_waiting_ancestors_could_free_is_refused() -> None:
    """The only active child waits for this spawn, so waiting would never end."""
    parent = Node(envelope=HALF_GIG)
    child = Node("main/1", parent, envelope=ResourceShare(512, 1.0))
    parent.living_descendants.append(child)
    count = admission(parent, child)
    await count.admit(parent, ResourceShare(512, 1.0))
    child.waits_for.append(parent)
    with pytest.raises(SpawnRefused, match="only runs that wait for this spawn"):
        await asyncio.wait_for(count.admit(parent, ResourceShare(1, 0.1)), 180)


async def test_a_parent_without_an_envelope_admits_any_share() -> None:
    """Admission does not count shares below a run of the host."""
    parent = Node(envelope=None)
    count = admission(parent, full="refuse")
    for _ in range(10):
        await count.admit(parent, ResourceShare(10_000, 64))


@given(st.lists(st.tuples(st.integers(1, 400), st.sampled_from([0.1, 0.25, 0.3, 1.0]), st.booleans()), max_size=40))
def test_admitted_shares_never_exceed_the_envelope(births: list[tuple[int, float, bool]]) -> None:
    """Any order of spawns and ends keeps the shares within the envelope, and returns all of them."""
    parent = Node(envelope=HALF_GIG)
    count = admission(parent, full="refuse")
    slots: list[AdmissionSlot] = []
    for memory, cpu, ends in births:
        slot = count.try_admit(parent, ResourceShare(memory, cpu))
        if slot is not None:
            slots.append(slot)
        assert sum(each.share.memory_mb for each in slots) <= 512
        assert sum(each.share.cpu_cores for each in slots) <= 1.0 + 1e-6
        if ends and slots:
            count.release(slots.pop(0))
    for slot in slots:
        count.release(slot)
    assert count.try_admit(parent, HALF_GIG) is not None


async def test_a_thousand_concurrent_spawns_stay_within_the_envelope() -> None:
    """Admission lets in five spawns that fit, and the others wait."""
    parent = Node(envelope=HALF_GIG)
    child = Node("main/1", parent)
    parent.living_descendants.append(child)
    count = admission(parent, child)
    asking = [asyncio.create_task(count.admit(parent, ResourceShare(100, 0.01))) for _ in range(1_000)]
    for _ in range(3):
        await asyncio.sleep(0)
    assert sum(task.done() for task in asking) == 5
    for task in asking:
        task.cancel()
    await asyncio.wait(asking)


async def test_a_sandbox_that_is_no_run_holds_a_share_and_hides_no_deadlock() -> None:
    """A spawn that needs its room is refused, since it ends with its run only; afterwards the room is free."""
    parent = Node(envelope=HALF_GIG)
    count = admission(parent)
    with count.holding(parent, ResourceShare(300, 0.5)):
        with pytest.raises(SpawnRefused) as refusal:
            await count.admit(parent, ResourceShare(300, 0.5))
        assert (refusal.value.limit, refusal.value.free) == ("memory_mb", 212)
        with pytest.raises(SpawnRefused), count.holding(parent, ResourceShare(1, 0.6)):
            raise AssertionError("there was no room for it")
        assert count.slot_count == 2
    assert (await count.admit(parent, HALF_GIG)).is_held
