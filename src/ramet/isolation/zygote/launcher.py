"""Start a zygote: the one program that the host executes. Root permanently becomes an ordinary user first.

The environment is empty and the arguments hold no secret. A packet on an inherited socket has the instructions; the
zygote then inherits that socket.

No process that starts a zygote dies with the host. If a bwrap is killed between the start of its child and its message
to the child, that child waits forever. A started child sees that the host has gone, and ends. From then on the kernel
enforces it: the leash is a pipe that no process writes to. The leash kills us when the host's end of it is closed, and
the zygote dies with us.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple, NoReturn

from ramet.isolation.assignment import APART, BIND_HANDLE
from ramet.isolation.confine.id_mapped_mounts import idmap_mount
from ramet.isolation.confine.path_access import grant_path_access, handle_of
from ramet.isolation.linux import calls, mounts, namespaces
from ramet.isolation.linux.beneath import open_without_links
from ramet.isolation.zygote import packets

_F_SETSIG = 10
_NO_SOURCES: Mapping[str, str] = {}


class Launch(NamedTuple):
    """The program to start, and its user."""

    mode: str  #: see `ramet.isolation.assignment.IsolationMode`
    uid: int | None  #: become this user; None: keep the current one
    gid: int | None
    paths: tuple[str, ...]  #: paths that the user must be able to reach
    granted_paths: tuple[str, ...]  #: paths that the user must also be able to read, whichever user owns them
    parent: int  #: pid of the host
    argv: tuple[str, ...] = ()  #: the command line of the zygote
    bwrap: str = ""  #: the path of bwrap
    arguments: tuple[str, ...] = ()  #: the arguments of bwrap
    files: Mapping[str, str] = {}  #: files that bwrap makes inside: path to content
    sources: Mapping[str, str] = {}  #: of mounts among the paths, and of the sources themselves: see `isolation.mounts`
    writable: tuple[str, ...] = ()  #: of the granted paths, those that the user may also write to
    is_read_only: bool = False  #: whether the host's root is read-only, in namespaces without bwrap


def main(control: int, leash: int) -> NoReturn:
    """Follow the instructions of the packet, and end as bwrap, as the zygote, or as the process that waits for it.

    Both descriptors are for the zygote.
    """
    with socket.socket(fileno=os.dup(control)) as end:
        request = packets.receive(end)
    if request is None:
        os._exit(0)
    launch = Launch(*request.body)
    if launch.uid is not None and launch.gid is not None:
        drop_privileges(launch.uid, launch.gid, launch.paths, launch.granted_paths, launch.sources, launch.writable)
    if os.getuid() == 0 or os.geteuid() == 0:
        sys.exit("refused: a sandbox of uid 0 would not be confined")
    if launch.mode not in APART:  # A zygote without a pid namespace must end other processes before itself.
        calls.die_with_parent(signal.SIGTERM)  # After the change of uid, which resets this setting.
    else:
        fcntl.fcntl(leash, _F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(leash, fcntl.F_SETOWN, -os.getpgrp())
    if os.getppid() != launch.parent:
        os._exit(0)
    for fd in (control, leash):
        os.set_inheritable(fd, True)
    if launch.mode == "bwrap":
        os.execve(launch.bwrap, _with_arguments(launch), {})
    if launch.mode == "namespaces":
        _enter_namespaces(is_read_only=launch.is_read_only)
    os.execve(launch.argv[0], launch.argv, {})


def drop_privileges(
    uid: int,
    gid: int,
    paths: Collection[str],
    granted_paths: Collection[str] = (),
    sources: Mapping[str, str] = _NO_SOURCES,
    writable: Collection[str] = (),
) -> None:
    """Change from root to an ordinary user who can reach `paths` and read the granted paths. Raises OSError.

    A path in `sources` is a mount: no link on its path is followed, except one that an operator granted.
    """
    grant_path_access(paths, uid, gid, sources, writable, granted_paths)
    for path in sorted(granted_paths, key=lambda path: path.count("/")):  # An inner mount is shown in the outer one.
        if (handle := handle_of(path, sources)) is not None:
            is_shown = _show(path, handle, uid, gid, paths, sources, is_writable=path in writable)
            if path in writable and not is_shown:
                sys.exit(f"writable_mounts: {path}: its file system cannot show the files of root to another user")
            os.close(handle)
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


def _show(
    path: str,
    handle: int,
    uid: int,
    gid: int,
    paths: Collection[str],
    sources: Mapping[str, str],
    *,
    is_writable: bool,
) -> bool:
    """Make a granted path visible to the user; return False where the file system cannot do that.

    Needed paths below it stay unchanged, because a workspace must be writable.
    """
    handles = [(each, handle_of(each, sources)) for each in paths if each.startswith(f"{path}/")]
    is_shown = idmap_mount(handle, uid, gid, is_writable=is_writable)
    for each, fd in handles:
        if fd is None:
            continue
        if is_shown and (target := handle_of(each, sources)) is not None:
            calls.mount(f"/proc/self/fd/{fd}", f"/proc/self/fd/{target}", None, calls.MS_BIND | calls.MS_REC)
            os.close(target)
        os.close(fd)
    return is_shown


def _with_arguments(launch: Launch) -> list[str]:
    """Return the command line of bwrap: all arguments except the command are behind a descriptor."""
    arguments: list[str] = []
    for path, content in launch.files.items():  # First: the root becomes read-only in the end.
        arguments += ["--ro-bind-data", str(_memory(content)), path]
    arguments += _with_handles(launch.arguments)
    args_fd = _memory("".join(f"{argument}\0" for argument in arguments))
    return ["bwrap", "--args", str(args_fd), "--", *launch.argv]


def _with_handles(arguments: Iterable[str]) -> Iterator[str]:
    """Yield the arguments, with an inherited handle in place of each source that bwrap takes by descriptor."""
    previous = ""
    for argument in arguments:
        if previous == BIND_HANDLE:
            fd = open_without_links(argument)
            os.set_inheritable(fd, True)
            yield str(fd)
        else:
            yield argument
        previous = argument


def _memory(content: str) -> int:
    """Return an inheritable descriptor with this content."""
    fd = os.memfd_create("file", 0)
    os.write(fd, content.encode())
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _enter_namespaces(*, is_read_only: bool) -> None:
    """Become the first process of new namespaces; the original process waits for our end, and ends us when it ends."""
    uid, gid = os.getuid(), os.getgid()
    calls.unshare(calls.NEW_NAMESPACES)
    namespaces.map_ids(0, 0, uid, gid)
    pid = os.fork()
    if pid:
        calls.close_range(3)
        _, status = os.waitpid(pid, 0)
        os._exit(abs(os.waitstatus_to_exitcode(status)))
    os.setsid()  # Leave the group that is killed: the first process of a namespace ignores that signal.
    calls.mount("none", "/", None, calls.MS_REC | calls.MS_PRIVATE)
    if is_read_only:  # Before /proc: children write their user maps there.
        mounts.make_read_only()
    calls.mount("proc", "/proc", "proc", calls.MS_NOSUID | calls.MS_NODEV | calls.MS_NOEXEC)
    calls.sethostname("sandbox")
