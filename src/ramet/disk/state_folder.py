"""The state folder `<dir>/.ramet`, and the checks of its entries in a folder that a stranger may have filled.

Links that lead to `<dir>` are the owner's, and are resolved once. Below `<dir>` no link is followed. The state folder
belongs to the user of this process, and no other user may write to it: so a checked entry does not change afterwards.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from ramet.core.errors import InvalidValue
from ramet.disk.regular_files import create_file, read_regular

NAME = ".ramet"
JOURNAL = "journal.db"
#: The folder with the certificates of the listener for pods; older versions named it `door`.
POD_LISTENER, OLDER_POD_LISTENER = "pod-listener", "door"
#: Entries that must be folders, regardless of their creator.
FOLDERS = ("transcripts", "runs", "worktrees", "agents", "packaging", POD_LISTENER, OLDER_POD_LISTENER)
#: What version control sees of a state folder: the definitions, skills and settings that people write.
GITIGNORE = "*\n!agents/\n!agents/*.md\n!skills/\n!skills/**\n!settings.json\n"
#: Suffixes of the files that SQLite, the lock and the high-water mark create next to a database.
DATABASE_SUFFIXES = ("-wal", "-shm", "-journal", ".lock", ".mark")

_PATH = getattr(os, "O_PATH", os.O_RDONLY)  # Not on every system.
_WALK_FLAGS = _PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_REMOVE = "remove it, or work in another folder"

_ROLLBACK_MAGIC = bytes.fromhex("d9d505f920a163d7")  #: before a header, and after the name of a super-journal
#: Parts of a header: the number of pages that the database had before, and the size of a page.
_PAGES, _PAGE_SIZE = slice(16, 20), slice(24, 28)
_MAX_ROLLBACK = 65_536  #: bytes of the largest sector, which is a header's size


def state_folder(working_dir: Path) -> Path:
    """Return the path of a directory's state folder, existing or not, with links to the directory resolved."""
    return working_dir.resolve() / NAME


def checked_state_folder(working_dir: Path) -> Path:
    """Return the state folder of a directory if its entries can be trusted not to lead elsewhere.

    Write permission for others is removed from a folder of this user. Raises InvalidValue, naming the entry, for a
    link, an entry of another kind or of another user, a file with several names, and a journal that others can read:
    such a journal came with the folder, since ramet makes none.
    """
    folder = state_folder(working_dir)
    status = _folder_status(str(folder), NAME)
    if status is None:
        return folder
    if status.st_mode & 0o022:
        folder.chmod(stat.S_IMODE(status.st_mode) & ~0o022)
    for name in FOLDERS:  # Joined as text: this is done for each tree.
        _folder_status(f"{folder}/{name}", f"{NAME}/{name}")
    check_database(folder / JOURNAL, "working_dir", f"{NAME}/{JOURNAL}", is_private=True)
    return folder


def ensure_state_folder(working_dir: Path) -> Path:
    """Return the state folder, checked, and created if it does not exist; version control ignores it."""
    folder = checked_state_folder(working_dir)
    folder.mkdir(0o755, parents=True, exist_ok=True)
    write_gitignore(folder)
    return folder


def ensure_folder(path: Path, mode: int = 0o700) -> Path:
    """Return an entry of a state folder that is a folder, created if it does not exist.

    Raises InvalidValue for a link.
    """
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode)
    _folder_status(str(path), f"{NAME}/{path.name}")
    return path


def check_database(path: Path, field: str = "path", label: str = "", *, is_private: bool = False) -> None:
    """Raise InvalidValue if a database, or a file beside it, is a link or not a regular file.

    The check comes before SQLite opens any of these files. InvalidValue is also raised for a file beside the database
    with several names, and for a rollback journal that ramet did not make. A private database must have one name,
    belong to this user, and be unreadable for other users.
    """
    database = _lstat(str(path))
    database_size = database.st_size if database is not None else 0
    for suffix in ("", *DATABASE_SUFFIXES):
        file, name = f"{path}{suffix}", (label or path.name) + suffix
        status = _lstat(file)
        if status is None:
            continue
        if not stat.S_ISREG(status.st_mode):
            raise InvalidValue(field, file, f"no {_kind(status)} at {name}; {_REMOVE}")
        if (is_private or suffix) and status.st_nlink > 1:
            raise InvalidValue(field, file, f"{name} to be a file with one name, not a hard link; {_REMOVE}")
        if is_private and status.st_uid != os.geteuid():
            raise InvalidValue(field, file, f"{name} to belong to the user of this process; {_REMOVE}")
        if is_private and not suffix and status.st_mode & 0o077:
            accepted = f"{name} to be readable by its user only, as ramet makes it; one that came with the folder is"
            raise InvalidValue(field, file, f"{accepted} not trusted. If it is yours: chmod 600")
        if suffix == "-journal" and not _is_own_rollback(Path(file), name, field, database_size):
            raise InvalidValue(field, file, f"no rollback journal at {name} that ramet did not make; {_REMOVE}")


