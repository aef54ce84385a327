"""Tests of the watchdog with real processes: it ends trees above a limit, and reports those near one."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ramet.core.errors import Gone
from ramet.core.policy.policy import Grant
from ramet.isolation.limits import disk
from ramet.isolation.limits.watchdog import Watchdog, WatchedSandbox
from ramet.isolation.linux import procfs
from tests.support.waiting import eventually

PRELUDE = """
import os, subprocess, sys, threading, time
def told(): return sys.stdin.readline()
def say(text): print(text, flush=True)
say("ready"); told()
"""


@pytest.fixture
def watchdog() -> Iterator[Watchdog]:
    watchdog = Watchdog(interval_s=0.02)
    yield watchdog
    watchdog.close()


class WatchedProcess:
    """Watched Python process that runs its script on command; `kill` ends it as a backend would."""

    def __init__(self, dog: Watchdog, script: str, grant: Grant, **options: Any) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-ISc", PRELUDE + script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.killed: list[str] = []
        self.reports: list[tuple[str, float, float]] = []
        self.read_line()
        options.setdefault("workspace", None)
        self.watched: WatchedSandbox = dog.watch(
            self.process.pid,
            grant=grant,
            kill=self.kill,
            on_threshold=lambda *report: self.reports.append(report),
            baseline_mb=sum(procfs.resident_mb(each) for each in procfs.tree(self.process.pid).values()),
            **options,
        )

    def kill(self, verdict: str) -> None:
        self.killed.append(verdict)
        self._kill_all()

    def tell(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def read_line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self) -> None:
        self._kill_all()
        self.process.communicate()

    def _kill_all(self) -> None:
        tree = procfs.tree(self.process.pid)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # The group holds also a process that is being forked now.
        for pid in tree:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    @property
    def is_killed(self) -> bool:
        return bool(self.killed)

    async def looked_at(self) -> None:
        """Return once every present process has been seen."""
        await eventually(lambda: set(procfs.tree(self.process.pid)) <= set(self.watched._last_tree))
        tree = self.watched._last_tree
        await eventually(lambda: self.watched._last_tree is not tree)

    async def changed(self) -> None:
        """Return once a look has found other processes than before."""
        tree = self.watched._last_tree
        await eventually(lambda: self.watched._last_tree.keys() != tree.keys())


@pytest.fixture
def start_watched(watchdog: Watchdog) -> Iterator[Callable[..., WatchedProcess]]:
    processes: list[WatchedProcess] = []

    def make(script: str, grant: Grant | None = None, **options: Any) -> WatchedProcess:
        processes.append(WatchedProcess(watchdog, script, grant or Grant(), **options))
        return processes[-1]

    yield make
    watchdog.close()
    for each in processes:
        each.end()


GROW = """
x = b"x" * (40 << 20); say("40"); told()
y = b"y" * (80 << 20); say("120"); told()
"""


HOLD = "import sys, time; x = b'x' * (int(sys.argv[1]) << 20); time.sleep(1000)"


async def test_a_process_above_its_memory_limit_is_ended(start_watched: Callable[..., WatchedProcess]) -> None:
    """Memory from before the watch does not count, and the reason names the limit."""
    one = start_watched(GROW, Grant(memory_mb=100))
    one.tell()
    assert one.read_line() == "40"
    await one.looked_at()
    assert not one.is_killed

    one.tell()
    await eventually(lambda: one.is_killed)

    assert (one.killed, one.watched.verdict) == (["oom"], "oom")
    assert "policy.memory_mb is 100" in one.watched.reason
    assert one.watched.is_over


@pytest.mark.parametrize(
    "script",
    [
        "import mmap; x = mmap.mmap(-1, 120 << 20); x.write(b'x' * (120 << 20)); told()",
        f"p = subprocess.Popen(['setsid', sys.executable, '-ISc', {HOLD!r}, '120'])",
        f"p = [subprocess.Popen([sys.executable, '-ISc', {HOLD!r}, '30']) for _ in range(4)]",
        "x = b'x' * (120 << 20)\nif os.fork() == 0: time.sleep(1000)",
    ],
    ids=["shared memory", "a grandchild in another session", "many small ones", "before a fork"],
)
async def test_memory_is_counted_wherever_it_is(start_watched: Callable[..., WatchedProcess], script: str) -> None:
    """Shared memory, other sessions, many small processes, and memory from before a fork count."""
    one = start_watched(f"{script}\ntold()", Grant(memory_mb=100))
    one.tell()

    await eventually(lambda: one.is_killed)

    assert one.killed == ["oom"]


#: Orphans stay below the subject, which reaps them as soon as they have ended.
ADOPT = "import ctypes, signal; ctypes.CDLL(None).prctl(36, 1, 0, 0, 0); signal.signal(signal.SIGCHLD, signal.SIG_IGN)"
HOP = f"""
{ADOPT}
sys.path.insert(0, {str(Path(__file__).parents[3])!r})
from tests.security.attacks import hopping
reading, writing = os.pipe()
for _ in range(12):
    if not os.fork(): time.sleep(1000)
