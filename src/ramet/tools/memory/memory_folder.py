"""A folder for notes, which no path can leave.

Every name is opened relative to the folder's own descriptor, one component at a time, without following links. So the
checked path is the used path, whatever happens on the disk in between. Files are replaced atomically.
"""

from __future__ import annotations

import codecs
import errno
import fcntl
import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from ramet.core.errors import Denied, InvalidValue, Unknown

MAX_FILE = 128 * 1024
MAX_FILES = 200
MAX_DEPTH = 4
VIRTUAL_ROOT = "/memories"  #: the name of the folder for models trained with such a tool
LOCK_TRIES, LOCK_PAUSE_S = 200, 0.01
_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9 ._-]{0,98}[A-Za-z0-9_-])?\Z")
_DRAFT = ".draft"  #: one at a time, under the lock; a draft left by a crash is overwritten
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_DRAFT_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Note(NamedTuple):
    """A file of a memory."""

    name: str  #: `MEMORY.md`, `people/ann.md`
    size: int


class NotePreview(NamedTuple):
    """The beginning of a file."""

    text: str
    cut: bool  #: there is more


class MemoryFolder:
    """Notes below `path`. No component below `root` may be a link; `root` itself is trusted.

    Nothing is created before the first write. Methods raise InvalidValue for an invalid name or size, Unknown for a
    missing file, Denied for links and for a folder that another run keeps locked.
    """

    def __init__(self, path: Path, root: Path | None = None) -> None:
        self.path, self.root = path, path.parent if root is None else root
        if not path.is_relative_to(self.root) or ".." in path.parts:
            raise InvalidValue("memory folder", str(path), f"a folder below {self.root}")

    def notes(self) -> tuple[Note, ...]:
        """Return all files, by name; the count stops at twice the maximum number."""
        with self._open_folder() as folder:
            return () if folder is None else tuple(sorted(islice(_notes_below(folder, ""), 2 * MAX_FILES)))

    def read(self, name: str) -> str:
        """Return the whole text of one file."""
        head = self.head(name, MAX_FILE)
        if head.cut:
            raise InvalidValue("memory file", name, f"a file of at most {MAX_FILE} bytes")
        return head.text

    def head(self, name: str, limit: int) -> NotePreview:
        """Return at most the first `limit` bytes of one file."""
        *folders, last = name_parts(name)
        with self._open_folder(folders) as folder:
            preview = None if folder is None else _head(folder, last, limit)
        if preview is None:
            raise self._unknown(name)
        return preview

    def write(self, name: str, text: str) -> bool:
        """Replace the file's content by `text` atomically; return True if the file is new."""
        with self._lock(create=True):
            return self._replace(name, text)

    def edit(self, name: str, change: Callable[[str], str]) -> str:
        """Read, change and write one file while all other writers wait; return the new text."""
        with self._lock():
            text = change(self.read(name))
            self._replace(name, text)
            return text

    def delete(self, name: str) -> None:
        """Remove a file, or a folder with its contents, and the folders that become empty."""
        *folders, last = name_parts(name)
        with self._lock():
            with self._open_folder(folders) as folder:
                try:
                    if folder is None:
                        raise self._unknown(name)
                    if stat.S_ISDIR(os.lstat(last, dir_fd=folder).st_mode):
                        shutil.rmtree(last, dir_fd=folder)  # follows no link
                    else:
                        os.unlink(last, dir_fd=folder)
                except FileNotFoundError:
                    raise self._unknown(name) from None
            for depth in range(len(folders), 0, -1):
                with self._open_folder(folders[: depth - 1]) as parent_fd, suppress(OSError):
                    os.rmdir(folders[depth - 1], dir_fd=parent_fd)

    def _unknown(self, name: str) -> Unknown:
        return Unknown("memory file", name, tuple(note.name for note in self.notes()))

    def _replace(self, name: str, text: str) -> bool:
        *folders, last = name_parts(name)
        try:
            data = text.encode()
        except UnicodeEncodeError:
            raise InvalidValue("text", "half a character", "text that UTF-8 can hold") from None
        if len(data) > MAX_FILE:
            raise InvalidValue("text", f"{len(data)} bytes", f"at most {MAX_FILE} bytes in one file")
        notes = self.notes()
        with self._open_folder() as top, self._open_folder(folders, create=len(notes) < MAX_FILES) as folder:
            is_new = folder is None or _is_new(folder, last)
            if is_new and len(notes) >= MAX_FILES:
                raise InvalidValue("memory file", name, f"at most {MAX_FILES} files; delete or merge some")
            if top is None or folder is None:
                raise Denied("memory", "its folder was removed while it was written to")
            with suppress(FileNotFoundError):
                os.unlink(_DRAFT, dir_fd=top)
            with os.fdopen(os.open(_DRAFT, _DRAFT_FLAGS, 0o666, dir_fd=top), "wb") as draft:
                draft.write(data)
                draft.flush()
                os.fsync(draft.fileno())
            os.replace(_DRAFT, last, src_dir_fd=top, dst_dir_fd=folder)
            os.fsync(folder)
        return is_new

    @contextmanager
    def _open_folder(self, subfolders: Sequence[str] = (), *, create: bool = False) -> Iterator[int | None]:
        """Yield a descriptor of the folder, or of one below it; None if it does not exist."""
        if create:
            self.root.mkdir(parents=True, exist_ok=True)
        try:
            at = os.open(self.root, _FOLDER_FLAGS & ~os.O_NOFOLLOW)
        except FileNotFoundError:
            yield None
            return
        try:
            for name in (*self.path.relative_to(self.root).parts, *subfolders):
                inner = _open_below(at, name, create=create)
                if inner is None:
                    yield None
                    return
                os.close(at)
                at = inner
            yield at
        finally:
            os.close(at)

    @contextmanager
    def _lock(self, *, create: bool = False) -> Iterator[None]:
        """Exclude every other writer, in this process or another; the lock ends with the process."""
        with self._open_folder(create=create) as folder:
            if folder is None:
                yield  # There is nothing to lock; the following code finds nothing.
                return
            for tries in range(LOCK_TRIES):
                try:
                    fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    # A wait in the kernel could not be interrupted; changes take milliseconds, so retries are rare.
                    if tries == LOCK_TRIES - 1:
                        raise Denied("memory", "other runs are writing to it all the time; try again") from None
                    time.sleep(LOCK_PAUSE_S)
            yield


