"""The transfer of folders as tars: packed with the changes since the last time, unpacked as untrusted input.

Nothing is written outside of the folder or through a link, and only files, folders and links that stay inside are
written. Modes are transferred without setuid and similar bits; owners and times are not transferred. Both sides work in
threads, on pipes.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from ramet.core.errors import InvalidValue, OutputTooLarge
from ramet.disk.regular_files import write_all
from ramet.isolation import safe_walk
from ramet.isolation.linux.beneath import open_without_links
from ramet.isolation.mounts import is_in_private
from ramet.wire import tar

MAX_DEPTH = 128  #: depth of folders below the transferred folder
MAX_TOLD = 20  #: number of reported names of entries that were not transferred
_MAX_PART = 255  #: bytes of a name
_CHUNK = 256 * 1024
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
_HANDLE = getattr(os, "O_PATH", _FILE) | os.O_CLOEXEC
_DRAFT = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_YOUNG_NS = 100_000_000  #: an entry changed so recently may change again without a new time
_TICK_NS = 10_000_000  #: the minimum difference of a folder's time to be detected

#: The observed state of each entry, by path below the folder; None if that state is not reliable.
KnownFiles = dict[str, tuple[int, ...] | None]


class PackResult(NamedTuple):
    """The result of `pack`."""

    known_files: KnownFiles  #: for the next time
    removed_paths: tuple[str, ...]  #: known entries that no longer exist
    size: int  #: bytes of content
    refused_paths: tuple[
        str, ...
    ]  #: entries that cannot be transferred: too deep, FIFOs, sockets, devices; the first few


def scan(folder: Path) -> KnownFiles:
    """Return the state of a folder's entries, for `pack` to skip, if no one has changed it lately. Raises OSError."""
    with safe_walk.open_root(folder) as root, contextlib.closing(safe_walk.walk(root, max_depth=MAX_DEPTH)) as entries:
        return {entry.path: _state_of(entry.stat) for entry in entries if entry.stat is not None}


def pack(
    folder: Path,
    out: Callable[[bytes], object],
    known: KnownFiles | None = None,
    *,
    max_bytes: int,
    is_source: bool = False,
) -> PackResult:
    """Pack a folder, or a single file as a member ".", without the entries that are unchanged since `known_files`.

    The place itself is no link; the path of a mount's source has no link either, or ELOOP is raised. Private parts of a
    state folder below a source are left out. Raises OutputTooLarge for more content than `max_bytes`, OSError, and what
    `out` raises.
    """
    previous, current, refused_paths = known or {}, KnownFiles(), list[str]()
    remaining = [max_bytes]

    def say(name: str, status: os.stat_result, open_file: Callable[[], int]) -> None:
        _write_entry(out, name, status, open_file, remaining, max_bytes)

    with (
        _open_for_reading(folder, is_source=is_source) as root,
        contextlib.closing(safe_walk.walk(root, max_depth=MAX_DEPTH)) as entries,
    ):
        if not stat.S_ISDIR((file_status := os.fstat(root)).st_mode):
            say(".", file_status, lambda: os.dup(root))
            out(tar.END)
            return PackResult(current, (), max_bytes - remaining[0], ())
        for entry in entries:
            if entry.stat is None:
                if entry.problem:
                    refused_paths.append(f"{entry.path}: {entry.problem}")
                continue
            path, file_status = entry.path, entry.stat
            if is_source and is_in_private(path.split("/")):
                continue
            if not _may_travel(file_status):
                refused_paths.append(f"{path}: neither a file nor a folder nor a link")
                continue
            state = _state_of(file_status)
            current[path] = None if _is_young(file_status) else state
            if previous.get(path) == state:
                continue
            mode, name = stat.S_IMODE(file_status.st_mode) & 0o777, os.fsencode(path)
            try:
                if stat.S_ISDIR(file_status.st_mode):
                    out(tar.header(tar.Member(name, True, 0, mode)))
                elif stat.S_ISLNK(file_status.st_mode):
                    target = os.fsencode(os.readlink(entry.name, dir_fd=entry.folder))
                    out(tar.header(tar.Member(name, False, 0, mode, target)))
                else:
                    here, own = entry.folder, entry.name
                    say(path, file_status, lambda here=here, own=own: safe_walk.open_file(here, own))  # type: ignore[misc]
            except FileNotFoundError:  # It was just removed.
                del current[path]
    out(tar.END)
    removed_paths = tuple(path for path in previous if path not in current)
    return PackResult(current, removed_paths, max_bytes - remaining[0], tuple(refused_paths[:MAX_TOLD]))


