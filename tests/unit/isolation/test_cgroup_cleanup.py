"""A control group that cannot be removed when its time has come is not forgotten."""

from __future__ import annotations

import asyncio
import errno

import pytest

from ramet.core.errors import SandboxFailed
from ramet.isolation.limits import cgroup_cleanup
from ramet.isolation.limits.cgroup_cleanup import Leftovers
from ramet.isolation.limits.cgroups import Cgroup
from tests.support.waiting import eventually


class Occupied(Cgroup):
    """A group that somebody is dying in, inside the kernel, where no signal reaches him."""

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


class Vanishing(Occupied):
    """A group whose files cannot be read at the moment."""

    vanishes = True

    def kill(self) -> None:
        super().kill()
        if self.vanishes:
            raise OSError(errno.ENODEV, "No such device")

    async def remove(self) -> bool:
        self.kill()
        return await super().remove()


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroup_cleanup, "_RETRY_S", 0.001)


async def test_what_is_empty_goes_at_once() -> None:
    """And whoever waits is told so."""
    group, left = Occupied(), Leftovers()
    group.is_free = True

    assert await left.remove(group)
    assert (group.is_there, group.kills) == (False, 0)
    await left.close()


async def test_what_cannot_go_yet_goes_later() -> None:
    """Whoever waited was told that it stays; it goes all the same, without anybody asking."""
    groups, left = [Occupied(), Occupied()], Leftovers()

    assert not await left.remove(groups[0])
    assert not await left.remove(groups[1])
    await eventually(lambda: all(each.kills > 1 for each in groups))
    groups[1].is_free = True
    await eventually(lambda: not groups[1].is_there)
    groups[0].is_free = True
    await eventually(lambda: not groups[0].is_there)

    await left.close()


async def test_what_went_wrong_once_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    """With a line in the log that says what it was."""
    group, left = Occupied("control group a: no"), Leftovers()

    assert not await left.remove(group)
    words = "a control group could not be removed yet: control group a: no"
    assert [each.getMessage() for each in caplog.records] == [words]
    group.problem, group.is_free = None, True
    await eventually(lambda: not group.is_there)

    await left.close()


async def test_what_the_kernel_says_of_one_costs_no_other(caplog: pytest.LogCaptureFixture) -> None:
    """A group below one that is being killed may go while it is read, which is no such device: then again, too."""
    odd, plain, left = Vanishing(), Occupied(), Leftovers()

    assert not await left.remove(odd)
    assert not await left.remove(plain)
    await eventually(lambda: odd.kills > 3 and plain.kills > 1)
    odd.is_free = plain.is_free = True
    odd.vanishes = False
    await eventually(lambda: not odd.is_there and not plain.is_there)

    await left.close()


async def test_closing_tries_once_more_and_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left then is found by the next kernel."""
    monkeypatch.setattr(cgroup_cleanup, "_RETRY_S", 1000)
    one, other, left = Occupied(), Occupied(), Leftovers()
    await asyncio.gather(left.remove(one), left.remove(other))
    one.is_free = True
    before = other.tries

    await left.close()

    assert (one.is_there, other.is_there, other.tries) == (False, True, before + 1)
