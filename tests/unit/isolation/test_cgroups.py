"""Tests of control groups on this machine: limits hold, and no group is left."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ramet.core.errors import InvalidValue, SandboxFailed
from ramet.isolation.limits import cgroup, cgroups
from ramet.isolation.limits.cgroups import Cgroup, Cgroups
from ramet.isolation.linux import procfs
from tests.support.waiting import alive, eventually, pid_in

#: Others may test on this machine at the same time: what is theirs is not ours to reap.
OURS, THEIRS = (f"test-{secrets.token_hex(4)}" for _ in range(2))
WAIT = "import sys; print('ready', flush=True); sys.stdin.readline()\n"


@pytest.fixture
def groups() -> Iterator[Cgroups]:
    groups = Cgroups.open(OURS)
    if groups is None:
        pytest.skip("no control groups to be had here: they take root, or a delegated group")
    yield groups
    groups.close()
    assert [str(each) for each in groups._roots.values() if (each / groups._kernel).exists()] == []


@pytest.fixture
def group(groups: Cgroups) -> Iterator[Cgroup]:
    group = groups.make("run-1")
    yield group
    group.kill()
    for _ in range(1000):
        if group.try_remove():
            return
        subprocess.run(["sleep", "0.005"], check=True)


@contextlib.contextmanager
def process_in_group(group: Cgroup, script: str) -> Iterator[subprocess.Popen[str]]:
    """Start a Python process that runs `script` once it is in the group and gets a line."""
    process = subprocess.Popen(
        [sys.executable, "-ISc", WAIT + script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        group.add(process.pid)
        yield process
    finally:
        process.kill()
        process.communicate()


def run_to_end(process: subprocess.Popen[str]) -> str:
    """Let the process run, and return its output."""
    return process.communicate("\n", timeout=180)[0]


def reap(pid: int) -> None:
    """Reap a process that this process may have adopted, as pid 1 does."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


@pytest.fixture
def other_process() -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process that is in no group of the test."""
    process = subprocess.Popen(["sleep", "1000"])
    yield process
    process.kill()
    process.wait()


def skip_without(groups: Cgroups, controller: str) -> None:
    if controller not in groups.controllers:
        pytest.skip(f"no {controller} controller to be had here")


def test_more_memory_than_granted_ends_a_process_and_is_counted(groups: Cgroups, group: Cgroup) -> None:
    """Memory within the limit works; the count of kills tells why a process ended."""
    skip_without(groups, "memory")
    group.limit(memory_mb=64)

    with process_in_group(group, "x = b'x' * (40 << 20); print('fits')") as process:
        assert run_to_end(process) == "fits\n"
    assert group.oom_kills() == 0
    with process_in_group(group, "x = b'x' * (80 << 20); print('fits')") as process:
        assert run_to_end(process) == ""

    assert process.returncode == -signal.SIGKILL
    assert group.oom_kills() == 1


def test_a_removed_group_reports_no_kills(groups: Cgroups) -> None:
    """A run that ends with its whole reservation is asked afterwards."""
    skip_without(groups, "memory")
    group = groups.make("short-lived")
    assert group.try_remove()

    assert group.oom_kills() == 0


def test_a_group_knows_whether_its_own_limit_was_reached(groups: Cgroups, group: Cgroup) -> None:
    """A group distinguishes its own limit from that of the group above, and new counts from earlier ones."""
    skip_without(groups, "memory")
    group.enable_children()
    group.limit(memory_mb=64, dies_whole=False)
    child_group = group.child("agent")
    child_group.make()
    child_group.limit(memory_mb=512)
    before = group.start_count()
    with process_in_group(child_group, "x = b'x' * (80 << 20); print('fits')") as process:
        assert run_to_end(process) == ""

    assert group.times_at_limit() > before
    assert child_group.times_at_limit() == 0
    before = group.start_count()
    assert group.times_at_limit() == before
    child_group.limit(memory_mb=32)
    with process_in_group(child_group, "x = b'x' * (48 << 20); print('fits')") as process:
        assert run_to_end(process) == ""
    assert (group.times_at_limit(), child_group.times_at_limit() > 0) == (before, True)


@pytest.mark.parametrize("file", ["memory.events.local", "memory.events"])
def test_version_2_counts_refusals_by_the_limit(tmp_path: Path, file: str) -> None:
    """The count leaves out groups below where the kernel has a file for that."""
    (tmp_path / "memory.events").write_text("oom 9\noom_kill 9\n")
    group = Cgroup({"memory": tmp_path}, 2)
    (tmp_path / file).write_text("oom 2\noom_kill 5\n")
    before = group.start_count()
    (tmp_path / file).write_text("oom 3\noom_kill 5\n")

    assert (before, group.times_at_limit()) == (2, 3)


def test_memory_from_before_a_process_joined_does_not_count(groups: Cgroups, group: Cgroup) -> None:
    """Memory that a process shares with its zygote is not its own."""
    skip_without(groups, "memory")
    group.limit(memory_mb=32)
    source, sink = os.pipe()
    before = bytearray(b"x" * (64 << 20))
    pid = os.fork()
    if not pid:
        code = 1
        try:
            os.close(sink)
            os.read(source, 1)
            code = 0 if sum(before[:: 1 << 12]) else 1
        finally:
            os._exit(code)  # whatever happens: a second process must not go on with the tests
    group.add(pid)
    os.write(sink, b"x")
    assert os.waitpid(pid, 0)[1] == 0
    os.close(source)
    os.close(sink)

    assert group.oom_kills() == 0


def test_a_limit_can_be_raised_and_lowered(groups: Cgroups, group: Cgroup) -> None:
    """A parked child gets its own limit when it is used."""
    skip_without(groups, "memory")
    for memory_mb in (64, 256, 32):
        group.limit(memory_mb=memory_mb, cpu_cores=0.001, pids=5)

    with process_in_group(group, "x = b'x' * (50 << 20); print('fits')") as process:
        assert run_to_end(process) == ""


def test_the_number_of_processes_and_threads_is_limited(groups: Cgroups, group: Cgroup) -> None:
    """Starting one more fails, and no other process is affected."""
    skip_without(groups, "pids")
    group.limit(pids=3)
    script = """
