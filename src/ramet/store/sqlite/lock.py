"""Allow one kernel per file: a lock that ends with its process, and that no child inherits."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import sys
import time
from pathlib import Path

from ramet.core.errors import InvalidValue, StoreFailed, StoreInUse

_TRIES, _TRY_S = 20, 0.005
_FUSE = 0x6573_5546
#: File systems that several machines may share: neither locks nor the shared memory of a write-ahead log work there.
NETWORK = {
    0x6969: "NFS",
    0x517B: "SMB",
    0xFF53_4D42: "CIFS",
    0xFE53_4D42: "SMB2",
    0x0102_1997: "9p",
    0x5346_414F: "AFS",
    0x7375_7245: "Coda",
    0x00C3_6400: "Ceph",
    0x0BD0_0BD0: "Lustre",
    0x0116_1970: "GFS2",
    0x7461_636F: "OCFS2",
    0x6B41_4653: "kAFS",
    0x4750_4653: "GPFS",
    0x1983_0326: "BeeGFS",
    0xAAD7_AAEA: "PanFS",
    0x786F_4256: "vboxsf, a folder of the host of a VirtualBox machine",
    0xBACB_ACBC: "vmhgfs, a folder of the host of a VMware machine",
    0x7C7C_6673: "prl_fs, a folder of the host of a Parallels machine",
}
#: Declares that files on FUSE are used by one machine only, for use where code cannot pass `allow_fuse`.
ALLOW_FUSE = "RAMET_STORE_ALLOW_FUSE"


def refuse_network(path: Path, *, allow_fuse: bool = False) -> None:
    """Raise InvalidValue if a file is on a network file system, or on FUSE, which may be one.

    A file on FUSE may be used by only one machine: `allow_fuse`, or RAMET_STORE_ALLOW_FUSE=1 in the environment,
    declares this.
    """
    magic = _file_system(path.parent)
    if magic in NETWORK:
        local = "a path on a disk of this machine; SQLite's locks do not hold across machines"
        raise InvalidValue("path", str(path), f"{local} (this is {NETWORK[magic]}); for several machines use postgres")
    if magic == _FUSE and not (allow_fuse or os.environ.get(ALLOW_FUSE, "").strip() == "1"):
        remedy = f"SqliteStore(path, allow_fuse=True), or {ALLOW_FUSE}=1, if no other machine has it"
        raise InvalidValue("path", str(path), f"a path on a disk of this machine (this is FUSE): {remedy}")


class KernelLock:
    """A lock on `<file>.lock`, held from construction to `release`, or to the end of this process."""

    def __init__(self, path: Path) -> None:
        """Take the lock.

        Raises StoreInUse, with the holder, and StoreFailed if the file cannot be created or locked.
        """
        self.path = path.with_name(path.name + ".lock")
        try:
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise StoreFailed(path, f"{self.path.name} cannot be opened next to it: {error.strerror}") from None
        try:
            self._take()
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, b"%d\n" % os.getpid(), 0)
        except BlockingIOError:
            holder = os.pread(self._fd, 20, 0).strip()
            os.close(self._fd)
            # The file is empty for the moment between locking and writing.
            raise StoreInUse(path, f"pid {int(holder)}" if holder.isdigit() else "pid unknown") from None
        except OSError as error:
            os.close(self._fd)
            raise StoreFailed(path, f"{self.path.name} cannot be locked: {error.strerror}") from None

    def _take(self) -> None:
        """Lock the file. A process that tests the lock holds it for a moment; the file then has a dead kernel's pid."""
        for _ in range(_TRIES):
            try:
                return fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(self._fd, 20, 0).strip()
                if holder.isdigit() and Path(f"/proc/{int(holder)}").exists():
                    raise
                time.sleep(_TRY_S)
        fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def release(self) -> None:
        """Release the lock; idempotent. The file stays, empty, because another kernel may already have it open."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):
                os.ftruncate(fd, 0)
            os.close(fd)


def _file_system(folder: Path) -> int:
    """Return the magic number of a folder's file system; 0 if unknown."""
    if sys.platform != "linux":
        return 0
    buffer = (ctypes.c_long * 32)()  # struct statfs: f_type is first
    if ctypes.CDLL(None, use_errno=True).statfs(os.fsencode(folder), buffer):
        return 0
    return int(buffer[0]) & 0xFFFF_FFFF
