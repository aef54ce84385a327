"""User and group ids of a process inside a new user namespace."""

from __future__ import annotations

import contextlib
import os

from ramet.isolation.linux import calls


def map_ids(inside_uid: int, inside_gid: int, outside_uid: int, outside_gid: int) -> None:
    """Map one user and one group, the caller's own, into the user namespace that the caller has just entered.

    Needs /proc. A process that has changed its uid since its last exec is not dumpable, and so does not own its files
    there: this makes it dumpable, permanently. Raises OSError: EPERM if the outside ids are not the caller's own.
    """
    calls.set_dumpable(True)
    with contextlib.suppress(FileNotFoundError):  # a kernel before 3.19
        _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{inside_uid} {outside_uid} 1")
    _write("/proc/self/gid_map", f"{inside_gid} {outside_gid} 1")


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    except OSError as error:
        raise OSError(error.errno, f"writing {text!r}: {error.strerror}", path) from None
    finally:
        os.close(fd)