def unpack(
    read: tar.Read,
    root: Path,
    *,
    max_bytes: int,
    max_entries: int,
    whole: bool = False,
    any_links: bool = False,
) -> tuple[str, ...]:
    """Unpack the output of `pack` into a folder; return refused links, which lead out, unless `any_links`.

    A file appears whole, in place of any earlier entry. With `whole`, entries that are not in the tar are removed.
    Raises InvalidValue for a tar that `pack` never produces, OutputTooLarge, OSError; a part of the files exists then.
    """
    archive = tar.Tar(read, links=True, max_extended=max_entries * 1024)
    target, received_paths, refused_paths, total = _Target(root), set[str](), list[str](), 0
    try:
        for count, member in enumerate(archive.members()):
            if count >= max_entries:
                raise OutputTooLarge("entries of a transferred folder", size=count + 1, limit=max_entries)
            total += member.size
            if total > max_bytes:
                raise OutputTooLarge("bytes of a transferred folder", size=total, limit=max_bytes)
            mode = member.mode & 0o777
            if member.name == b"." and not member.is_folder and member.link is None:
                target.file_itself(archive.content(), mode)
                return ()
            parts = parts_of(member.name)
            if member.is_folder:
                target.folder(parts, mode)
            elif member.link is None:
                target.file(parts, archive.content(), mode)
            elif any_links or _is_inside(parts, member.link):
                target.link(parts, member.link)
            else:
                refused_paths.append(f"{'/'.join(parts)}: a link that leads out of the folder")
                continue
            received_paths.update("/".join(parts[:end]) for end in range(1, len(parts) + 1))
        target.folder((), 0o700)
        if whole:
            target.remove(path for path in scan(root) if path not in received_paths)
    finally:
        target.close()
    return tuple(refused_paths[:MAX_TOLD])


def remove(root: Path, paths: Iterable[bytes]) -> None:
    """Remove the paths that were removed at the other end. Raises InvalidValue for a path that leads out, OSError."""
    target = _Target(root)
    try:
        target.remove("/".join(parts_of(path)) for path in paths)
    finally:
        target.close()


def parts_of(name: bytes) -> tuple[str, ...]:
    """Return the parts of a path below a folder. Raises InvalidValue for any other path."""
    parts = name.rstrip(b"/").split(b"/")
    is_invalid = any(part in (b"", b".", b"..") or len(part) > _MAX_PART or b"\0" in part for part in parts)
    if is_invalid or len(parts) > MAX_DEPTH + 1:
        raise InvalidValue("member", os.fsdecode(name[:200]), "a path below the transferred folder")
    return tuple(map(os.fsdecode, parts))


class _Target:
    """A folder that is written to by descriptors, never through a link. Changed folders get a new time."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._root = -1
        self._at: tuple[tuple[str, ...], int] = ((), -1)  #: the last folder that was written to
        self._changed_folders: dict[tuple[str, ...], int] = {}  #: changed folders, and their times before
        self._modes: dict[tuple[str, ...], int] = {}

    def file_itself(self, content: Iterator[bytes], mode: int) -> None:
        """Write a file at the target's own path, instead of a folder."""
        draft = self._place.with_name(f".ramet-{secrets.token_hex(8)}")
        try:
            _write(os.open(draft, _DRAFT, 0o600), content, mode)
            draft.replace(self._place)
        finally:
            draft.unlink(missing_ok=True)

    def folder(self, parts: tuple[str, ...], mode: int) -> None:
        """Create a folder unless it exists."""
        self._enter(parts)
        if parts:
            self._modes[parts] = mode

    def file(self, parts: tuple[str, ...], content: Iterator[bytes], mode: int) -> None:
        self._replace(parts, lambda fd, draft: _write(os.open(draft, _DRAFT, 0o600, dir_fd=fd), content, mode))

    def link(self, parts: tuple[str, ...], target: bytes) -> None:
        self._replace(parts, lambda fd, draft: os.symlink(target, draft, dir_fd=fd))

    def remove(self, paths: Iterable[str]) -> None:
        """Remove those of these paths that exist."""
        for path in sorted(paths):
            *parents, name = path.split("/")
            with contextlib.suppress(OSError):  # It does not exist, or its parent is no longer a folder.
                fd = self._enter(tuple(parents), make=False)
                self._note(tuple(parents), fd)
                safe_walk.remove(fd, name)

    def close(self) -> None:
        """Set the modes of folders and new times of changed folders, and close the descriptors."""
        with contextlib.suppress(OSError):
            for parts, before_ns in self._changed_folders.items():
                changed_ns = max(time.time_ns(), before_ns + _TICK_NS)
                with contextlib.suppress(FileNotFoundError):
                    os.utime(self._enter(parts, make=False), ns=(changed_ns, changed_ns))
        for parts, mode in sorted(self._modes.items(), reverse=True):
            with contextlib.suppress(OSError):
                os.fchmod(self._enter(parts, make=False), mode | 0o700)
        for fd in (self._at[1], self._root):
            if fd >= 0:
                os.close(fd)
        self._at, self._root = ((), -1), -1

    def _replace(self, parts: tuple[str, ...], make: Callable[[int, str], None]) -> None:
        fd, name, draft = self._enter(parts[:-1]), parts[-1], f".ramet-{secrets.token_hex(8)}"
        self._note(parts[:-1], fd)
        try:
            make(fd, draft)
            try:
                os.rename(draft, name, src_dir_fd=fd, dst_dir_fd=fd)
            except IsADirectoryError:
                safe_walk.remove(fd, name)
                os.rename(draft, name, src_dir_fd=fd, dst_dir_fd=fd)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(draft, dir_fd=fd)

    def _note(self, parts: tuple[str, ...], fd: int) -> None:
        if parts not in self._changed_folders:
            self._changed_folders[parts] = os.fstat(fd).st_mtime_ns

    def _enter(self, parts: tuple[str, ...], *, make: bool = True) -> int:
        """Return a descriptor of a folder below, valid until the next call.

        Missing folders are created; an entry that is no folder is replaced.
        """
        if self._root < 0:
            with contextlib.suppress(FileExistsError):
                self._place.mkdir(0o700)
            self._root = os.open(self._place, _FOLDER)
        if self._at[1] >= 0 and self._at[0] == parts:
            return self._at[1]
        fd = os.dup(self._root)
        try:
            for depth, name in enumerate(parts):
                child = self._open_child(fd, name, parts[:depth], make=make)
                os.close(fd)
                fd = child
        except BaseException:
            os.close(fd)
            raise
        if self._at[1] >= 0:
            os.close(self._at[1])
        self._at = parts, fd
        return fd

    def _open_child(self, fd: int, name: str, parents: tuple[str, ...], *, make: bool) -> int:
        try:
            return os.open(name, _FOLDER, dir_fd=fd)
        except OSError as error:
            if not make or isinstance(error, PermissionError):
                raise
        self._note(parents, fd)
        safe_walk.remove(fd, name)
        os.mkdir(name, 0o700, dir_fd=fd)
        return os.open(name, _FOLDER, dir_fd=fd)


