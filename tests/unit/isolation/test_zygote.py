"""Tests of zygotes: they park children ahead, are replaced in time, end with their backend, and leave nothing."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from ramet.core.errors import SandboxFailed
from ramet.isolation.bwrap import BwrapBackend
from ramet.isolation.linux import procfs
from ramet.isolation.local import LocalBackend
from ramet.isolation.zygote import client, pool
from ramet.isolation.zygote.backend import ZygoteBackend
from ramet.testing.conformance.isolation.harness import GRANT, BackendFixture, Ended, replace_grant
from tests.support.backends import open_backend_or_skip
from tests.support.waiting import alive, eventually

Open = Callable[[], ZygoteBackend]


@pytest.fixture(params=["bwrap", "local"])
def open_backend(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    kind = {"bwrap": BwrapBackend, "local": LocalBackend}[request.param]
    return lambda: kind(tmp_path / "runs", parked_count=2)


@pytest.fixture
async def site(open_backend: Open, tmp_path: Path) -> AsyncIterator[BackendFixture]:
    async with open_backend_or_skip(open_backend(), tmp_path) as site:
        yield site


def zygotes(site: BackendFixture) -> list[client.ZygoteClient]:
    assert isinstance(site.backend, ZygoteBackend)
    return sorted(site.backend._pool._zygotes, key=lambda each: each.started_at)


def is_being_replaced(site: BackendFixture) -> bool:
    assert isinstance(site.backend, ZygoteBackend)
    return bool(site.backend._pool._tasks)


async def test_parked_children_are_replenished_after_use(site: BackendFixture) -> None:
    async with site.start_guest():
        (only,) = zygotes(site)
        await eventually(lambda: only.parked_count == 2)
        async with site.start_guest(), site.start_guest(), site.start_guest():
            await eventually(lambda: only.parked_count == 2)
            assert only.spawn_count == 4


async def test_a_dead_parked_child_is_skipped(site: BackendFixture) -> None:
    async with site.start_guest():
        (only,) = zygotes(site)
        await eventually(lambda: only.parked_count == 2)
        for child in tuple(only._parked_children):
            os.kill(child.pid, signal.SIGKILL)
            await child.exit_future

        async with site.start_guest() as guest:
            assert await guest.ask("process_info")


async def test_many_spawns_leave_no_resources(site: BackendFixture) -> None:
    """The numbers of descriptors, processes and mounts are unchanged after a hundred spawns."""

    async def one() -> None:
        async with site.start_guest() as guest:
            await guest.send("leave", code=0)
            await guest.wait_ended()

    await one()
    (only,) = zygotes(site)
    await eventually(lambda: only.parked_count == 2)
    before = (descriptors(), set(procfs.tree(os.getpid())), mounts(only.pid))

    for _ in range(20):
        await asyncio.gather(*(one() for _ in range(5)))

    await eventually(lambda: only.parked_count == 2 and len(only.children) == 2)
    now = (descriptors(), set(procfs.tree(os.getpid())), mounts(only.pid))
    assert now[0] == before[0]
    assert len(now[1]) == len(before[1])
    assert now[2] == before[2]


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def mounts(pid: int) -> int:
    return len(Path(f"/proc/{pid}/mountinfo").read_text().splitlines())


async def test_a_zygote_is_replaced_after_a_number_of_spawns(
    site: BackendFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "ROTATE_AFTER_SPAWNS", 2)
    async with site.start_guest() as old, site.start_guest():
        (first,) = zygotes(site)
        async with site.start_guest():
            await eventually(lambda: len(zygotes(site)) == 2)
            await eventually(lambda: not first.is_open)
            pid = first.pid
            async with site.start_guest() as new:
                assert zygotes(site)[1].spawn_count == 1
                assert await new.ask("process_info")
            assert await old.ask("process_info")
            assert alive(pid)
    await eventually(lambda: first.has_exited)
    assert not alive(pid)


async def test_a_zygote_is_replaced_when_it_is_old(site: BackendFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    async with site.start_guest():
        (first,) = zygotes(site)
        monkeypatch.setattr(pool, "ROTATE_AFTER_S", 0.0)
        async with site.start_guest():
            await eventually(lambda: not first.is_open)


async def test_a_suspicious_crash_replaces_the_zygote_but_not_twice_in_a_row(
    site: BackendFixture,
) -> None:
    async with site.start_guest() as guest:
        (first,) = zygotes(site)
        await guest.send("end_by", number=signal.SIGSEGV)
        await guest.wait_ended()
        assert is_being_replaced(site)
    await eventually(lambda: first.has_exited)
    (second,) = [each for each in zygotes(site) if each.is_open]

    async with site.start_guest() as guest:
        await guest.send("end_by", number=signal.SIGSEGV)
        await guest.wait_ended()
        assert not is_being_replaced(site)
        async with site.start_guest() as other:
            assert await other.ask("process_info")
            assert second.is_open


async def test_another_end_of_an_agent_does_not_replace_the_zygote(site: BackendFixture) -> None:
    async with site.start_guest() as guest:
        (only,) = zygotes(site)
        await guest.send("end_by", number=signal.SIGABRT)
        await guest.wait_ended()
    assert not is_being_replaced(site)
    async with site.start_guest():
        assert zygotes(site) == [only]


async def test_a_killed_zygote_ends_its_agents_and_is_replaced(
    site: BackendFixture,
) -> None:
    async with site.start_guest() as guest:
        await guest.ask("hide", hold="held", quiet=True)
        (first,) = zygotes(site)
        os.kill(first.pid, signal.SIGKILL)

        end = await guest.wait_ended()

        assert (end.reason, end.code) == ("lost", -signal.SIGKILL)
        assert "zygote" in end.detail
        assert not await guest.is_locked("held")
        with pytest.raises(Ended):
            await guest.ask("process_info")
        async with site.start_guest() as next_one:
            assert await next_one.ask("process_info")


async def test_concurrent_starts_share_one_zygote(site: BackendFixture) -> None:
    async def one() -> int:
        async with site.start_guest() as guest:
            return int((await guest.ask("process_info"))["pid"])

    await asyncio.gather(*(one() for _ in range(8)))

    assert len(zygotes(site)) == 1


async def test_each_kind_has_its_own_zygote_up_to_a_maximum(
    site: BackendFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "MAX_ZYGOTES", 2)
    folders = [tmp_path / name for name in ("a", "b")]
    for folder in folders:
        folder.mkdir()
    async with site.start_guest() as first:
        (oldest,) = zygotes(site)
        for folder in folders:
            async with site.start_guest(grant=replace_grant(GRANT, readonly_mounts=(str(folder),))) as guest:
                assert await guest.ask("listing", path=str(folder)) == []
        assert not oldest.is_open
        assert await first.ask("process_info"), "the agent of a zygote that made room lives on"
        assert sum(each.is_open for each in zygotes(site)) == 2


async def test_a_zygote_with_more_mounts_shows_an_agent_only_its_own(site: BackendFixture, tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        folder.mkdir()
        (folder / "file").write_text("text")
        (folder / "file").chmod(0o644)
    async with site.start_guest(grant=replace_grant(GRANT, readonly_mounts=(str(one), str(other)))) as guest:
        assert await guest.ask("read", path=f"{other}/file") == "text"
    async with site.start_guest(grant=replace_grant(GRANT, readonly_mounts=(str(one),))) as guest:
        assert len(zygotes(site)) == 1
        assert await guest.ask("read", path=f"{one}/file") == "text"
        assert await guest.failure_of("read", path=f"{other}/file") in {"EACCES", "ENOENT"}


async def test_the_output_of_a_failed_zygote_is_reported(open_backend: Open, tmp_path: Path) -> None:
    async with open_backend_or_skip(open_backend(), tmp_path) as site:
        assert isinstance(site.backend, ZygoteBackend)
        site.backend._runtime = site.backend._runtime._replace(python="/bin/false")
        with pytest.raises(SandboxFailed, match="exit code 1"):
            await site.backend.start(site.spec())


async def test_closing_a_backend_during_a_start_fails_the_start(open_backend: Open, tmp_path: Path) -> None:
    async with open_backend_or_skip(open_backend(), tmp_path) as site:
        starting = asyncio.ensure_future(site.backend.start(site.spec()))
        await asyncio.sleep(0)
        await site.backend.close()
        with pytest.raises(SandboxFailed, match="closed"):
            await starting
        with pytest.raises(SandboxFailed, match="closed"):
            await site.backend.start(site.spec())
