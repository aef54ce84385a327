"""A place like the inside of a hardened pod, on any machine: namespaces, mounts, its own user, no privileges.

Run by root as `python like_a_pod.py UID FOLDER TMPFS_MB MODULE…`: the module is the first process, FOLDER its own, and
the project is read-only below /mnt, its packages below /srv.
As a container runtime's default does, a filter refuses further namespaces and mounts, and not ptrace.
"""

from __future__ import annotations

import errno
import fcntl
import os
import pathlib
import signal
import socket
import struct
import sys

PROJECT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(PROJECT / "src"), str(PROJECT)]

from ramet.isolation.linux import calls, seccomp, syscall_numbers  # noqa: E402 - it is run as a file
from tests.security.outer import open_the_way  # noqa: E402

_REFUSED = ("unshare", "setns", "mount", "umount2", "pivot_root", "bpf", "keyctl", "perf_event_open")
_FLAGS = calls.MS_NOSUID | calls.MS_NODEV
_PYTHON = "/srv/bin/python"


def main() -> int:
    """Make the place, run the module in it, and end with it."""
    uid, folder, tmpfs_mb, command = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4:]
    calls.unshare(
        calls.CLONE_NEWNS
        | calls.CLONE_NEWPID
        | calls.CLONE_NEWNET
        | calls.CLONE_NEWIPC
        | calls.CLONE_NEWUTS
        | calls.CLONE_NEWCGROUP
    )
    child = os.fork()
    if child == 0:
        calls.prctl(calls.PR_SET_PDEATHSIG, signal.SIGKILL)
        _mount_file_systems(uid, folder, tmpfs_mb)
        _become_user(uid)
        os.chdir("/mnt")
        env = {"PYTHONPATH": "/mnt/src:/mnt", "PATH": "/usr/bin:/bin", "TMPDIR": folder, "HOME": folder}
        os.execve(_PYTHON, [_PYTHON, "-m", *command], env)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 0xFF


def _mount_file_systems(uid: int, folder: str, tmpfs_mb: int) -> None:
    calls.mount("none", "/", None, calls.MS_REC | calls.MS_PRIVATE)
    open_the_way([pathlib.Path(sys.base_prefix)])
    calls.mount("proc", "/proc", "proc", _FLAGS)
    calls.mount(folder, folder, None, calls.MS_BIND)
    for path, mount_point in ((PROJECT, "/mnt"), (sys.prefix, "/srv")):
        calls.mount(path, mount_point, None, calls.MS_BIND)
        calls.mount("none", mount_point, None, calls.MS_REMOUNT | calls.MS_BIND | calls.MS_RDONLY)
    calls.mount("none", "/", None, calls.MS_REMOUNT | calls.MS_BIND | calls.MS_RDONLY)
    for path, options in (
        ("/tmp", f"mode=1777,size={tmpfs_mb}m"),
        ("/dev/shm", f"mode=1777,size={tmpfs_mb}m"),
        ("/run", f"mode=700,uid={uid},gid={uid},size=4m"),
    ):
        calls.mount("tmpfs", path, "tmpfs", _FLAGS, options)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh22x", b"lo", 1))


def _become_user(uid: int) -> None:
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    calls.prctl(calls.PR_SET_PDEATHSIG, signal.SIGKILL)  # A change of user forgets it.
    calls.set_no_new_privs()
    seccomp.install(_filter())


def _filter() -> bytes:
    number = syscall_numbers.table_of(os.uname().machine).number
    load, equal, both, answer = 0x20, 0x15, 0x45, 0x06
    code = [(load, 0, 0, 0), (equal, 0, 1, number["clone3"]), (answer, 0, 0, 0x0005_0000 | errno.ENOSYS)]
    for name in _REFUSED:
        code += [(equal, 0, 1, number[name]), (answer, 0, 0, 0x0005_0000 | errno.EPERM)]
    namespaces = calls.CLONE_NEWUSER | calls.CLONE_NEWPID | calls.CLONE_NEWNS | calls.CLONE_NEWNET
    code += [(equal, 0, 3, number["clone"]), (load, 0, 0, 16), (both, 0, 1, namespaces)]
    code += [(answer, 0, 0, 0x0005_0000 | errno.EPERM), (answer, 0, 0, 0x7FFF_0000)]
    return b"".join(struct.pack("=HBBI", *each) for each in code)


if __name__ == "__main__":
    sys.exit(main())
