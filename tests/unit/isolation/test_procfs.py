"""Tests of `/proc`: readings of real processes, and corner cases of its text in a folder of files."""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ramet.isolation.linux import procfs
from ramet.isolation.linux.procfs import CgroupMount
from tests.support.waiting import eventually

UNUSED_PID = 2**22 + 1  #: more than any pid
EXIT = {"x86_64": 60, "aarch64": 93}  #: ends one thread


@contextlib.contextmanager
def running_python(script: str) -> Iterator[subprocess.Popen[str]]:
    """Start a Python process that says it is ready; end it with all its descendants."""
    process = subprocess.Popen(
        [sys.executable, "-ISc", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        for pid in procfs.tree(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
        process.communicate()


async def test_a_process_is_identified_by_pid_and_start_time() -> None:
    """A process that has ended is not found."""
    me = procfs.stat(os.getpid())

    assert me is not None
    assert (me.pid, me.parent, me.state) == (os.getpid(), os.getppid(), "R")
    assert me.start_time == procfs.start_time(os.getpid())
    assert procfs.stat(UNUSED_PID) is None
    assert procfs.start_time(UNUSED_PID) is None
    assert procfs.tree(UNUSED_PID) == {}
    assert procfs.children(me._replace(pid=UNUSED_PID)) == procfs.children(me._replace(pid=UNUSED_PID, threads=2)) == []
    assert procfs.private_mb(me._replace(pid=UNUSED_PID)) == procfs.resident_mb(me._replace(pid=UNUSED_PID)) == 0


async def test_a_tree_contains_a_process_and_its_descendants() -> None:
    """Children of other threads and of other sessions belong to the tree; ended ones do not."""
    script = """
import os, subprocess, sys, threading, time
def below():
    subprocess.Popen(["setsid", "sh", "-c", "sleep 1000 & wait"])
threading.Thread(target=lambda: (below(), time.sleep(1000)), daemon=True).start()
subprocess.Popen(["true"]).wait()
print("ready", flush=True)
time.sleep(1000)
"""
    with running_python(script) as process:
        await eventually(lambda: len(procfs.tree(process.pid)) == 3)

        tree = procfs.tree(process.pid)
        [shell] = [each for each in tree.values() if each.parent == process.pid]
        assert {each.parent for each in tree.values()} == {os.getpid(), process.pid, shell.pid}
        assert tree[process.pid].threads == 2


async def test_processor_time_of_reaped_children_counts_for_their_parent() -> None:
    """The time is in ticks."""
    spin = "import time; [None for _ in iter(lambda: time.process_time() < 0.2, False)]"
    script = f"""
import subprocess, sys, time
subprocess.run([sys.executable, "-ISc", {spin!r}])
print("ready", flush=True)
time.sleep(1000)
"""
    with running_python(script) as process:
        stat = procfs.stat(process.pid)

    assert stat is not None
    assert stat.child_ticks / procfs.TICKS_PER_S > 0.15
    assert stat.ticks < stat.child_ticks


async def test_anonymous_and_shared_memory_count_as_memory() -> None:
    """Pages of files do not count."""
    script = """
import mmap, sys
private = bytearray(b"x" * (40 << 20))
shared = mmap.mmap(-1, 30 << 20)
shared.write(b"x" * (30 << 20))
print("ready", flush=True)
sys.stdin.read()
"""
    with running_python(script) as process:
        for measure in (procfs.resident_mb, procfs.private_mb):
            assert 70 <= measure(procfs.tree(process.pid)[process.pid]) < 90


async def test_private_memory_of_forked_processes_adds_up_to_the_total() -> None:
    """Shared pages are neither counted twice nor lost."""
    script = """
import os, sys, time
mine = bytearray(b"x" * (60 << 20))
for _ in range(2):
    if not os.fork():
        time.sleep(1000)
print("ready", flush=True)
time.sleep(1000)
"""
    with running_python(script) as process:
        processes = procfs.tree(process.pid).values()
        assert len(processes) == 3
        assert sum(map(procfs.resident_mb, processes)) > 180
        assert 60 <= sum(map(procfs.private_mb, processes)) < 80


@pytest.mark.skipif(platform.machine() not in EXIT, reason="no number of the system call that ends a thread")
async def test_memory_counts_after_the_first_thread_has_ended() -> None:
    """A process whose first thread ended looks like a zombie, and is none."""
    script = f"""
import ctypes, sys, threading, time
def hold():
    mine = bytearray(b"x" * (60 << 20))
    print("ready", flush=True)
    time.sleep(1000)
threading.Thread(target=hold).start()
ctypes.CDLL(None).syscall({EXIT.get(platform.machine())}, 0)
"""
    with running_python(script) as process:
        await eventually(lambda: procfs.tree(process.pid)[process.pid].state == "Z")

        process_stat = procfs.tree(process.pid)[process.pid]
        assert process_stat.is_alive
        for measure in (procfs.resident_mb, procfs.private_mb):
            assert measure(process_stat) >= 60


# --- text -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a `/proc` of plain files."""
    monkeypatch.setattr(procfs, "PROC", str(tmp_path))
    return tmp_path


def write(proc: Path, name: str, text: str) -> None:
    (proc / name).parent.mkdir(parents=True, exist_ok=True)
    (proc / name).write_text(text)


def write_process(proc: Path, pid: int, *, parent: int, children: str = "", name: str = "x") -> None:
    numbers = f"0 0 0 0 0 11 0 0 0 7 8 9 10 20 0 1 0 {pid * 10} 0"
    write(proc, f"{pid}/stat", f"{pid} ({name}) S {parent} {numbers}\n")
    write(proc, f"{pid}/task/{pid}/children", children)


@pytest.mark.parametrize("name", ["plain", "a b", "x) R 1 1 (y", ") S 1", ""])
def test_a_process_name_cannot_imitate_the_next_fields(proc: Path, name: str) -> None:
    """A process chooses its own name."""
    write_process(proc, 50, parent=40, name=name)

    assert procfs.stat(50) == (50, "S", 40, 0, 11, 15, 19, 1, 500)


def test_a_truncated_stat_file_is_no_process(proc: Path) -> None:
    """The file was read while the process ended."""
    write(proc, "50/stat", "50 (x) S 40 0")

    assert procfs.stat(50) is None


def test_a_reused_pid_does_not_belong_to_the_tree(proc: Path) -> None:
    """The child ended between the listing and the look at it, and its pid was reused."""
    write_process(proc, 50, parent=1, children="51 52 53 ")
    write_process(proc, 51, parent=50, children="54")
    write_process(proc, 52, parent=1)  # a stranger
    write_process(proc, 54, parent=50)  # its parent ended in between, and it came to the root

    assert sorted(procfs.tree(50)) == [50, 51, 54]


def test_memory_without_rights_is_the_publicly_visible_value(proc: Path) -> None:
    """The value is too high rather than zero."""
    write(
        proc,
        "50/status",
        "VmRSS:\t 9999 kB\nRssAnon:\t 2048 kB\nRssFile:\t 4096 kB\nRssShmem:\t 512 kB\nVmSwap:\t 512 kB",
    )

    write_process(proc, 50, parent=40)
    one = procfs.stat(50)
    assert one is not None
    assert procfs.private_mb(one) == procfs.resident_mb(one) == 3


def test_own_cgroups_are_listed_by_controller(proc: Path) -> None:
    """Shared hierarchies, and paths with colons, are read correctly."""
    write(proc, "self/cgroup", "4:memory:/a:b\n2:cpu,cpuacct:/c\n1:name=systemd:/\n0::/d e\n")

    assert procfs.own_cgroups() == {"memory": "/a:b", "cpu": "/c", "cpuacct": "/c", "name=systemd": "/", "": "/d e"}


def test_cgroup_mounts_are_distinguished_from_other_mounts(proc: Path) -> None:
    """Optional fields, and spaces in paths, are read correctly."""
    write(
        proc,
        "self/mountinfo",
        "21 1 8:1 / / rw - ext4 /dev/root rw\n"
        "30 25 0:26 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
        "31 25 0:27 /docker/1 /sys/fs/my\\040cgroup rw master:1 propagate_from:2 - cgroup2 cgroup2 rw,nsdelegate\n",
    )

    one, two = procfs.cgroup_mounts()
    assert (one.version, {"cpu", "cpuacct"} <= one.controllers) == (1, True)
    assert two == CgroupMount(2, frozenset(), "/docker/1", "/sys/fs/my cgroup")


@pytest.mark.parametrize(
    ("root", "group", "folder"),
    [
        ("/", "/", "/m"),
        ("/", "/a/b", "/m/a/b"),
        ("/a", "/a", "/m"),
        ("/a", "/a/b", "/m/b"),
        ("/a", "/ab", None),
        ("/a", "/", None),
        ("/", "/../x", None),
        ("/..", "/../x", None),
    ],
)
def test_the_folder_of_a_group_is_relative_to_the_root_of_its_mount(root: str, group: str, folder: str | None) -> None:
    """A group outside of the mount's root has no folder."""
    path = CgroupMount(1, frozenset(), root, "/m").folder(group)

    assert path == (None if folder is None else Path(folder))