import threading, time
for number in range(5):
    try: threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
    except RuntimeError: print(number, flush=True); break
"""
    with process_in_group(group, script) as process:
        assert run_to_end(process) == "2\n"


async def test_processor_time_is_throttled(groups: Cgroups, group: Cgroup) -> None:
    """The used time is counted, too."""
    skip_without(groups, "cpu")
    group.limit(cpu_cores=0.1)

    def throttled() -> int:
        return cgroup.fields(group._folders["cpu"] / "cpu.stat")["nr_throttled"]

    with process_in_group(group, "while True: pass") as process:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        await eventually(lambda: throttled() >= 3)
        usage = group.usage()

    assert usage.cpu_seconds is not None
    assert usage.cpu_seconds > 0.01


def test_usage_of_a_group_is_reported(groups: Cgroups, group: Cgroup, tmp_path: Path) -> None:
    """Pages that only cache a file are not used memory."""
    script = f"""
x = b"x" * (30 << 20)
open({str(tmp_path / "file")!r}, "wb").write(bytes(50 << 20))
print("done", flush=True); sys.stdin.readline()
"""
    with process_in_group(group, script) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "done\n"
        usage = group.usage()
        assert group.processes() == {process.pid}

    if "memory" in groups.controllers:
        assert usage.memory_mb is not None
        assert 30 <= usage.memory_mb < 45
    if "pids" in groups.controllers:
        assert usage.pids == 1


async def test_kill_ends_every_process_of_the_group_and_no_other(
    group: Cgroup, tmp_path: Path, other_process: subprocess.Popen[bytes]
) -> None:
    """A process with another session is in the group, too."""
    script = f"""
import subprocess
subprocess.run(["sh", "-c", "(setsid sh -c 'echo $$ > {tmp_path}/pid; exec sleep 1000 >/dev/null 2>&1' &)"])
print("left", flush=True)
"""
    with process_in_group(group, script) as process:
        assert run_to_end(process) == "left\n"
    pid = pid_in(tmp_path / "pid")
    await eventually(pid)
    assert group.processes() == {pid()}

    group.kill()

    await eventually(lambda: not alive(pid()))
    assert other_process.poll() is None
    reap(pid())


async def test_a_fork_bomb_is_killed(groups: Cgroups, group: Cgroup) -> None:
    """No child escapes between the listing and the kill."""
    skip_without(groups, "pids")
    group.limit(pids=20)
    script = """
import os
while True:
    try: os.fork()
    except OSError: pass
