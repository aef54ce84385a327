"""How much disk a run uses: what is in its workspace, and what its processes hold without a name.

A removed file stays on the disk while a descriptor, a mapping, a running program or the queue of a socket holds it. The
size of one that is only mapped is shown to a privileged user alone, and nobody sees what is in a queue. Where a run
holds any such file, it is charged with what the file system has grown by since the last look without one.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path

from ramet.isolation import procfs, trees

ENTRY_BYTES = 1024  #: what a file, folder or link costs beside its content, so that empty ones are bounded, too


class Meter:
    """The disk that one run uses, measured again and again."""

    def __init__(self, workspace: Path) -> None:
        """Begin with the file system as it is now. A workspace that cannot be looked at yet is no error."""
        self._workspace = workspace
        self._filled = 0  #: bytes of the whole file system, at the last look at which nothing was hidden
        self._seen = 0  #: bytes of the run, at that look
        with contextlib.suppress(OSError):
            self._filled = _filled_bytes(workspace)

    def used_bytes(self, pids: Iterable[int] = (), *, most: int, stop: Callable[[], bool] = lambda: False) -> int:
        """Return the bytes of the workspace, and those that processes hold without a name. Raises OSError."""
        filled = _filled_bytes(self._workspace)
        used = used_bytes(self._workspace, most=most, stop=stop)
        if used > most or stop():
            return used
        held = _Held(self._workspace)
        for pid in pids:
            held.add(pid)
        used += held.bytes
        if held.is_complete:
            self._filled, self._seen = filled, used
            return used
        return max(used, self._seen + _filled_bytes(self._workspace) - self._filled)


def used_bytes(workspace: Path, *, most: int, stop: Callable[[], bool] = lambda: False) -> int:
    """Bytes on disk, holes not counted; no further than just above `most`, or until `stop`. Raises OSError."""
    used = 0
    with trees.opened(workspace) as root:
        with contextlib.closing(trees.walk(root)) as entries:
            for entry in entries:
                if entry.stat is not None:
                    names = entry.stat.st_nlink if stat.S_ISREG(entry.stat.st_mode) else 1
                    used += ENTRY_BYTES + entry.stat.st_blocks * 512 // max(1, names)
                if used > most or stop():
                    return used
    return used


class _Held:
    """Removed files of one file system that processes hold."""

    def __init__(self, workspace: Path) -> None:
        with trees.opened(workspace) as root:
            self._device = os.fstat(root).st_dev
            self._areas = procfs.device_of(root)
        self._files: dict[int, int] = {}  #: bytes, by inode
        self._mapped: set[int] = set()  #: inodes of mapped files whose size was not shown
        self._is_hidden = False

    @property
    def bytes(self) -> int:
        """What is known of them, each once."""
        return sum(self._files.values())

    @property
    def is_complete(self) -> bool:
        """Whether there is none whose size is not known."""
        return not self._is_hidden and self._mapped <= self._files.keys()

    def add(self, pid: int) -> None:
        """Look at the descriptors, the program and the mappings of a process. One that is gone holds nothing."""
        about = procfs.stat(pid)
        if about is None:
            return
        try:
            for thread in (str(pid),) if about.threads == 1 else procfs.threads(pid):
                self._add_descriptors(thread)  # Each thread may have its own.
            self._add_file(f"{pid}/exe")
        except PermissionError:  # A process that is not shown may hold anything.
            self._is_hidden = True
        for area in procfs.areas(about, device=self._areas) if self._areas else ():
            if area.is_removed and area.inode not in self._files:
                try:
                    self._add_file(f"{pid}/map_files/{area.start:x}-{area.end:x}")
                except PermissionError:
                    self._mapped.add(area.inode)

    def _add_descriptors(self, thread: str) -> None:
        folder = f"{thread}/fd"
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for name in os.listdir(f"{procfs.PROC}/{folder}"):  # noqa: PTH208 - only the names
                self._add_file(f"{folder}/{name}")
                self._is_hidden = self._is_hidden or procfs.descriptors_in_queue(int(thread), name) > 0

    def _add_file(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found = os.stat(f"{procfs.PROC}/{name}")  # noqa: PTH116 - it is no path
            if found.st_dev == self._device and found.st_nlink == 0 and stat.S_ISREG(found.st_mode):
                self._files[found.st_ino] = found.st_blocks * 512


def _filled_bytes(path: Path) -> int:
    found = os.statvfs(path)
    return (found.f_blocks - found.f_bfree) * found.f_frsize
