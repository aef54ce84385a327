"""Data of /proc about processes, read cheaply; a process that has ended is None or left out, never an error.

No function here reads from the disk or waits; one file costs 5 to 10 µs, `private_mb` 40 µs and more.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

PROC = "/proc"
TICKS_PER_S: int = os.sysconf("SC_CLK_TCK")
_CHUNK = 16 * 1024
_PF_EXITING = 4  #: a flag of a task that ends, in its `stat`
_REMOVED = " (deleted)"
_ESCAPED = re.compile(r"\\([0-7]{3})")


class Stat(NamedTuple):
    """The data of one process at one moment."""

    pid: int
    state: str  #: one letter, proc(5): `T` is stopped, `Z` ended and not reaped
    parent: int
    session: int
    faults: int  #: rises with every change of its memory
    ticks: int  #: processor time of all its threads
    child_ticks: int  #: processor time of its children that were waited for
    threads: int
    start_time: int  #: in ticks; together with the pid it identifies this process

    @property
    def is_headless(self) -> bool:
        """Return whether the first thread has ended and others have not: only these show the process's data."""
        return self.state in "ZX" and self.threads > 1

    @property
    def is_alive(self) -> bool:
        """Return whether the process has not ended: its first thread may end before the others."""
        return self.state not in "ZX" or self.is_headless


def stat(pid: int) -> Stat | None:
    """Return the data of a process; None if no process has that pid."""
    text = _read(f"{pid}/stat")
    fields = text.rpartition(b")")[2].split()  # The name before may contain anything.
    if len(fields) < 20:
        return None
    state, parent, threads, start = fields[0].decode(), int(fields[1]), int(fields[17]), int(fields[19])
    user, system, dead_user, dead_system = map(int, fields[11:15])
    return Stat(
        pid, state, parent, int(fields[3]), int(fields[7]), user + system, dead_user + dead_system, threads, start
    )


def has_ended(thread: str) -> bool:
    """Return whether a process or thread, by its name below /proc, has ended: it holds no file then."""
    fields = _read(f"{thread}/stat").rpartition(b")")[2].split()
    return not fields or fields[0] in (b"Z", b"X")


def is_ending(thread: str) -> bool:
    """Return whether a process or thread, by its name below /proc, ends now, or has ended.

    Its list of descriptors belongs to root as soon as its memory is released, just before they are closed.
    """
    fields = _read(f"{thread}/stat").rpartition(b")")[2].split()
    return len(fields) < 7 or bool(int(fields[6]) & _PF_EXITING)


def start_time(pid: int) -> int | None:
    """Return the start time of a process, in ticks since the machine started; None if no process has that pid."""
    process = stat(pid)
    return None if process is None else process.start_time


def children(process: Stat) -> list[int]:
    """Return the children of all threads of a process."""
    thread_ids: Iterable[object] = (process.pid,) if process.threads == 1 else threads(process.pid)
    return [int(child) for thread in thread_ids for child in _read(f"{process.pid}/task/{thread}/children").split()]


def tree(
    pid: int, *, excluded_processes: Mapping[int, Stat] | None = None, missed_pids: set[int] | None = None
) -> dict[int, Stat]:
    """Return a process and all its descendants, by pid; empty if it has ended.

    Processes that were `excluded_processes` already, and their descendants, are left out. Each process was the child of
    another one in the result when it was looked at. A pid that belongs to another process by then is left out and added
    to `missed_pids`. So is a process that had ended before it was looked at.
    """
    root = stat(pid)
    if root is None:
        return {}
    processes = {pid: root}
    waiting = [root]
    while waiting:
        for child in children(waiting.pop()):
            if child in processes or (excluded_processes and child in excluded_processes):
                continue
            process = stat(child)
            if process is not None and process.parent in processes:
                processes[child] = process
                waiting.append(process)
            elif missed_pids is not None:
                missed_pids.add(child)
    return processes


def activity(tree: Mapping[int, Stat]) -> list[tuple[object, ...]]:
    """Return the values that change whenever a tree does anything."""
    return [
        (pid, process.faults, process.ticks, process.child_ticks, process.threads, process.start_time)
        for pid, process in tree.items()
    ]


class Memory(NamedTuple):
    """The memory of a process that belongs to no file, in MiB."""

    anonymous: float  #: anonymous memory, including its swapped part
    shared: float  #: resident pages of shared areas and of files in memory

    @property
    def total(self) -> float:
        return self.anonymous + self.shared