@contextlib.contextmanager
def open_folder(path: Path, *, make: bool = False) -> Iterator[int]:
    """Yield a descriptor of a folder whose absolute path contains no link; create missing folders if `make` is set.

    Raises OSError: ELOOP or ENOTDIR at a link.
    """
    descriptor = os.open(path.anchor, _WALK_FLAGS)
    try:
        for at, name in enumerate(path.parts[1:], 2):
            flags = _READ_FLAGS if at == len(path.parts) else _WALK_FLAGS
            child = _open_child(descriptor, name, flags, make=make)
            os.close(descriptor)
            descriptor = child
        yield descriptor
    finally:
        os.close(descriptor)


def write_gitignore(folder: Path) -> None:
    """Make version control ignore a state folder, which holds data of agents, but for the files that people write."""
    with contextlib.suppress(FileExistsError), open_folder(folder) as descriptor:
        create_file(".gitignore", GITIGNORE.encode(), folder=descriptor)


def _open_child(folder: int, name: str, flags: int, *, make: bool) -> int:
    try:
        return os.open(name, flags, dir_fd=folder)
    except FileNotFoundError:
        if not make:
            raise
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=folder)
    return os.open(name, flags, dir_fd=folder)


def _folder_status(path: str, label: str) -> os.stat_result | None:
    """Return the status of a folder of this user, or None if nothing exists there.

    Raises InvalidValue for any other existing object.
    """
    status = _lstat(path)
    if status is None:
        return None
    if not stat.S_ISDIR(status.st_mode):
        raise InvalidValue("working_dir", path, f"no {_kind(status)} at {label}; {_REMOVE}")
    if status.st_uid != os.geteuid():
        raise InvalidValue("working_dir", path, f"{label} to belong to the user of this process; {_REMOVE}")
    return status


def _is_own_rollback(file: Path, label: str, field: str, database_size: int) -> bool:
    """Return whether a rollback journal belongs to the first write to an empty database, and names no file.

    A database of ramet has a write-ahead log from its first page on. So only the first write uses a rollback journal:
    one that restores an empty file. Any other one comes from a stranger. At its end it may name a file (a
    super-journal), which SQLite reads and removes after the rollback. `database_size` must have been read before: then
    the database had at most one page while the journal existed.
    """
    try:
        if file.lstat().st_size > _MAX_ROLLBACK:
            return False
        content = read_regular(file, limit=_MAX_ROLLBACK)
    except FileNotFoundError:  # A starting kernel has removed it.
        return True
    except OSError as problem:
        raise InvalidValue(field, str(file), f"{label} to be readable ({problem.strerror}); {_REMOVE}") from None
    has_one_page = database_size <= int.from_bytes(content[_PAGE_SIZE])
    return has_one_page and not any(content[_PAGES]) and not content.endswith(_ROLLBACK_MAGIC)


def _lstat(path: str) -> os.stat_result | None:
    """Return the status of the path itself, or None if nothing exists there.

    Raises InvalidValue if it cannot be read.
    """
    try:
        return os.lstat(path)
    except OSError as problem:
        if problem.errno in (errno.ENOENT, errno.ENOTDIR):
            return None
        raise InvalidValue("working_dir", path, f"a path that can be examined ({problem.strerror})") from None


def _kind(status: os.stat_result) -> str:
    kinds = {stat.S_IFLNK: "symbolic link", stat.S_IFDIR: "folder", stat.S_IFREG: "file", stat.S_IFIFO: "pipe"}
    return kinds.get(stat.S_IFMT(status.st_mode), "special file")
