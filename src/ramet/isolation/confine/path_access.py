"""Access for an ordinary user to paths below folders that the user may not enter, and to nothing else there.

Runs as root in a process of its own: in a private mount namespace an empty folder replaces the inaccessible one, and
the needed paths are mounted in it at their original places.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path, PurePath

from ramet.isolation.linux import calls
from ramet.isolation.linux.beneath import open_without_links

_HANDLE = os.O_PATH | os.O_CLOEXEC


def grant_path_access(
    paths: Iterable[str],
    uid: int,
    gid: int,
    sources: Mapping[str, str],
    owned: Collection[str] = (),
    shown: Collection[str] = (),
) -> None:
    """Let a user reach every one of `paths`, in this process and its later children. Raises OSError.

    For a path in `sources` the user reaches the source: a path without a symbolic link. Folders of `owned`, and below,
    stay as they are: the caller makes their files appear as the user's. So do folders of `shown`, but not those below:
    an empty folder in place of a mount would hide its files from the user.
    """
    calls.unshare(calls.CLONE_NEWNS)
    calls.mount("none", "/", None, calls.MS_REC | calls.MS_SLAVE)
    inaccessible: dict[str, list[str]] = {}
    for path in sorted(set(paths), key=lambda path: (path.count("/"), path)):
        folder = first_inaccessible(path, uid, gid)
        if folder is None or folder in shown or any(PurePath(folder).is_relative_to(each) for each in owned):
            continue
        inaccessible.setdefault(folder, []).append(path)
    for folder, inner_paths in inaccessible.items():
        if not any(PurePath(folder).is_relative_to(other) for other in inaccessible if other != folder):
            nested_paths = [
                path for other in inaccessible for path in inaccessible[other] if PurePath(other).is_relative_to(folder)
            ]
            _replace(folder, sorted({*inner_paths, *nested_paths}, key=lambda path: (path.count("/"), path)), sources)


def first_inaccessible(path: str, uid: int, gid: int) -> str | None:
    """Return the topmost parent folder of `path` that a user may not enter; None if there is none."""
    for folder in reversed(PurePath(path).parents):
        try:
            status = Path(folder).stat()
        except FileNotFoundError:
            return None
        bit = stat.S_IXUSR if status.st_uid == uid else stat.S_IXGRP if status.st_gid == gid else stat.S_IXOTH
        if not status.st_mode & bit:
            return str(folder)
    return None


def handle_of(path: str, sources: Mapping[str, str]) -> int | None:
    """Return a handle of the current file at a path, if it is a mount; None at a link that an operator granted.

    Raises OSError: ELOOP for a link anywhere else in a path of `sources`.
    """
    if path not in sources:
        return os.open(path, _HANDLE)
    try:
        return open_without_links(path)
    except OSError as error:
        if error.errno != errno.ELOOP or sources[path] == path:
            raise
        return None


def _replace(folder: str, paths: Iterable[str], sources: Mapping[str, str]) -> None:
    """Mount an empty folder over a folder, and mount the needed paths in it again."""
    handles = [(path, open_without_links(sources[path])) for path in paths if path in sources]
    handles += [(path, os.open(path, _HANDLE)) for path in paths if path not in sources and Path(path).exists()]
    handles.sort(key=lambda each: (each[0].count("/"), each[0]))
    calls.mount("tmpfs", folder, "tmpfs", calls.MS_NOSUID | calls.MS_NODEV, "mode=755,size=1m")
    for path, fd in handles:
        if not os.path.lexists(path):
            mount_point = Path(path)
            if stat.S_ISDIR(os.fstat(fd).st_mode):
                mount_point.mkdir(parents=True)
            else:
                mount_point.parent.mkdir(parents=True, exist_ok=True)
                mount_point.touch()
        if (target := handle_of(path, sources)) is not None:
            calls.mount(f"/proc/self/fd/{fd}", f"/proc/self/fd/{target}", None, calls.MS_BIND | calls.MS_REC)
            os.close(target)
        os.close(fd)
