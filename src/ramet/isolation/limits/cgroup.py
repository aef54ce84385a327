"""A control group: limits, usage, termination and removal; of version 1 or 2.

Only pages that are charged after a process was placed count as the group's memory: pages shared with its zygote do not.
Placing the first process after a pause waits for every processor (6 ms here, 0.02 ms for the next): do it in advance,
or have the process enter by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from ramet.core.errors import SandboxFailed

MIB = 1024 * 1024
PERIOD_US = 100_000  #: the period over which processor time is limited
_LEAST_QUOTA_US = 1_000  #: the kernel accepts no smaller quota
_PAUSES_S = (0.001, 0.05)  #: between two tries to remove a group, first and at most
_COUNTERS_V1 = ("memory", "memory.memsw")  #: of memory, and of memory and swap
_AT_LIMIT = MIB  #: this many bytes below a limit: the kernel uses some memory in advance
_PASSES = 3  #: over a group that is being killed
#: the kernel's errors for a group that was removed before, or while, it is read
_REMOVED = (errno.ENOENT, errno.ENODEV)
_EMPTY_S, _GONE_S = 1.0, 5.0  #: the time for a group to become empty: by itself, and after all its processes are killed


class Usage(NamedTuple):
    """The current usage of a group; None for resources that no controller counts here."""

    cpu_seconds: float | None
    memory_mb: float | None  #: memory that cannot be reclaimed: file pages that are only cached do not count
    pids: int | None


class Cgroup:
    """A control group: the processes placed in it, and their descendants."""

    def __init__(self, folders: Mapping[str, Path], version: int) -> None:
        self._folders, self._version = folders, version

    @property
    def has_memory(self) -> bool:
        """Return whether memory is limited here."""
        return "memory" in self._folders

    @property
    def has_cpu(self) -> bool:
        """Return whether processor time is limited here."""
        return "cpu" in self._folders

    @property
    def has_entry_fds(self) -> bool:
        """Return whether a process can enter by itself."""
        return self._version == 1

    @property
    def freezer(self) -> Path | None:
        """The folder by which the group is frozen; None in version 1, where a frozen process cannot be killed."""
        return self.folders()[0] if self._version == 2 else None

    def add(self, pid: int) -> None:
        """Place a process; its existing children stay in their group. Raises SandboxFailed."""
        for folder in self.folders():
            write(folder / "cgroup.procs", pid)

    def entry_fds(self) -> list[int]:
        """Return descriptors through which a single-threaded process enters: it writes "0" to each.

        The caller owns them.

        A process that moves itself waits for no other, unlike `add`. Raises SandboxFailed.
        """
        entry_fds: list[int] = []
        try:
            for folder in self.folders() if self.has_entry_fds else ():
                entry_fds.append(os.open(folder / "tasks", os.O_WRONLY | os.O_CLOEXEC))
        except OSError as error:
            for fd in entry_fds:
                os.close(fd)
            raise SandboxFailed(f"control group: {error}") from error
        return entry_fds

    def child(self, name: str) -> Cgroup:
        """Return the group of that name in this one, whether or not it exists: both limits apply in it."""
        return Cgroup({each: folder / name for each, folder in self._folders.items()}, self._version)

    def make(self) -> None:
        """Make the folders of the group, all or none. Raises SandboxFailed, also if the group exists."""
        folders: list[Path] = []
        try:
            for folder in self.folders():
                folder.mkdir()
                folders.append(folder)
        except OSError as error:
            for folder in folders:
                with contextlib.suppress(OSError):
                    folder.rmdir()
            raise SandboxFailed(f"control group {folder.name}: {error}") from error

    def enable_children(self) -> None:
        """Let groups below have limits of their own. Raises SandboxFailed."""
        if self._version == 2:
            for controller, folder in self._folders.items():
                write(folder / "cgroup.subtree_control", f"+{controller}")

    def limit(
        self,
        *,
        memory_mb: float | None = None,
        cpu_cores: float | None = None,
        pids: int | None = None,
        dies_whole: bool = True,
    ) -> None:
        """Set limits, where there is a controller for them; None leaves a limit unchanged. Raises SandboxFailed.

        Memory includes swapped memory and files in a tmpfs. `pids` counts threads. For lack of memory the whole group
        ends where the kernel supports that; if not `dies_whole`, one of the groups below ends instead.
        """
        if memory_mb is not None and (folder := self._folders.get("memory")):
            limit_bytes = int(memory_mb * MIB)
            if self._version == 2:
                write(folder / "memory.max", limit_bytes)
                _write_if_there(folder / "memory.swap.max", 0)
                _write_if_there(folder / "memory.oom.group", int(dies_whole))
            else:
                _write_if_there(folder / "memory.memsw.limit_in_bytes", -1)  # Never less than the other limit.
                write(folder / "memory.limit_in_bytes", limit_bytes)
                _write_if_there(folder / "memory.memsw.limit_in_bytes", limit_bytes)
        if cpu_cores is not None and (folder := self._folders.get("cpu")):
            quota = max(_LEAST_QUOTA_US, int(cpu_cores * PERIOD_US))
            if self._version == 2:
                write(folder / "cpu.max", f"{quota} {PERIOD_US}")
            else:
                write(folder / "cpu.cfs_period_us", PERIOD_US)
                write(folder / "cpu.cfs_quota_us", quota)
        if pids is not None and (folder := self._folders.get("pids")):
            write(folder / "pids.max", pids)

    def oom_kills(self) -> int:
        """Return how many processes of the group were ended for lack of memory; 0 once it is removed.

        Raises SandboxFailed.
        """
        return self._count(lambda folder: fields(folder / self._oom_file).get("oom_kill", 0))

    def times_at_limit(self) -> int:
        """Return how often the group's own memory limit was reached, not one around it; 0 once the group is removed.

        In version 1 it is known only whether the limit was reached since `start_count`, by cached files, too, for which
        no process ends. Raises SandboxFailed.
        """
        return self._count(_peaks_at_limit if self._version == 1 else _times_at_limit)

    def start_count(self) -> int:
        """Start a new count, and return a number: `times_at_limit` is above it once the limit is reached again.

        Raises SandboxFailed.
        """
        if self._version == 2:
            return self.times_at_limit()
        if folder := self._folders.get("memory"):
            for counter in _COUNTERS_V1:
                _write_if_there(folder / f"{counter}.max_usage_in_bytes", 0)
        return 0

    @property
    def _oom_file(self) -> str:
        return "memory.events" if self._version == 2 else "memory.oom_control"

    def _count(self, count: Callable[[Path], int]) -> int:
        folder = self._folders.get("memory")
        if folder is None:
            return 0
        try:
            return count(folder)
        except SandboxFailed:
            if folder.exists():
                raise
            # All groups of a reservation are removed together, and some of their processes may just be ending.
            return 0

    def usage(self) -> Usage:
        """Return the current usage. Raises SandboxFailed once the group is removed."""
        cpu: float | None = None
        memory: float | None = None
        is_new = self._version == 2
        if is_new and (folder := self._folders.get("cpu")):
            cpu = fields(folder / "cpu.stat").get("usage_usec", 0) / 1e6
        elif folder := self._folders.get("cpuacct"):
            cpu = int(read(folder / "cpuacct.usage")) / 1e9
        if folder := self._folders.get("memory"):
            current = int(read(folder / ("memory.current" if is_new else "memory.usage_in_bytes")))
            parts = fields(folder / "memory.stat")
            cached = parts["file"] - parts["shmem"] if is_new else parts["total_cache"] - parts["total_shmem"]
            memory = max(0, current - cached) / MIB
        folder = self._folders.get("pids")
        return Usage(cpu, memory, None if folder is None else int(read(folder / "pids.current")))

    def processes(self) -> set[int]:
        """Return the pids of all processes of the group in our namespace.

        Processes in another pid namespace are not visible.
        """
        return {pid for folder in self.folders() for each in _tree(folder) for pid in pids_in(each)}

    def kill(self) -> None:
        """Send SIGKILL to all processes. They may take a moment to end, and are reaped by their parents."""
        for folder in self.folders():
            with contextlib.suppress(SandboxFailed):
                _write_if_there(folder / "cgroup.kill", 1)
        with contextlib.suppress(SandboxFailed):
            self.limit(pids=0)  # No new process can start from now on, except one that is being forked.
        killed_pids: set[int] = set()
        for _ in range(_PASSES):
            new = self.processes() - killed_pids
            killed_pids |= new
            for pid in new:
                _kill(pid, self.folders())

    async def remove(self) -> bool:
        """Remove the group as soon as it is empty; processes that are still in it after a second are killed.

        Idempotent.

        Returns False if a process cannot be killed, because it is inside the kernel: then the group stays, for
        `Cgroups.reap`.
        """
        loop = asyncio.get_running_loop()
        begin = loop.time()
        pause, longest = _PAUSES_S
        while not self.try_remove():
            waited_s = loop.time() - begin
            if waited_s > _GONE_S:
                return False
            if waited_s > _EMPTY_S:
                self.kill()
            await asyncio.sleep(pause)
            pause = min(2 * pause, longest)
        return True

    def try_remove(self) -> bool:
        """Remove the group if it is empty; return False if it is not."""
        return all([_try_rmdir(folder) for folder in self.folders()])

    def folders(self) -> list[Path]:
        """Return the folders of the group, each once."""
        return list(dict.fromkeys(self._folders.values()))


def _times_at_limit(folder: Path) -> int:
    """Return the count of version 2; before Linux 5.2 every file includes the counts of groups below."""
    file = folder / "memory.events.local"
    return fields(file if file.exists() else folder / "memory.events").get("oom", 0)


def _peaks_at_limit(folder: Path) -> int:
    """Return the count of version 1, derived from peaks, because not every kernel keeps counts of failures."""
    count = 0
    for counter in _COUNTERS_V1:
        if (peak := folder / f"{counter}.max_usage_in_bytes").exists():
            count += int(read(peak)) + _AT_LIMIT >= int(read(folder / f"{counter}.limit_in_bytes"))
    return count


def _tree(folder: Path) -> Iterator[Path]:
    """Yield a group and all groups below it, the deepest first."""
    try:
        children = [each for each in folder.iterdir() if each.is_dir()]
    except OSError as error:
        if error.errno in _REMOVED:
            return
        raise
    for each in children:
        yield from _tree(each)
    yield folder


def pids_in(folder: Path) -> list[int]:
    """Return the pids in one group, not those below; 0 for each process in another pid namespace."""
    try:
        return [int(line) for line in (folder / "cgroup.procs").read_text().split()]
    except OSError as error:
        if error.errno in _REMOVED:
            return []
        raise


def _kill(pid: int, folders: list[Path]) -> None:
    """Terminate a process, if it is still in one of the groups: its pid may belong to another process by now."""
    if pid <= 0:  # The process is in another pid namespace.
        return
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return
    try:
        if any(pid in pids_in(each) for folder in folders for each in _tree(folder)):
            signal.pidfd_send_signal(fd, signal.SIGKILL)
    except ProcessLookupError:
        pass
    finally:
        os.close(fd)


def _try_rmdir(folder: Path) -> bool:
    try:
        with contextlib.suppress(OSError):  # Most groups have no other group below.
            folder.rmdir()
            return True
        for each in _tree(folder):
            each.rmdir()
    except FileNotFoundError:
        pass
    except OSError as error:
        if error.errno == errno.EBUSY:
            return False
        raise SandboxFailed(f"control group {folder.name}: {error}") from error
    return True


def fields(file: Path) -> dict[str, int]:
    """Return the content of a file of names and numbers. Raises SandboxFailed."""
    return {name: int(value) for name, value in (line.split() for line in read(file).splitlines())}


def read(file: Path) -> str:
    """Return the content of a file of a group. Raises SandboxFailed."""
    try:
        return file.read_text().strip()
    except OSError as error:
        raise SandboxFailed(f"control group {file.parent.name}: {error}") from error


def write(file: Path, value: object) -> None:
    """Write a value to a file of a group. Raises SandboxFailed with the kernel's error."""
    try:
        # Unbuffered: the kernel's error belongs to this write, not to closing the file.
        with file.open("wb", buffering=0) as stream:
            stream.write(str(value).encode())
    except OSError as error:
        raise SandboxFailed(f"control group {file.parent.name}: {file.name} = {value}: {error.strerror}") from error


def _write_if_there(file: Path, value: object) -> None:
    if file.exists():
        write(file, value)
