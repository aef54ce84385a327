"""The last gate: a filter of system calls, as BPF for x86_64 and aarch64.

It is a deny list. A call that is not named here and was known when the list was written is allowed; an unknown call
does not exist (ENOSYS). Arguments are compared only where the kernel takes them by value. A filter cannot see the data
behind a pointer, so clone3 does not exist, and sched_setattr is refused entirely. It cannot see descriptors sent over a
Unix socket either.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterable

from ramet.isolation.linux import calls, syscall_numbers

_NEW_NAMESPACE = calls.NEW_NAMESPACES
_CLONE_PARENT = 0x8000  #: makes a process that is not below its maker: counting by parents would miss it
_X32 = 0x4000_0000
_IOCTLS = {"TIOCSTI": 0x5412, "TIOCLINUX": 0x541C, "TIOCCONS": 0x541D, "TIOCSETD": 0x5423}
_AF_UNIX, _AF_INET, _AF_INET6 = 1, 2, 10
_STREAM, _DGRAM, _SEQPACKET = 1, 2, 5
_SOCK_TYPE = 0xF
_SETID = 0o6000  #: setuid and setgid
_MAKES_A_FILE = 0o100 | 0o2000_0000  #: O_CREAT, O_TMPFILE
_IFMT, _IFCHR, _IFBLK = 0xF000, 0x2000, 0x6000
_SCHEDULERS = (0, 3, 5)  #: other, batch, idle: none of them real-time
_RESET_ON_FORK = 0x4000_0000
_ALL_OF_A_USER = {"setpriority": 2, "ioprio_set": 3}  #: PRIO_USER, IOPRIO_WHO_USER
_MSG_FASTOPEN = 0x2000_0000
_SOL_SOCKET = 1
_BUFFER_SIZES = (7, 8, 32, 33)  #: SO_SNDBUF, SO_RCVBUF, and both with FORCE
_F_SETPIPE_SZ = 1031
_MAP_SHARED_ANONYMOUS, _MAP_HUGETLB = 0x21, 0x4_0000
_PR_SET_DUMPABLE = 4
#: The maximum size in bytes of a shared area that belongs to no file, where no control group counts its content.
LARGEST_SHARED_AREA = 1 << 20

_LOAD, _JEQ, _JGT, _JGE, _AND, _RETURN = 0x20, 0x15, 0x25, 0x35, 0x54, 0x06
_NR, _ARCH, _ARGS = 0, 4, 16  #: offsets in struct seccomp_data; a low half comes first on both machines
_ALLOW, _ERRNO, _KILL = 0x7FFF_0000, 0x0005_0000, 0x8000_0000
_SET_MODE_FILTER, _TSYNC = 1, 1

_Code = list[tuple[int, int, int, int]]


def program(
    *,
    inet: bool,
    unix: bool = True,
    unmapped: bool = True,
    sessions: bool = True,
    queues: bool = True,
    others: bool = True,
    served: bool = True,
    metadata: bool = True,
    watches: bool = True,
    kill: bool = False,
    machine: str | None = None,
) -> bytes:
    """Return the filter, for this machine or another one by its `uname -m`.

    Raises OSError (ENOTSUP) if the machine is unknown.

    - `inet` opens AF_INET and AF_INET6 for TCP and UDP.
    - Without `unix`, no socket can connect to a path: only pairs exist, connected permanently.
    - Without `unmapped`, memory that belongs to no process, which rlimits cannot bound, is not available: memfd_create
      and shmget, larger pipes, and pages that a pipe pins. Programs that get EINVAL from splice, tee or sendfile read
      and write instead. Shared areas stay small (ENOMEM), and a process cannot hide its areas: PR_SET_DUMPABLE returns
      success, and changes nothing.
    - Without `sessions`, no process leaves its process group.
    - Without `queues`, there are no message queues and semaphores: other processes of the same user could use them,
      too, and their memory belongs to no process.
    - Without `others`, a process cannot change limits, priority, place or scheduling of another process by its pid, or
      of all processes of its user.
    - Without `served`, inet is only for connecting by TCP: no UDP, no listening, and no connection by sending, which
      Landlock does not see.
    - Without `metadata`, modes, owners, times and attributes of files stay unchanged.
    - Without `watches`, there is no inotify, and programs poll instead: Landlock does not decide over it.
    - `kill` ends a process where it would otherwise get EPERM.

    The size of a socket's buffer is never set: the filter reports success without calling the kernel.
    """
    known = syscall_numbers.table_of(machine or os.uname().machine)
    deny = _KILL if kill else _ERRNO | errno.EPERM
    no_family = _ERRNO | errno.EAFNOSUPPORT
    number = known.number

    code: _Code = [
        (_LOAD, 0, 0, _ARCH),
        (_JEQ, 1, 0, known.audit),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NR),
    ]
    if known.has_x32:
        code += [(_JGE, 0, 1, _X32), (_RETURN, 0, 0, _KILL)]
    code += [(_JGT, 0, 1, syscall_numbers.NEWEST), (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)]
    code += _branch_on_call(number["clone3"], _return(_ERRNO | errno.ENOSYS))
    # Rulesets are kernel memory that only a control group counts. Programs that look for Landlock continue without it.
    code += _branch_on_call(number["landlock_create_ruleset"], _return(_ERRNO | errno.ENOSYS))
    code += _branch_on_call(number["clone"], [*_argument(0, _NEW_NAMESPACE | _CLONE_PARENT), *_only((0,), deny)])
    code += _branch_on_call(number["socket"], _sockets(inet, unix, served, no_family))
    if not served:
        code += _branch_on_call(number["listen"], _return(deny))
        for name, flags in syscall_numbers.SENDING.items():
            code += _branch_on_call(number[name], [*_argument(flags, _MSG_FASTOPEN), *_none_of((_MSG_FASTOPEN,), deny)])
    pairs = [*_argument(0), *_only((_AF_UNIX,), no_family, done=False)]
    if not unix:
        pairs += [*_argument(1, _SOCK_TYPE), *_only((_STREAM, _SEQPACKET), no_family)]
    code += _branch_on_call(number["socketpair"], [*pairs, *_return(_ALLOW)])
    code += _branch_on_call(number["setsockopt"], _options())
    if not unmapped:
        code += _branch_on_call(number["fcntl"], [*_argument(1), *_none_of((_F_SETPIPE_SZ,), deny)])
        for name in syscall_numbers.PINNING:
            code += _branch_on_call(number[name], _return(_ERRNO | errno.EINVAL))
        code += _branch_on_call(number["mmap"], _areas(_ERRNO | errno.ENOMEM))
        code += _branch_on_call(number["prctl"], [*_argument(0), *_none_of((_PR_SET_DUMPABLE,), _ERRNO)])
    code += _branch_on_call(number["ioctl"], [*_argument(1), *_none_of(_IOCTLS.values(), deny)])
    scheduler = [] if others else [*_argument(0), *_only((0,), deny, done=False)]
    scheduler += [*_argument(1, 0xFFFF_FFFF ^ _RESET_ON_FORK), *_only(_SCHEDULERS, deny)]
    code += _branch_on_call(number["sched_setscheduler"], scheduler)
    for name, mode in (("mknod", 1), ("mknodat", 2)):
        if name in number:
            code += _branch_on_call(number[name], [*_argument(mode, _IFMT), *_none_of((_IFCHR, _IFBLK), deny)])
    for name in () if others else syscall_numbers.OTHERS:
        if (everyone := _ALL_OF_A_USER.get(name)) is None:
            code += _branch_on_call(number[name], [*_argument(0), *_only((0,), deny)])
        else:
            checks = [*_argument(1), *_only((0,), deny, done=False), *_argument(0), *_none_of((everyone,), deny)]
            code += _branch_on_call(number[name], checks)
    for name in () if watches else syscall_numbers.WATCHES:
        if name in number:
            code += _branch_on_call(number[name], _return(_ERRNO | errno.ENOSYS))
    denied_calls = [
        *syscall_numbers.DENIED,
        *(() if unmapped else syscall_numbers.UNMAPPED),
        *(() if sessions else syscall_numbers.SESSIONS),
    ]
    denied_calls += [*(() if queues else syscall_numbers.QUEUES), *(() if metadata else syscall_numbers.METADATA)]
    for name in denied_calls:
        if name in number:
            code += _branch_on_call(number[name], _return(deny))
    code += _return(_ALLOW)
    return b"".join(struct.pack("=HBBI", *each) for each in code)


def plain_modes_program(machine: str | None = None) -> bytes:
    """Return a further filter: no file gets a setuid or setgid bit (EPERM), however it is made.

    `openat2` does not exist (ENOSYS), because its mode is behind a pointer.
    """
    number = syscall_numbers.table_of(machine or os.uname().machine).number
    deny = _ERRNO | errno.EPERM
    code: _Code = [(_LOAD, 0, 0, _NR)]
    code += _branch_on_call(number["openat2"], _return(_ERRNO | errno.ENOSYS))
    for name, mode in syscall_numbers.MODES.items():
        if name in number:
            code += _branch_on_call(number[name], [*_argument(mode, _SETID), *_only((0,), deny)])
    for name, flags in (("open", 1), ("openat", 2)):
        if name in number:
            is_old = _branch_on_call(0, _return(_ALLOW))  # Without these flags the mode is not read.
            mode_check = [*_argument(flags + 1, _SETID), *_only((0,), deny)]
            code += _branch_on_call(number[name], [*_argument(flags, _MAKES_A_FILE), *is_old, *mode_check])
    code += _return(_ALLOW)
    return b"".join(struct.pack("=HBBI", *each) for each in code)


def install(program: bytes) -> None:
    """Put this process, all its threads and its later children behind the filter permanently.

    Raises OSError: EACCES without no_new_privs, EINVAL for a filter that the kernel does not accept.
    """
    length = len(program) // 8
    code = ctypes.create_string_buffer(program, len(program))
    program_struct = _Program(length, ctypes.cast(code, ctypes.c_void_p))
    number = syscall_numbers.table_of(os.uname().machine).number["seccomp"]
    if thread := calls.syscall("seccomp", number, _SET_MODE_FILTER, _TSYNC, program_struct):
        raise OSError(errno.EBUSY, f"seccomp: thread {thread} has a filter of its own")


class _Program(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_void_p)]


def _sockets(inet: bool, unix: bool, served: bool, no_family: int) -> _Code:
    code: _Code = []
    if inet:
        # Before the family: type and protocol of TCP or UDP, nothing raw and no rarer protocol.
        plain = [
            *_argument(1, _SOCK_TYPE),
            *_only((_STREAM, _DGRAM) if served else (_STREAM,), no_family, done=False),
            *_argument(2),
            *_only((0, 6, 17) if served else (0, 6), no_family),
        ]
        for family in (_AF_INET, _AF_INET6):
            code += [*_argument(0), (_JEQ, 0, len(plain), family), *plain]
    code += [*_argument(0), *_only((_AF_UNIX,), no_family)] if unix else _return(no_family)
    return code


def _options() -> _Code:
    """Allow every socket option; report success for buffer sizes without setting them."""
    return [
        *_argument(1),
        (_JEQ, 1, 0, _SOL_SOCKET),
        *_return(_ALLOW),
        *_argument(2),
        *_none_of(_BUFFER_SIZES, _ERRNO),
    ]


def _areas(refusal_action: int) -> _Code:
    """Allow mappings that are charged to a process or a file, and shared areas up to a size; no huge pages."""
    large = [
        (_LOAD, 0, 0, _ARGS + 8 + 4),  # The size has 64 bits.
        (_JEQ, 1, 0, 0),
        *_return(refusal_action),
        *_argument(1),
        (_JGT, 0, 1, LARGEST_SHARED_AREA),
        *_return(refusal_action),
        *_return(_ALLOW),
    ]
    return [
        *_argument(3, _MAP_HUGETLB),
        (_JEQ, 1, 0, 0),
        *_return(refusal_action),
        *_argument(3, _MAP_SHARED_ANONYMOUS),
        (_JEQ, 0, len(large), _MAP_SHARED_ANONYMOUS),
        *large,
        *_return(_ALLOW),
    ]


def _branch_on_call(number: int, then: _Code) -> _Code:
    """Return code that runs `then`, which always returns, for this call; the number stays loaded."""
    return [(_JEQ, 0, len(then), number), *then]


def _return(action: int) -> _Code:
    return [(_RETURN, 0, 0, action)]


def _argument(index: int, mask: int = 0xFFFF_FFFF) -> _Code:
    """Load the low half of an argument: the kernel reads only that where it is an int, or clone's flags."""
    load = (_LOAD, 0, 0, _ARGS + 8 * index)
    return [load] if mask == 0xFFFF_FFFF else [load, (_AND, 0, 0, mask)]


def _only(accepted_values: tuple[int, ...], refusal_action: int, *, done: bool = True) -> _Code:
    """Allow these values, or continue with them if not `done`."""
    code: _Code = [(_JEQ, len(accepted_values) - index, 0, value) for index, value in enumerate(accepted_values)]
    return [*code, *_return(refusal_action), *(_return(_ALLOW) if done else [])]


def _none_of(refused_values: Iterable[int], refusal_action: int) -> _Code:
    code: _Code = []
    for value in refused_values:
        code += _branch_on_call(value, _return(refusal_action))
    return [*code, *_return(_ALLOW)]
