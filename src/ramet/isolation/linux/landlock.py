"""Landlock rules for files, TCP, abstract sockets and signals: a process gives up rights permanently.

Rules only add: a right granted for a directory applies to everything below it, whatever a later rule says. So rights
are granted per directory, and only programs granted by path may be executed. Apply rules after the last mount: a
process behind Landlock cannot mount.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
from collections.abc import Iterable
from typing import NamedTuple, Self

from ramet.isolation.linux import calls
from ramet.isolation.linux.calls import Path

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  #: the same on all machines
_VERSION = 1
_PATH_BENEATH, _NET_PORT = 1, 2

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REMOVE_DIR, _REMOVE_FILE = 1 << 4, 1 << 5
_MAKE_DIR, _MAKE_REG, _MAKE_SOCK, _MAKE_FIFO, _MAKE_SYM = 1 << 7, 1 << 8, 1 << 9, 1 << 10, 1 << 12
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15

_READ = _READ_FILE | _READ_DIR
_MAKE = _MAKE_DIR | _MAKE_REG | _MAKE_SOCK | _MAKE_FIFO | _MAKE_SYM  #: no devices
_WRITE = _READ | _WRITE_FILE | _TRUNCATE | _REMOVE_DIR | _REMOVE_FILE | _MAKE | _REFER
_EDIT = _EXECUTE | _WRITE & ~(_MAKE_SOCK | _MAKE_FIFO)
_OWN_TERMINAL = "/dev/tty"  #: the controlling terminal of the process that opens it, and no other
_ON_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV

#: ABI → rights on files that it knows. Also with 4: TCP; with 6: scopes.
_FILES = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
_TCP_SINCE, _BIND_TCP, _CONNECT_TCP = 4, 1, 2
_SCOPES_SINCE, _ABSTRACT_SOCKETS, _SIGNALS = 6, 1, 2


class LandlockSupport(NamedTuple):
    """The parts that a restriction covers on this kernel."""

    abi: int
    tcp: bool  #: TCP is restricted
    scopes: bool  #: abstract sockets and signals work only among processes behind the same restriction


def abi() -> int:
    """Return the version of Landlock in this kernel; 0 where there is none, or it is disabled."""
    try:
        return calls.syscall("landlock_create_ruleset", _CREATE_RULESET, None, 0, _VERSION)
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM):
            return 0
        raise


def restrict(
    *,
    read: Iterable[Path] = (),
    execute: Iterable[Path] = (),
    write: Iterable[Path] = (),
    devices: Iterable[Path] = (),
    tcp: bool = False,
) -> LandlockSupport:
    """Give up all rights on files except the listed ones, permanently, for this thread and its later children.

    See `Rules`. Raises OSError: ENOSYS or EOPNOTSUPP without Landlock, EPERM without no_new_privs.
    """
    with Rules(tcp=tcp) as rules:
        rules.grant(read=read, execute=execute, write=write, devices=devices)
        return rules.enforce()


class Rules:
    """The rights to keep, collected before they are enforced. Raises OSError without Landlock.

    Where the kernel supports it, TCP is given up unless `tcp`. Sockets by abstract name and signals to processes
    outside are given up in any case.
    """

    def __init__(self, *, tcp: bool = False) -> None:
        version = abi()
        if not version:
            raise OSError(errno.EOPNOTSUPP, "this kernel has no Landlock")
        self._support = LandlockSupport(version, version >= _TCP_SINCE, version >= _SCOPES_SINCE)
        self._handled_access = _FILES[max(known for known in _FILES if known <= version)]
        rules = _Ruleset(
            self._handled_access,
            _BIND_TCP | _CONNECT_TCP if self._support.tcp and not tcp else 0,
            _ABSTRACT_SOCKETS | _SIGNALS if self._support.scopes else 0,
        )
        # An older kernel accepts the longer struct as long as the unknown part is zero.
        self._fd = calls.syscall("landlock_create_ruleset", _CREATE_RULESET, rules, ctypes.sizeof(rules), 0)

    def grant(
        self,
        *,
        read: Iterable[Path] = (),
        execute: Iterable[Path] = (),
        write: Iterable[Path] = (),
        devices: Iterable[Path] = (),
        edit: Iterable[Path] = (),
    ) -> None:
        """Keep these rights on the files that exist now, whatever is at the path later.

        `execute` includes reading; `write` includes reading, making, removing, and renaming across folders; `devices`
        are existing files to read and write; `edit` includes `execute`, and writing plain files, folders and links, but
        making no sockets and pipes. Paths that do not exist, or that the caller cannot reach, are skipped.
        """
        for paths, rights in (
            (read, _READ),
            (execute, _READ | _EXECUTE),
            (write, _WRITE),
            (devices, _READ_FILE | _WRITE_FILE),
            (edit, _EDIT),
        ):
            for path in paths:
                _grant(self._fd, path, rights & self._handled_access)

    def grant_opened(self, fd: int, *, is_writable: bool = False) -> None:
        """Keep the rights of `execute`, or of `edit`, on the file or folder behind a descriptor, and below."""
        _grant_opened(self._fd, fd, (_EDIT if is_writable else _READ | _EXECUTE) & self._handled_access)

    def grant_terminal(self, fd: int) -> None:
        """Keep the right to read, write and control a terminal, and the terminal that is this process's own."""
        rights = (_READ_FILE | _WRITE_FILE | _IOCTL_DEV) & self._handled_access
        _grant_opened(self._fd, fd, rights)
        _grant(self._fd, _OWN_TERMINAL, rights)

    def connect(self, *ports: int) -> None:
        """Keep the right to connect to these TCP ports, of any address. Raises OSError where TCP is not restricted."""
        for port in ports:
            calls.syscall("landlock_add_rule", _ADD_RULE, self._fd, _NET_PORT, _Port(_CONNECT_TCP, port), 0)

    def enforce(self) -> LandlockSupport:
        """Give up all other rights."""
        calls.syscall("landlock_restrict_self", _RESTRICT_SELF, self._fd, 0)
        return self._support

    def close(self) -> None:
        """Close the rules, which can then not be enforced any more; enforced rules stay."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _grant(ruleset: int, path: Path, rights: int) -> None:
    with contextlib.ExitStack() as cleanup:
        try:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return
        cleanup.callback(os.close, fd)
        _grant_opened(ruleset, fd, rights)


def _grant_opened(ruleset: int, fd: int, rights: int) -> None:
    if not stat.S_ISDIR(os.fstat(fd).st_mode):
        rights &= _ON_FILES
    calls.syscall("landlock_add_rule", _ADD_RULE, ruleset, _PATH_BENEATH, _Beneath(rights, fd), 0)


class _Ruleset(ctypes.Structure):
    """struct landlock_ruleset_attr, as of ABI 6."""

    _fields_ = [("files", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class _Port(ctypes.Structure):
    """struct landlock_net_port_attr."""

    _fields_ = [("allowed", ctypes.c_uint64), ("port", ctypes.c_uint64)]


class _Beneath(ctypes.Structure):
    """struct landlock_path_beneath_attr."""

    _pack_ = 1
    _layout_ = "ms"  # as `_pack_` alone means; Python 3.14 warns without it
    _fields_ = [("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32)]