for _ in range(2):
    if not os.fork(): hopping.hop(60, 20.0, writing)
told()
"""
QUICK = """
for _ in range(2): subprocess.Popen(["sh", "-c", "while :; do /bin/true; done"])
say("quick"); told()
"""


async def test_memory_passed_between_short_lived_processes_is_found(
    start_watched: Callable[..., WatchedProcess],
) -> None:
    """Each process leaves its address space to a child and ends, faster than a look."""
    one = start_watched(HOP, Grant(memory_mb=100))
    one.tell()

    await eventually(lambda: one.is_killed)

    assert one.killed == ["oom"]


async def test_a_script_that_forks_quickly_is_not_ended(start_watched: Callable[..., WatchedProcess]) -> None:
    """Changing processes are no reason to end a tree, and none stays stopped."""
    one = start_watched(QUICK, Grant(memory_mb=100))
    one.tell()
    assert one.read_line() == "quick"

    for _ in range(20):
        await one.changed()

    assert not one.is_killed
    one.watched.close()
    assert "T" not in states(one)


async def test_shared_memory_of_forked_workers_counts_once(start_watched: Callable[..., WatchedProcess]) -> None:
    """The memory of a pool of workers is what the pool really uses."""
    script = """
x = b"x" * (60 << 20)
for _ in range(4):
    if not os.fork(): time.sleep(1000)
say("forked"); told()
"""
    one = start_watched(script, Grant(memory_mb=100))
    one.tell()
    assert one.read_line() == "forked"
    await one.looked_at()

    assert not one.is_killed
    assert 50 < one.watched.metrics().memory_mb < 100
    assert one.watched.metrics().pids == 5


async def test_with_a_memory_cgroup_the_watchdog_only_reports(start_watched: Callable[..., WatchedProcess]) -> None:
    """Two enforcers of one limit would report two different ends."""
    one = start_watched(GROW, Grant(memory_mb=100), has_memory_cgroup=True)
    for size in ("40", "120"):
        one.tell()
        assert one.read_line() == size
    await eventually(lambda: one.reports)
    await one.looked_at()

    assert not one.is_killed
    [(resource, value, limit)] = one.reports
    assert (resource, limit) == ("memory", 100)
    assert value > 100


async def test_a_threshold_is_reported_once_per_crossing(start_watched: Callable[..., WatchedProcess]) -> None:
    """The report is not repeated above the threshold, and comes again after the use was well below."""
    one = start_watched(UP_AND_DOWN, Grant(memory_mb=100))
    for crossings in (1, 2):
        one.tell()
        assert one.read_line() == "up"
        while len(one.reports) < crossings:
            await one.looked_at()
        await one.looked_at()
        assert len(one.reports) == crossings
        one.tell()
        assert one.read_line() == "down"
        await eventually(lambda: not one.watched._reported_thresholds)
    assert not one.is_killed


UP_AND_DOWN = """
while True:
    x = b"x" * (90 << 20); say("up"); told()
    del x; say("down"); told()
"""


async def test_a_tree_with_too_many_processes_and_threads_is_ended(
    start_watched: Callable[..., WatchedProcess],
) -> None:
    """The watchdog enforces the limit where no control group does."""
    script = """
