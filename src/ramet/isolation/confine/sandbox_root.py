"""The file system as one agent sees it: its own workspace and mounts, and sized memory for /tmp.

No other agent's folder is visible. The agent's own process makes it, in a mount namespace that the process has just
made, before its capabilities are dropped.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
import struct
from collections.abc import Iterable
from pathlib import Path

from ramet.isolation.assignment import IN_MEMORY, SECRETS, Assignment, ZygoteConfig, outermost
from ramet.isolation.linux import calls
from ramet.isolation.linux.beneath import open_beneath, open_without_links
from ramet.isolation.mounts import is_private_name

PROXY = "/run/ramet/proxy.sock"

_FLAGS = calls.MS_NOSUID | calls.MS_NODEV | calls.MS_NOEXEC
_PATH = getattr(os, "O_PATH", 0) | os.O_CLOEXEC
_FILES_PER_MIB = 128  #: of a tmpfs: an empty file costs the kernel about 1 KiB that no size counts
_PARKED_MB = 64  #: of /tmp, until the size is known
_ST_SAFE = calls.MS_RDONLY | calls.MS_NOSUID | calls.MS_NODEV | calls.MS_NOEXEC  #: the same bits in statvfs(3)
_ST_RELATIME, _ST_NO_TIMES, _MS_STRICTATIME = 0x1000, 0xC00, 0x100_0000
_TCP_BUFFER = "4096 65536 212992"  #: bytes: minimum, initial, maximum
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1


class MountSetup:
    """The mounts of a child: hidden while the child is parked, and added by `apply` for its agent.

    The constructor and `apply` raise OSError.
    """

    def __init__(self, config: ZygoteConfig) -> None:
        calls.mount("none", "/", None, calls.MS_REC | calls.MS_PRIVATE)
        calls.mount("proc", "/proc", "proc", _FLAGS)
        self._config, self._mounts = config, config.mounts
        self._own = [path for path in IN_MEMORY if Path(path).is_dir()]
        self._runs = os.open(config.runs, _PATH | os.O_DIRECTORY)
        self._states: list[str] = []
        self._put_back: set[str] = set()
        for path in self._own:
            self._cover(path, f"{_size(_PARKED_MB)},mode=1777")
        self._hide(config.states)
        for path in ("/run", config.runs):
            self._cover(path, f"{_size(1)},mode=755")

    def apply(self, assignment: Assignment) -> None:
        """Add the agent's own mounts, and remove all others."""
        proxy = None if assignment.proxy is None else self._of_runs(assignment.proxy, is_folder=False)
        workspace = self._of_runs(assignment.workspace, is_folder=True)
        import_dir = None if assignment.import_dir is None else self._of_runs(assignment.import_dir, is_folder=True)
        os.close(self._runs)
        for path in outermost(tuple(set(self._config.mounts) - set(assignment.mounts))):
            # Otherwise it was never mounted, and is not granted.
            if self._config.mode == "bwrap" or path in self._put_back:
                calls.umount(path, calls.MNT_DETACH | calls.UMOUNT_NOFOLLOW)
        self._mounts = assignment.mounts
        self._hide(assignment.hidden_folders)
        if assignment.writable:
            self._open_writable(assignment)
        _bind(workspace, assignment.workspace)
        if self._config.mode != "bwrap":  # Bubblewrap's binds have these flags already.
            _restrict(assignment.workspace, calls.MS_NOSUID | calls.MS_NODEV, off=calls.MS_RDONLY)
        if import_dir is not None and assignment.import_dir is not None:
            _bind(import_dir, assignment.import_dir)
            _restrict(assignment.import_dir, calls.MS_RDONLY | calls.MS_NOSUID | calls.MS_NODEV)
        _restrict(self._config.runs, calls.MS_RDONLY)
        if assignment.tmpfs_mb != _PARKED_MB:
            for path in self._own:
                calls.mount("none", path, None, calls.MS_REMOUNT | _FLAGS, _size(assignment.tmpfs_mb))
        if assignment.secrets:
            _hand_over(assignment.secrets)
        if proxy is not None:
            _bind(proxy, PROXY)
        if assignment.has_network:
            _raise_loopback()
        if assignment.ports or (assignment.has_network and not assignment.has_unmapped_memory):
            _bound_tcp()  # The host's ends of connections to ports are in no control group.
        if assignment.ports:
            _lower_first_port(min(assignment.ports))
            _forbid_cookies()
        _restrict("/run", calls.MS_RDONLY)

    def _hide(self, states: Iterable[str]) -> None:
        """Cover state folders, except the entries that belong to a project."""
        # In the host's root an operator's link leads to the same folder.
        folders = sorted({os.path.realpath(path) for path in states if Path(path).is_dir()}.difference(self._states))
        self._states += folders
        for path in folders:
            self._cover(path, f"{_size(1)},mode=755", keeping=_public_entries(path))
            _restrict(path, calls.MS_RDONLY)

    def _cover(self, path: str, options: str, keeping: Iterable[str] = ()) -> None:
        """Mount an empty file system over a folder, and put back the needed paths and the paths of `keeping`."""
        visible = {*self._config.runtime, *self._mounts, self._config.runs, *keeping}
        handles = [(each, self._handle_of(each)) for each in sorted(visible) if each.startswith(f"{path}/")]
        calls.mount("tmpfs", path, "tmpfs", _FLAGS, options)
        parents = {"/".join(each.split("/", path.count("/") + 2)[:-1]) for each, _ in handles}
        parents = {folder for folder in parents if folder != path}
        for folder in parents:  # No process works there: these folders lie on the path to something else.
            Path(folder).mkdir()
            calls.mount("tmpfs", folder, "tmpfs", _FLAGS, f"{_size(1)},mode=755")
        for each, fd in handles:
            _bind(fd, each)
            self._put_back.add(each)
            if each != self._config.runs and self._config.mode != "bwrap":
                _restrict(each, calls.MS_RDONLY | calls.MS_NOSUID | calls.MS_NODEV)
        for folder in parents:
            _restrict(folder, calls.MS_RDONLY)

    def _open_writable(self, assignment: Assignment) -> None:
        """Make the writable mounts writable, and what is protected in them read-only again.

        Covers of folders in a mount, which exist by now, stay as they are. Of nested mounts the innermost decides. A
        folder on the path to such a part becomes a mount, too: no process renames a mount, and so none moves the part
        away and puts another one in its place. A path that has become a symbolic link is an error.
        """
        targets = {}
        for path in sorted(assignment.mounts, key=lambda path: path.count("/")):
            is_bound = self._config.mode == "bwrap" or path in self._put_back
            target = targets[path] = path if is_bound else assignment.mounts[path]
            if self._config.mode != "bwrap":
                _bind_again(open_without_links(target))
            if path in assignment.writable:
                _restrict_opened(open_without_links(target), calls.MS_NOSUID | calls.MS_NODEV, off=calls.MS_RDONLY)
            elif self._config.mode != "bwrap":
                _restrict_opened(open_without_links(target), calls.MS_RDONLY | calls.MS_NOSUID | calls.MS_NODEV)
        for path in assignment.writable:
            folder = open_without_links(targets[path])
            for entry in assignment.pinned.get(path, ()):
                _bind_again(open_beneath(folder, entry))
            for entry in assignment.protected.get(path, ()):
                _bind_again(open_beneath(folder, entry))
                _restrict_opened(open_beneath(folder, entry), calls.MS_RDONLY | calls.MS_NOSUID | calls.MS_NODEV)
            if path in assignment.placeholders:
                fd = open_beneath(folder, ".git")
                calls.mount("tmpfs", f"/proc/self/fd/{fd}", "tmpfs", _FLAGS | calls.MS_RDONLY, "size=4k,mode=755")
                os.close(fd)
            os.close(folder)

    def _handle_of(self, path: str) -> int:
        """Return a handle of a path to put back.

        In the host's root a mount is opened at its source, through no link.
        """
        if self._config.mode != "bwrap" and path in self._mounts:
            return open_without_links(self._mounts[path])
        if os.path.dirname(path) in self._states:  # noqa: PTH120
            return open_without_links(path)
        return os.open(path, _PATH)

    def _of_runs(self, path: str, *, is_folder: bool) -> int:
        """Open a path in the folder of all workspaces, which is covered by now; no link on the path is followed."""
        fd = open_beneath(self._runs, os.path.relpath(path, self._config.runs))
        if is_folder and not stat.S_ISDIR(os.fstat(fd).st_mode):
            os.close(fd)
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return fd


