"""One control group: limits, what it uses, how it is ended and removed; of version 1 or 2.

Only pages that are charged after a process was placed count as its memory: what it shares with its zygote does not.
Placing the first process after a pause waits for every processor (6 ms here, 0.02 ms for the next): do it in advance,
or have the process come in by itself.
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
PERIOD_US = 100_000  #: over which processor time is limited
_LEAST_QUOTA_US = 1_000  #: less is not accepted
_PAUSES_S = (0.001, 0.05)  #: between two tries to remove a group, first and at most
_COUNTERS_V1 = ("memory", "memory.memsw")  #: of memory, and of memory and swap
_AT_LIMIT = MIB  #: so many bytes below a limit some of it is used in advance
_PASSES = 3  #: over a group that is being killed
_REMOVED = (errno.ENOENT, errno.ENODEV)  #: what the kernel says of a group that went before, or while, it is read
_EMPTY_S, _GONE_S = 1.0, 5.0  #: how long a group may take to become empty: by itself, and after all in it are killed


class Usage(NamedTuple):
    """What a group uses now; None for what no controller counts here."""

    cpu_seconds: float | None
    memory_mb: float | None  #: what cannot be taken back: file pages that are only cached do not count
    pids: int | None


class Cgroup:
    """One group: the processes placed in it, and all that they start."""

    def __init__(self, folders: Mapping[str, Path], version: int) -> None:
        self._folders, self._version = folders, version

    @property
    def has_memory(self) -> bool:
        """Whether memory is limited here."""
        return "memory" in self._folders

    @property
    def has_cpu(self) -> bool:
        """Whether processor time is limited here."""
        return "cpu" in self._folders

    @property
    def has_pids(self) -> bool:
        """Whether the number of processes and threads is limited here."""
        return "pids" in self._folders

    @property
    def has_doors(self) -> bool:
        """Whether a process can come in by itself."""
        return self._version == 1

    def add(self, pid: int) -> None:
        """Place a process; what it had started before stays where it is. Raises SandboxFailed."""
        for folder in self.places():
            write(folder / "cgroup.procs", pid)

    def doors(self) -> list[int]:
        """Descriptors by which a process with one thread comes in: it writes "0" to each. They are the caller's.

        Who moves itself waits for nobody, unlike `add`. Raises SandboxFailed.
        """
        opened: list[int] = []
        try:
            for folder in self.places() if self.has_doors else ():
                opened.append(os.open(folder / "tasks", os.O_WRONLY | os.O_CLOEXEC))
        except OSError as error:
            for fd in opened:
                os.close(fd)
            raise SandboxFailed(f"control group: {error}") from error
        return opened

    def below(self, name: str) -> Cgroup:
        """The group of that name in this one, there or not: both limits hold in it."""
        return Cgroup({each: folder / name for each, folder in self._folders.items()}, self._version)

    def make(self) -> None:
        """Have its folders made; all or none. Raises SandboxFailed, also if it is there."""
        made: list[Path] = []
        try:
            for folder in self.places():
                folder.mkdir()
                made.append(folder)
        except OSError as error:
            for folder in made:
                with contextlib.suppress(OSError):
                    folder.rmdir()
            raise SandboxFailed(f"control group {folder.name}: {error}") from error

    def open_below(self) -> None:
        """Let groups below it have limits of their own. Raises SandboxFailed."""
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
        """Set limits, where there is a controller for them; None leaves one as it is. Raises SandboxFailed.

        Memory includes what is swapped out and what is written to a tmpfs. `pids` counts threads. For want of memory
        all of it ends where the kernel can do that, or if not `dies_whole` one of the groups below.
        """
        if memory_mb is not None and (folder := self._folders.get("memory")):
            most = int(memory_mb * MIB)
            if self._version == 2:
                write(folder / "memory.max", most)
                _write_if_there(folder / "memory.swap.max", 0)
                _write_if_there(folder / "memory.oom.group", int(dies_whole))
            else:
                _write_if_there(folder / "memory.memsw.limit_in_bytes", -1)  # Never less than the other.
                write(folder / "memory.limit_in_bytes", most)
                _write_if_there(folder / "memory.memsw.limit_in_bytes", most)
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
        """How many processes of it were ended for want of memory; 0 once it is removed. Raises SandboxFailed."""
        return self._count(lambda folder: fields(folder / self._oom_file).get("oom_kill", 0))

    def times_at_limit(self) -> int:
        """How often its own limit of memory was in the way, not that of a group around it; 0 once it is removed.

        In version 1 it is known only whether the limit was reached since `begin_anew`, by cached files, too, for which
        nobody ends. Raises SandboxFailed.
        """
        return self._count(_peaks_at_limit if self._version == 1 else _times_at_limit)

    def begin_anew(self) -> int:
        """Return what `times_at_limit` is above from now on if the limit is in the way. Raises SandboxFailed."""
        if self._version == 2:
            return self.times_at_limit()
        if folder := self._folders.get("memory"):
            for counter in _COUNTERS_V1:
                _write_if_there(folder / f"{counter}.max_usage_in_bytes", 0)
        return 0

    @property
    def _oom_file(self) -> str:
        return "memory.events" if self._version == 2 else "memory.oom_control"

    def _count(self, counted: Callable[[Path], int]) -> int:
        folder = self._folders.get("memory")
        if folder is None:
            return 0
        try:
            return counted(folder)
        except SandboxFailed:
            if folder.exists():
                raise
            return 0  # With the group of a reservation all in it goes, and some of them may just be ending.

    def usage(self) -> Usage:
        """What it uses now. Raises SandboxFailed once it is removed."""
        cpu: float | None = None
        memory: float | None = None
        is_new = self._version == 2
        if is_new and (folder := self._folders.get("cpu")):
            cpu = fields(folder / "cpu.stat").get("usage_usec", 0) / 1e6
        elif folder := self._folders.get("cpuacct"):
            cpu = int(read(folder / "cpuacct.usage")) / 1e9
        if folder := self._folders.get("memory"):
            whole = int(read(folder / ("memory.current" if is_new else "memory.usage_in_bytes")))
            parts = fields(folder / "memory.stat")
            cached = parts["file"] - parts["shmem"] if is_new else parts["total_cache"] - parts["total_shmem"]
            memory = max(0, whole - cached) / MIB
        folder = self._folders.get("pids")
        return Usage(cpu, memory, None if folder is None else int(read(folder / "pids.current")))

    def processes(self) -> set[int]:
        """The pids of all who are in it, as we count; who is in another pid namespace is not seen."""
        return {pid for folder in self.places() for each in _tree(folder) for pid in pids_in(each)}

    def kill(self) -> None:
        """Send SIGKILL to all in it. They may take a moment to be gone, and are reaped by their parents."""
        for folder in self.places():
            with contextlib.suppress(SandboxFailed):
                _write_if_there(folder / "cgroup.kill", 1)
        with contextlib.suppress(SandboxFailed):
            self.limit(pids=0)  # Nobody new from now on, but who was being forked.
        seen: set[int] = set()
        for _ in range(_PASSES):
            new = self.processes() - seen
            seen |= new
            for pid in new:
                _kill(pid, self.places())

    async def remove(self) -> bool:
        """Remove it as soon as it is empty; whoever is still in it after a second is killed. Idempotent.

        False if somebody cannot be killed (inside the kernel, that is): then it stays, for `Cgroups.reap`.
        """
        loop = asyncio.get_running_loop()
        begin = loop.time()
        pause, longest = _PAUSES_S
        while not self.try_remove():
            waited = loop.time() - begin
            if waited > _GONE_S:
                return False
            if waited > _EMPTY_S:
                self.kill()
            await asyncio.sleep(pause)
            pause = min(2 * pause, longest)
        return True

    def try_remove(self) -> bool:
        """Remove it if it is empty; False if it is not."""
        return all([_removed(folder) for folder in self.places()])

    def places(self) -> list[Path]:
        """Its folders, each once."""
        return list(dict.fromkeys(self._folders.values()))


def _times_at_limit(folder: Path) -> int:
    """Of version 2; before Linux 5.2 there is no file without what the groups below met."""
    file = folder / "memory.events.local"
    return fields(file if file.exists() else folder / "memory.events").get("oom", 0)


def _peaks_at_limit(folder: Path) -> int:
    """Of version 1, whose counts of failures are not kept by every kernel."""
    found = 0
    for counter in _COUNTERS_V1:
        if (peak := folder / f"{counter}.max_usage_in_bytes").exists():
            found += int(read(peak)) + _AT_LIMIT >= int(read(folder / f"{counter}.limit_in_bytes"))
    return found


def _tree(folder: Path) -> Iterator[Path]:
    """A group and all below it, the deepest first."""
    try:
        below = [each for each in folder.iterdir() if each.is_dir()]
    except OSError as error:
        if error.errno in _REMOVED:
            return
        raise
    for each in below:
        yield from _tree(each)
    yield folder


def pids_in(folder: Path) -> list[int]:
    """The pids in one group, not those below; 0 for each that is in another pid namespace."""
    try:
        return [int(line) for line in (folder / "cgroup.procs").read_text().split()]
    except OSError as error:
        if error.errno in _REMOVED:
            return []
        raise


def _kill(pid: int, folders: list[Path]) -> None:
    """End a process, if it is still in one of the groups: its pid may be another's by now."""
    if pid <= 0:  # It is in another pid namespace.
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


def _removed(folder: Path) -> bool:
    try:
        with contextlib.suppress(OSError):  # Most have no other below.
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
    """A file of names and numbers. Raises SandboxFailed."""
    return {name: int(value) for name, value in (line.split() for line in read(file).splitlines())}


def read(file: Path) -> str:
    """A file of a group. Raises SandboxFailed."""
    try:
        return file.read_text().strip()
    except OSError as error:
        raise SandboxFailed(f"control group {file.parent.name}: {error}") from error


def write(file: Path, value: object) -> None:
    """Put a value into a file of a group. Raises SandboxFailed with what the kernel says."""
    try:
        # Unbuffered: what the kernel says is about this write, not about closing the file.
        with file.open("wb", buffering=0) as out:
            out.write(str(value).encode())
    except OSError as error:
        raise SandboxFailed(f"control group {file.parent.name}: {file.name} = {value}: {error.strerror}") from error


def _write_if_there(file: Path, value: object) -> None:
    if file.exists():
        write(file, value)
