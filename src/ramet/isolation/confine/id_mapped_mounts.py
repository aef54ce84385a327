"""Files of root that an ordinary user may read, or also write, in one place, as if they were the user's.

Runs as root in a private mount namespace. The mount shows only the requested files. Unless it is to be writable, it is
read-only. A file that the user makes in a writable one belongs to root on the disk.
"""

from __future__ import annotations

import os
import signal

from ramet.isolation.linux import calls

_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442  #: the same on all machines
_CLONE, _CLOEXEC = 1, os.O_CLOEXEC
_EMPTY_PATH, _RECURSIVE, _FROM_EMPTY_PATH, _TO_EMPTY_PATH = 0x1000, 0x8000, 0x4, 0x40
_RDONLY, _NOSUID, _NODEV, _IDMAP = 0x1, 0x2, 0x4, 0x10_0000


def idmap_mount(target: int, uid: int, gid: int, *, is_writable: bool = False) -> bool:
    """Mount the file or folder behind a handle over itself, so that root's files appear as this user's.

    Returns False where the file system cannot do that.
    """
    try:
        tree = calls.syscall("open_tree", _OPEN_TREE, target, b"", _CLONE | _CLOEXEC | _RECURSIVE | _EMPTY_PATH)
    except OSError:
        return False
    try:
        users = _namespace(uid, gid)
        try:
            access = _NOSUID | _NODEV if is_writable else _RDONLY
            attributes = b"".join(each.to_bytes(8, "little") for each in (access | _IDMAP, 0, 0, users))
            flags = _EMPTY_PATH | _RECURSIVE
            calls.syscall("mount_setattr", _MOUNT_SETATTR, tree, b"", flags, attributes, len(attributes))
            calls.syscall("move_mount", _MOVE_MOUNT, tree, b"", target, b"", _FROM_EMPTY_PATH | _TO_EMPTY_PATH)
        finally:
            os.close(users)
    except OSError:
        return False
    finally:
        os.close(tree)
    return True


def _namespace(uid: int, gid: int) -> int:
    """Return a descriptor of a user namespace in which root is this user."""
    (ready, is_ready), (done, is_done) = os.pipe(), os.pipe()
    pid = os.fork()
    if not pid:
        try:
            calls.unshare(calls.CLONE_NEWUSER)
            os.write(is_ready, b"1")
            os.close(is_done)
            os.read(done, 1)
        finally:
            os._exit(0)
    try:
        os.close(is_ready)
        os.read(ready, 1)
        for name, number in (("uid_map", uid), ("gid_map", gid)):
            with open(f"/proc/{pid}/{name}", "w") as file:  # noqa: PTH123
                file.write(f"0 {number} 1")
        return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        for fd in (ready, done, is_done):
            os.close(fd)
