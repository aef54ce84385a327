"""A kernel that is killed leaves no process that it started, at any point of its work."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
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
from tests.support.control_groups import find_groups
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
    """Return a folder whose user for sandboxes has no process now: there are 606 users, and other tests run."""
    for number in range(100):
        folder = tmp_path / f"scratch-{number}"
        folder.mkdir()
        if not processes_of_owner(backend("local", folder)) | processes_of_owner(backend("bwrap", folder)):
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


async def assert_printed(process: asyncio.subprocess.Process, word: str) -> None:
    assert process.stdout is not None
    assert (await process.stdout.readline()).decode().strip() == word


def backend(kind: str, scratch: Path) -> ZygoteBackend:
    return BwrapBackend(scratch / "runs") if kind == "bwrap" else LocalBackend(scratch / "runs")


async def skip_without_backend(kind: str, scratch: Path) -> None:
    one = backend(kind, scratch)
    probe = await one.probe()
    await one.close()
    if probe.level is Isolation.L0:
        pytest.skip(f"this machine has no {kind}: {probe.remedy}")


class Family:
    """Set of the processes below one process. Their start times tell them from later processes of the same pid."""

    def __init__(self, pid: int) -> None:
        self._root = pid
        self._born: dict[int, int] = {}
        self.look()

    def look(self) -> int:
        """Add the processes that live now, and return the number of processes ever seen."""
        self._born.update((pid, one.start_time) for pid, one in procfs.tree(self._root).items())
        return len(self._born)

    def living(self) -> set[int]:
        """Return the pids of the processes that still live, wherever they are now."""
        found = {pid: procfs.stat(pid) for pid in self._born}
        return {pid for pid, one in found.items() if one and one.start_time == self._born[pid] and one.is_alive}


async def assert_ended(family: Family, one: ZygoteBackend) -> None:
    """Wait until no process of a family lives, nor of the user of its sandboxes.

    Fail with a text about those that stay.
    """
    with contextlib.suppress(TimeoutError):
        await eventually(lambda: not family.living() | processes_of_owner(one))
    assert not list(map(description_of, family.living() | processes_of_owner(one)))


def description_of(pid: int) -> str:
    """Return what /proc shows about a process."""
    parts = []
    for name in ("cmdline", "status", "wchan", "cgroup"):
        with contextlib.suppress(OSError):
            parts.append(Path(f"/proc/{pid}/{name}").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return "\n".join(parts)


def processes_of_owner(one: ZygoteBackend) -> set[int]:
    """Return the pids of the user that sandboxes of this folder have to themselves; none if that user is our own."""
    if one.owner is None:
        return set()
    found = set()
    for each in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if each.stat().st_uid == one.owner[0] and (stat := procfs.stat(int(each.name))) and stat.is_alive:
                found.add(int(each.name))
    return found


@pytest.mark.parametrize("kind", ["bwrap", "local", "bare"])
async def test_agents_that_ignore_signals_end_with_their_kernel(kind: str, tmp_path: Path) -> None:
    """Fifty agents that ignore signals, with hidden children where the backend allows them, end with the kernel."""
    await skip_without_backend(kind, tmp_path / "probe")
    async with kernel(kind, tmp_path, count=50) as process:
        await assert_printed(process, "probed")
        await assert_printed(process, "ready")
        family = Family(process.pid)
        files = [file for name in ("held", "hidden") for file in (tmp_path / "runs").glob(f"*/{name}")]
        assert len(files) >= 50
        assert sum(map(is_locked, files)) >= 50
        assert len(family.living()) > 50

        process.kill()
        await process.wait()

        await assert_ended(family, backend(kind, tmp_path))
        assert not any(map(is_locked, files))


@pytest.mark.parametrize("kind", ["bwrap", "local", "bare"])
@pytest.mark.parametrize("grown", [1, 2, 4, 6, 9])
async def test_a_kernel_killed_while_it_starts_agents_leaves_none(kind: str, grown: int, tmp_path: Path) -> None:
    """A kernel killed after its first few processes leaves no launcher, zygote, parked or half-started agent."""
    await skip_without_backend(kind, tmp_path / "probe")
    async with kernel(kind, tmp_path, count=20) as process:
        await assert_printed(process, "probed")
        family = Family(process.pid)
        await eventually(lambda: family.look() > grown)
        process.kill()
        await process.wait()
        await assert_ended(family, backend(kind, tmp_path))


async def test_fresh_and_parked_agents_end_with_their_kernel(tmp_path: Path) -> None:
    await skip_without_backend("bwrap", tmp_path / "probe")
    async with kernel("bwrap", tmp_path, count=3, level=Isolation.FRESH) as process:
        await assert_printed(process, "probed")
        await assert_printed(process, "ready")
        family = Family(process.pid)
        process.send_signal(signal.SIGKILL)
        await process.wait()
        await assert_ended(family, backend("bwrap", tmp_path))


@pytest.mark.alone("the next kernel of any test removes the control groups of a dead one")
async def test_the_next_kernel_removes_control_groups_of_a_dead_one(tmp_path: Path) -> None:
    await skip_without_backend("bwrap", tmp_path / "probe")
    async with kernel("bwrap", tmp_path, count=2) as process:
        await assert_printed(process, "probed")
        await assert_printed(process, "ready")
        family = Family(process.pid)
        names = kernel_groups(family)
        process.kill()
        await process.wait()
        await eventually(lambda: not family.living())
    next_one = backend("bwrap", tmp_path)
    try:
        reaped = await next_one.reap()
        if not names:
            pytest.skip("no control groups to be had here")
        assert set(reaped) in (names, set())  # Another run of the tests on this machine may have been first.
        await eventually(lambda: not [left for name in names for left in find_groups(name)])
        assert await next_one.reap() == ()
    finally:
        await next_one.close()


async def test_a_kernel_removes_control_groups_of_other_folders(tmp_path: Path) -> None:
    """A kernel removes the control groups of each dead kernel, and returns only those of its own folder."""
    await skip_without_backend("bwrap", tmp_path / "probe")
    async with kernel("bwrap", tmp_path, count=2) as process:
        await assert_printed(process, "probed")
        await assert_printed(process, "ready")
        family = Family(process.pid)
        names = kernel_groups(family)
        process.kill()
        await process.wait()
        await eventually(lambda: not family.living())
    (tmp_path / "elsewhere").mkdir()
    other = backend("bwrap", tmp_path / "elsewhere")
    try:
        assert await other.reap() == ()
    finally:
        await other.close()
    if not names:
        pytest.skip("no control groups to be had here")
    await eventually(lambda: not [left for name in names for left in find_groups(name)])


def kernel_groups(family: Family) -> set[str]:
    """Return the names of the control groups of the kernel whose processes these are."""
    names = set[str]()
    for pid in family.living():
        with contextlib.suppress(OSError):
            names.update(re.findall(r"/ramet/([^/\n]+)/", Path(f"/proc/{pid}/cgroup").read_text()))
    return names
