"""Tests of `Freezer` with real processes: everything of a tree stands still, by a control group or by signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ramet.isolation.limits.cgroup import fields
from ramet.isolation.limits.cgroups import Cgroup, reap_groups
from ramet.isolation.limits.cpu_throttle import Pause
from ramet.isolation.limits.freezer import Freezer
from ramet.isolation.limits.freezer_groups import FreezerGroups
from ramet.isolation.linux import procfs
from tests.support.waiting import eventually

#: A shell that starts another one again and again; each writes a line to the file before it starts the next.
CHAIN = "echo x >> count; (exec sh chain) & wait"
MakeGroup = Callable[[], Cgroup | None]


@pytest.fixture
def groups() -> Iterator[FreezerGroups]:
    groups = FreezerGroups()
    yield groups
    groups.close()
    assert groups.place is None


@pytest.fixture(params=["group", "signals"])
def make_group(request: pytest.FixtureRequest, groups: FreezerGroups) -> MakeGroup:
    """Return what makes a group of version 2, or none."""
    if request.param == "signals":
        return lambda: None
    if (group := groups.make("test")) is None:
        pytest.skip("this machine has no control groups of version 2 for us")
    return lambda: group


@pytest.fixture
def tree(tmp_path: Path, make_group: MakeGroup) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process whose descendants are always others; remove its group afterwards."""
    (tmp_path / "chain").write_text(CHAIN)
    keeper = "import os, subprocess, ctypes; ctypes.CDLL(None).prctl(36, 1)\nsubprocess.Popen(['sh', 'chain'])\n"
    keeper += "while True:\n    try: os.wait()\n    except ChildProcessError: break\n"
    process = subprocess.Popen([sys.executable, "-ISc", keeper], cwd=tmp_path, start_new_session=True)
    yield process
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if (group := make_group()) is not None:
        while not group.try_remove():
            group.kill()


def size(folder: Path) -> int:
    file = folder / "count"
    return file.stat().st_size if file.exists() else 0


def freezer_of(process: subprocess.Popen[bytes], make_group: MakeGroup) -> Freezer:
    return Freezer(lambda: procfs.tree(process.pid), make_group)


def start_shell() -> subprocess.Popen[bytes]:
    """Start a shell that waits for a line."""
    return subprocess.Popen(["sh", "-c", "read line"], stdin=subprocess.PIPE)


def count_meanwhile() -> None:
    """Return once another process has started many others."""
    subprocess.run(["sh", "-c", "i=0; while [ $i -lt 100 ]; do /bin/true; i=$((i+1)); done"], check=True)


async def test_a_tree_that_always_starts_processes_stands_still(
    tree: subprocess.Popen[bytes], tmp_path: Path, make_group: MakeGroup
) -> None:
    """No process runs, nor one that was being started; thawed, all go on. A second freeze works like the first."""
    freezer = freezer_of(tree, make_group)
    for _ in range(3):
        before = size(tmp_path)
        await eventually(lambda: size(tmp_path) > before)  # noqa: B023  # of this round

        freezer.freeze()

        before = size(tmp_path)
        count_meanwhile()
        assert size(tmp_path) == before
        assert not freezer.hold()
        freezer.thaw()


async def test_processes_that_are_in_the_group_already_are_frozen_by_it(
    tmp_path: Path, groups: FreezerGroups, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group that has the limits of a sandbox freezes it, too: no process is moved or stopped by a signal."""
    if (group := groups.make("test")) is None or group.freezer is None:
        pytest.skip("this machine has no control groups of version 2 for us")
    process = start_shell()
    group.add(process.pid)
    monkeypatch.setattr(Pause, "stop", lambda self: pytest.fail("a signal was sent"))
    freezer = Freezer(lambda: procfs.tree(process.pid), lambda: group)

    freezer.freeze()

    assert fields(group.freezer / "cgroup.events")["frozen"] == 1
    freezer.thaw()
    assert fields(group.freezer / "cgroup.events")["frozen"] == 0
    process.kill()
    process.communicate()
    assert await group.remove()


async def test_a_frozen_process_ends_when_it_is_killed(
    tree: subprocess.Popen[bytes], tmp_path: Path, make_group: MakeGroup
) -> None:
    """The kill needs no thaw."""
    await eventually(lambda: size(tmp_path) > 0)
    freezer_of(tree, make_group).freeze()
    os.killpg(tree.pid, signal.SIGKILL)
    assert tree.wait(timeout=60) == -signal.SIGKILL


async def test_a_signal_from_outside_does_not_end_a_freeze(
    tree: subprocess.Popen[bytes], tmp_path: Path, make_group: MakeGroup
) -> None:
    """In a group SIGCONT has no effect; elsewhere the next look stops the process again."""
    await eventually(lambda: size(tmp_path) > 0)
    freezer = freezer_of(tree, make_group)
    freezer.freeze()
    os.kill(tree.pid, signal.SIGCONT)
    assert freezer.hold() is (make_group() is None)
    if make_group() is None:
        await eventually(lambda: (procfs.stat(tree.pid) or pytest.fail("it ended")).state == "T")
    freezer.thaw()


async def test_a_process_that_stopped_itself_is_not_continued(
    tree: subprocess.Popen[bytes], tmp_path: Path, make_group: MakeGroup
) -> None:
    """The stop is the process's own."""
    await eventually(lambda: size(tmp_path) > 0)
    os.kill(tree.pid, signal.SIGSTOP)
    await eventually(lambda: (procfs.stat(tree.pid) or pytest.fail("it ended")).state == "T")
    freezer = freezer_of(tree, make_group)
    freezer.freeze()
    freezer.thaw()
    assert (procfs.stat(tree.pid) or pytest.fail("it ended")).state == "T"


def test_the_groups_of_a_kernel_that_was_killed_are_removed() -> None:
    """A place for groups that freeze is reaped like any other of a dead kernel."""
    script = "from ramet.isolation.limits.freezer_groups import FreezerGroups\nimport os, signal\n"
    script += "print(FreezerGroups().make('bwrap-test').freezer, flush=True)\nos.kill(os.getpid(), signal.SIGKILL)"
    probe = FreezerGroups()
    if probe.make("test") is None:
        pytest.skip("this machine has no control groups of version 2 for us")
    assert probe.place is not None
    reap = probe.place.make("other")
    assert reap.try_remove()
    killed = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=False)
    group = Path(killed.stdout.strip())
    assert group.exists()

    assert any(name.startswith("bwrap-test-frozen.") for name in reap_groups(("bwrap-test",)))

    assert not group.parent.exists()
    probe.close()