"""
    with process_in_group(group, script) as process:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        await eventually(lambda: len(group.processes()) == 20)

        group.kill()

        await eventually(lambda: not group.processes())
        assert cgroup.read(group._folders["pids"] / "pids.max") == "0"


async def test_remove_waits_for_ending_processes_and_kills_others(groups: Cgroups) -> None:
    """A second removal does nothing."""
    for patient in (True, False):
        group = groups.make("run-1")
        with process_in_group(group, "" if patient else "import time; time.sleep(1000)") as process:
            assert not group.try_remove()
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()

            assert await group.remove()
            assert await group.remove()

            assert process.wait() == (0 if patient else -signal.SIGKILL)


def test_a_group_that_vanishes_while_it_is_read_has_no_processes(
    group: Cgroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel reports ENODEV for a file that was opened before its group vanished."""
    went, read_text = list[Path](), Path.read_text

    def read_too_late(file: Path, *arguments: Any, **more: Any) -> str:
        if file.name != "cgroup.procs":
            return read_text(file, *arguments, **more)
        with file.open() as opened_file:
            file.parent.rmdir()
            went.append(file.parent)
            return opened_file.read()

    monkeypatch.setattr(Path, "read_text", read_too_late)

    assert not group.processes()
    assert went == group.folders()


def test_impossible_operations_raise_errors_by_name(groups: Cgroups) -> None:
    """No operation is half done."""
    group = groups.make("run-1")
    with pytest.raises(SandboxFailed, match="run-1"):
        groups.make("run-1")
    with pytest.raises(SandboxFailed, match=r"cgroup\.procs"):
        group.add(2**22 + 1)
    with pytest.raises(InvalidValue):
        groups.make("../run-2")
    with pytest.raises(InvalidValue):
        groups.reap("")  # everybody's
    assert group.try_remove()
    with pytest.raises(SandboxFailed, match="run-1"):
        group.usage()


def test_groups_are_made_below_the_group_of_this_process(groups: Cgroups, group: Cgroup) -> None:
    """The limits of our own group hold inside a new group."""
    with process_in_group(group, "") as process:
        cgroup_text = procfs._read(f"{process.pid}/cgroup").decode()

    for controller, own_path in procfs.own_cgroups().items():
        if controller in groups.controllers:
            [path] = [line.split(":", 2)[2] for line in cgroup_text.splitlines() if line.split(":")[1] == controller]
            assert path.startswith(f"{own_path.rstrip('/')}/ramet/{OURS}.")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_group_is_made_although_an_ending_kernel_removes_the_folder_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of all kernels is empty for a moment, and removed by the kernel that used it."""
    mkdir, removed_folders = Path.mkdir, list[Path]()

    def mkdir_beside_others(self: Path, *args: Any, **options: Any) -> None:
        mkdir(self, *args, **options)
        if self.name == "ramet" and not removed_folders:
            self.rmdir()
            removed_folders.append(self)

    monkeypatch.setattr(Path, "mkdir", mkdir_beside_others)
    Cgroups({"pids": tmp_path}, 1, "kernel")._prepare()

    assert removed_folders == [tmp_path / "ramet"]
    assert (tmp_path / "ramet" / "kernel").is_dir()


def test_a_group_is_made_although_the_folder_above_is_removed_while_it_is_found_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder exists when it is to be made, and no longer when Python looks what exists there."""
    mkdir, found = os.mkdir, list[Path]()

    def mkdir_beside_others(path: Path, mode: int = 0o777) -> None:
        if path.name == "ramet" and not found:
            found.append(path)
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        mkdir(path, mode)

    monkeypatch.setattr(os, "mkdir", mkdir_beside_others)
    Cgroups({"pids": tmp_path}, 1, "kernel")._prepare()

    assert found == [tmp_path / "ramet"]
    assert (tmp_path / "ramet" / "kernel").is_dir()


