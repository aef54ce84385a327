"""How much disk a run uses: what is in its workspace, and what its processes hold open without a name."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path

from ramet.isolation import trees

ENTRY_BYTES = 1024  #: what a file, folder or link costs beside its content, so that empty ones are bounded, too


def used_bytes(
    workspace: Path, *, pids: Iterable[int] = (), most: int, stop: Callable[[], bool] = lambda: False
) -> int:
    """Bytes on disk, holes not counted; no further than just above `most`, or until `stop`. Raises OSError."""
    used = 0
    with trees.opened(workspace) as root:
        device = os.fstat(root).st_dev
        with contextlib.closing(trees.walk(root)) as entries:
            for entry in entries:
                if entry.stat is not None:
                    names = entry.stat.st_nlink if stat.S_ISREG(entry.stat.st_mode) else 1
                    used += ENTRY_BYTES + entry.stat.st_blocks * 512 // max(1, names)
                if used > most or stop():
                    return used
    return used + sum(_nameless(pids, device).values())


def _nameless(pids: Iterable[int], device: int) -> dict[int, int]:
    """Of files that were removed and are still open, by inode, the bytes."""
    found: dict[int, int] = {}
    for pid in pids:
        folder = f"/proc/{pid}/fd"
        with contextlib.suppress(OSError):  # Gone, or not ours to see.
            for name in os.listdir(folder):  # noqa: PTH208 - only the names
                with contextlib.suppress(OSError):
                    one = os.stat(f"{folder}/{name}")  # noqa: PTH116 - it is no path
                    if one.st_dev == device and one.st_nlink == 0 and stat.S_ISREG(one.st_mode):
                        found[one.st_ino] = one.st_blocks * 512
    return found
