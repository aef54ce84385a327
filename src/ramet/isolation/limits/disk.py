"""The disk usage of a run: the content of its workspace, and unnamed files that its processes hold.

A removed file or folder stays on the disk while a descriptor, a mapping, a running program or a socket's queue holds
it. Only a privileged user can see the size of a file that is only mapped. No user can see the content of a queue. If a
run holds any such file, it is charged with the growth of the file system since the last exact look.

A look can miss files that move meanwhile: from folder to folder, or from one descriptor to another. A look is exact if
no thread of the run ran meanwhile. It need not be exact while the file system has not grown by more than the run may
still use: no large file can have been missed then. Otherwise the run is stopped for a moment. Other processes may have
removed files meanwhile, so every tenth look is exact in any case.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from ramet.isolation import safe_walk
from ramet.isolation.limits.cpu_throttle import Pause
from ramet.isolation.linux import procfs
from ramet.isolation.linux.procfs import Stat

ENTRY_BYTES = 1024  #: the charge for a file, folder or link besides its content, so that empty ones are bounded, too
_INEXACT = 9  #: the maximum number of consecutive inexact looks
_STOPPED_TRIES = 3  #: attempts to look while the run is stopped
_IDLE_WAIT_S = 0.5  #: the time to wait until stopped processes no longer run, for each attempt
_STEP_S = 0.001
_ENDING_LOOKS = 20  #: looks at a thread that may be closing its files
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


class DiskUsage(NamedTuple):
    """The size of a run's workspace, in bytes."""

    bytes: int
    is_exact: bool = True  #: no process ran while the files were counted
    is_bounded: bool = False  #: too little was written to pass the limit, if no other process removed anything


class Meter:
    """A repeated measurement of the disk that one run uses."""

    def __init__(self, workspace: Path, look: Callable[[], Mapping[int, Stat]]) -> None:
        """Begin with the current state of the file system. A workspace that cannot be read yet is no error.

        `look` finds the processes of the run.
        """
        self._workspace, self._look = workspace, look
        self._last_filled_bytes = 0  #: bytes of the whole file system, at the last exact look that found nothing hidden
        self._last_used_bytes = 0  #: bytes of the run, at that look
        self._inexact = _INEXACT  #: looks since the last exact one; the first is exact
        with contextlib.suppress(OSError):
            self._last_filled_bytes = _filled_bytes(workspace)

    def measure(self, *, max_bytes: int, stop: Callable[[], bool] = lambda: False) -> DiskUsage:
        """Count the workspace, and unnamed files that processes hold. Raises OSError.

        May stop the processes of the run meanwhile.
        """
        usage: DiskUsage | None = None
        with contextlib.suppress(OSError):  # A folder was removed while it was read.
            usage = self._count(max_bytes, stop)
        if stop() or (usage is not None and usage.is_exact):
            return usage or DiskUsage(0, is_exact=False)
        expected_bytes = self._last_used_bytes + _filled_bytes(self._workspace) - self._last_filled_bytes
        if usage is not None and max(usage.bytes, expected_bytes) <= max_bytes and self._inexact < _INEXACT:
            self._inexact += 1
            return usage._replace(is_bounded=True)
        pause = Pause(self._look)
        try:
            for _ in range(_STOPPED_TRIES):
                pause.stop()
                self._wait_idle()
                with contextlib.suppress(OSError):
                    usage = self._count(max_bytes, stop)
                    if usage.is_exact or stop():
                        return usage
        finally:
            pause.release()
        return DiskUsage(0 if usage is None else usage.bytes, is_exact=False)

    def _count(self, limit: int, stop: Callable[[], bool]) -> DiskUsage:
        """Count everything once; the result is exact if no process ran meanwhile."""
        switches, filled_bytes = self._switch_counts(), _filled_bytes(self._workspace)
        used = used_bytes(self._workspace, max_bytes=limit, stop=stop)
        open_files = _OpenFiles(self._workspace)
        for pid in self._look() if used <= limit and not stop() else ():
            open_files.add(pid, limit=limit)
        used += open_files.bytes
        is_exact = switches is not None and switches == self._switch_counts()
        if not open_files.is_complete:
            used = max(used, self._last_used_bytes + filled_bytes - self._last_filled_bytes)
        elif is_exact and used <= limit and not stop():
            self._last_filled_bytes, self._last_used_bytes = filled_bytes, used
        if is_exact:
            self._inexact = 0
        return DiskUsage(used, is_exact)

    def _switch_counts(self) -> dict[str, int] | None:
        """Return how often each thread of the run left a processor; None if a thread is on one, or waits for one."""
        switches_by_thread: dict[str, int] = {}
        for process in self._look().values():
            for thread in procfs.threads(process.pid):
                switches = procfs.idle_switches(thread)
                if switches is None:
                    return None
                switches_by_thread[thread] = switches
        return switches_by_thread

    def _wait_idle(self) -> None:
        """Wait until no process runs: a signal takes a moment to arrive."""
        end = time.monotonic() + _IDLE_WAIT_S
        while self._switch_counts() is None and time.monotonic() < end:
            time.sleep(_STEP_S)


