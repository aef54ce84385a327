"""Files that a run left in its workspace, copied out: plain files only, with a size that was checked before.

The workspace is hostile, and perhaps still changing. A file is opened from the workspace downward, one folder at a
time, never through a link; the copied file is exactly the inspected one, cut at the size that it had then. Only bytes
and a name are copied: mode, owner, times, attributes and holes stay behind.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import unicodedata
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from ramet.core.errors import InvalidValue, OutputTooLarge, SandboxFailed, Unknown
from ramet.core.outcome import Artifact
from ramet.disk.regular_files import write_all
from ramet.isolation import safe_walk

MAX_FILES = 1000
MAX_DEPTH = 64  #: folders below the workspace
MAX_NAME = 1024  #: bytes of a whole name
MAX_PART = 255  #: bytes of one part of a name; no file system here allows more (NAME_MAX)
MAX_REFUSED = 100  #: the maximum number of listed names
_MAX_ENTRIES = 100  #: the maximum number of inspected entries, for each file that may be copied
_CHUNK = 1024 * 1024
_PATH = "the name of a file below the workspace"
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: Control, format, half a pair, line, paragraph. Format characters can reverse lines; two of them join letters.
_UNPRINTABLE, _JOINERS = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"}), "\u200c\u200d"
_KINDS = {stat.S_IFLNK: "a link", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket"}


class CollectedArtifacts(NamedTuple):
    """The copied files, and the refused ones."""

    artifacts: tuple[Artifact, ...]  #: by name
    refused_lines: tuple[str, ...]  #: one line for each: its name, made printable, and the reason
    total: int  #: bytes that were copied


def collect(
    workspace: Path, into: Path, *, max_bytes: int, max_files: int = MAX_FILES, skipped: Collection[str] = ()
) -> CollectedArtifacts:
    """Copy the files of a workspace to `into`, replacing everything there. Blocks as long as copying takes.

    Entries of the workspace itself whose names are `skipped`, and all below them, are passed over. Links, FIFOs,
    sockets, devices, files with a second name, and names that are no text, are refused and listed. Raises
    OutputTooLarge for more than `max_bytes` or `max_files`, with no file copied, and SandboxFailed if the host cannot
    copy.
    """
    try:
        return _copy_files(workspace, into, _survey(workspace, skipped, max_bytes=max_bytes, max_files=max_files))
    except OSError as error:
        raise SandboxFailed(f"artifacts could not be copied: {error}") from error


def read_file(workspace: Path, path: str, *, max_bytes: int) -> bytes:
    """Return the content of one plain file of a workspace, which may be in use; it is opened from the workspace down.

    Raises InvalidValue if `path` leads elsewhere or to another kind of entry, and Unknown if nothing exists there.
    Raises OutputTooLarge by the size of the file before it is read, and SandboxFailed if the host cannot read.
    """
    names = path.split("/")
    if any(each in ("", ".", "..") or "\0" in each for each in names) or len(names) > MAX_DEPTH + 1:
        raise InvalidValue("path", path, f"{_PATH}, such as 'report.md' or 'out/report.md'")
    if objection := _objection_to_name(path):
        raise InvalidValue("path", path, f"{_PATH}: {objection}")
    try:
        with safe_walk.open_root(workspace) as root, contextlib.ExitStack() as stack:
            folder = root
            for name in names[:-1]:
                _check_folder(folder, name, path)
                folder = os.open(name, _FOLDER, dir_fd=folder)
                stack.callback(os.close, folder)
            return _content(folder, names[-1], path, max_bytes)
    except (FileNotFoundError, NotADirectoryError):
        raise Unknown("file", path) from None
    except OSError as error:
        if error.errno == errno.ELOOP:  # The link was created after the check.
            raise InvalidValue("path", path, f"{_PATH}: it was changed meanwhile") from None
        if error.errno in (errno.EACCES, errno.EPERM):  # The agent has locked it.
            raise InvalidValue("path", path, f"{_PATH}: its owner may not read it") from None
        raise SandboxFailed(f"the file {_printable(path)} could not be read: {error}") from error


def _check_folder(folder: int, name: str, path: str) -> None:
    """Raise InvalidValue for a link in the path of a file."""
    if stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
        raise InvalidValue("path", path, f"{_PATH}: {_printable(name)} is a link")


def _content(folder: int, name: str, path: str, max_bytes: int) -> bytes:
    status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    kind = stat.S_IFMT(status.st_mode)
    if kind != stat.S_IFREG:  # Before it is opened: opening a FIFO or a device has effects.
        kind_name = "a folder" if kind == stat.S_IFDIR else _KINDS.get(kind, "a device")
        raise InvalidValue("path", path, f"{_PATH}: {kind_name}")
    fd = safe_walk.open_file(folder, name)
    try:
        opened_status = os.fstat(fd)
        if not stat.S_ISREG(opened_status.st_mode):
            raise InvalidValue("path", path, f"{_PATH}: it was changed meanwhile")
        if opened_status.st_nlink != 1:
            others = f"it has {opened_status.st_nlink} names, and the others may be anywhere"
            raise InvalidValue("path", path, f"{_PATH}: {others}")
        if opened_status.st_size > max_bytes:
            raise OutputTooLarge("bytes of a file", size=opened_status.st_size, limit=max_bytes)
        content, remaining = bytearray(), opened_status.st_size  # Data that is appended meanwhile is not read.
        while remaining and (data := os.read(fd, min(remaining, _CHUNK))):
            content += data
            remaining -= len(data)
        return bytes(content)
    finally:
        os.close(fd)


class _File(NamedTuple):
    name: str
    size: int
    identity: tuple[int, int]


class _Survey(NamedTuple):
    files: list[_File]
    refused_files: _RefusedFiles


class _RefusedFiles:
    """Lines about refused entries; beyond a bound, only their number."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._omitted_count = 0

    def add(self, name: str, reason: str) -> None:
        if len(self._lines) < MAX_REFUSED:
            self._lines.append(f"{_printable(name)}: {reason}")
        else:
            self._omitted_count += 1

    def lines(self) -> tuple[str, ...]:
        return (*self._lines, f"… and {self._omitted_count} more") if self._omitted_count else tuple(self._lines)


