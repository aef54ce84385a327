"""Attempts that must not work, with their outcome: "done", or the name of the error. Runs in sandboxes."""

from __future__ import annotations

import ctypes
import errno
import os
import pathlib
import platform
from collections.abc import Callable
from typing import Any

#: What a successful attempt is called. Anything else is the name of the error that stopped it.
DONE = "done"

#: Each attempt by name, with what became of it.
Tried = dict[str, str]

_X86_64 = {
    "accept": 43, "acct": 163, "add_key": 248, "adjtimex": 159, "bpf": 321, "capset": 126, "chroot": 161, "clone": 56,
    "delete_module": 176, "execveat": 322, "exit": 60, "fanotify_init": 300, "finit_module": 313, "init_module": 175,
    "inotify_add_watch": 254, "inotify_init1": 294, "ioctl": 16, "ioperm": 173, "iopl": 172, "kcmp": 312,
    "kexec_file_load": 320, "kexec_load": 246, "keyctl": 250,
    "memfd_create": 319, "mount": 165, "move_pages": 279, "name_to_handle_at": 303, "open_by_handle_at": 304,
    "perf_event_open": 298, "personality": 135, "pivot_root": 155, "process_vm_readv": 310, "process_vm_writev": 311,
    "ptrace": 101, "quotactl": 179, "reboot": 169, "request_key": 249, "rt_sigqueueinfo": 129,
    "sched_setscheduler": 144, "setdomainname": 171, "sethostname": 170, "setns": 308, "settimeofday": 164,
    "socket": 41, "swapoff": 168, "swapon": 167, "syslog": 103, "timer_create": 222, "tgkill": 234, "umount2": 166,
    "unshare": 272, "userfaultfd": 323,
}  # fmt: skip
_AARCH64 = {
    "accept": 202, "acct": 89, "add_key": 217, "adjtimex": 171, "bpf": 280, "capset": 91, "chroot": 51, "clone": 220,
    "delete_module": 106, "execveat": 281, "exit": 93, "fanotify_init": 262, "finit_module": 273, "init_module": 105,
    "inotify_add_watch": 27, "inotify_init1": 26, "ioctl": 29,
    "kcmp": 272, "kexec_file_load": 294, "kexec_load": 104, "keyctl": 219, "memfd_create": 279, "mount": 40,
    "move_pages": 239, "name_to_handle_at": 264, "open_by_handle_at": 265, "perf_event_open": 241, "personality": 92,
    "pivot_root": 41, "process_vm_readv": 270, "process_vm_writev": 271, "ptrace": 117, "quotactl": 60, "reboot": 142,
    "request_key": 218, "rt_sigqueueinfo": 138, "sched_setscheduler": 119, "setdomainname": 162, "sethostname": 161,
    "setns": 268, "settimeofday": 170, "socket": 198, "swapoff": 225, "swapon": 224, "syslog": 116,
    "timer_create": 107, "tgkill": 131, "umount2": 39, "unshare": 97, "userfaultfd": 282,
}  # fmt: skip
_EVERYWHERE = {
    "clone3": 435, "fsconfig": 431, "fsmount": 432, "fsopen": 430, "fspick": 433, "io_uring_enter": 426,
    "io_uring_register": 427, "io_uring_setup": 425, "memfd_secret": 447, "mount_setattr": 442, "move_mount": 429,
    "open_tree": 428, "pidfd_getfd": 438, "pidfd_open": 434, "pidfd_send_signal": 424, "quotactl_fd": 443,
}  # fmt: skip
_NUMBERS = {**(_X86_64 if platform.machine() == "x86_64" else _AARCH64), **_EVERYWHERE}

_libc = ctypes.CDLL(None, use_errno=True)


def attempt(action: Callable[..., Any], *arguments: Any) -> str:
    """Return `DONE` with the beginning of the value, or the name of the error."""
    try:
        value = action(*arguments)
    except BaseException as problem:
        return name_of(problem)
    return DONE if value is None or value == 0 else f"{DONE}: {value!s:.200}"


def name_of(problem: BaseException) -> str:
    """Return the name of an error's number, or of its type."""
    number = problem.errno if isinstance(problem, OSError) else None
    return errno.errorcode.get(number or 0, type(problem).__name__)


def syscall(name: str, *arguments: int | bytes | ctypes.Array[Any] | None) -> int:
    """Call the kernel by number, past the checks of libc. Raises OSError."""
    ctypes.set_errno(0)
    words = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    got: int = _libc.syscall(ctypes.c_long(_NUMBERS[name]), *words)
    if got == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return got


def called(name: str, *arguments: int | bytes | ctypes.Array[Any] | None) -> str:
    """Return the outcome of a system call, as `attempt` does."""
    return attempt(syscall, name, *arguments)


def open_and_close(path: str, flags: int) -> None:
    """Open a file and close it."""
    os.close(os.open(path, flags))


def text_of(path: str) -> str:
    """Return the text of a file."""
    return pathlib.Path(path).read_text(errors="replace")


def in_child(action: Callable[..., Any], *arguments: Any) -> str:
    """Return the outcome of an attempt in a fork, as `attempt` does, or the signal that ended the fork."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            os.write(writing, attempt(action, *arguments).encode())
        finally:
            os._exit(0)
    os.close(writing)
    output = b""
    while piece := os.read(reading, 4096):
        output += piece
    os.close(reading)
    _, status = os.waitpid(child, 0)
    return f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else output.decode()


def knows(name: str) -> bool:
    """Return whether the numbers of this machine include the system call."""
    return name in _NUMBERS
