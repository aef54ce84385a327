"""The environment of a zygote's children, and the assignment of one child: data that both ends of the fork share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

#: In bubblewrap's root; in the host's root, in namespaces; in neither, alone in a pod or with other runs.
IsolationMode = Literal["bwrap", "namespaces", "pod", "none"]
#: The modes with namespaces: each child has its own memory for temporary files, its own /run and its own network.
APART: frozenset[str] = frozenset({"bwrap", "namespaces"})
#: The modes with folders of the host, or of other runs, that only Landlock hides.
SHARED_ROOT: frozenset[str] = frozenset({"namespaces", "none"})
#: The folders for temporary files that are kept in memory.
IN_MEMORY = ("/tmp", "/dev/shm")
SECRETS = "/run/secrets"
BIND_HANDLE = "--ro-bind-fd"  #: of bwrap, where it has that option


class ZygoteConfig(NamedTuple):
    """The settings that all children of a zygote share."""

    mode: IsolationMode
    runs: str  #: the folder that holds the workspaces of all
    runtime: tuple[str, ...]  #: folders and files that a Python needs, at their paths on the host
    mounts: Mapping[str, str]  #: folders that a child may be granted, read-only: their sources (`isolation.mounts`)
    image: str
    has_landlock: bool = True
    has_seccomp: bool = True
    in_memory: tuple[str, ...] = IN_MEMORY  #: of these folders, those that each child has for itself
    has_secrets: bool = True  #: whether there is a folder in memory for secrets
    has_endpoints: bool = True  #: whether a child can be restricted to its proxy
    has_ports: bool = True  #: whether a child has its own loopback, which only the host can reach
    #: the places at which mounts show the kernel's own folder: its private entries must not be visible
    states: tuple[str, ...] = ()
    identities: Mapping[str, Sequence[int]] = {}  #: of mounts: st_dev and st_ino, as the host saw them

    @property
    def is_apart(self) -> bool:
        """Return whether each child is in namespaces of its own."""
        return self.mode in APART


class Assignment(NamedTuple):
    """The data that turns a parked child into an agent. Sizes in MiB."""

    entry: str  #: module:name, called with the channel
    env: dict[str, str]
    workspace: str
    cwd: str
    tmp: str  #: the folder for temporary files
    mounts: Mapping[str, str]
    secrets: dict[str, str]
    proxy: str | None
    import_dir: str | None  #: a read-only folder of the host; files that are added later are visible
    tmpfs_mb: int
    file_mb: int
    memory_mb: int
    pids: int
    cpu_s: int
    has_unmapped_memory: (
        bool  #: whether a cgroup bounds memory that belongs to no process, so that the agent may have such memory
    )
    #: state folders of any kernel that the mounts show: their private entries must not be visible
    hidden_folders: Sequence[str] = ()
    ports: Sequence[int] = ()  #: of its loopback, on which the agent may serve
    has_loopback: bool = False  #: whether it has a loopback also without ports and a proxy
    writable: Sequence[str] = ()  #: those of `mounts` that it may write to
    protected: Mapping[str, Sequence[str]] = {}  #: of writable mounts: paths below, which stay read-only
    #: of writable mounts: folders below on the path to what is read-only, outermost first; none of them can be renamed
    pinned: Mapping[str, Sequence[str]] = {}
    placeholders: Sequence[str] = ()  #: writable mounts whose `.git` is empty, and is covered
    stdio_count: int = 0  #: descriptors for a program inside, the last ones of those that come with the assignment

    @property
    def has_network(self) -> bool:
        """Return whether the agent has a loopback, to reach its proxy, for ports of its own, or for its programs."""
        return self.proxy is not None or bool(self.ports) or self.has_loopback


def outermost(paths: tuple[str, ...]) -> tuple[str, ...]:
    """Return the paths that are not inside another path."""
    outermost_paths: list[str] = []
    for path in sorted(set(paths)):
        if not any(path.startswith(f"{outer}/") for outer in outermost_paths):
            outermost_paths.append(path)
    return tuple(outermost_paths)
