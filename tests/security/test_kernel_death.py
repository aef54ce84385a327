"""A kernel that is killed takes everything along that it had started, wherever it was in its work."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ramet.core.policy.policy import Isolation
from ramet.isolation import python_runtime
from ramet.isolation.bwrap import BwrapBackend
from ramet.isolation.linux import procfs
from ramet.isolation.local import LocalBackend
from ramet.isolation.zygote.backend import ZygoteBackend
from ramet.testing.conformance.isolation.harness import is_locked
from tests.support.waiting import eventually

KERNEL = """
import asyncio, contextlib, json, pathlib, signal, sys
from ramet.core.policy.policy import Isolation
from ramet.isolation.bwrap import BwrapBackend
from ramet.testing.conformance.isolation.harness import GRANT, Workdir, Refused, BackendFixture, replace_grant
from ramet.isolation.local import LocalBackend

async def main(kind, scratch, count, level):
    runs = pathlib.Path(scratch) / "runs"
    backend = {
        "bwrap": lambda: BwrapBackend(runs),
        "local": lambda: LocalBackend(runs),
        "bare": lambda: LocalBackend(runs, namespaces=False),
    }[kind]()
    site = BackendFixture(Workdir("", pathlib.Path(scratch)), backend, await backend.probe())
    grant = replace_grant(GRANT, isolation=Isolation(level))
    print("probed", flush=True)
    async def one(at):
        spec = site.spec(grant=grant, workspace=site.workspace(f"run-{at}"))
        visit = await stack.enter_async_context(site.start_guest(spec))
        await visit.ask("ignore", numbers=[signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
        with contextlib.suppress(Refused):
            await visit.ask("hide", hold="hidden", quiet=True)
        await visit.ask("hold", path="held")
        await visit.send("end_by", number=signal.SIGSTOP)  # It does not even see the end of its channel.
    async with contextlib.AsyncExitStack() as stack:
        await asyncio.gather(*map(one, range(count)))
        print("ready", flush=True)
        await asyncio.Event().wait()

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]))
"""


@pytest.fixture
def tmp_path(tmp_path: Path) -> Path:
    """A folder whose sandboxes have a user that nobody else has now: there are 606, and other tests are at work."""
    for number in range(100):
        folder = tmp_path / f"scratch-{number}"
        folder.mkdir()
        if not of_owner(backend("local", folder)) | of_owner(backend("bwrap", folder)):
            return folder
    raise AssertionError("every user of sandboxes is at work")


@contextlib.asynccontextmanager
async def kernel(
    kind: str, scratch: Path, *, count: int, level: Isolation = Isolation.L0
) -> AsyncIterator[asyncio.subprocess.Process]:
    (scratch / "runs").mkdir()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", KERNEL, kind, str(scratch), str(count), level),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(python_runtime.find().path)},
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def said(process: asyncio.subprocess.Process, word: str) -> None:
    assert process.stdout is not None
    assert (await process.stdout.readline()).decode().strip() == word


def backend(kind: str, scratch: Path) -> ZygoteBackend:
    return BwrapBackend(scratch / "runs") if kind == "bwrap" else LocalBackend(scratch / "runs")


async def works(kind: str, scratch: Path) -> None:
    one = backend(kind, scratch)
    probe = await one.probe()
    await one.close()
    if probe.level is Isolation.L0:
        pytest.skip(f"this machine has no {kind}: {probe.remedy}")


class Family:
    """Every process below one, told apart from later ones of the same pid."""

    def __init__(self, pid: int) -> None:
        self._root = pid
        self._born: dict[int, int] = {}
        self.look()

    def look(self) -> int:
        """Take note of who is there now; says how many were ever seen."""
        self._born.update((pid, one.start_time) for pid, one in procfs.tree(self._root).items())
        return len(self._born)

    def living(self) -> set[int]:
        """Who of them lives, wherever it is now."""
        found = {pid: procfs.stat(pid) for pid in self._born}
        return {pid for pid, one in found.items() if one and one.start_time == self._born[pid] and one.is_alive}


async def ended(family: Family, one: ZygoteBackend) -> None:
    """Wait until nobody of a family lives, nor of the user that its sandboxes have; tells who stays."""
    with contextlib.suppress(TimeoutError):
        await eventually(lambda: not family.living() | of_owner(one))
    assert not list(map(described, family.living() | of_owner(one)))


def described(pid: int) -> str:
    """What is known of a process."""
    told = []
    for name in ("cmdline", "status", "wchan", "cgroup"):
        with contextlib.suppress(OSError):
            told.append(Path(f"/proc/{pid}/{name}").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return "\n".join(told)


def of_owner(one: ZygoteBackend) -> set[int]:
    """The processes of the user that sandboxes of this folder have to themselves; nobody's if that is our own."""
    if one.owner is None:
        return set()
    found = set()
    for each in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if each.stat().st_uid == one.owner[0] and (stat := procfs.stat(int(each.name))) and stat.is_alive:
                found.add(int(each.name))
    return found


