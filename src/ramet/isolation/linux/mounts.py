"""A read-only view of all file systems, for the processes of one mount namespace.

Landlock does not decide over modes, times, owners and attributes of files. A read-only mount does: the kernel refuses
all such changes with EROFS, also through a descriptor that was opened for reading. Devices, sockets and named pipes can
still be written to.
"""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import NamedTuple

from ramet.isolation.linux import calls

_RESTRICTED = calls.MOUNT_ATTR_RDONLY | calls.MOUNT_ATTR_NOSUID
_DEVICES = "/dev"
_ESCAPED = re.compile(r"\\([0-7]{3})")
_FLAGS = {
    "nosuid": calls.MS_NOSUID,
    "nodev": calls.MS_NODEV,
    "noexec": calls.MS_NOEXEC,
    "nosymfollow": calls.MS_NOSYMFOLLOW,
    "noatime": calls.MS_NOATIME,
    "nodiratime": calls.MS_NODIRATIME,
    "relatime": calls.MS_RELATIME,
}
_TIMES = calls.MS_NOATIME | calls.MS_RELATIME


class _Mount(NamedTuple):
    path: str
    flags: int


def make_read_only() -> None:
    """Make every mount of this namespace read-only and nosuid, and nodev outside of /dev.

    The caller has CAP_SYS_ADMIN in this namespace, and its mounts are private. A mount that is made later is not
    affected; a bind of a folder is read-only until it is remounted. Raises OSError.
    """
    try:
        devices = calls.open_tree(_DEVICES)
        try:
            calls.mount_setattr("/", _RESTRICTED | calls.MOUNT_ATTR_NODEV)
            calls.mount_setattr(devices, _RESTRICTED)
            calls.move_mount(devices, _DEVICES)
        finally:
            os.close(devices)
    except OSError as error:
        # A kernel before 5.12, or a container whose filter does not know these calls.
        if error.errno not in (errno.ENOSYS, errno.EPERM):
            raise
        _remount_each()


def _remount_each() -> None:
    """Remount each mount. Devices work everywhere if /dev is no separate mount."""
    mounts = _mounts()
    is_apart = any(each.path == _DEVICES for each in mounts)
    for each in mounts:
        extra_flags = calls.MS_RDONLY | calls.MS_NOSUID
        if is_apart and each.path != _DEVICES and not each.path.startswith(f"{_DEVICES}/"):
            extra_flags |= calls.MS_NODEV
        try:
            calls.mount("none", each.path, None, calls.MS_REMOUNT | calls.MS_BIND | each.flags | extra_flags)
        except OSError as error:
            # Below a folder that its user may not enter, or hidden by a later mount: a guest cannot reach it.
            if error.errno not in (errno.EACCES, errno.ENOENT, errno.EINVAL):
                raise


def _mounts() -> list[_Mount]:
    """Return all mounts of this namespace with the flags that a remount must repeat."""
    mounts = []
    for line in Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
        path, options = line.split(" ")[4:6]
        flags = 0
        for option in options.split(","):
            flags |= _FLAGS.get(option, 0)
        if not flags & _TIMES:
            flags |= calls.MS_STRICTATIME
        mounts.append(_Mount(_ESCAPED.sub(lambda octal: chr(int(octal[1], 8)), path), flags))
    return mounts
