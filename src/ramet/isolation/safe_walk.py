"""A folder with hostile content: walked and removed by descriptors, whatever its names, depth, modes and links.

The walk follows no link and enters no mount. Two or three descriptors are open at a time, at any depth. The way back up
is `..`, taken only if it leads to the folder that the walk came from. If a folder was moved meanwhile, the walk
continues from the nearest folder that is still at its place. Entries that no longer exist at their turn are skipped.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ANY = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_HANDLE = getattr(os, "O_PATH", 0)  #: it needs no rights; only Linux has it
_GET_FLAGS, _SET_FLAGS = 0x80086601, 0x40086602  #: linux/fs.h, FS_IOC_*, where a long has 8 bytes
_IMMUTABLE_OR_APPEND = 0x10 | 0x20
_PASSES = 3  #: over a tree that is being removed, before remaining entries are reported


class FolderEntry(NamedTuple):
    """An entry of a folder. Its fields can be used until the next entry is requested."""

    folder: int  #: a descriptor of the folder that holds the entry
    parents: list[str]  #: names from the root to that folder
    name: str
    stat: os.stat_result | None  #: None: a folder whose content has been walked
    problem: str = ""  #: a folder that was not entered, and why

    @property
    def path(self) -> str:
        """The path of the entry from the root; bytes that are not UTF-8 are escaped as Python does."""
        return "/".join([*self.parents, self.name])


@contextmanager
def open_root(path: Path, folder: int | None = None) -> Iterator[int]:
    """Open the folder at `path`, relative to an open folder if one is given, and yield a descriptor.

    Raises OSError, also if the path is a link. The descriptor of a folder may be a handle (O_PATH).
    """
    fd = _open_folder(str(path), folder)
    try:
        yield fd
    finally:
        os.close(fd)


def open_file(folder: int, name: str) -> int:
    """Open the file `name` for reading and return a descriptor for the caller to inspect.

    Never follows a link, never waits. A plain file that is locked (no rights for its owner, us) is unlocked. Raises
    OSError.
    """
    try:
        return os.open(name, _ANY, dir_fd=folder)
    except PermissionError:
        if not _HANDLE:
            raise
        handle = os.open(name, _HANDLE | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise
            return os.open(_unlock(handle, 0o600), _ANY & ~os.O_NOFOLLOW)
        finally:
            os.close(handle)


def walk(
    root: int, *, max_depth: int | None = None, skipped: Collection[str] = ()
) -> Generator[FolderEntry, None, None]:
    """Yield everything below an open folder: the entries of a folder, then each folder in it, then that folder's end.

    Entries of the root itself that are `skipped` are passed over, with all below them. A folder that is locked (no
    rights for its owner, us) is unlocked. Close the generator if it is not exhausted.
    """
    folder = os.dup(root)
    device = os.fstat(root).st_dev
    names: list[str] = []
    ids = [_identity(folder)]
    try:
        waiting = [(yield from _entries_of(folder, names, skipped))]
        while True:
            if waiting[-1]:
                name = waiting[-1].pop()
                try:
                    child = _enter(folder, name, device, too_deep=max_depth is not None and len(names) >= max_depth)
                except FileNotFoundError:
                    continue
                except OSError as error:
                    yield FolderEntry(folder, names, name, None, problem=error.strerror or str(error))
                    continue
                os.close(folder)
                folder = child
                names.append(name)
                ids.append(_identity(folder))
                waiting.append((yield from _entries_of(folder, names)))
            elif names:
                parent = _ancestor_of(root, folder, names, ids)
                os.close(folder)
                folder = parent.fd
                if parent.depth == len(names) - 1:
                    name = names.pop()
                    yield FolderEntry(folder, names, name, None)
                del names[parent.depth :], ids[parent.depth + 1 :], waiting[parent.depth + 1 :]
            else:
                return
    finally:
        os.close(folder)


def rename(folder: int, name: str, other: str) -> None:
    """Rename an entry within the same folder; flags that forbid this are cleared. A missing entry is no error."""
    _without_flags(lambda: os.rename(name, other, src_dir_fd=folder, dst_dir_fd=folder), folder, name)


def remove(folder: int, name: str) -> None:
    """Remove a file, or a folder with its content; modes and, for root, flags that forbid this are changed.

    Everything that can be removed is removed; then the first OSError of the remaining entries is raised. A missing
    entry is no error.
    """
    for attempt in range(_PASSES):
        try:
            _remove_once(folder, name)
            return
        except OSError:  # It may have been filled while it was emptied, or unlocked too late for earlier entries.
            if attempt == _PASSES - 1:
                raise


def remove_path(path: Path) -> None:
    """Remove the file or folder at a path, as `remove` does, and follow no link there."""
    with open_root(path.parent) as folder:
        remove(folder, path.name)


def _remove_once(folder: int, name: str) -> None:
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(status.st_mode):
        _unlink(folder, name, is_folder=False)
        return
    first: OSError | None = None
    root = _open_folder(name, folder)
    try:
        if not _is_same_mount(root, folder):
            raise _make_mount_error(name)
        with contextlib.closing(walk(root)) as entries:
            for entry in entries:
                is_folder = entry.stat is None
                if entry.problem:
                    first = first or OSError(errno.EBUSY, entry.problem, entry.name)
                elif is_folder or not stat.S_ISDIR(entry.stat.st_mode):  # type: ignore[union-attr]  # see is_folder
                    try:
                        _unlink(entry.folder, entry.name, is_folder=is_folder)
                    except OSError as error:
                        first = first or error
    finally:
        os.close(root)
    if first is not None:
        raise first
    _unlink(folder, name, is_folder=True)


def _unlink(folder: int, name: str, *, is_folder: bool) -> None:
    take_away = os.rmdir if is_folder else os.unlink
    _without_flags(lambda: take_away(name, dir_fd=folder), folder, name)


def _without_flags(change: Callable[[], None], folder: int, name: str) -> None:
    """Call `change`; if modes or flags of the folder or the file forbid it, clear them and call it once more."""
    try:
        with contextlib.suppress(FileNotFoundError):
            change()
    except PermissionError:
        with contextlib.suppress(OSError):
            os.fchmod(folder, 0o700)
        _clear_flags(folder)
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode):  # No other kind of entry can have such flags.
            with contextlib.suppress(OSError):
                fd = os.open(name, _ANY, dir_fd=folder)
                try:
                    _clear_flags(fd)
                finally:
                    os.close(fd)
        change()


def _clear_flags(fd: int) -> None:
    """Make a file changeable again that root (or a sandbox that was root) made immutable or append-only."""
    with contextlib.suppress(OSError):  # This file system has no flags, or they are not ours to clear.
        flags = int.from_bytes(fcntl.ioctl(fd, _GET_FLAGS, bytes(8))[:4], "little")
        if flags & _IMMUTABLE_OR_APPEND:
            fcntl.ioctl(fd, _SET_FLAGS, (flags & ~_IMMUTABLE_OR_APPEND).to_bytes(8, "little"))


def _entries_of(
    folder: int, names: list[str], skipped: Collection[str] = ()
) -> Generator[FolderEntry, None, list[str]]:
    """Yield every entry of one folder; return the names of the folders in it."""
    folders: list[str] = []
    with os.scandir(folder) as listing:
        for entry in listing:
            if entry.name in skipped:
                continue
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            if stat.S_ISDIR(status.st_mode):
                folders.append(entry.name)
            yield FolderEntry(folder, names, entry.name, status)
    return folders


def _enter(folder: int, name: str, device: int, *, too_deep: bool) -> int:
    if too_deep:
        raise OSError(errno.ENAMETOOLONG, "too deep", name)
    child = _open_folder(name, folder)
    # A different device is not yet a mount: a subvolume has its own, and so do the folders of some overlays.
    if os.fstat(child).st_dev != device and not _is_same_mount(child, folder):
        os.close(child)
        raise _make_mount_error(name)
    return child


def _open_folder(name: str, folder: int | None) -> int:
    try:
        return os.open(name, _FOLDER, dir_fd=folder)
    except PermissionError:
        if not _HANDLE:
            raise
        handle = os.open(name, _HANDLE | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            _unlock(handle, 0o700)
            return os.open(".", _FOLDER, dir_fd=handle)
        finally:
            os.close(handle)


def _unlock(handle: int, mode: int) -> str:
    """Change the mode of the file behind a handle, and return its path.

    A name may belong to another file by now.
    """
    path = f"/proc/self/fd/{handle}"
    os.chmod(path, mode)  # noqa: PTH101 - as above
    return path


class _Ancestor(NamedTuple):
    fd: int
    depth: int


def _ancestor_of(root: int, folder: int, names: list[str], ids: list[tuple[int, int]]) -> _Ancestor:
    """Open the folder above; if it was moved, open the deepest folder that the names still lead to."""
    with contextlib.suppress(OSError):
        parent = os.open("..", _FOLDER, dir_fd=folder)
        if _identity(parent) == ids[-2]:
            return _Ancestor(parent, len(names) - 1)
        os.close(parent)
    fd, depth = os.dup(root), 0
    with contextlib.suppress(OSError):
        while depth < len(names) - 1:
            child = os.open(names[depth], _FOLDER, dir_fd=fd)
            if _identity(child) != ids[depth + 1]:
                os.close(child)
                break
            os.close(fd)
            fd, depth = child, depth + 1
    return _Ancestor(fd, depth)


def _identity(fd: int) -> tuple[int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


def _make_mount_error(name: str) -> OSError:
    return OSError(errno.EXDEV, "another file system is mounted here", name)


def _is_same_mount(fd: int, other: int) -> bool:
    try:
        return _mount(fd) == _mount(other)
    except (OSError, StopIteration):
        return os.fstat(fd).st_dev == os.fstat(other).st_dev


def _mount(fd: int) -> str:
    lines = Path(f"/proc/self/fdinfo/{fd}").read_text().splitlines()
    return next(line for line in lines if line.startswith("mnt_id:"))