def test_no_groups_are_left_where_the_last_kernel_has_just_removed_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that was there a moment ago is one without groups."""
    monkeypatch.setattr(Path, "is_dir", lambda _: True)

    assert Cgroups({"pids": tmp_path}, 1, "kernel").reap("kernel") == ()


def test_without_rights_no_groups_are_opened() -> None:
    """`Cgroups.open` returns None instead of an error."""

    def work() -> bool:
        os.setgid(60700)
        os.setuid(60700)
        return Cgroups.open(OURS) is None

    assert run_in_fork(work)


def run_in_fork(work: Callable[[], bool]) -> bool:
    pid = os.fork()
    if not pid:
        with contextlib.suppress(BaseException):
            os._exit(0 if work() else 1)
        os._exit(2)
    return os.waitpid(pid, 0)[1] == 0


# --- what the dead left ---------------------------------------------------------------------------------------------

KERNEL = """
import subprocess, sys
from ramet.isolation.limits.cgroups import Cgroups
groups = Cgroups.open({name!r})
group = groups.make("run-1")
process = subprocess.Popen(["sleep", "1000"], start_new_session=True)
group.add(process.pid)
print(process.pid, flush=True)
sys.stdin.readline()
process.kill(); process.wait(); group.try_remove(); groups.close()
"""


@contextlib.contextmanager
def kernel(name: str) -> Iterator[subprocess.Popen[str]]:
    """Start another kernel with a group and a sleeping process in it; a line on `stdin` ends it in order."""
    process = subprocess.Popen(
        [sys.executable, "-c", KERNEL.format(name=name)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.communicate("\n")


def sleeper(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    return int(process.stdout.readline())


async def test_groups_of_dead_kernels_are_ended_and_removed(groups: Cgroups) -> None:
    """Groups of living kernels, and of kernels with another name, stay."""
    with kernel(OURS) as dead, kernel(THEIRS) as stranger, kernel(OURS) as living:
        orphan, others, busy = map(sleeper, (dead, stranger, living))
        for each in (dead, stranger):
            each.kill()
            each.wait()
        reaped: list[str] = []

        def look() -> bool:
            reaped.extend(groups.reap(f"{OURS}."))
            reap(orphan)
            return bool(reaped)

        await eventually(look)

        assert [name.split(".")[0] for name in reaped] == [OURS]
        assert not alive(orphan)
        assert alive(others)
        assert alive(busy)
        await eventually(lambda: groups.reap(f"{THEIRS}."))
        reap(others)
    assert groups.reap(f"{OURS}.") == groups.reap(f"{THEIRS}.") == ()


def test_a_kernel_in_another_pid_namespace_counts_as_living(groups: Cgroups) -> None:
    """A pid of another namespace says nothing here."""
    maker = cgroups._Maker.ours()

    assert maker.may_live()
    assert maker._replace(namespace=1, pid=2**22 + 1).may_live()
    assert not maker._replace(start_time=maker.start_time + 1).may_live()
    assert cgroups._Maker.parse(f"test.{maker}") == maker
    for name in ("test", "test.", "test.1-2", "test.1-2-x", "test.1-2-3-4"):
        assert cgroups._Maker.parse(name) is None


# --- version 2, of which this machine may have the hierarchy without controllers -------------------------------------


@pytest.fixture
def version_2_group() -> Iterator[Path]:
    """Yield a control group of version 2."""
    own_cgroup = procfs.own_cgroups().get("", "/")
    for mount in procfs.cgroup_mounts():
        folder = mount.folder(own_cgroup) if mount.version == 2 else None
        if folder is not None and os.access(folder, os.W_OK):
            group = folder / f"ramet-test-{os.getpid()}"
            group.mkdir()
            yield group
            group.rmdir()
            return
    pytest.skip("no hierarchy of version 2 to be had here")


async def test_version_2_kills_a_group_at_once(
    version_2_group: Path, other_process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes in groups below are killed, too, without a listing."""
    monkeypatch.setattr(cgroup, "_PASSES", 0)
    group = Cgroup({"memory": version_2_group / "run"}, 2)
    (version_2_group / "run" / "below").mkdir(parents=True)
    Cgroup({"memory": version_2_group / "run" / "below"}, 2).add(other_process.pid)
    assert group.processes() == {other_process.pid}

    group.kill()

    await eventually(lambda: other_process.poll() == -signal.SIGKILL)
    assert await group.remove()
    assert not (version_2_group / "run").exists()


def test_a_process_that_cannot_share_its_group_moves_back(version_2_group: Path) -> None:
    """The process moved for nothing, and returns to its group."""
    if "memory" in cgroup.read(version_2_group / "cgroup.controllers"):
        pytest.skip("this machine has the controllers of version 2")
    own_path = procfs.own_cgroups()[""]

    def work() -> bool:
        cgroup.write(version_2_group / "cgroup.procs", os.getpid())
        path_inside = procfs.own_cgroups()[""]
        stayed = not cgroups._share(version_2_group, "memory") and procfs.own_cgroups()[""] == path_inside != own_path
        return stayed and not (version_2_group / "ramet-kernel").exists()

    assert run_in_fork(work)
