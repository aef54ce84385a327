"""The layers around git: namespaces with a private root where available, Landlock, seccomp, limits.

Without namespaces Landlock and seccomp must suffice: they protect files, sockets and signals, and file modes besides.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from ramet.isolation.git.sandbox import private_root
from ramet.isolation.git.sandbox.request import Request
from ramet.isolation.linux import calls, caps, landlock, namespaces, rlimits, seccomp

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_ETC = ("alternatives", "ld.so.cache", "localtime", "nsswitch.conf", "passwd", "group")
_DEVICES = tuple(f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom"))
_NAMESPACES = calls.NEW_NAMESPACES & ~calls.CLONE_NEWUSER
_SCOPES_SINCE = 6  #: the version of Landlock that keeps signals and abstract sockets inside
_DATA = 4 << 30
_FILE = 16 << 30
_NPROC, _NOFILE = 512, 1024


def attempts() -> tuple[Callable[[Request], None], ...]:
    """Return the methods to confine a process, the strictest first.

    Each starts in a new process, and raises OSError.

    After a method has returned, call `seal` in the process to confine, or its child.
    """
    return (*((_as_root,) if _is_root() else ()), _as_user, _without_namespaces)


def seal(request: Request, *, is_apart: bool) -> None:
    """Give up all rights except those that the request names, permanently. Raises OSError."""
    # The kernel counts processes per user namespace: elsewhere the limit would count those of the whole machine.
    nproc = _NPROC if is_apart and not _is_root() else None
    fsize = _FILE if request.file_bytes is None else min(_FILE, request.file_bytes)
    rlimits.apply(nproc=nproc, nofile=_NOFILE, data=_DATA, fsize=fsize, cpu=request.cpu_s, msgqueue=0)
    become(request.uid, request.gid)
    caps.drop_all()
    calls.set_no_new_privs()
    if not is_apart or landlock.abi():
        landlock.restrict(
            read=(*request.read, *(f"/etc/{name}" for name in _ETC)),
            execute=(*_SYSTEM, *request.execute),
            write=(*(folder.path for folder in request.write), *(("/tmp",) if is_apart else ())),
            devices=_DEVICES,
        )
    seccomp.install(
        seccomp.program(
            inet=False,
            unix=False,
            unmapped=False,
            queues=False,
            others=False,
            metadata=is_apart,
            watches=is_apart,
        )
    )


def _is_root() -> bool:
    return os.getuid() == 0


def become(uid: int, gid: int) -> None:
    """Change from root to the user who owns the repository; do nothing for other users, who own it themselves."""
    if _is_root() and uid != 0:
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)


def _as_root(request: Request) -> None:
    calls.unshare(_NAMESPACES)


def _as_user(request: Request) -> None:
    become(request.uid, request.gid)
    uid, gid = os.getuid(), os.getgid()
    calls.unshare(_NAMESPACES | calls.CLONE_NEWUSER)
    namespaces.map_ids(uid, gid, uid, gid)


def _without_namespaces(request: Request) -> None:
    """Check that Landlock alone can confine a process, and change nothing. Raises OSError if it cannot."""
    if (version := landlock.abi()) < _SCOPES_SINCE:
        raise OSError(f"no namespaces can be made, and Landlock has version {version}; needed is {_SCOPES_SINCE}")


def is_apart(attempt: Callable[[Request], None]) -> bool:
    """Return whether a method uses namespaces."""
    return attempt is not _without_namespaces


def enter_root(request: Request) -> None:
    """Build the root that git sees; call it in the first process of new namespaces. Raises OSError."""
    read = (*_SYSTEM, *(f"/etc/{name}" for name in _ETC), *request.read, *request.execute)
    read = tuple(dict.fromkeys(read))
    private_root.enter(
        read=read, write=request.write, devices=_DEVICES, hidden_folders=request.hidden_folders, cwd=request.cwd
    )
