"""System calls that Python 3.11 lacks, each raising OSError with its errno and its own name."""

from __future__ import annotations

import ctypes
import os
from typing import Any

Path = str | bytes | os.PathLike[str]

CLONE_NEWNS = 0x0002_0000
CLONE_NEWCGROUP = 0x0200_0000
CLONE_NEWUTS = 0x0400_0000
CLONE_NEWIPC = 0x0800_0000
CLONE_NEWUSER = 0x1000_0000
CLONE_NEWPID = 0x2000_0000
CLONE_NEWNET = 0x4000_0000
NEW_NAMESPACES = (
    CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET
)

MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_REMOUNT = 0x20
MS_NOSYMFOLLOW = 0x100
MS_NOATIME = 0x400
MS_NODIRATIME = 0x800
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x4_0000
MS_SLAVE = 0x8_0000
MS_RELATIME = 0x20_0000
MS_STRICTATIME = 0x100_0000

MOUNT_ATTR_RDONLY = 0x1
MOUNT_ATTR_NOSUID = 0x2
MOUNT_ATTR_NODEV = 0x4

MNT_DETACH = 0x2
UMOUNT_NOFOLLOW = 0x8

RESOLVE_NO_MAGICLINKS = 0x2
RESOLVE_NO_SYMLINKS = 0x4
RESOLVE_BENEATH = 0x8

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_CAPBSET_READ = 23
PR_CAPBSET_DROP = 24
PR_SET_SECUREBITS = 28
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38

_CLOSE_RANGE = 436  #: the number on all machines, as for any call since Linux 5.1
_OPENAT2 = 437
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442  #: likewise
_OPEN_TREE_CLONE, _MOVE_MOUNT_F_EMPTY_PATH = 0x1, 0x4
_AT_FDCWD, _AT_EMPTY_PATH, _AT_RECURSIVE = -100, 0x1000, 0x8000
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def syscall(name: str, number: int, *args: int | ctypes.Array[Any] | ctypes.Structure | bytes | None) -> int:
    """Call the kernel by number: integers by value, other arguments by address. Raises OSError that names the call."""
    return _check_result(name, _libc.syscall(ctypes.c_long(number), *map(_argument, args)))


def unshare(flags: int) -> None:
    """Leave the namespaces that `flags` (CLONE_NEW*) names for new ones."""
    _check_result("unshare", _libc.unshare(flags))


def setns(fd: int, flags: int) -> None:
    """Enter the namespace behind a descriptor; `flags` is its kind, or 0 for any."""
    _check_result("setns", _libc.setns(fd, flags))


def mount(source: Path, target: Path, fstype: str | None = None, flags: int = 0, data: str | None = None) -> None:
    """Mount `source` on `target`; `flags` are MS_*, `data` the options of the file system."""
    options = None if data is None else data.encode()
    kind = None if fstype is None else fstype.encode()
    result = _libc.mount(os.fsencode(source), os.fsencode(target), kind, ctypes.c_ulong(flags), options)
    _check_result(f"mount on {os.fsdecode(target)}", result)


def umount(target: Path, flags: int = 0) -> None:
    """Unmount `target`; `flags` are MNT_* and UMOUNT_NOFOLLOW."""
    _check_result(f"umount {os.fsdecode(target)}", _libc.umount2(os.fsencode(target), flags))


def pivot_root(new_root: Path, put_old: Path) -> None:
    """Make `new_root`, a mount, the root of this mount namespace; the old one appears at `put_old`."""
    syscall("pivot_root", _PIVOT_ROOT[os.uname().machine], os.fsencode(new_root), os.fsencode(put_old))


def openat2(folder: int, path: Path, flags: int, resolve: int) -> int:
    """Open `path` from an open folder; `flags` are O_*, `resolve` (RESOLVE_*) restricts the resolution of the path.

    Raises OSError: ELOOP for a link and EXDEV for an exit from the folder that `resolve` forbids, ENOSYS before Linux
    5.6.
    """
    open_how = _OpenHow(flags, 0, resolve)
    return syscall("openat2", _OPENAT2, folder, os.fsencode(path), open_how, ctypes.sizeof(open_how))


def open_tree(path: Path) -> int:
    """Return a descriptor of a copy of all mounts at and below `path`, which is mounted nowhere yet."""
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC | _AT_RECURSIVE
    return syscall("open_tree", _OPEN_TREE, _AT_FDCWD, os.fsencode(path), flags)


def mount_setattr(target: Path | int, attributes: int, *, recursive: bool = True) -> None:
    """Set `attributes` (MOUNT_ATTR_*) on the mount at a path or a descriptor, and on all below; needs Linux 5.12."""
    fd, path, flags = (target, b"", _AT_EMPTY_PATH) if isinstance(target, int) else (_AT_FDCWD, os.fsencode(target), 0)
    attr = attributes.to_bytes(8, "little") + bytes(24)  # struct mount_attr
    syscall("mount_setattr", _MOUNT_SETATTR, fd, path, flags | (_AT_RECURSIVE if recursive else 0), attr, len(attr))


def move_mount(fd: int, target: Path) -> None:
    """Mount a tree that `open_tree` returned on `target`."""
    syscall("move_mount", _MOVE_MOUNT, fd, b"", _AT_FDCWD, os.fsencode(target), _MOVE_MOUNT_F_EMPTY_PATH)


def close_range(first: int, last: int = 0xFFFF_FFFF) -> None:
    """Close all descriptors from `first` to `last`, both included."""
    syscall("close_range", _CLOSE_RANGE, first, last, 0)


def prctl(op: int, *args: int) -> int:
    return _check_result(f"prctl {op}", _libc.prctl(op, *(ctypes.c_ulong(arg) for arg in (*args, 0, 0, 0, 0)[:4])))


def set_dumpable(dumpable: bool) -> None:
    """Set whether this process's user owns its files in /proc, and whether it may be traced and dumped."""
    prctl(PR_SET_DUMPABLE, int(dumpable))


def set_no_new_privs() -> None:
    """Prevent that this process or its children gain privileges by executing a program, from now on."""
    prctl(PR_SET_NO_NEW_PRIVS, 1)


def die_with_parent(number: int) -> None:
    """Request signal `number` for when the *thread* that started this process ends.

    A change of uid cancels the request, so call this after it. Only a comparison of getppid shows that the parent ended
    before.
    """
    prctl(PR_SET_PDEATHSIG, number)


def sethostname(name: str) -> None:
    encoded = name.encode()
    _check_result("sethostname", _libc.sethostname(encoded, ctypes.c_size_t(len(encoded))))


class _OpenHow(ctypes.Structure):
    """struct open_how."""

    _fields_ = [("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64)]


def _argument(arg: object) -> object:
    if isinstance(arg, int):
        return ctypes.c_long(arg)
    if isinstance(arg, ctypes.Structure):
        return ctypes.byref(arg)
    return arg


def _check_result(name: str, result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result
