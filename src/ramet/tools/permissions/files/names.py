"""Compute every absolute name of a file, for one tool call: each link and folder is read once, with bounded work."""

from __future__ import annotations

import errno
import os
import posixpath
from collections.abc import Iterable

from ramet.tools.permissions.files.globs import TooManyFiles

MAX_NAME = 4_096  #: maximum characters of a name for the kernel
MAX_LINKS = 40  #: maximum links that the kernel follows for one name
MAX_STEPS = 50_000  #: maximum parts of names that are examined for one call; a long name counts more than once
_CHARACTERS = 64  #: of a name, for one step


class FileNames:
    """The names of files in the current file system."""

    def __init__(self) -> None:
        self._targets: dict[str, str | None] = {}
        self._folders: dict[str, str] = {}
        self._steps = 0

    def of(self, name: str, cwd: str) -> tuple[str, ...]:
        """Return the names of a file: as written, each link on the path, and the target of the links.

        Raises TooManyFiles if the name is longer than any file's, or if the work exceeds the bound.
        """
        if len(name) > MAX_NAME:
            raise TooManyFiles
        path = posixpath.join(cwd, name)
        self._count(path)
        hop = _normal(path)
        names = {hop: None, self.real(path): None}
        for _ in range(MAX_LINKS):
            folder, last = posixpath.split(hop)
            hop = posixpath.join(self.real(folder), last)
            names[hop] = None
            target = self._target(hop)
            if not target:
                break
            hop = _normal(posixpath.join(posixpath.dirname(hop), target))
            names[hop] = None
        return tuple(names)

    def real(self, path: str) -> str:
        """Return an absolute path without links; missing parts are kept as text. Raises TooManyFiles."""
        folder, last = posixpath.split(path)
        if folder not in self._folders:
            self._folders[folder] = self._walk("/", folder)
        return self._walk(self._folders[folder], last)

    def is_folder(self, path: str) -> bool:
        """Return whether a folder has this name. Raises TooManyFiles."""
        self._count(path)
        return os.path.isdir(path)  # noqa: PTH112 - text, and no error for an invalid name

    def exists(self, names: Iterable[str]) -> bool:
        """Return whether an examined name is that of a file or folder, or of a link."""
        return any(self._targets.get(each) is not None for each in names)

    def _walk(self, current: str, path: str) -> str:
        pending_parts, links, missing = path.split("/")[::-1], 0, ""
        while pending_parts:
            part = pending_parts.pop()
            if part in ("", "."):
                continue
            self._steps += 1
            if part == "..":
                current = posixpath.dirname(current)
                continue
            name = posixpath.join(current, part)
            is_below_missing = missing and name.startswith(missing)
            target = None if is_below_missing else self._target(name)
            if target is None and not is_below_missing:
                missing = f"{name}/"
            if target and links < MAX_LINKS:
                links += 1
                current = "/" if target.startswith("/") else current
                pending_parts += target.split("/")[::-1]
            else:
                current = name
        return current

    def _target(self, path: str) -> str | None:
        """Return the target of a link, "" for a path that is no link, and None for a missing path."""
        if path not in self._targets:
            self._count(path)
            try:
                self._targets[path] = os.readlink(path)  # noqa: PTH115 - text
            except OSError as error:
                self._targets[path] = "" if error.errno == errno.EINVAL else None
            except ValueError:  # No file can have this name.
                self._targets[path] = None
        return self._targets[path]

    def _count(self, path: str) -> None:
        self._steps += 1 + len(path) // _CHARACTERS
        if self._steps > MAX_STEPS:
            raise TooManyFiles


def _normal(path: str) -> str:
    """Return an absolute path without dots and without the double slash that POSIX allows at its start."""
    return "/" + posixpath.normpath(path).lstrip("/")
