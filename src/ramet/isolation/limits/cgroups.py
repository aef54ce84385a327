"""Control groups, where this machine allows them: hard limits of memory, processor time and processes.

Groups are made below the group of this process, so limits that others set around us apply inside, too:

    <our own group>/ramet/<kernel>/<name>
    <our own group>/ramet/<kernel>/<reservation>/<name>

`<kernel>` ends with the pid namespace, pid and start time of its maker; so groups left by dead kernels can be
distinguished from groups in use. This works with version 1, where each controller has a hierarchy of its own. It also
works with version 2 if our own group is delegated to us. In version 2 a group with processes can have no limited groups
below, so we move into a group of our own.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ramet.core.errors import SandboxFailed
from ramet.core.ids import checked_name
from ramet.isolation.limits.cgroup import MIB, PERIOD_US, Cgroup, pids_in, read, write
from ramet.isolation.linux import procfs

__all__ = ["Cgroup", "Cgroups", "reap_freezers", "reap_groups"]

_TOP, _KERNEL_GROUP = "ramet", "ramet-kernel"
_DYING_S, _PAUSE_S = 1.0, 0.01
_MAX_REMOVALS = 10  #: how often others may remove a folder that is being made
_FREEZER = "freezer"  #: every group of version 2 has it, and it is no controller there
_CONTROLLERS = ("memory", "cpu", "cpuacct", "pids")  #: cpuacct counts time in version 1, where cpu does not


class Cgroups:
    """The groups of one kernel, this process."""

    def __init__(self, bases: Mapping[str, Path], version: int, kernel: str) -> None:
        self._roots = {controller: base / _TOP for controller, base in bases.items()}
        self._version, self._kernel = version, kernel
        self._group = Cgroup({controller: top / kernel for controller, top in self._roots.items()}, version)

    @classmethod
    def open(cls, name: str) -> Cgroups | None:
        """Make a place for groups, under a name that identifies the owner; None if no limits are available here.

        Each controller is tried: a group is made, a limit set and read back, the group removed.
        """
        checked_name("name", name)
        for version, find in ((1, _bases_v1), (2, _bases_v2)):
            bases = {controller: base for controller, base in find() if _works(base, controller, version)}
            if bases.keys() & {"memory", "cpu", "pids"}:
                groups = cls(bases, version, f"{name}.{_Maker.ours()}")
                try:
                    groups._prepare()
                except SandboxFailed:
                    groups.close()
                    continue
                return groups
        return None

    @classmethod
    def open_freezers(cls, name: str) -> Cgroups | None:
        """Make a place for groups of version 2 that only freeze, named after the owner; None if we may not."""
        checked_name("name", name)
        for each in _freezers():
            groups = cls({each.controller: each.folder}, 2, f"{name}.{_Maker.ours()}")
            try:
                groups._prepare()
            except SandboxFailed:
                groups.close()
                continue
            return groups
        return None

    @property
    def controllers(self) -> frozenset[str]:
        """The controllers of memory, cpu and pids that work here."""
        return frozenset(self._roots) - {"cpuacct"}

    def make(self, name: str) -> Cgroup:
        """Make and return an empty group without limits.

        Raises InvalidValue if the name is invalid, SandboxFailed also if the group exists.
        """
        checked_name("name", name)
        group = self._group.child(name)
        group.make()
        return group

    def reap(self, prefix: str) -> tuple[str, ...]:
        """Terminate and remove the groups of dead kernels whose name begins with `prefix`; return the kernels' names.

        Groups of a live kernel, or of one in another pid namespace, are left alone. A group that is not empty
        immediately is found the next time. Raises InvalidValue if the prefix cannot begin a name.
        """
        checked_name("prefix", prefix)
        return tuple(name for name, group in _groups_of_prefix(self._roots, self._version, prefix) if _try_end(group))

    def close(self) -> bool:
        """Remove the place; return False if a group is not empty: it stays for `reap`. Raises SandboxFailed."""
        is_removed = self._group.try_remove()
        _remove_empty(self._roots)
        return is_removed

    def kill(self) -> None:
        """Send SIGKILL to all processes in all groups of this kernel."""
        self._group.kill()

    def _prepare(self) -> None:
        try:
            for controller, top in self._roots.items():
                _make_folder(top / self._kernel)
                if self._version == 2 and controller != _FREEZER:
                    for folder in (top, top / self._kernel):
                        write(folder / "cgroup.subtree_control", f"+{controller}")
        except OSError as error:
            raise SandboxFailed(f"control groups: {error}") from error


def reap_groups(prefixes: Sequence[str]) -> tuple[str, ...]:
    """Terminate and remove the groups of dead kernels below this process's group; return the names of these kernels.

    Works like `Cgroups.reap` for each of these prefixes, but makes no place and tries no limit. Waits up to a second
    for dying processes. Raises InvalidValue.
    """
    for each in prefixes:
        checked_name("prefix", each)
    reaped_names, deadline = list[str](), time.monotonic() + _DYING_S
    for version, bases in ((1, dict(_bases_v1())), (2, dict((*_places_v2(), *_freezers())))):
        tops = {controller: base / _TOP for controller, base in bases.items()}
        for name, group in (each for prefix in prefixes for each in _groups_of_prefix(tops, version, prefix)):
            while not (has_ended := _try_end(group)) and time.monotonic() < deadline:
                time.sleep(_PAUSE_S)
            if has_ended:
                reaped_names.append(name)
        if reaped_names:
            _remove_empty(tops)
    return tuple(reaped_names)


def reap_freezers(prefix: str) -> None:
    """Remove the groups in which dead kernels froze sandboxes. Their processes have ended with the kernel."""
    tops = {each.controller: each.folder / _TOP for each in _freezers()}
    for _, group in _groups_of_prefix(tops, 2, prefix):
        _try_end(group)
    _remove_empty(tops)


def _groups_of_prefix(tops: Mapping[str, Path], version: int, prefix: str) -> Iterator[tuple[str, Cgroup]]:
    """Yield the groups of ended kernels whose name begins with `prefix`."""
    names = set[str]()
    for top in set(tops.values()):
        with contextlib.suppress(FileNotFoundError):  # No kernel uses it, or the last one has just removed it.
            names.update(each.name for each in top.iterdir())
    for name in sorted(names):
        maker = _Maker.parse(name)
        if name.startswith(prefix) and maker is not None and not maker.may_live():
            yield name, Cgroup({each: top / name for each, top in tops.items()}, version)


def _try_end(group: Cgroup) -> bool:
    group.kill()
    return group.try_remove()


def _make_folder(folder: Path) -> None:
    """Make a folder and the one above, also if ending kernels remove the one above, which is empty, in between."""
    for _ in range(_MAX_REMOVALS):
        with contextlib.suppress(FileNotFoundError, FileExistsError):  # It exists, but no longer when `mkdir` looks.
            folder.mkdir(parents=True, exist_ok=True)
            return
    folder.mkdir(parents=True, exist_ok=True)


def _remove_empty(tops: Mapping[str, Path]) -> None:
    for top in set(tops.values()):
        with contextlib.suppress(OSError):  # Other kernels use it.
            top.rmdir()


class _Maker(NamedTuple):
    """The maker of a group: a process that cannot be mistaken for a later one with the same pid."""

    namespace: int
    pid: int
    start_time: int

    @classmethod
    def ours(cls) -> _Maker:
        """Return the identity of this process."""
        return cls(_pid_namespace(), os.getpid(), procfs.start_time(os.getpid()) or 0)

    @classmethod
    def parse(cls, name: str) -> _Maker | None:
        """Return the maker of the group of that name; None if the name has none."""
        parts = name.rpartition(".")[2].split("-")
        return cls(*map(int, parts)) if len(parts) == 3 and all(map(str.isdigit, parts)) else None

    def may_live(self) -> bool:
        """Return whether the maker lives, or may live where we cannot see it."""
        return self.namespace != _pid_namespace() or procfs.start_time(self.pid) == self.start_time

    def __str__(self) -> str:
        return f"{self.namespace}-{self.pid}-{self.start_time}"


def _pid_namespace() -> int:
    return Path("/proc/self/ns/pid").stat().st_ino


class _Base(NamedTuple):
    controller: str
    folder: Path


def _bases_v1() -> Iterator[_Base]:
    own = procfs.own_cgroups()
    for mount in procfs.cgroup_mounts():
        for controller in _CONTROLLERS:
            if mount.version == 1 and controller in mount.controllers and controller in own:
                folder = mount.folder(own[controller])
                if folder is not None:
                    yield _Base(controller, folder)


def _bases_v2() -> Iterator[_Base]:
    for each in _places_v2():
        if _share(each.folder, each.controller):
            yield each


def _places_v2() -> Iterator[_Base]:
    """Yield the controllers of our own group of version 2, whether or not it is delegated to us."""
    for _, folder in _freezers():
        with contextlib.suppress(SandboxFailed):
            for controller in read(folder / "cgroup.controllers").split():
                if controller in _CONTROLLERS:
                    yield _Base(controller, folder)


def _freezers() -> Iterator[_Base]:
    """Yield our own group of version 2, for groups below that only freeze."""
    own = procfs.own_cgroups().get("")
    for mount in procfs.cgroup_mounts():
        folder = mount.folder(own) if mount.version == 2 and own is not None else None
        if folder is not None:
            yield _Base(_FREEZER, folder.parent if folder.name == _KERNEL_GROUP else folder)


def _share(folder: Path, controller: str) -> bool:
    """Enable a controller of version 2 below a folder; if all processes in the folder are ours, move them first."""
    control = folder / "cgroup.subtree_control"
    try:
        write(control, f"+{controller}")
        return True
    except SandboxFailed:
        own_pids = procfs.tree(os.getpid()).keys()
        if not set(pids_in(folder)) <= own_pids:
            return False
    try:
        (folder / _KERNEL_GROUP).mkdir(exist_ok=True)
        for pid in pids_in(folder):
            write(folder / _KERNEL_GROUP / "cgroup.procs", pid)
        write(control, f"+{controller}")
        return True
    except (OSError, SandboxFailed):
        with contextlib.suppress(OSError, SandboxFailed):
            for pid in pids_in(folder / _KERNEL_GROUP):
                write(folder / "cgroup.procs", pid)
            (folder / _KERNEL_GROUP).rmdir()
        return False


def _works(base: Path, controller: str, version: int) -> bool:
    """Return whether a limit that is set in a group below stays set; nothing is left of the trial."""
    trial = Cgroup({controller: base / f"{_TOP}-trial-{secrets.token_hex(4)}"}, version)
    try:
        for folder in trial.folders():
            folder.mkdir()
        trial.limit(memory_mb=64, cpu_cores=0.5, pids=7)
        match controller, version:
            case "memory", 1:
                return read(folder / "memory.limit_in_bytes") == str(64 * MIB)
            case "memory", _:
                return read(folder / "memory.max") == str(64 * MIB)
            case "cpu", 1:
                return read(folder / "cpu.cfs_quota_us") == str(PERIOD_US // 2)
            case "cpu", _:
                return read(folder / "cpu.max") == f"{PERIOD_US // 2} {PERIOD_US}"
            case "pids", _:
                return read(folder / "pids.max") == "7"
        return int(read(folder / "cpuacct.usage")) >= 0
    except (OSError, SandboxFailed):
        return False
    finally:
        trial.try_remove()
