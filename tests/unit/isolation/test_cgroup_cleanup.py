"""Tests of control groups that cannot be removed yet: they are removed later."""

from __future__ import annotations

import asyncio
import errno

import pytest

from ramet.core.errors import SandboxFailed
from ramet.isolation.limits import cgroup_cleanup
from ramet.isolation.limits.cgroup_cleanup import GroupRemover
from ramet.isolation.limits.cgroups import Cgroup
from tests.support.waiting import eventually


class OccupiedCgroup(Cgroup):
    """Control group with a process that cannot end yet, because it waits inside the kernel."""

    def __init__(self, problem: str | None = None) -> None:
        super().__init__({}, 1)
        self.problem, self.is_free, self.is_there, self.kills, self.tries = problem, False, True, 0, 0

    def kill(self) -> None:
        self.kills += 1

    def try_remove(self) -> bool:
        self.tries += 1
        if self.problem is not None:
            raise SandboxFailed(self.problem)
        if self.is_free:
            self.is_there = False
        return self.is_free

    async def remove(self) -> bool:
        return self.try_remove()


class UnreadableCgroup(OccupiedCgroup):
    """Control group whose files cannot be read at the moment."""

    vanishes = True

    def kill(self) -> None:
        super().kill()
        if self.vanishes:
            raise OSError(errno.ENODEV, "No such device")

    async def remove(self) -> bool:
        self.kill()
        return await super().remove()


@pytest.fixture(autouse=True)
def retry_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroup_cleanup, "_RETRY_S", 0.001)


async def test_an_empty_group_is_removed_at_once() -> None:
    """`remove` returns True."""
    group, leftovers = OccupiedCgroup(), GroupRemover()
    group.is_free = True

    assert await leftovers.remove(group)
    assert (group.is_there, group.kills) == (False, 0)
    await leftovers.close()


async def test_an_occupied_group_is_removed_later() -> None:
    """`remove` returns False, and the group is removed without a further call."""
    groups, leftovers = [OccupiedCgroup(), OccupiedCgroup()], GroupRemover()

    assert not await leftovers.remove(groups[0])
    assert not await leftovers.remove(groups[1])
    await eventually(lambda: all(each.kills > 1 for each in groups))
    groups[1].is_free = True
    await eventually(lambda: not groups[1].is_there)
    groups[0].is_free = True
    await eventually(lambda: not groups[0].is_there)

    await leftovers.close()


async def test_a_failed_removal_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    """A line of the log names the problem."""
    group, leftovers = OccupiedCgroup("control group a: no"), GroupRemover()

    assert not await leftovers.remove(group)
    words = "a control group could not be removed yet: control group a: no"
    assert [each.getMessage() for each in caplog.records] == [words]
    group.problem, group.is_free = None, True
    await eventually(lambda: not group.is_there)

    await leftovers.close()


async def test_a_failure_of_one_group_does_not_affect_another(caplog: pytest.LogCaptureFixture) -> None:
    """The kernel may report ENODEV for a group that vanishes while it is read; the removal is tried again."""
    odd, plain, leftovers = UnreadableCgroup(), OccupiedCgroup(), GroupRemover()

    assert not await leftovers.remove(odd)
    assert not await leftovers.remove(plain)
    await eventually(lambda: odd.kills > 3 and plain.kills > 1)
    odd.is_free = plain.is_free = True
    odd.vanishes = False
    await eventually(lambda: not odd.is_there and not plain.is_there)

    await leftovers.close()


async def test_close_tries_once_more_and_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next kernel finds the groups that are left."""
    monkeypatch.setattr(cgroup_cleanup, "_RETRY_S", 1000)
    one, other, leftovers = OccupiedCgroup(), OccupiedCgroup(), GroupRemover()
    await asyncio.gather(leftovers.remove(one), leftovers.remove(other))
    one.is_free = True
    before = other.tries

    await leftovers.close()

    assert (one.is_there, other.is_there, other.tries) == (False, True, before + 1)
