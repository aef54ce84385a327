"""A way for an ordinary user to folders that lie below ones that it may not enter, and to nothing else there.

Runs as root in a process of its own: a private mount namespace has an empty folder in place of the one that is shut,
and in it, at their own paths, what is needed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path, PurePath

from ramet.isolation.linux import calls


def open_way(paths: Iterable[str], uid: int, gid: int) -> None:
    """Let a user come to every one of `paths`, in this process and what it starts. Raises OSError."""
    calls.unshare(calls.CLONE_NEWNS)
    calls.mount("none", "/", None, calls.MS_REC | calls.MS_SLAVE)
    shut: dict[str, list[str]] = {}
    for path in sorted(set(paths), key=lambda path: (path.count("/"), path)):
        if (folder := first_shut(path, uid, gid)) is not None:
            shut.setdefault(folder, []).append(path)
    for folder, needed in shut.items():
        if not any(PurePath(folder).is_relative_to(other) for other in shut if other != folder):
            also = [path for other in shut for path in shut[other] if PurePath(other).is_relative_to(folder)]
            _replace(folder, sorted({*needed, *also}, key=lambda path: (path.count("/"), path)))


def first_shut(path: str, uid: int, gid: int) -> str | None:
    """The topmost folder on the way to `path` that a user may not enter."""
    for folder in reversed(PurePath(path).parents):
        try:
            found = Path(folder).stat()
        except FileNotFoundError:
            return None
        bit = stat.S_IXUSR if found.st_uid == uid else stat.S_IXGRP if found.st_gid == gid else stat.S_IXOTH
        if not found.st_mode & bit:
            return str(folder)
    return None


def _replace(folder: str, needed: Iterable[str]) -> None:
    """Mount an empty folder over one, and back into it what is needed."""
    held = [(path, os.open(path, os.O_PATH | os.O_CLOEXEC)) for path in needed if Path(path).exists()]
    calls.mount("tmpfs", folder, "tmpfs", calls.MS_NOSUID | calls.MS_NODEV, "mode=755,size=1m")
    for path, fd in held:
        if not os.path.lexists(path):
            place = Path(path)
            if stat.S_ISDIR(os.fstat(fd).st_mode):
                place.mkdir(parents=True)
            else:
                place.parent.mkdir(parents=True, exist_ok=True)
                place.touch()
        calls.mount(f"/proc/self/fd/{fd}", path, None, calls.MS_BIND | calls.MS_REC)
        os.close(fd)
