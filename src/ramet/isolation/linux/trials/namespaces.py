"""Trials of namespaces: their content is invisible outside, and the outside is out of reach."""

from __future__ import annotations

import ctypes
import errno
import os
import pathlib
import signal
import socket
import tempfile
from collections.abc import Callable, Mapping

from ramet.isolation.linux import calls, mounts, rlimits
from ramet.isolation.linux.trials.throwaway import NotIsolated, check_refused, enter, in_child

_FORKS = 8  #: more than the limit allows, and the maximum number of forks


def _user_namespaces() -> str:
    name = os.uname().nodename
    enter()
    check_refused(lambda: calls.sethostname(name), "the root of a user namespace names the host", errno.EPERM)
    check_refused(lambda: os.setuid(1), "becoming a user that is not mapped", errno.EINVAL)
    return ""


def _pid_namespaces() -> str:
    parent_pid = os.getppid()
    enter(calls.CLONE_NEWPID)

    def check_in_child() -> None:
        if os.getpid() != 1:
            raise NotIsolated(f"the first process of a new pid namespace is {os.getpid()}")
        if parent_pid != 1:
            check_refused(lambda: os.kill(parent_pid, 0), "a signal to a process of the host", errno.ESRCH)

    in_child(check_in_child)
    return ""


def _mount_namespaces() -> str:
    folder = pathlib.Path("/tmp")
    before = folder.stat().st_dev

    def check_in_child() -> None:
        enter(calls.CLONE_NEWNS)
        check_refused(lambda: calls.umount("/proc", calls.MNT_DETACH), "removing a mount of the host", errno.EINVAL)
        calls.mount("none", "/tmp", "tmpfs")
        if folder.stat().st_dev == before:
            raise NotIsolated("a new mount is not seen")

    in_child(check_in_child)
    if folder.stat().st_dev != before:
        raise NotIsolated("a mount of a new namespace is seen outside")
    return ""


def _network_namespaces() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        with socket.socket() as control:
            control.connect(address)
        enter(calls.CLONE_NEWNET)
        with socket.socket() as attempt:
            check_refused(lambda: attempt.connect(address), "a connection to the host's loopback", errno.ENETUNREACH)
    return ""


def _ipc_namespaces() -> str:
    libc = ctypes.CDLL(None, use_errno=True)
    segment = libc.shmget(0, 4096, 0o600)
    remove_command, stat_command = 0, 2
    try:
        if segment < 0 or libc.shmctl(segment, stat_command, ctypes.create_string_buffer(256)):
            raise OSError(ctypes.get_errno(), "shared memory by key")

        def check_in_child() -> None:
            enter(calls.CLONE_NEWIPC)
            if libc.shmctl(segment, stat_command, ctypes.create_string_buffer(256)) == 0:
                raise NotIsolated("shared memory of the host")

        in_child(check_in_child)
    finally:
        libc.shmctl(segment, remove_command, None)
    return ""


def _uts_namespaces() -> str:
    before = os.uname().nodename

    def check_in_child() -> None:
        enter(calls.CLONE_NEWUTS)
        calls.sethostname("ramet-probe")
        if os.uname().nodename != "ramet-probe":
            raise NotIsolated("a new name is not seen")

    in_child(check_in_child)
    if os.uname().nodename != before:
        raise NotIsolated("a name given in a new namespace is the host's")
    return ""


def _cgroup_namespaces() -> str:
    enter(calls.CLONE_NEWCGROUP)
    paths = [line.split(":", 2)[2] for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines()]
    if any(path != "/" for path in paths):
        raise NotIsolated(f"paths of the host's cgroups: {', '.join(paths)}")
    return ""


def _proc_mount() -> str:
    own_pid = os.getpid()
    enter(calls.CLONE_NEWNS | calls.CLONE_NEWPID)

    def check_in_child() -> None:
        calls.mount("proc", "/proc", "proc", calls.MS_NOSUID | calls.MS_NODEV | calls.MS_NOEXEC)
        pids = [each.name for each in pathlib.Path("/proc").iterdir() if each.name.isdigit()]
        if pids != ["1"]:
            raise NotIsolated(f"processes of the host are listed, {own_pid} perhaps: {', '.join(pids[:5])}")

    in_child(check_in_child)
    return ""


def _read_only_root() -> str:
    fd, path = tempfile.mkstemp(prefix="ramet-probe-")
    os.close(fd)

    def check_in_child() -> None:
        enter(calls.CLONE_NEWNS)
        mounts.make_read_only()
        check_refused(lambda: os.chmod(path, 0o644), "changing the mode of a file", errno.EROFS)  # noqa: PTH101
        os.close(os.open(os.devnull, os.O_WRONLY))

    try:
        in_child(check_in_child)
    finally:
        os.unlink(path)  # noqa: PTH108
    return ""


def _processes_per_namespace() -> str:
    enter()
    rlimits.apply(nproc=_FORKS // 2)
    children: list[int] = []
    try:
        for _ in range(_FORKS):
            if not (pid := os.fork()):
                signal.pause()
            children.append(pid)
    except BlockingIOError:
        if children:
            return f"{len(children) + 1} of {_FORKS // 2}"
        raise
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    raise NotIsolated(f"{_FORKS} processes under a limit of {_FORKS // 2}")


TRIALS: Mapping[str, Callable[[], str]] = {
    "user_namespaces": _user_namespaces,
    "pid_namespaces": _pid_namespaces,
    "mount_namespaces": _mount_namespaces,
    "network_namespaces": _network_namespaces,
    "ipc_namespaces": _ipc_namespaces,
    "uts_namespaces": _uts_namespaces,
    "cgroup_namespaces": _cgroup_namespaces,
    "proc_mount": _proc_mount,
    "read_only_root": _read_only_root,
    "processes_per_namespace": _processes_per_namespace,
}
