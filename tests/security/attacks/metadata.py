"""Changes to modes, times, attributes and names of files that the same user owns."""

from __future__ import annotations

import array
import fcntl
import os
from typing import Any

from tests.security.attacks.trying import Tried, attempt

#: Set and cleared by the owner of a file without any privilege: FS_NODUMP_FL.
_NO_DUMP, _SET_FLAGS = 0x40, 0x40086602


def change(paths: list[str]) -> dict[str, Tried]:
    """Change the metadata of files by absolute path."""
    return {path: _change(path) for path in paths}


def _change(path: str) -> Tried:
    folder, name = os.path.split(path)
    return {
        "chmod": attempt(os.chmod, path, 0o4777),
        "fchmodat": attempt(_in_folder, folder, name),
        "fchmod": attempt(_with_descriptor, path, lambda fd: os.fchmod(fd, 0o4777)),
        "utimensat": attempt(os.utime, path, (1, 1)),
        "futimens": attempt(_with_descriptor, path, lambda fd: os.utime(fd, (1, 1))),
        "chown": attempt(os.chown, path, os.getuid(), os.getgid()),
        "setxattr": attempt(os.setxattr, path, "user.note", b"changed"),
        "file flags": attempt(_with_descriptor, path, _flag),
        "link": attempt(os.link, path, f"second-{name}"),
    }


def _in_folder(folder: str, name: str) -> None:
    fd = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        os.chmod(name, 0o4777, dir_fd=fd)
    finally:
        os.close(fd)


def _with_descriptor(path: str, change: Any) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        change(fd)
    finally:
        os.close(fd)


def _flag(fd: int) -> None:
    fcntl.ioctl(fd, _SET_FLAGS, array.array("l", [_NO_DUMP]))


def use_own_files() -> Tried:
    """Write, change modes and times, and link in the workspace, /tmp and /dev/shm. Write to /dev/null."""
    tried: Tried = {}
    for folder in (".", "/tmp", "/dev/shm"):
        path = f"{folder}/own.txt"
        tried[f"write {folder}"] = attempt(_write, path)
        tried[f"chmod {folder}"] = attempt(os.chmod, path, 0o700)
        tried[f"utime {folder}"] = attempt(os.utime, path, (1, 1))
        tried[f"link {folder}"] = attempt(os.link, path, f"{folder}/second.txt")
    tried["device"] = attempt(_write, "/dev/null")
    return tried


def _write(path: str) -> None:
    with open(path, "w") as file:  # noqa: PTH123
        file.write("written")