@pytest.mark.parametrize("kind", ["bwrap", "local", "bare"])
async def test_agents_that_will_not_end_end_with_their_kernel(kind: str, tmp_path: Path) -> None:
    """Fifty that are deaf to signals, with children in sessions of their own where they can have them."""
    await works(kind, tmp_path / "probe")
    async with kernel(kind, tmp_path, count=50) as process:
        await said(process, "probed")
        await said(process, "ready")
        family = Family(process.pid)
        files = [file for name in ("held", "hidden") for file in (tmp_path / "runs").glob(f"*/{name}")]
        assert len(files) >= 50
        assert sum(map(is_locked, files)) >= 50
        assert len(family.living()) > 50

        process.kill()
        await process.wait()

        await ended(family, backend(kind, tmp_path))
        assert not any(map(is_locked, files))


@pytest.mark.parametrize("kind", ["bwrap", "local", "bare"])
@pytest.mark.parametrize("grown", [1, 2, 4, 6, 9])
async def test_a_kernel_that_is_killed_while_it_starts_some_leaves_none(kind: str, grown: int, tmp_path: Path) -> None:
    """Killed as soon as so many processes have been seen below it: launchers, zygotes, parked and half-made agents."""
    await works(kind, tmp_path / "probe")
    async with kernel(kind, tmp_path, count=20) as process:
        await said(process, "probed")
        family = Family(process.pid)
        await eventually(lambda: family.look() > grown)
        process.kill()
        await process.wait()
        await ended(family, backend(kind, tmp_path))


async def test_fresh_agents_and_the_one_that_was_started_ahead_end_with_their_kernel(tmp_path: Path) -> None:
    await works("bwrap", tmp_path / "probe")
    async with kernel("bwrap", tmp_path, count=3, level=Isolation.FRESH) as process:
        await said(process, "probed")
        await said(process, "ready")
        family = Family(process.pid)
        process.send_signal(signal.SIGKILL)
        await process.wait()
        await ended(family, backend("bwrap", tmp_path))


@pytest.mark.alone("whichever kernel begins next removes it, also one of another test")
async def test_what_a_dead_kernel_left_on_the_machine_is_removed_by_the_next(tmp_path: Path) -> None:
    await works("bwrap", tmp_path / "probe")
    async with kernel("bwrap", tmp_path, count=2) as process:
        await said(process, "probed")
        await said(process, "ready")
        family = Family(process.pid)
        groups = {line.rpartition(":")[2] for pid in family.living() for line in cgroups(pid)}
        process.kill()
        await process.wait()
        await eventually(lambda: not family.living())
    next_one = backend("bwrap", tmp_path)
    try:
        reaped = await next_one.reap()
        if not any("/ramet/" in group for group in groups):
            pytest.skip("no control groups to be had here")
        assert len(reaped) == 1
        assert not groups_named(reaped[0])
        assert await next_one.reap() == ()
    finally:
        await next_one.close()


async def test_what_kernels_of_other_folders_left_goes_as_well(tmp_path: Path) -> None:
    """A folder may never have a kernel again: whoever reaps removes the groups of all dead ones, and tells its own."""
    await works("bwrap", tmp_path / "probe")
    async with kernel("bwrap", tmp_path, count=2) as process:
        await said(process, "probed")
        await said(process, "ready")
        family = Family(process.pid)
        groups = {line.rpartition(":")[2].strip("/") for pid in family.living() for line in cgroups(pid)}
        process.kill()
        await process.wait()
        await eventually(lambda: not family.living())
    names = {group.split("/")[1] for group in groups if group.startswith("ramet/")}
    (tmp_path / "elsewhere").mkdir()
    other = backend("bwrap", tmp_path / "elsewhere")
    try:
        assert await other.reap() == ()
    finally:
        await other.close()
    if not names:
        pytest.skip("no control groups to be had here")
    assert not [left for name in names for left in groups_named(name)]


def groups_named(name: str) -> list[Path]:
    return list(Path("/sys/fs/cgroup").glob(f"*/**/{name}"))


def cgroups(pid: int) -> list[str]:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    return []