def _survey(workspace: Path, skipped: Collection[str], *, max_bytes: int, max_files: int) -> _Survey:
    """Return the files to copy. Raises OutputTooLarge."""
    survey, total = _Survey([], _RefusedFiles()), 0
    with (
        safe_walk.open_root(workspace) as root,
        contextlib.closing(safe_walk.walk(root, max_depth=MAX_DEPTH, skipped=skipped)) as entries,
    ):
        for number, entry in enumerate(entries):
            if number >= max_files * _MAX_ENTRIES:
                raise OutputTooLarge("entries of the workspace", size=number, limit=max_files * _MAX_ENTRIES)
            objection = _objection(entry)
            if objection:
                survey.refused_files.add(entry.path, objection)
            elif entry.stat is not None and stat.S_ISREG(entry.stat.st_mode):
                status = entry.stat
                survey.files.append(_File(entry.path, status.st_size, (status.st_dev, status.st_ino)))
                total += status.st_size
    if total > max_bytes:
        raise OutputTooLarge("bytes of artifacts", size=total, limit=max_bytes)
    if len(survey.files) > max_files:
        raise OutputTooLarge("artifacts", size=len(survey.files), limit=max_files)
    return survey


def _objection(entry: safe_walk.FolderEntry) -> str:
    """Return the reason why an entry is not copied; empty for a file that is, and for a folder."""
    if entry.problem or entry.stat is None:
        return entry.problem
    kind = stat.S_IFMT(entry.stat.st_mode)
    if kind == stat.S_IFDIR:
        return ""
    if kind != stat.S_IFREG:
        return _KINDS.get(kind, "a device")
    if entry.stat.st_nlink != 1:
        return f"it has {entry.stat.st_nlink} names, and the others may be anywhere"
    return _objection_to_name(entry.path)


def _objection_to_name(path: str) -> str:
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        return "its name is not UTF-8"
    if any(unicodedata.category(c) in _UNPRINTABLE and c not in _JOINERS for c in path):
        return "its name has control characters"
    if size > MAX_NAME:
        return f"its name has {size} bytes, at most {MAX_NAME} are taken"
    longest = max(len(part.encode()) for part in path.split("/"))
    return f"a part of it has {longest} bytes, at most {MAX_PART} are taken" if longest > MAX_PART else ""


def _copy_files(workspace: Path, into: Path, survey: _Survey) -> CollectedArtifacts:
    safe_walk.remove_path(into)
    if not survey.files:
        return CollectedArtifacts((), survey.refused_files.lines(), 0)
    artifacts: list[Artifact] = []
    try:
        into.mkdir(0o700)
        with safe_walk.open_root(workspace) as source, safe_walk.open_root(into) as target:
            for file in sorted(survey.files):
                try:
                    size = _copy(source, target, file)
                except _Changed as change:
                    survey.refused_files.add(file.name, str(change))
                else:
                    artifacts.append(Artifact(name=file.name, size=size, path=str(into / file.name)))
    except BaseException:
        with contextlib.suppress(OSError):
            safe_walk.remove_path(into)
        raise
    return CollectedArtifacts(tuple(artifacts), survey.refused_files.lines(), sum(each.size for each in artifacts))


class _Changed(Exception):
    """The file is no longer the inspected one."""


def _copy(source: int, target: int, file: _File) -> int:
    """Copy one file; return the number of copied bytes."""
    *folders, name = file.name.split("/")
    with contextlib.ExitStack() as stack:
        try:
            from_fd = _open_folder(source, folders, stack)
            fd = safe_walk.open_file(from_fd, name)
        except OSError as error:
            raise _Changed(f"it cannot be opened any more: {error.strerror}") from error
        stack.callback(os.close, fd)
        status = os.fstat(fd)
        if (status.st_dev, status.st_ino) != file.identity or not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
            raise _Changed("it was changed while it was copied")
        to_fd = _open_folder(target, folders, stack, make=True)
        try:
            target_file = os.open(name, _WRITE, 0o600, dir_fd=to_fd)
        except FileExistsError:  # The file system treats some different names as the same.
            raise _Changed("another file has the same name on this file system") from None
        stack.callback(os.close, target_file)
        remaining = file.size
        while remaining and (data := os.read(fd, min(remaining, _CHUNK))):
            write_all(target_file, data)
            remaining -= len(data)
        os.fchmod(target_file, 0o644)
        return file.size - remaining


def _open_folder(folder: int, names: list[str], stack: contextlib.ExitStack, *, make: bool = False) -> int:
    for name in names:
        if make:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=folder)
        folder = os.open(name, _FOLDER, dir_fd=folder)
        stack.callback(os.close, folder)
    return folder


def _printable(name: str) -> str:
    """Return a name for a line of text: bounded, with unprintable characters escaped."""
    if len(name) > 200:
        name = f"{name[:140]}…{name[-50:]}"
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in name)