def _public_entries(state: str) -> list[str]:
    """Return the entries of the kernel's folder that belong to a project: no links, because they would be followed."""
    try:
        with os.scandir(state) as entries:
            return [
                each.path
                for each in entries
                if not is_private_name(each.name)
                and (each.is_dir(follow_symlinks=False) or each.is_file(follow_symlinks=False))
            ]
    except PermissionError:
        return []


def _bind(fd: int, path: str) -> None:
    """Bind the file or folder behind a descriptor at a path, too; closes the descriptor."""
    if not os.path.lexists(path):
        folder = path if stat.S_ISDIR(os.fstat(fd).st_mode) else os.path.dirname(path)  # noqa: PTH120
        os.makedirs(folder, exist_ok=True)  # noqa: PTH103 - no time for a Path
        if folder != path:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    calls.mount(f"/proc/self/fd/{fd}", path, None, calls.MS_BIND | calls.MS_REC)
    os.close(fd)


def _restrict(path: str, flags: int, *, off: int = 0) -> None:
    """Add flags to a mount, and remove flags of `off` that were set in this user namespace.

    Other flags cannot be removed, and must be repeated.
    """
    has = os.statvfs(path).f_flag
    times = calls.MS_RELATIME if has & _ST_RELATIME else has & _ST_NO_TIMES or _MS_STRICTATIME
    calls.mount("none", path, None, calls.MS_REMOUNT | calls.MS_BIND | has & _ST_SAFE & ~off | times | flags)


