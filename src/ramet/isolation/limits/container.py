"""The container of this process, as a place for runs: its folders in memory, its limits, and its OOM kills.

The creator of the container guarantees that it belongs to one run, or to one team; nothing here guesses that.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from ramet.core.errors import SandboxFailed
from ramet.isolation import safe_walk
from ramet.isolation.assignment import IN_MEMORY, SECRETS
from ramet.isolation.linux import procfs

_MIB = 1024 * 1024
_BOUNDLESS = 1 << 60  #: bytes; version 1 writes "no limit" as a number beyond any memory


class ContainerLimits(NamedTuple):
    """The limits for all processes of the container; None where there is no limit, or none is visible."""

    cpu_cores: float | None = None
    memory_mb: float | None = None
    pids: int | None = None


class ContainerSlot:
    """A pod that belongs to one run at a time: call `enter`, and `leave` once no process of the run lives.

    Both block.
    """

    def __init__(self, others: Iterable[Path] = ()) -> None:
        """Exclude folders above one of `others` from the run's own: the run's changes there could affect `others`."""
        parents = {str(parent) for each in others for parent in each.parents}
        self.in_memory = tuple(path for path in IN_MEMORY if path not in parents and _is_memory(path))
        self.has_secrets = _is_memory(str(Path(SECRETS).parent))
        self._run = ""

    def enter(self, run: str, secrets: Mapping[str, str]) -> None:
        """Assign the container to a run, with the run's secrets in files that only this user can read.

        Raises SandboxFailed.
        """
        if self._run:
            raise SandboxFailed(f"run {run}: this pod still belongs to run {self._run}")
        self._run = run
        if not secrets:
            return
        try:
            Path(SECRETS).mkdir(0o700)
            for name, value in secrets.items():
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                with os.fdopen(os.open(f"{SECRETS}/{name}", flags, 0o400), "w") as file:
                    file.write(value)
        except OSError as error:
            self.leave()
            raise SandboxFailed(f"run {run}: its secrets cannot be put into {SECRETS}: {error.strerror}") from error

    def take_secrets(self) -> None:
        """Remove the secrets, if there are any."""
        with contextlib.suppress(FileNotFoundError):
            safe_walk.remove_path(Path(SECRETS))

    def leave(self) -> None:
        """Remove everything that the run left in memory here; the next run may enter."""
        self.take_secrets()
        for path in self.in_memory:
            with safe_walk.open_root(Path(path)) as folder:
                for name in os.listdir(folder):  # noqa: PTH208 - of a descriptor
                    safe_walk.remove(folder, name)
        self._run = ""


def limits() -> ContainerLimits:
    """Return the limits of this container, from its control groups."""
    quota = _number("cpu", "cpu.max", 0) or _number("cpu", "cpu.cfs_quota_us", 0)
    period = _number("cpu", "cpu.max", 1) or _number("cpu", "cpu.cfs_period_us", 0)
    memory = _number("memory", "memory.max", 0) or _number("memory", "memory.limit_in_bytes", 0)
    pids = _number("pids", "pids.max", 0)
    return ContainerLimits(
        cpu_cores=quota / period if quota and period and quota > 0 else None,
        memory_mb=memory / _MIB if memory and memory < _BOUNDLESS else None,
        pids=pids,
    )


def oom_kills() -> int:
    """Return the number of OOM kills in this container; 0 where the kernel does not show it."""
    for file in (_file("memory", "memory.events"), _file("memory", "memory.oom_control")):
        if file is not None:
            for line in file.splitlines():
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    return 0


def _is_memory(path: str) -> bool:
    """Return whether a file system in memory is mounted exactly there, and this user can write to it."""
    kinds = [mount.kind for mount in procfs.mounts() if mount.path == path]
    return bool(kinds) and kinds[-1] == "tmpfs" and os.access(path, os.W_OK)


def _number(controller: str, name: str, index: int) -> int | None:
    fields = (_file(controller, name) or "").split()
    return int(fields[index]) if len(fields) > index and fields[index].lstrip("-").isdigit() else None


def _file(controller: str, name: str) -> str | None:
    """Return the content of a file of our own group of a mounted controller; None if there is no such file."""
    groups = procfs.own_cgroups()
    for mount in procfs.cgroup_mounts():
        own = groups.get("" if mount.version == 2 else controller)
        if own is None or not (mount.version == 2 or controller in mount.controllers):
            continue
        # In a container with its own cgroup namespace the group is "/". Without one, the mounted folder is the group
        # itself.
        for folder in (mount.folder(own), Path(mount.path)):
            if folder is not None:
                with contextlib.suppress(OSError):
                    return (folder / name).read_text()
    return None