for _ in range(10): threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
say("10"); told()
for _ in range(10): threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
told()
"""
    one = start_watched(script, Grant(pids=15))
    one.tell()
    assert one.read_line() == "10"
    await one.looked_at()
    assert not one.is_killed

    one.tell()
    await eventually(lambda: one.is_killed)

    assert one.killed == ["pids"]
    assert "policy.pids is 15" in one.watched.reason


async def test_dropped_shared_memory_counts_against_the_limit(start_watched: Callable[..., WatchedProcess]) -> None:
    """Shared areas count once, whether their pages are mapped or not."""
    script = """
import mmap
area = mmap.mmap(-1, 48 << 20); area.write(b"x" * (48 << 20)); say("mapped"); told()
area.madvise(mmap.MADV_DONTNEED); other = bytearray(os.urandom(1 << 20)) * 30; say("dropped")
while True: time.sleep(0.01)
"""
    one = start_watched(script, Grant(memory_mb=64))
    one.tell()
    assert one.read_line() == "mapped"
    one.watched.look()
    assert one.killed == []
    one.tell()

    await eventually(lambda: one.killed == ["oom"])
    assert "shared" in one.watched.reason


@pytest.mark.parametrize("keep", ["pass", "os.unlink(path)"], ids=["a file", "a file without a name"])
async def test_a_run_above_its_disk_limit_is_ended(
    start_watched: Callable[..., WatchedProcess], tmp_path: Path, keep: str
) -> None:
    """A thread measures the disk, so that the event loop does not wait."""
    script = f"""
path = {str(tmp_path / "file")!r}
file = open(path, "wb")
{keep}
while True: file.write(bytes(1 << 20)); file.flush(); time.sleep(0.01)
"""
    one = start_watched(script, Grant(workspace_size_mb=3), workspace=tmp_path)
    one.tell()

    await eventually(lambda: one.is_killed)

    assert one.killed == ["workspace"]
    assert "policy.workspace_size_mb is 3" in one.watched.reason


async def test_a_process_that_cannot_be_stopped_for_measuring_is_ended(
    start_watched: Callable[..., WatchedProcess], tmp_path: Path
) -> None:
    """A process cannot avoid measurement by timers that continue it a thousand times a second."""
    for number in range(2000):  # A look takes several times as long as it is until the next timer.
        (tmp_path / str(number)).touch()
    script = """
