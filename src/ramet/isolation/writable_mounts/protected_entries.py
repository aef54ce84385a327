"""Search writable mounts for entries that programs of the host obey: these entries stay read-only.

At any depth these are `.git` entries, folders that git takes for repositories, and `.ramet`; at the top of a mount also
settings of editors and agents. The code of this process is added. The search follows no link. It has a bound, and a
mount beyond the bound is refused. An entry that is made after the search is not found.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

from ramet.core.errors import InvalidValue
from ramet.isolation.mounts import STATE
from ramet.isolation.writable_mounts.host_code import HostCode, code_in
from ramet.isolation.writable_mounts.refusals import is_repository, make_refusal

GIT = ".git"
#: Names at the top of a mount by which editors, shells and agents find commands to run.
TOP_NAMES: Final = frozenset(
    (
        ".claude",
        ".codex",
        ".cursor",
        ".envrc",
        ".gemini",
        ".husky",
        ".idea",
        ".mcp.json",
        ".mcp.lock.json",
        ".opencode",
        ".vscode",
        "ramet.yaml",
    )
)
MOST_FOLDERS = 200_000
MOST_ENTRIES = 3_000_000
MOST_FOUND = 500  #: each one costs a sandbox a mount
MOST_S = 10.0


class ProtectedEntries(NamedTuple):
    """Entries of one mount that stay read-only, by their paths below the mount."""

    paths: tuple[str, ...]
    needs_placeholder: bool  #: whether the mount has no `.git`, or an empty one


def find_protected(mount: str, source: str, nested: Collection[str], code: HostCode) -> ProtectedEntries:
    """Search one mount; `nested` are the paths below it at which other mounts lie. Blocks.

    Raises InvalidValue, which names the mount, if the search meets its bound or a folder that it cannot read. The same
    error is raised for an entry to protect that is a symbolic link: no mount can cover a link.
    """
    code_paths = tuple(code_in(mount, source, code))
    found = {*code_paths}
    end = time.monotonic() + MOST_S
    folders = entries = 0
    pending = [""]
    while pending:
        folder = pending.pop()
        inner = []
        names = set()
        if (folders := folders + 1) > MOST_FOLDERS:
            raise _too_much(mount, f"{MOST_FOLDERS} folders")
        for entry in _entries_of(mount, f"{source}/{folder}" if folder else source):
            if (entries := entries + 1) > MOST_ENTRIES:
                raise _too_much(mount, f"{MOST_ENTRIES} entries")
            path = f"{folder}/{entry.name}" if folder else entry.name
            names.add(entry.name)
            if _is_obeyed(entry.name, is_top=not folder):
                if entry.is_symlink():
                    raise make_refusal(mount, f"{path} in it is a symbolic link, which cannot be kept read-only")
                if entry.name == STATE and entry.is_dir():
                    continue  # Such folders are covered in any mount.
                # An empty one below the top is no repository, and may be a placeholder that another run's end removes.
                if entry.name != GIT or not folder or not _is_missing_or_empty(f"{source}/{path}"):
                    found.add(path)
            elif entry.is_dir(follow_symlinks=False) and path not in nested and path not in found:
                inner.append(path)
        if folder and is_repository(names):
            found = {each for each in found if not each.startswith(f"{folder}/")} | {folder}
        else:
            pending += inner
        if time.monotonic() > end:
            raise _too_much(mount, f"{MOST_S:g} s")
        if len(found) - len(code_paths) > MOST_FOUND:
            raise _too_much(mount, f"{MOST_FOUND} entries that stay read-only")
    needs_placeholder = _is_missing_or_empty(f"{source}/{GIT}")
    return ProtectedEntries(tuple(sorted(found - ({GIT} if needs_placeholder else set()))), needs_placeholder)


def _is_obeyed(name: str, *, is_top: bool) -> bool:
    lower = name.lower()  # A file system may take both for one.
    return lower in (GIT, STATE) or (is_top and lower in TOP_NAMES)


def _entries_of(mount: str, path: str) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            yield from entries
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):  # No program reaches it by its path.
            return
        raise make_refusal(mount, f"{path} cannot be searched: {os.strerror(error.errno or 0)}") from error


def _is_missing_or_empty(path: str) -> bool:
    try:
        with os.scandir(path) as entries:
            return next(entries, None) is None
    except FileNotFoundError:
        return True
    except OSError:
        return False


def _too_much(mount: str, bound: str) -> InvalidValue:
    reason = f"to search it for repositories takes more than {bound}; name less"
    return make_refusal(mount, reason)
