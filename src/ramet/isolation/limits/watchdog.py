"""A watchdog for limits that control groups do not enforce: memory, processor time, processes and disk of sandboxes.

One timer looks at the sandboxes that are due: a busy one every 0.2 s, an idle one less and less often, down to every 2
s. So these limits are soft: between two looks only rlimits and the machine bound the usage. Nothing here waits: folders
are measured in a thread, one at a time.

Memory is memory that belongs to no file (RssAnon, RssShmem, swap), minus the zygote's memory at the fork. The sum over
a tree counts shared pages once for each process; so near the limit each process is asked for its part of them. Where no
control group holds memory, the kernel's memory for sockets and page tables is added. Shared areas are then charged with
their maximum content, mapped or not.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

from ramet.concurrency.threads import in_thread
from ramet.core.errors import Gone
from ramet.core.policy.policy import Grant
from ramet.isolation.contract import Metrics
from ramet.isolation.limits import disk
from ramet.isolation.limits.cpu_throttle import CpuThrottle
from ramet.isolation.limits.freezer import Freezer
from ramet.isolation.limits.tree_memory import Census, TreeMemory
from ramet.isolation.linux import procfs
from ramet.isolation.linux.procfs import Stat

_log = logging.getLogger("ramet.watchdog")

INTERVAL_S, IDLE_S = 0.2, 2.0
THRESHOLD, REARMED = 0.8, 0.7  #: of a limit: reported above the first, and again after the usage was below the second
_SLICE = 50  #: sandboxes looked at in one turn of the loop
_DISK_S = 1.0  #: between two looks at the same folder, at least; the interval, when the folder is half full
_EFFORT = 20  #: the pause after a look, as a multiple of the processor time of the look
_HELPER_PROCESSES = 3  #: the maximum number of processes that keep a sandbox, and are not its own
_MAX_UNREAD_LOOKS = 3  #: consecutive looks that cannot read all memory, or all files: then the sandbox is ended
MIB = 1024 * 1024

Verdict = Literal["oom", "pids", "workspace"]


class _Usage(NamedTuple):
    """The state of a tree at one moment."""

    tree: dict[int, Stat]
    is_whole: bool
    cpu_s: float
    tasks: int


class WatchedSandbox:
    """A sandbox under watch, until its first process ends or `close`."""

    def __init__(
        self,
        watchdog: Watchdog,
        root: Stat,
        *,
        adopter: Stat | None,
        grant: Grant,
        workspace: Path | None,
        baseline_mb: float,
        has_memory_cgroup: bool,
        has_cpu_cgroup: bool,
        in_memory: Sequence[str],
        by_session: bool,
        in_own_network: bool,
        kill: Callable[[str], object],
        on_threshold: Callable[[str, float, float], object] | None,
    ) -> None:
        self._watchdog, self._root, self._adopter, self._grant = watchdog, root, adopter, grant
        self._meter = None if workspace is None else disk.Meter(workspace, self.tree)
        self._baseline_mb = baseline_mb
        self._has_memory_cgroup = has_memory_cgroup
        self._in_memory, self._by_session = in_memory, by_session
        self._memory = TreeMemory(
            look=self._census,
            exact_mb=THRESHOLD * grant.memory_mb,
            baseline_mb=baseline_mb,
            most=grant.pids + _HELPER_PROCESSES,
            in_own_network=in_own_network,
            has_cgroup=has_memory_cgroup,
            now=watchdog.now,
        )
        self._unread_looks = 0  #: looks since all memory was read
        self._kill, self._on_threshold = kill, on_threshold
        needs_brake = not has_cpu_cgroup and grant.cpu_cores < (os.cpu_count() or 1)
        self._throttle = (
            CpuThrottle(grant.cpu_cores, allowance_s=watchdog.interval_s, look=self.tree) if needs_brake else None
        )
        self.verdict: Verdict | None = None  #: the reason why the sandbox was killed, if it was
        self.reason = ""  #: in one sentence
        self.is_over = False  #: watching has ended
        self.freezer: Freezer | None = None  #: of the sandbox, while it is frozen
        self._pause_s = watchdog.interval_s
        self._last_tree: dict[int, Stat] = {}
        self._lost_ticks = 0  #: of children that no process waited for: the usage would otherwise seem to shrink
        self._last_ticks = 0
        self._times: deque[tuple[float, float]] = deque()  #: pairs of a time, and the processor time used by then
        self._reported_thresholds: set[str] = set()  #: thresholds that were reported
        self._unmeasured_looks = 0  #: looks since the disk was measured
        self._disk_bytes, self._disk_next, self._is_touched = 0, watchdog.now() + _DISK_S, True

    def metrics(self) -> Metrics:
        """Return the current usage, with the workspace as last measured. Raises Gone after the end of the sandbox."""
        usage = None if self.is_over else self._usage()
        if usage is None:
            raise Gone(f"process {self._root.pid} has ended")
        memory = max(0.0, sum(map(procfs.private_mb, usage.tree.values())) - self._baseline_mb)
        return Metrics(usage.cpu_s, memory, usage.tasks, self._disk_bytes / MIB)

    def close(self) -> None:
        """Stop watching, and continue every stopped process. Idempotent."""
        if not self.is_over:
            self.is_over = True
            if self._throttle is not None:
                self._throttle.release()
            self._watchdog._forget(self)

    def look(self) -> float:
        """Look once and do everything that is due; return the number of seconds until the next look."""
        now, began_s = self._watchdog.now(), time.thread_time()
        usage = self._usage()
        if usage is None:
            self.close()
            return 0.0
        if self.freezer is not None:  # Nothing changes, and no process is continued.
            self._pause_s = self._watchdog.interval_s if self.freezer.hold() else min(2 * self._pause_s, IDLE_S)
            return self._pause_s
        previous, self._last_tree = self._last_tree, usage.tree
        is_changed = not usage.is_whole or procfs.activity(previous) != procfs.activity(usage.tree)
        self._is_touched = self._is_touched or is_changed
        self._pause_s = self._watchdog.interval_s if is_changed else min(2 * self._pause_s, IDLE_S)
        self._check_tasks(usage)
        if self.is_over:  # The memory of a thousand processes takes long to read, and would delay their end.
            return 0.0
        if is_changed or "memory" in self._reported_thresholds:  # Giving memory back leaves no sign.
            self._check_memory(usage)
        self._check_time(now, usage, previous)
        self._check_disk(now)
        self._check_in_memory()
        # Without regard to its cost: a sandbox that hides memory would otherwise be looked at less and less often.
        if self._unread_looks:
            return self._watchdog.interval_s
        # Not elapsed time: a sandbox that takes the processor during a look would be looked at less often.
        return max(self._wait(now), _EFFORT * (time.thread_time() - began_s))

    def _wait(self, now: float) -> float:
        """Return the time until the next look; a tree that is throttled, or may soon be, is looked at more often."""
        short_s = self._watchdog.interval_s / 4
        if self._throttle is not None and self._throttle.is_on:
            return min(max(self._throttle.until - now, short_s), IDLE_S)
        return short_s if self._throttle is not None and "cpu" in self._reported_thresholds else self._pause_s

    def tree(self) -> dict[int, Stat]:
        """Return all current processes of the sandbox; empty after its end."""
        return self._census().tree

    def _census(self) -> Census:
        missed_pids: set[int] = set()
        processes = procfs.tree(self._root.pid, missed_pids=missed_pids)
        if (
            not processes
            or processes[self._root.pid].start_time != self._root.start_time
            or not processes[self._root.pid].is_alive
        ):
            return Census({})
        if self._adopter is not None:
            adopted_processes = procfs.tree(self._adopter.pid, excluded_processes=processes, missed_pids=missed_pids)
            adopter = adopted_processes.pop(self._adopter.pid, None)
            if adopter is not None and adopter.start_time == self._adopter.start_time:
                processes.update(adopted_processes)
        elif self._by_session and (zygote := procfs.stat(self._root.parent)) is not None:
            # A process that loses its parent becomes one of these children, and keeps its session.
            for pid in procfs.children(zygote):
                orphan = None if pid in processes else procfs.stat(pid)
                if orphan is not None and orphan.session == self._root.pid:
                    processes.update(procfs.tree(pid, excluded_processes=processes, missed_pids=missed_pids))
        # A process that lost its parent meanwhile may have been found there.
        return Census(processes, missed_pids <= processes.keys())

    def _usage(self) -> _Usage | None:
        tree, is_whole = self._census()
        if not tree:
            return None
        ticks = sum(process.ticks + process.child_ticks for process in tree.values())
        self._lost_ticks += max(0, self._last_ticks - ticks)
        self._last_ticks = ticks
        cpu_s = (ticks + self._lost_ticks) / procfs.TICKS_PER_S
        return _Usage(tree, is_whole, cpu_s, sum(process.threads for process in tree.values()))

    def _end(self, verdict: Verdict, reason: str) -> None:
        if self.is_over:
            return
        self.verdict, self.reason = verdict, reason
        self.close()
        try:
            self._kill(verdict)
        except Exception:
            _log.exception("a sandbox could not be killed: %s", reason)

    def _check_tasks(self, usage: _Usage) -> None:
        most = self._grant.pids
        if usage.tasks > most + _HELPER_PROCESSES:
            self._end("pids", f"it had {usage.tasks} processes and threads; policy.pids is {most}")

    def _check_memory(self, usage: _Usage) -> None:
        limit, memory = self._grant.memory_mb, self._memory.read(usage.tree)
        if memory.total_mb > limit and not self._has_memory_cgroup:
            memory = self._memory.read(self.tree())  # A child of vfork has all memory of its parent, for a moment.
        self._report_threshold("memory", memory.total_mb, limit)
        self._unread_looks = 0 if memory.is_whole else self._unread_looks + 1
        if memory.total_mb > limit and not self._has_memory_cgroup:
            part = f", {memory.hidden_mb:.0f} of them for sockets, page tables and shared areas"
            part = "" if memory.total_mb - memory.hidden_mb > limit else part
            self._end("oom", f"it used {memory.total_mb:.0f} MiB of memory{part}; policy.memory_mb is {limit}")
        elif self._unread_looks >= _MAX_UNREAD_LOOKS:
            reason = "its processes followed each other so quickly that their memory could not be read"
            self._end("oom", f"{reason}; policy.memory_mb is {limit}")

    def _check_time(self, now: float, usage: _Usage, previous: dict[int, Stat]) -> None:
        times = self._times
        elapsed, used = (now - times[-1][0], usage.cpu_s - times[-1][1]) if times else (0.0, 0.0)
        times.append((now, usage.cpu_s))
        while len(times) > 2 and now - times[1][0] >= 1.0:
            times.popleft()
        if self._throttle is not None and not self.is_over:
            busy = {
                pid for pid, process in usage.tree.items() if pid not in previous or process.ticks > previous[pid].ticks
            }
            self._throttle.apply(now, elapsed_s=elapsed, used_s=used, busy=busy)
        start, start_cpu_s = times[0]
        if now - start >= 0.9:
            self._report_threshold("cpu", (usage.cpu_s - start_cpu_s) / (now - start), self._grant.cpu_cores)

    def _check_disk(self, now: float) -> None:
        if self._meter is None or not self._is_touched or now < self._disk_next:
            return
        most = self._grant.workspace_size_mb * MIB
        work = partial(self._meter.measure, max_bytes=most, stop=lambda: self.is_over)
        if self._watchdog._measure(self, work):
            self._is_touched = False

    def _take_disk_usage(self, usage: disk.DiskUsage, cost_s: float) -> None:
        """Record a measurement of the disk."""
        now, used, most = self._watchdog.now(), usage.bytes, self._grant.workspace_size_mb * MIB
        self._disk_bytes = used
        self._is_touched = self._is_touched or not usage.is_exact
        self._unmeasured_looks = 0 if usage.is_exact or usage.is_bounded else self._unmeasured_looks + 1
        pause = self._watchdog.interval_s if used > most / 2 else _DISK_S
        if not self._unmeasured_looks:  # Otherwise a sandbox that hides files would be looked at less and less often.
            pause = max(pause, _EFFORT * cost_s)
        self._disk_next = now + pause
        if used > most:
            size = self._grant.workspace_size_mb
            self._end("workspace", f"it used more than {size} MiB of disk; policy.workspace_size_mb is {size}")
        elif self._unmeasured_looks >= _MAX_UNREAD_LOOKS:
            reason = "its processes could not be stopped while its files were counted"
            self._end("workspace", f"{reason}; policy.workspace_size_mb is {self._grant.workspace_size_mb}")

    def _repeat_disk(self) -> None:
        """Measure again soon, since a measurement failed."""
        self._is_touched, self._disk_next = True, self._watchdog.now() + _DISK_S

    def _check_in_memory(self) -> None:
        """Check each folder in memory, which is cheap: each is a separate file system whose usage the kernel counts."""
        size = self._grant.tmpfs_size_mb
        for path in self._in_memory:
            status = os.statvfs(path)
            if (status.f_blocks - status.f_bfree) * status.f_frsize > size * MIB:
                self._end("workspace", f"{path} held more than {size} MiB; policy.tmpfs_size_mb is {size}")

    def _report_threshold(self, resource: str, value: float, limit: float) -> None:
        if value < REARMED * limit:
            self._reported_thresholds.discard(resource)
        elif value >= THRESHOLD * limit and resource not in self._reported_thresholds:
            self._reported_thresholds.add(resource)
            if self._on_threshold is not None:
                try:
                    self._on_threshold(resource, value, limit)
                except Exception:
                    self._on_threshold = None
                    _log.exception("a callback for thresholds failed; it is not called again")


class Watchdog:
    """A watcher of any number of sandboxes, on the event loop of its first use."""

    def __init__(self, interval_s: float = INTERVAL_S) -> None:
        self.interval_s = interval_s
        self._due: list[tuple[float, int, WatchedSandbox]] = []
        self._numbers = itertools.count()
        self._watched_sandboxes: set[WatchedSandbox] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._measuring = False
        self._loop: asyncio.AbstractEventLoop | None = None

    def watch(
        self,
        pid: int,
        *,
        grant: Grant,
        workspace: Path | None,
        kill: Callable[[str], object],
        adopter: int | None = None,
        baseline_mb: float = 0.0,
        has_memory_cgroup: bool = False,
        has_cpu_cgroup: bool = False,
        in_memory: Sequence[str] = (),
        by_session: bool = False,
        in_own_network: bool = False,
        on_threshold: Callable[[str, float, float], object] | None = None,
    ) -> WatchedSandbox:
        """Watch a process and all its descendants; it must be alive, or not be reaped yet.

        `kill` is called once, with the verdict. `on_threshold` is called once for each time that a usage rises above 80
        %, with the resource ("memory" in MiB, "cpu" in cores), the amount, and the limit. `baseline_mb` is the memory
        of the process at its start. `adopter` is the pid that becomes the parent of orphans of this sandbox, and of no
        other processes. Where that process is the parent of other sandboxes, too, the orphans are identified
        `by_session`, which `pid` began and no process leaves. `in_memory` are folders, each a separate file system,
        that may hold `grant.tmpfs_size_mb`. `in_own_network` says that no other process is in the network namespace of
        the process.

        Raises Gone if the process, or the adopter, has ended.
        """
        self._loop = self._loop or asyncio.get_running_loop()
        root, adopter_stat = procfs.stat(pid), None if adopter is None else procfs.stat(adopter)
        if root is None or (adopter_stat is None and adopter is not None):
            raise Gone(f"process {pid} has ended")
        sandbox = WatchedSandbox(
            self,
            root,
            adopter=adopter_stat,
            grant=grant,
            workspace=workspace,
            baseline_mb=baseline_mb,
            has_memory_cgroup=has_memory_cgroup,
            has_cpu_cgroup=has_cpu_cgroup,
            in_memory=in_memory,
            by_session=by_session,
            in_own_network=in_own_network,
            kill=kill,
            on_threshold=on_threshold,
        )
        self._watched_sandboxes.add(sandbox)
        self._schedule(self.now() + self.interval_s, sandbox)
        return sandbox

    def close(self) -> None:
        """Stop watching all sandboxes. Idempotent."""
        for sandbox in tuple(self._watched_sandboxes):
            sandbox.close()

    def now(self) -> float:
        assert self._loop is not None, "the loop is set once a sandbox is watched"
        return self._loop.time()

    def _schedule(self, due: float, sandbox: WatchedSandbox) -> None:
        heapq.heappush(self._due, (due, next(self._numbers), sandbox))
        self._set_timer()

    def _set_timer(self) -> None:
        assert self._loop is not None, "the loop is set once a sandbox is watched"
        # Sandboxes that are due at about the same time are looked at together.
        due_at = max(self._due[0][0], self.now() + self.interval_s / 10) if self._due else None
        if self._timer is not None:
            if due_at is not None and self._timer.when() <= due_at:
                return
            self._timer.cancel()
        self._timer = None if due_at is None else self._loop.call_at(due_at, self._look)

    def _look(self) -> None:
        self._timer = None
        now = self.now()
        for _ in range(_SLICE):
            if not self._due or self._due[0][0] > now:
                break
            sandbox = heapq.heappop(self._due)[2]
            if sandbox.is_over:
                continue
            try:
                next_at = self.now() + sandbox.look()
            except Exception:  # A sandbox that cannot be looked at must not prevent watching the others.
                _log.exception("a sandbox could not be checked")
                next_at = self.now() + IDLE_S
            if not sandbox.is_over:
                heapq.heappush(self._due, (next_at, next(self._numbers), sandbox))
        self._set_timer()

    def _forget(self, sandbox: WatchedSandbox) -> None:
        self._watched_sandboxes.discard(sandbox)
        if not self._watched_sandboxes:
            self._due.clear()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def _measure(self, sandbox: WatchedSandbox, work: Callable[[], disk.DiskUsage]) -> bool:
        """Start to measure a folder; return False if another is being measured."""
        if self._measuring:
            return False
        self._measuring = True

        def measure() -> tuple[disk.DiskUsage, float]:
            # Not elapsed time: a sandbox that takes the processor meanwhile would be measured less often.
            began_s = time.thread_time()
            return work(), time.thread_time() - began_s

        def done(result: asyncio.Future[tuple[disk.DiskUsage, float]]) -> None:
            self._measuring = False
            if sandbox.is_over or result.cancelled():
                return
            if result.exception() is None:
                sandbox._take_disk_usage(*result.result())
            else:
                sandbox._repeat_disk()

        in_thread(measure, name="ramet-disk").add_done_callback(done)
        return True