import ctypes
libc, event = ctypes.CDLL(None), (ctypes.c_int * 16)(0, 0, 18, 0)  # SIGCONT, sent as a signal
timers = [ctypes.c_void_p() for _ in range(3000)]
for each in timers: assert libc.timer_create(1, event, ctypes.byref(each)) == 0
whens = [(ctypes.c_long * 4)(0, 0, ms // 1000, ms % 1000 * 1_000_000 + 1) for ms in range(3000)]
while True:
    for each, when in zip(timers, whens): libc.timer_settime(each, 0, when, None)
"""
    one = start_watched(script, workspace=tmp_path)
    one.tell()

    await eventually(lambda: one.is_killed)

    assert one.killed == ["workspace"]
    assert "could not be stopped" in one.watched.reason


async def test_metrics_contain_the_disk_usage(start_watched: Callable[..., WatchedProcess], tmp_path: Path) -> None:
    """The value is that of the last measurement."""
    (tmp_path / "file").write_bytes(bytes(2 << 20))
    one = start_watched("while True: time.sleep(0.01)", workspace=tmp_path)
    one.tell()

    await eventually(lambda: one.watched.metrics().workspace_mb >= 2)

    assert not one.is_killed


MANY = """
if not os.fork(): time.sleep(1000)
say("2"); told()
for _ in range(20):
    if not os.fork(): time.sleep(1000)
say("22"); told()
"""


async def test_processes_above_the_limit_are_ended_before_their_memory_is_read(
    start_watched: Callable[..., WatchedProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading the memory of a fork bomb would keep the host from ending it."""
    one = start_watched(MANY, Grant(pids=5))
    sizes: list[int] = []

    def note(each: procfs.Stat) -> procfs.Memory:
        sizes.append(each.pid)
        return procfs.Memory(0, 0)

    monkeypatch.setattr(procfs, "resident", note)
    one.tell()
    assert one.read_line() == "2"
    await eventually(lambda: sizes)
    one.tell()
    assert one.read_line() == "22"
    sizes.clear()

    one.watched.look()

    assert one.killed == ["pids"]
    assert sizes == []


async def test_processes_that_appear_while_memory_is_read_are_skipped(
    start_watched: Callable[..., WatchedProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next look ends the tree."""
    one = start_watched(MANY, Grant(pids=5))
    sizes: list[int] = []

    def read_and_grow(each: procfs.Stat) -> procfs.Memory:
        if not sizes:
            one.tell()
            assert one.read_line() == "22"
        sizes.append(each.pid)
        return procfs.Memory(0, 0)

    one.tell()
    assert one.read_line() == "2"
    monkeypatch.setattr(procfs, "resident", read_and_grow)

    await eventually(lambda: one.is_killed)

    assert one.killed == ["pids"]
    assert len(set(sizes)) <= 2


async def test_a_folder_is_measured_once_threads_can_start_again(
    start_watched: Callable[..., WatchedProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fork bomb of one sandbox can exhaust the machine's processes; other limits hold again afterwards."""
    (tmp_path / "file").write_bytes(bytes(5 << 20))
    names: list[str] = []

    def refuse(thread: threading.Thread) -> None:
        names.append(thread.name)
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        one = start_watched("while True: time.sleep(0.01)", Grant(workspace_size_mb=3), workspace=tmp_path)
        one.tell()
        await eventually(lambda: names)

    await eventually(lambda: one.is_killed)

    assert one.killed == ["workspace"]


SPIN = "subprocess.Popen([sys.executable, '-ISc', 'while True: pass']); say('spinning'); told()"


def states(one: WatchedProcess) -> set[str]:
    return {each.state for each in procfs.tree(one.process.pid).values()}


async def test_a_process_above_its_processor_time_is_throttled(start_watched: Callable[..., WatchedProcess]) -> None:
    """The process is stopped and continued repeatedly, reported, and never left stopped."""
    one = start_watched(SPIN, Grant(cpu_cores=0.1))
    one.tell()
    assert one.read_line() == "spinning"

    for _ in range(3):
        await eventually(lambda: "T" in states(one))
        await eventually(lambda: "T" not in states(one))
    await eventually(lambda: ("cpu", 0.1) in {(resource, limit) for resource, _, limit in one.reports})
    await eventually(lambda: "T" in states(one))
    one.watched.close()

    await eventually(lambda: "T" not in states(one))
    assert not one.is_killed


async def test_with_a_cpu_cgroup_no_process_is_stopped(start_watched: Callable[..., WatchedProcess]) -> None:
    """The use is reported all the same."""
    one = start_watched(SPIN, Grant(cpu_cores=0.1), has_cpu_cgroup=True)
    one.tell()

    await eventually(lambda: one.reports)

    assert one.reports[0][0] == "cpu"
    assert one.watched._throttle is None


async def test_processor_time_of_unreaped_children_stays_counted(start_watched: Callable[..., WatchedProcess]) -> None:
    """Time that was seen once is not lost."""
    script = """
import signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, '-ISc', 'while True: pass'])
told(); child.kill(); time.sleep(1000)
"""
    one = start_watched(script)
    one.tell()
    await eventually(lambda: one.watched.metrics().cpu_seconds >= 0.2)
    before = one.watched.metrics().cpu_seconds

    one.tell()
    await eventually(lambda: len(procfs.tree(one.process.pid)) == 1)

    assert one.watched.metrics().cpu_seconds >= before


@pytest.fixture
def namespace() -> Iterator[int]:
    """Yield the pid of a process that holds a pid namespace with a first process, an agent, and an orphan."""
    script = "sh -c '(setsid sleep 1000 &); sleep 1000; true' & wait"
    process = subprocess.Popen(
        ["unshare", "--map-root-user", "--pid", "--fork", "--kill-child", "sh", "-c", script], start_new_session=True
    )
    yield process.pid
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


async def test_an_adopted_orphan_belongs_to_the_tree_and_its_adopter_does_not(
    watchdog: Watchdog, namespace: int
) -> None:
    """The first process of the namespace adopts orphans, and is also above the agent."""

    def below(pid: int) -> list[procfs.Stat]:
        """Return the children of a process, those with children of their own first: pids have no order."""
        tree = procfs.tree(pid)
        parents = {one.parent for one in tree.values()}
        return sorted((one for one in tree.values() if one.parent == pid), key=lambda one: one.pid not in parents)

    await eventually(lambda: len(procfs.tree(namespace)) == 5 and len(below(below(namespace)[0].pid)) == 2)
    [first] = below(namespace)
    agent, orphan = below(first.pid)
    limits = Grant(memory_mb=1000)

    watched = watchdog.watch(agent.pid, adopter=first.pid, grant=limits, workspace=None, kill=print)

    assert orphan.pid in watched.tree()
    assert first.pid not in watched.tree()
    assert next(iter(watched.tree())) == agent.pid
    watched._adopter = first._replace(start_time=first.start_time + 1)  # its pid is somebody else's by now
    assert orphan.pid not in watched.tree()
    with pytest.raises(Gone):
        watchdog.watch(agent.pid, adopter=2**22 + 1, grant=limits, workspace=None, kill=print)


async def test_an_idle_process_is_checked_less_often(start_watched: Callable[..., WatchedProcess]) -> None:
    """Activity makes the checks frequent again."""
    one = start_watched("x = b'x' * (1 << 20); told()")
    await eventually(lambda: one.watched._pause_s >= 0.3)

    one.tell()

    await eventually(lambda: one.watched._pause_s <= 0.05)


async def test_waiting_for_a_processor_does_not_make_looks_less_frequent(
    start_watched: Callable[..., WatchedProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The processor time of a look lengthens the pause, and the time that it waits does not."""
    one = start_watched("told()")
    look = one.watched._check_in_memory

    def after(work: Callable[[], object]) -> float:
        monkeypatch.setattr(one.watched, "_check_in_memory", lambda: (work(), look()))
        return one.watched.look()

    def wait() -> None:
        threading.Event().wait(0.2)

    def compute() -> None:
        until = time.thread_time() + 0.2
        while time.thread_time() < until:
            pass

    assert after(wait) < 2.5
    assert after(compute) >= 4.0


async def test_waiting_for_a_processor_does_not_make_measurements_of_the_disk_less_frequent(
    start_watched: Callable[..., WatchedProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sandbox could otherwise take the processor while its folder is measured, and fill it in the pause after."""
    one = start_watched("while True: time.sleep(0.01)", Grant(workspace_size_mb=3), workspace=tmp_path)
    meter = one.watched._meter
    assert meter is not None
    costs: list[float] = []
    take, measure = one.watched._take_disk_usage, meter.measure

    def take_and_note(usage: disk.DiskUsage, cost_s: float) -> None:
        costs.append(cost_s)
        take(usage, cost_s)

    def wait_and_measure(**options: Any) -> disk.DiskUsage:
        threading.Event().wait(1.0)
        return measure(**options)

    monkeypatch.setattr(one.watched, "_take_disk_usage", take_and_note)
    monkeypatch.setattr(meter, "measure", wait_and_measure)
    one.tell()
    await eventually(lambda: costs)

    assert costs[0] < 0.5
    assert one.watched._disk_next < one.watched._watchdog.now() + 10


async def test_a_folder_is_measured_again_after_a_failed_measurement(
    start_watched: Callable[..., WatchedProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if its processes do nothing meanwhile."""
    script = f"open({str(tmp_path / 'file')!r}, 'wb').write(bytes(5 << 20)); told()"
    one = start_watched(script, Grant(workspace_size_mb=3), workspace=tmp_path)
    meter = one.watched._meter
    assert meter is not None
    failures: list[str] = []

    def fail(**_: object) -> disk.DiskUsage:
        failures.append("failed")
        monkeypatch.setattr(meter, "measure", measure)
        raise OSError(errno.EIO, "the disk failed")

    measure = meter.measure
    monkeypatch.setattr(meter, "measure", fail)
    one.tell()
    await eventually(lambda: one.is_killed)

    assert (failures, one.killed) == (["failed"], ["workspace"])


async def test_a_process_that_ends_is_watched_no_longer(
    watchdog: Watchdog, start_watched: Callable[..., WatchedProcess]
) -> None:
    """A missing process cannot be watched, and no process is killed for either."""
    one = start_watched("")
    one.tell()
    await eventually(lambda: one.watched.is_over)

    assert (one.killed, one.watched.verdict) == ([], None)
    with pytest.raises(Gone):
        one.watched.metrics()
    with pytest.raises(Gone):
        watchdog.watch(2**22 + 1, grant=Grant(), workspace=None, kill=one.kill)


async def test_failed_callbacks_are_logged(
    watchdog: Watchdog, start_watched: Callable[..., WatchedProcess], caplog: pytest.LogCaptureFixture
) -> None:
    """A failure does not affect other watched processes."""
    one, other = start_watched(GROW, Grant(memory_mb=44)), start_watched(GROW, Grant(memory_mb=44))

    def careless(*_: object) -> None:
        raise ZeroDivisionError("my own fault")

    one.watched._kill = one.watched._on_threshold = careless
    for each in (one, other):
        each.tell()
        assert each.read_line() == "40"
    await eventually(lambda: other.reports and caplog.records)
    for each in (one, other):
        each.tell()
    await eventually(lambda: other.is_killed and one.watched.is_over)

    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 2
    assert one.watched.verdict == "oom"


async def test_a_failed_threshold_callback_is_not_called_again(
    start_watched: Callable[..., WatchedProcess], caplog: pytest.LogCaptureFixture
) -> None:
    """The failure is logged once."""
    one = start_watched(UP_AND_DOWN, Grant(memory_mb=100))
    calls: list[object] = []

    def careless(*arguments: object) -> None:
        calls.append(arguments)
        raise ZeroDivisionError("my own fault")

    one.watched._on_threshold = careless
    for _ in range(2):
        one.tell()
        assert one.read_line() == "up"
        await eventually(lambda: one.watched._reported_thresholds)
        one.tell()
        assert one.read_line() == "down"
        await eventually(lambda: not one.watched._reported_thresholds)

    assert len(calls) == len(caplog.records) == 1


async def test_a_process_that_reuses_the_pid_is_not_watched(start_watched: Callable[..., WatchedProcess]) -> None:
    """A process with another start time is another process, and is not ended."""
    one = start_watched("told()")
    one.watched._root = one.watched._root._replace(start_time=one.watched._root.start_time + 1)

    assert one.watched.tree() == {}
    await eventually(lambda: one.watched.is_over)
    assert not one.is_killed


async def test_a_failed_look_at_one_tree_does_not_affect_others(
    start_watched: Callable[..., WatchedProcess], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Any error of a look is logged."""
    one, other = start_watched(GROW, Grant(memory_mb=30)), start_watched(GROW, Grant(memory_mb=30))
    monkeypatch.setattr(one.watched, "look", lambda: 1 / 0)
    other.tell()

    await eventually(lambda: other.is_killed)

    assert "could not be checked" in caplog.text


async def test_one_timer_watches_many_processes(watchdog: Watchdog) -> None:
    """Every process is looked at, and closing leaves nothing."""
    processes = [os.posix_spawnp("sleep", ["sleep", "1000"], os.environ) for _ in range(120)]  # noqa: ASYNC221 - at once
    names: list[str] = []
    watched = [
        watchdog.watch(each, grant=Grant(pids=1, memory_mb=1000), workspace=None, kill=names.append)
        for each in processes
    ]

    await eventually(lambda: all(each._last_tree for each in watched))

    assert not names
    watchdog.close()
    watchdog.close()
    assert all(each.is_over for each in watched)
    assert watchdog._timer is None
    for pid in processes:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)  # noqa: ASYNC222 - it is dead
