"""What a zygote's children live among, and what one of them is told: data that both ends of the fork share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

#: In bubblewrap's root; in the host's root, in namespaces; in neither, alone in a pod or beside others.
IsolationMode = Literal["bwrap", "namespaces", "pod", "none"]
#: With namespaces, and so memory for temporary files, a /run and a network, of each child's own.
APART: frozenset[str] = frozenset({"bwrap", "namespaces"})
#: With folders of the host, or of other runs, that only Landlock hides.
SHARED_ROOT: frozenset[str] = frozenset({"namespaces", "none"})
#: Where temporary files go that are kept in memory.
IN_MEMORY = ("/tmp", "/dev/shm")
SECRETS = "/run/secrets"
BIND_HANDLE = "--ro-bind-fd"  #: of bwrap, where it has that option


class ZygoteConfig(NamedTuple):
    """What is the same for all children of a zygote."""

    walls: IsolationMode
    runs: str  #: the folder that holds the workspaces of all
    runtime: tuple[str, ...]  #: folders and files that a Python needs, at their paths on the host
    mounts: Mapping[str, str]  #: read-only folders that a child may be granted: their sources (`isolation.mounts`)
    image: str
    has_landlock: bool = True
    has_seccomp: bool = True
    in_memory: tuple[str, ...] = IN_MEMORY  #: of these folders, those that are a child's own
    has_secrets: bool = True  #: whether there is a folder in memory for them
    has_endpoints: bool = True  #: whether a child can be kept to its proxy
    has_ports: bool = True  #: whether a child has a loopback of its own, that only the host can reach
    states: tuple[str, ...] = ()  #: where mounts show the kernel's own folder: nothing private of it is to be seen
    identities: Mapping[str, Sequence[int]] = {}  #: of mounts: st_dev and st_ino, as the host has seen them

    @property
    def is_apart(self) -> bool:
        """Whether each child is in namespaces of its own."""
        return self.walls in APART


class Assignment(NamedTuple):
    """What makes an agent of a parked child. Sizes in MiB."""

    entry: str  #: module:name, called with the channel
    env: dict[str, str]
    workspace: str
    cwd: str
    tmp: str  #: where temporary files go
    mounts: Mapping[str, str]
    secrets: dict[str, str]
    proxy: str | None
    shelf: str | None  #: a folder of the host's, to be read; what is put there later is seen
    tmpfs_mb: int
    file_mb: int
    memory_mb: int
    pids: int
    cpu_s: int
    unmapped: bool  #: whether memory that belongs to no process is bounded, by a cgroup, and so may be had
    hidden: Sequence[str] = ()  #: state folders of any kernel that its mounts show: nothing private is to be seen
    ports: Sequence[int] = ()  #: of its loopback, on which it may serve

    @property
    def has_network(self) -> bool:
        """Return whether it has a loopback, for the way to its proxy or for ports of its own."""
        return self.proxy is not None or bool(self.ports)


def outermost(paths: tuple[str, ...]) -> tuple[str, ...]:
    """Those that are not inside another."""
    found: list[str] = []
    for path in sorted(set(paths)):
        if not any(path.startswith(f"{outer}/") for outer in found):
            found.append(path)
    return tuple(found)