def resident(process: Stat) -> Memory:
    """Return the memory of a process, including all memory that it shares with the processes it was forked from."""
    sizes = _fields(process, "status", (b"RssAnon:", b"RssShmem:", b"VmSwap:"))
    shared = sizes.pop(b"RssShmem:", 0)
    return Memory(sum(sizes.values()) / 1024, shared / 1024)


def proportional(process: Stat) -> Memory:
    """Return the memory of a process with only its part of shared memory: the parts of all sharers give the total."""
    sizes = _fields(process, "smaps_rollup", (b"Pss_Anon:", b"Pss_Shmem:", b"SwapPss:"))
    if not sizes:
        return resident(process)
    shared = sizes.pop(b"Pss_Shmem:", 0)
    return Memory(sum(sizes.values()) / 1024, shared / 1024)


def resident_mb(process: Stat) -> float:
    """Return the total of `resident`."""
    return resident(process).total


def private_mb(process: Stat) -> float:
    """Return the total of `proportional`."""
    return proportional(process).total


class Area(NamedTuple):
    """An area of a process's address space that belongs to a file, or is shared."""

    thread: str  #: the thread of the process that showed the area: a thread that has ended shows none
    start: int
    end: int
    offset: int  #: in the file
    device: str  #: of the file system, `major:minor` in hexadecimal digits as in /proc
    inode: int
    name: str  #: of the file, at the time of mapping; a process may choose the name of a shared area
    is_removed: bool  #: the file has no name any more

    @property
    def reach(self) -> int:
        """The end of the area within the file: the file's size is no less unless it was truncated."""
        return self.offset + self.end - self.start


def areas(process: Stat, *, device: str | None = None) -> Iterator[Area]:
    """Yield the areas of a process that belong to a file, of one device if it is given."""
    device_field = None if device is None else f" {device} ".encode()
    for thread in _live_threads(process):
        lines = _read(f"{thread}/maps").splitlines()
        for line in lines:
            if device_field is not None and device_field not in line:
                continue
            addresses, _, offset, device_id, inode, *path = line.split(None, 5)
            if inode == b"0" or (device is not None and device_id.decode() != device):
                continue
            start, _, end = addresses.partition(b"-")
            name = path[0].decode(errors="surrogateescape") if path else ""
            yield Area(
                thread=str(thread),
                start=int(start, 16),
                end=int(end, 16),
                offset=int(offset, 16),
                device=device_id.decode(),
                inode=int(inode),
                name=name.removesuffix(_REMOVED),
                is_removed=name.endswith(_REMOVED),
            )
        if lines:
            return


def page_tables_mb(process: Stat) -> float:
    """Return the memory of the page tables of a process, in MiB: no part of its resident memory."""
    return sum(_fields(process, "status", (b"VmPTE:",)).values()) / 1024


def descriptor_slots(process: Stat) -> int:
    """Return the number of descriptors that a process has room for, at least as many as are open.

    Readable by every user. A thread that has ended shows none; of threads with own tables, the largest counts.
    """
    return max((_number(f"{thread}/status", b"FDSize:") for thread in _live_threads(process)), default=0)


def descriptors_in_queue(pid: int, fd: str) -> int:
    """Return the number of descriptors that were sent to a Unix socket and not received; 0 for any other file."""
    return _number(f"{pid}/fdinfo/{fd}", b"scm_fds:")


def idle_switches(thread: str) -> int | None:
    """Return how often a thread has left a processor; None if it runs or waits for one; 0 if it has ended.

    Two equal results mean that the thread did not run between them.
    """
    lines = _read(f"{thread}/status").splitlines()
    if any(line.startswith(b"State:") and line.split()[1] == b"R" for line in lines):
        return None
    return sum(int(line.split()[1]) for line in lines if b"voluntary_ctxt_switches:" in line)


def sockets_of_network(process: Stat) -> int | None:
    """Return the number of sockets in the network namespace of a process, including those in flight.

    None if the number cannot be read, as for a process that has ended.
    """
    for thread in _live_threads(process):
        for line in _read(f"{thread}/net/sockstat").splitlines():
            if line.startswith(b"sockets: used"):
                return int(line.split()[-1])
    return None


def tasks_outside(parent: int) -> int:
    """Return the number of our user's processes and threads outside `parent`'s descendants.

    RLIMIT_NPROC counts these, as far as they are visible.
    """
    uid, parents, threads = os.getuid(), dict[int, int](), dict[int, int]()
    for name in filter(str.isdigit, _names_in("")):
        lines = [line.split() for line in _read(f"{name}/status").splitlines()]
        fields = {line[0]: line[1:] for line in lines if line}
        if fields.get(b"Uid:", [b"-1"])[0] == str(uid).encode():
            parents[int(name)], threads[int(name)] = int(fields[b"PPid:"][0]), int(fields[b"Threads:"][0])
    descendants = {parent}
    while new_descendants := {pid for pid, ppid in parents.items() if ppid in descendants} - descendants:
        descendants |= new_descendants
    return sum(count for pid, count in threads.items() if pid == parent or pid not in descendants)