@contextmanager
def _open_for_reading(path: Path, *, is_source: bool) -> Iterator[int]:
    """Open a folder or file, which is no link, for reading. Raises OSError."""
    handle = open_without_links(str(path)) if is_source else os.open(path, _HANDLE | os.O_NOFOLLOW)
    try:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            with safe_walk.open_root(Path(), handle) as root:
                yield root
            return
        file = os.open(f"/proc/self/fd/{handle}", _FILE) if hasattr(os, "O_PATH") else os.dup(handle)
        try:
            yield file
        finally:
            os.close(file)
    finally:
        os.close(handle)


def _write_entry(
    archive: Callable[[bytes], object],
    name: str,
    status: os.stat_result,
    open_file: Callable[[], int],
    remaining: list[int],
    max_bytes: int,
) -> None:
    """Write a file to the tar, cut or zero-padded to the size that it had when it was opened."""
    fd = open_file()
    try:
        size = os.fstat(fd).st_size
        remaining[0] -= size
        if remaining[0] < 0:
            raise OutputTooLarge("bytes of a transferred folder", size=max_bytes - remaining[0], limit=max_bytes)
        archive(tar.header(tar.Member(os.fsencode(name), False, size, stat.S_IMODE(status.st_mode) & 0o777)))
        missing = size
        while missing:
            data = os.read(fd, min(missing, _CHUNK)) or bytes(min(missing, _CHUNK))
            archive(data)
            missing -= len(data)
        if size % tar.BLOCK:
            archive(bytes(-size % tar.BLOCK))
    finally:
        os.close(fd)


def _state_of(status: os.stat_result) -> tuple[int, ...]:
    """Return the state of an entry, for comparison with a later one."""
    if stat.S_ISDIR(status.st_mode):  # Its entries are compared anyway, and its time only reflects them.
        return status.st_mode, status.st_ino
    return status.st_mode, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _is_young(status: os.stat_result) -> bool:
    """Return whether an entry may change again without a new time."""
    return not stat.S_ISDIR(status.st_mode) and abs(time.time_ns() - status.st_ctime_ns) < _YOUNG_NS


def _may_travel(status: os.stat_result) -> bool:
    return stat.S_IFMT(status.st_mode) in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK)


def _is_inside(parts: tuple[str, ...], target: bytes) -> bool:
    """Return whether a link's text leads to a path below the folder."""
    if not target or target.startswith(b"/") or b"\0" in target:
        return False
    depth = len(parts) - 1
    for part in target.split(b"/"):
        depth += -1 if part == b".." else 0 if part in (b"", b".") else 1
        if depth < 0:
            return False
    return True


def _write(fd: int, content: Iterator[bytes], mode: int) -> None:
    try:
        for chunk in content:
            write_all(fd, chunk)
        os.fchmod(fd, mode)
    finally:
        os.close(fd)