def used_bytes(workspace: Path, *, max_bytes: int, stop: Callable[[], bool] = lambda: False) -> int:
    """Return the bytes on disk, without holes; stop counting just above `max_bytes`, or when `stop` returns true.

    Raises OSError.
    """
    used = 0
    with safe_walk.open_root(workspace) as root:
        with contextlib.closing(safe_walk.walk(root)) as entries:
            for entry in entries:
                if entry.stat is not None:
                    names = entry.stat.st_nlink if stat.S_ISREG(entry.stat.st_mode) else 1
                    used += ENTRY_BYTES + entry.stat.st_blocks * 512 // max(1, names)
                if used > max_bytes or stop():
                    return used
    return used


class _OpenFiles:
    """Removed files and folders of one file system that processes hold."""

    def __init__(self, workspace: Path) -> None:
        with safe_walk.open_root(workspace) as root:
            self._device = os.fstat(root).st_dev
            self._areas = procfs.device_of(root)
        self._files: dict[int, int] = {}  #: bytes, by inode
        self._mapped_inodes: set[int] = set()  #: inodes of mapped files whose size was not shown
        self._is_hidden = False

    @property
    def bytes(self) -> int:
        """The known total, with each file counted once."""
        return sum(self._files.values())

    @property
    def is_complete(self) -> bool:
        """Return whether the size of every such file is known."""
        return not self._is_hidden and self._mapped_inodes <= self._files.keys()

    def add(self, pid: int, *, limit: int) -> None:
        """Check the descriptors, folders, program and mappings of a process, and stop just above `limit`.

        An ended process holds nothing.
        """
        process = procfs.stat(pid)
        if process is None:
            return
        for thread in (str(pid),) if process.threads == 1 else procfs.threads(pid):
            try:
                self._add_descriptors(thread, limit)  # Each thread may have its own.
                self._add(f"{thread}/cwd", limit)
                self._add(f"{thread}/exe", limit)  # An ended thread shows no program, even if other threads run it.
            except PermissionError:  # A process that hides its files may hold anything.
                self._is_hidden = self._is_hidden or not _ends(thread)
        for area in procfs.areas(process, device=self._areas) if self._areas else ():
            if area.is_removed and area.inode not in self._files:
                try:
                    self._add(f"{area.thread}/map_files/{area.start:x}-{area.end:x}", limit)
                except PermissionError:
                    self._mapped_inodes.add(area.inode)

    def _add_descriptors(self, thread: str, limit: int) -> None:
        folder = f"{thread}/fd"
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for name in os.listdir(f"{procfs.PROC}/{folder}"):  # noqa: PTH208 - only the names
                self._add(f"{folder}/{name}", limit)
                self._is_hidden = self._is_hidden or procfs.descriptors_in_queue(int(thread), name) > 0

    def _add(self, name: str, limit: int) -> None:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            status = os.stat(f"{procfs.PROC}/{name}")  # noqa: PTH116 - it is no path
            if self._take(status) and stat.S_ISDIR(status.st_mode):
                self._add_folders_above(f"{procfs.PROC}/{name}", limit)

    def _add_folders_above(self, path: str, limit: int) -> None:
        """Add the parents of a removed folder, which it keeps even if they were removed, too."""
        folder = os.open(path, _FOLDER)
        try:
            while self.bytes <= limit:
                parent = os.open("..", _FOLDER, dir_fd=folder)
                os.close(folder)
                folder = parent
                if not self._take(os.fstat(folder)):
                    return
        finally:
            os.close(folder)

    def _take(self, status: os.stat_result) -> bool:
        """Record a removed file or folder that was not seen before; return whether it is one."""
        if status.st_dev != self._device or status.st_nlink or status.st_ino in self._files:
            return False
        self._files[status.st_ino] = status.st_blocks * 512 + (ENTRY_BYTES if stat.S_ISDIR(status.st_mode) else 0)
        return True


def _ends(thread: str) -> bool:
    """Return whether a thread has ended, or does so now: its files belong to root then, until it has closed them."""
    for _ in range(_ENDING_LOOKS):
        if procfs.has_ended(thread):
            return True
        time.sleep(_STEP_S)
    return False


def _filled_bytes(path: Path) -> int:
    status = os.statvfs(path)
    return (status.f_blocks - status.f_bfree) * status.f_frsize