class Mount(NamedTuple):
    """A file system, and its mount point."""

    path: str
    kind: str


def mounts() -> list[Mount]:
    """Return all mounts that this process sees; of two at one path the later one is visible."""
    entries = []
    for line in _read("self/mountinfo").decode(errors="surrogateescape").splitlines():
        mount_fields, _, kind_fields = line.partition(" - ")
        entries.append(Mount(_unescape(mount_fields.split(" ")[4]), kind_fields.split(" ")[0]))
    return entries


def device_of(fd: int) -> str | None:
    """Return the device of the file system of an open file, in the format of `Area`.

    stat(2) may report another device.
    """
    mount = _number(f"self/fdinfo/{fd}", b"mnt_id:")
    for line in _read("self/mountinfo").decode(errors="surrogateescape").splitlines():
        number, _, device, *_ = line.split(" ")
        if int(number) == mount:
            major, _, minor = device.partition(":")
            return f"{int(major):02x}:{int(minor):02x}"
    return None


def own_cgroups() -> dict[str, str]:
    """Return the control groups of this process by controller; version 2 is the controller ""."""
    groups: dict[str, str] = {}
    for line in _read("self/cgroup").decode(errors="surrogateescape").splitlines():
        _, controllers, path = line.split(":", 2)
        groups.update((controller, path) for controller in controllers.split(","))
    return groups


class CgroupMount(NamedTuple):
    """A mount of a hierarchy of control groups."""

    version: int
    controllers: frozenset[str]  #: of version 1
    root: str  #: the group that is visible at `path`
    path: str

    def folder(self, group: str) -> Path | None:
        """Return the folder of a group; None if this mount does not show it."""
        root = self.root.rstrip("/")
        if ".." in group.split("/") or not (group == self.root or f"{group}/".startswith(f"{root}/")):
            return None
        return Path(self.path) / group[len(root) :].lstrip("/")


def cgroup_mounts() -> list[CgroupMount]:
    """Return all mounts of control groups that this process sees."""
    entries = []
    for line in _read("self/mountinfo").decode(errors="surrogateescape").splitlines():
        mount_fields, _, kind_fields = line.partition(" - ")
        kind, _, *options = kind_fields.split(" ")
        if kind in ("cgroup", "cgroup2"):
            root, path = map(_unescape, mount_fields.split(" ")[3:5])
            controllers = frozenset(options[0].split(",")) if kind == "cgroup" else frozenset[str]()
            entries.append(CgroupMount(2 if kind == "cgroup2" else 1, controllers, root, path))
    return entries


def _fields(process: Stat, name: str, names: tuple[bytes, ...]) -> dict[bytes, int]:
    """Return values of lines of the form `Name: 123 kB`, from the first thread that shows any."""
    for thread in _live_threads(process):
        lines = [line.split() for line in _read(f"{thread}/{name}").splitlines() if line.startswith(names)]
        if lines:
            return {line[0]: int(line[1]) for line in lines}
    return {}


def _live_threads(process: Stat) -> Iterator[object]:
    """Yield the first thread of a process unless it has ended, then all its threads, for one that shows something.

    The first thread may have ended since the process was looked at: then it shows nothing.
    """
    if not process.is_headless:
        yield process.pid
    if process.threads > 1:
        yield from threads(process.pid)


def _number(name: str, before: bytes) -> int:
    """Return the number at the end of the first line that begins with `before`; 0 if there is none."""
    for line in _read(name).splitlines():
        if line.startswith(before):
            return int(line.split()[-1])
    return 0


def threads(pid: int) -> list[str]:
    return _names_in(f"{pid}/task")


def _names_in(name: str) -> list[str]:
    try:
        return os.listdir(f"{PROC}/{name}")  # noqa: PTH208 - only the names, on a hot path
    except OSError:
        return []


def _unescape(text: str) -> str:
    return _ESCAPED.sub(lambda match: chr(int(match[1], 8)), text)


def _read(name: str) -> bytes:
    """Return the content of a file of /proc; empty if its process has ended, or we may not read the file."""
    try:
        fd = os.open(f"{PROC}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        data = b""
        while chunk := os.read(fd, _CHUNK):  # The kernel returns these files page by page.
            data += chunk
        return data
    except OSError:
        return b""
    finally:
        os.close(fd)
