"""Trials of cgroup limits, with a group that is made for each trial and removed afterwards."""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

_LIMIT = 32 * 2**20  #: the memory limit of a group in bytes: never reached, only read back
_TOUCHED = 4 * 2**20  #: bytes that are touched in the group, and must be counted
_QUOTA_US, _PERIOD_US = 1_000, 100_000  #: a hundredth of a processor, which a process gets on a busy machine, too
_SPIN_S = 0.02  #: of processor time


class Place(NamedTuple):
    """The folder of this process's group of a controller."""

    folder: pathlib.Path
    version: int


def place(controller: str) -> Place:
    """Return the place of a controller. Raises OSError if no mounted hierarchy has the controller."""
    mounts, own = _mounts(), _own_paths()
    for folder, kind, options in mounts:
        if kind == "cgroup" and controller in options and controller in own:
            return Place(folder / own[controller].lstrip("/"), 1)
    for folder, kind, _ in mounts:
        group_folder = folder / own.get("", "/").lstrip("/")
        if kind == "cgroup2" and controller in _read_fields(group_folder / "cgroup.controllers"):
            return Place(group_folder, 2)
    raise OSError(errno.ENOENT, f"no hierarchy has the controller {controller}")


@contextlib.contextmanager
def _group(controller: str) -> Iterator[Place]:
    """Make a group next to this process's own, for the process to enter, and remove it afterwards."""
    current = place(controller)
    parent = current.folder if current.version == 1 or _delegates(current.folder, controller) else current.folder.parent
    group = parent / f"ramet-probe-{os.getpid()}"
    group.mkdir()
    try:
        yield Place(group, current.version)
    finally:
        _write(current.folder / "cgroup.procs", os.getpid())
        with contextlib.suppress(OSError):
            group.rmdir()


def _memory() -> str:
    with _group("memory") as (group, version):
        limit, usage = (
            ("memory.limit_in_bytes", "memory.usage_in_bytes") if version == 1 else ("memory.max", "memory.current")
        )
        _write(group / limit, _LIMIT)
        _write(group / "cgroup.procs", os.getpid())
        before = int((group / usage).read_text())
        touched_memory = bytearray(b"x") * _TOUCHED
        counted_bytes = int((group / usage).read_text()) - before
        if int((group / limit).read_text()) != _LIMIT or counted_bytes < len(touched_memory) // 2:
            raise OSError(errno.EIO, f"{counted_bytes} of {len(touched_memory)} bytes were counted")
    return f"version {version}"


def _cpu() -> str:
    with _group("cpu") as (group, version):
        if version == 1:
            _write(group / "cpu.cfs_period_us", _PERIOD_US)
            _write(group / "cpu.cfs_quota_us", _QUOTA_US)
        else:
            _write(group / "cpu.max", f"{_QUOTA_US} {_PERIOD_US}")
        _write(group / "cgroup.procs", os.getpid())
        until = time.process_time() + _SPIN_S  # Elapsed time passes for a process that gets no processor, too.
        while not _stat(group / "cpu.stat", "nr_throttled"):
            if time.process_time() > until:
                raise OSError(errno.EIO, "a busy loop was never throttled")
    return f"version {version}"


def _pids() -> str:
    with _group("pids") as (group, version):
        _write(group / "pids.max", 1)
        _write(group / "cgroup.procs", os.getpid())
        try:
            pid = os.fork()
        except BlockingIOError:
            return f"version {version}"
        if not pid:
            signal.pause()
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise OSError(errno.EIO, "a second process under a limit of one")


def _mounts() -> list[tuple[pathlib.Path, str, list[str]]]:
    mounts = []
    for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines():
        mount_part, _, kind_part = line.partition(" - ")
        kind, _, options = kind_part.split()[:3]
        if kind in ("cgroup", "cgroup2"):
            mounts.append((pathlib.Path(mount_part.split()[4]), kind, options.split(",")))
    return mounts


def _own_paths() -> dict[str, str]:
    """Return controller → path of this process; version 2 has no name."""
    lines = [line.split(":", 2) for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines()]
    return {name: path for _, names, path in lines for name in names.split(",")}


def _delegates(folder: pathlib.Path, controller: str) -> bool:
    return controller in _read_fields(folder / "cgroup.subtree_control")


def _read_fields(file: pathlib.Path) -> list[str]:
    try:
        return file.read_text().split()
    except FileNotFoundError:
        return []


def _stat(file: pathlib.Path, name: str) -> int:
    return int(dict(line.split() for line in file.read_text().splitlines())[name])


def _write(file: pathlib.Path, value: object) -> None:
    with file.open("r+") as stream:
        stream.write(str(value))


TRIALS: Mapping[str, Callable[[], str]] = {"cgroup_memory": _memory, "cgroup_cpu": _cpu, "cgroup_pids": _pids}