def _bind_again(fd: int) -> None:
    """Make a mount of the file or folder behind a descriptor at its own place; closes the descriptor."""
    calls.mount(f"/proc/self/fd/{fd}", f"/proc/self/fd/{fd}", None, calls.MS_BIND | calls.MS_REC)
    os.close(fd)


def _restrict_opened(fd: int, flags: int, *, off: int = 0) -> None:
    """Change flags, as `_restrict` does, of the mount whose root is behind a descriptor; closes the descriptor."""
    _restrict(f"/proc/self/fd/{fd}", flags, off=off)
    os.close(fd)


def _size(size_mb: int) -> str:
    return f"size={size_mb}m,nr_inodes={4096 + size_mb * _FILES_PER_MIB}"


def _hand_over(secrets: dict[str, str]) -> None:
    size_mb = 1 + sum(len(value.encode()) // 4096 + 1 for value in secrets.values()) // 256
    calls.mount("none", "/run", None, calls.MS_REMOUNT | _FLAGS, _size(size_mb))
    Path(SECRETS).mkdir(0o700)
    for name, value in secrets.items():
        fd = os.open(f"{SECRETS}/{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o400)
        with os.fdopen(fd, "w") as file:
            file.write(value)


def _bound_tcp() -> None:
    """Keep TCP buffers about as small as others: by default they grow to megabytes each, which no limit counts."""
    for name in ("tcp_rmem", "tcp_wmem"):
        Path("/proc/sys/net/ipv4", name).write_text(_TCP_BUFFER)


def _lower_first_port(port: int) -> None:
    """Let a process without capabilities serve on a port that normally requires root."""
    first = Path("/proc/sys/net/ipv4/ip_unprivileged_port_start")
    if port < int(first.read_text()):
        first.write_text(str(port))


def _forbid_cookies() -> None:
    """Make clients retry a connection that does not fit into a full queue.

    A SYN cookie would let the kernel drop a connection that the client believes to be open. The listener would then
    have no state to send again, or to notice the end.
    """
    with contextlib.suppress(FileNotFoundError):  # A kernel that was built without SYN cookies.
        Path("/proc/sys/net/ipv4/tcp_syncookies").write_text("0")


def _raise_loopback() -> None:
    """Enable the loopback, for the relay and for ports of the agent: nothing else can be reached there."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", _IFF_UP))