def name_parts(name: str) -> list[str]:
    """Return the components of a file's name below the folder. Raises InvalidValue if it could mean another place."""
    relative = name.strip()
    if relative.startswith(VIRTUAL_ROOT + "/"):
        relative = relative[len(VIRTUAL_ROOT) + 1 :]
    parts = relative.split("/")
    if len(parts) > MAX_DEPTH or not all(_NAME.match(part) for part in parts):
        raise InvalidValue(
            "path", name, f"{VIRTUAL_ROOT}/name.md: letters, digits, ' ', '.', '_', '-', at most {MAX_DEPTH} levels"
        )
    return parts


def _open_below(folder: int, name: str, *, create: bool) -> int | None:
    try:
        try:
            return os.open(name, _FOLDER_FLAGS, dir_fd=folder)
        except FileNotFoundError:
            if not create:
                return None
        with suppress(FileExistsError):
            os.mkdir(name, dir_fd=folder)
        return os.open(name, _FOLDER_FLAGS, dir_fd=folder)
    except OSError as error:
        raise _denial(name, error) from None


def _head(folder: int, name: str, limit: int) -> NotePreview | None:
    try:
        handle = os.open(name, _FILE_FLAGS, dir_fd=folder)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _denial(name, error) from None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)  # fdopen would refuse a folder, and leave it open
        raise InvalidValue("memory file", name, "a file, no folder and nothing special")
    with os.fdopen(handle, "rb") as file:
        data = file.read(limit + 1)
    cut = len(data) > limit
    try:  # Not final if cut: the limit may split a character.
        return NotePreview(codecs.getincrementaldecoder("utf-8")().decode(data[:limit], final=not cut), cut)
    except UnicodeDecodeError:
        raise InvalidValue("memory file", name, "text in UTF-8") from None


def _is_new(folder: int, name: str) -> bool:
    try:
        mode = os.lstat(name, dir_fd=folder).st_mode
    except FileNotFoundError:
        return True
    if stat.S_ISREG(mode):
        return False
    raise Denied("memory", f"{name} is a folder, a link or something special")


def _notes_below(folder: int, prefix: str, depth: int = MAX_DEPTH) -> Iterator[Note]:
    with os.scandir(folder) as listing:
        for entry in listing:
            if not _NAME.match(entry.name):
                continue  # not written by us, and not readable through us
            status = entry.stat(follow_symlinks=False)
            if stat.S_ISREG(status.st_mode):
                yield Note(prefix + entry.name, status.st_size)
            elif stat.S_ISDIR(status.st_mode) and depth > 1:
                inner = _open_below(folder, entry.name, create=False)
                if inner is not None:
                    try:
                        yield from _notes_below(inner, f"{prefix}{entry.name}/", depth - 1)
                    finally:
                        os.close(inner)


def _denial(name: str, error: OSError) -> Denied:
    if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EMLINK):
        return Denied("memory", f"{name} is a symbolic link, or no folder where one should be")
    return Denied("memory", f"{name}: {error.strerror}")
