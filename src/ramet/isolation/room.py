"""What a zygote's children live among, and what one of them is told: data that both ends of the fork share."""

from __future__ import annotations

from typing import Literal, NamedTuple

#: In bubblewrap's root; in the host's root, in namespaces; in neither.
Walls = Literal["bwrap", "namespaces", "none"]


class Room(NamedTuple):
    """What is the same for all children of a zygote."""

    walls: Walls
    runs: str  #: the folder that holds the workspaces of all
    runtime: tuple[str, ...]  #: folders and files that a Python needs, at their paths on the host
    mounts: tuple[str, ...]  #: read-only folders that a child may be granted
    image: str
    has_landlock: bool = True
    has_seccomp: bool = True


class Assignment(NamedTuple):
    """What makes an agent of a parked child. Sizes in MiB."""

    entry: str  #: module:name, called with the channel
    env: dict[str, str]
    workspace: str
    cwd: str
    tmp: str  #: where temporary files go
    mounts: tuple[str, ...]
    secrets: dict[str, str]
    proxy: str | None
    shelf: str | None  #: a folder of the host's, to be read; what is put there later is seen
    tmpfs_mb: int
    file_mb: int
    memory_mb: int
    pids: int
    cpu_s: int
    unmapped: bool  #: whether memory that belongs to no process is bounded, by a cgroup, and so may be had


def outermost(paths: tuple[str, ...]) -> tuple[str, ...]:
    """Those that are not inside another."""
    found: list[str] = []
    for path in sorted(set(paths)):
        if not any(path.startswith(f"{outer}/") for outer in found):
            found.append(path)
    return tuple(found)
