"""Start a zygote: the one program that the host executes. Root becomes an ordinary user first, for good.

Its environment is empty and its arguments hold no secret. It is told what to do by a packet on an inherited socket,
the one that the zygote then inherits from it.

Nothing on the way to a zygote dies with the host: a bwrap that is killed between starting its child and telling it so
leaves it waiting for ever. It comes to be, sees that the host has gone, and ends. From then on the kernel sees to it:
a pipe that nothing is written to, its leash, kills us when the host's end of it is closed, and it dies with us.
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

_NAMESPACES = (
    calls.CLONE_NEWUSER
    | calls.CLONE_NEWPID
    | calls.CLONE_NEWNS
    | calls.CLONE_NEWNET
    | calls.CLONE_NEWIPC
    | calls.CLONE_NEWUTS
    | calls.CLONE_NEWCGROUP
)

_F_SETSIG = 10
_NO_SOURCES: Mapping[str, str] = {}


class Launch(NamedTuple):
    """What is to be started, as whom."""

    walls: str  #: see `ramet.isolation.assignment.IsolationMode`
    uid: int | None  #: become this user; None: stay who we are
    gid: int | None
    paths: tuple[str, ...]  #: what that user must come to
    granted: tuple[str, ...]  #: and read, whoever of the two owns it
    parent: int  #: pid of the host
    argv: tuple[str, ...] = ()  #: the zygote
    bwrap: str = ""  #: its path
    arguments: tuple[str, ...] = ()  #: of bwrap
    files: Mapping[str, str] = {}  #: made inside by bwrap: path to content
    sources: Mapping[str, str] = {}  #: of mounts among the paths, and of themselves: see `isolation.mounts`
    is_read_only: bool = False  #: whether the host's root is, in namespaces without bwrap


def main(control: int, leash: int) -> NoReturn:
    """Do what the packet says; ends as bwrap, as the zygote, or as whoever waits for it. Both are for the zygote."""
    with socket.socket(fileno=os.dup(control)) as end:
        told = packets.receive(end)
    if told is None:
        os._exit(0)
    launch = Launch(*told.body)
    if launch.uid is not None and launch.gid is not None:
        drop_privileges(launch.uid, launch.gid, launch.paths, launch.granted, launch.sources)
    if os.getuid() == 0 or os.geteuid() == 0:
        sys.exit("refused: a sandbox of uid 0 is none")
    if launch.walls not in APART:  # A zygote without a pid namespace has others to end before itself.
        calls.die_with_parent(signal.SIGTERM)  # After the change of uid, which forgets it.
    else:
        fcntl.fcntl(leash, _F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(leash, fcntl.F_SETOWN, -os.getpgrp())
    if os.getppid() != launch.parent:
        os._exit(0)
    for fd in (control, leash):
        os.set_inheritable(fd, True)
    if launch.walls == "bwrap":
        os.execve(launch.bwrap, _with_arguments(launch), {})
    if launch.walls == "namespaces":
        _enter_namespaces(is_read_only=launch.is_read_only)
    os.execve(launch.argv[0], launch.argv, {})


def drop_privileges(
    uid: int, gid: int, paths: Collection[str], granted: Iterable[str] = (), sources: Mapping[str, str] = _NO_SOURCES
) -> None:
    """Turn from root into an ordinary user who comes to `paths`, and reads what it was granted. Raises OSError.

    A path in `sources` is a mount: no link is followed to it, but for one that an operator granted.
    """
    grant_path_access(paths, uid, gid, sources)
    for path in granted:
        if (place := handle_of(path, sources)) is not None:
            _show(path, place, uid, gid, paths, sources)
            os.close(place)
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


def _show(path: str, place: int, uid: int, gid: int, paths: Collection[str], sources: Mapping[str, str]) -> None:
    """Show a granted path to the user; what else is needed below it stays as it was: a workspace is to be written."""
    within = [(each, handle_of(each, sources)) for each in paths if each.startswith(f"{path}/")]
    is_shown = idmap_mount(place, uid, gid)
    for each, fd in within:
        if fd is None:
            continue
        if is_shown and (target := handle_of(each, sources)) is not None:
            calls.mount(f"/proc/self/fd/{fd}", f"/proc/self/fd/{target}", None, calls.MS_BIND | calls.MS_REC)
            os.close(target)
        os.close(fd)


def _with_arguments(launch: Launch) -> list[str]:
    """The command line of bwrap: all but the command is behind a descriptor."""
    arguments: list[str] = []
    for path, content in launch.files.items():  # First: the root becomes read-only in the end.
        arguments += ["--ro-bind-data", str(_memory(content)), path]
    arguments += _with_handles(launch.arguments)
    given = _memory("".join(f"{argument}\0" for argument in arguments))
    return ["bwrap", "--args", str(given), "--", *launch.argv]


def _with_handles(arguments: Iterable[str]) -> Iterator[str]:
    """The same with a handle, which is inherited, in place of each source that bwrap takes by descriptor."""
    before = ""
    for argument in arguments:
        if before == BIND_HANDLE:
            fd = open_without_links(argument)
            os.set_inheritable(fd, True)
            yield str(fd)
        else:
            yield argument
        before = argument


def _memory(content: str) -> int:
    """A descriptor to read, which is inherited."""
    fd = os.memfd_create("file", 0)
    os.write(fd, content.encode())
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _enter_namespaces(*, is_read_only: bool) -> None:
    """Be the first process of namespaces of our own; whoever we were waits for our end, and ends us with itself."""
    uid, gid = os.getuid(), os.getgid()
    calls.unshare(_NAMESPACES)
    namespaces.map_ids(0, 0, uid, gid)
    pid = os.fork()
    if pid:
        calls.close_range(3)
        _, status = os.waitpid(pid, 0)
        os._exit(abs(os.waitstatus_to_exitcode(status)))
    os.setsid()  # Out of the group that is killed: the first of a namespace ignores that.
    calls.mount("none", "/", None, calls.MS_REC | calls.MS_PRIVATE)
    if is_read_only:  # Before /proc: children write their maps of users there.
        mounts.make_read_only()
    calls.mount("proc", "/proc", "proc", calls.MS_NOSUID | calls.MS_NODEV | calls.MS_NOEXEC)
    calls.sethostname("sandbox")
