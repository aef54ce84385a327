"""Find the files that a shell command names, with all of their names, from each folder that it may change to."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ramet.tools.permissions.files.globs import FileGlobs, GlobOptions, TooManyFiles
from ramet.tools.permissions.files.names import MAX_LINKS, FileNames
from ramet.tools.permissions.files.touched import MAX_TOUCHED, Touched, named_folders, touched_by
from ramet.tools.permissions.path_rules import ANY_CHILD
from ramet.tools.permissions.shell.words import Command

MAX_FOLDERS = 64  #: maximum folders from which the names of one command are resolved
MAX_NAMES = 10_000  #: maximum names of all files of one command
#: The kernel's names for the working folder and the root of a process.
_PROCESS = re.compile(r"//?proc/.*?/(cwd|root)(?:\Z|/)(.*)", re.DOTALL)


class TouchedFile(NamedTuple):
    """A file that a shell command names. Without names: the files are unknown."""

    names: tuple[str, ...]
    is_read: bool
    is_changed: bool
    is_sure: bool = True  #: False: the command may not open it


def touched_files(commands: Sequence[Command], text: str, cwd: str, homes: tuple[str, ...]) -> tuple[TouchedFile, ...]:
    """Return the files that the commands of a text name; a record for any file, if these are too many.

    `homes`: the folders that `~` may stand for.
    """
    touched = touched_by(commands, text)
    if len(touched) >= MAX_TOUCHED:
        return (TouchedFile((), is_read=True, is_changed=True),)
    files = _Files(cwd, homes, FileGlobs(GlobOptions.of(text)))
    try:
        folders = files.folders(named_folders(commands))
    except TooManyFiles:
        folders = ()
    return tuple(files.named(each, folders) for each in touched)


class _Files:
    """A resolver of the names in one command."""

    def __init__(self, cwd: str, homes: tuple[str, ...], globs: FileGlobs) -> None:
        self._cwd, self._homes, self._globs = cwd, homes, globs
        self._names, self._found = FileNames(), 0

    def folders(self, named: tuple[str, ...]) -> tuple[str, ...]:
        """Return the folders from which names may be resolved. Raises TooManyFiles."""
        found = [self._cwd]
        if len(named) > MAX_TOUCHED:
            raise TooManyFiles
        for here in found:  # The list grows: a folder may be named from another.
            for place in (place for name in named for place in self._places(name, here)):
                for folder in (posixpath.normpath(place), self._names.real(place)):
                    if folder not in found and self._names.is_folder(folder):
                        found.append(folder)
            if len(found) > MAX_FOLDERS:
                raise TooManyFiles
        return tuple(found)

    def named(self, touched: Touched, folders: tuple[str, ...]) -> TouchedFile:
        """Return a named file, with the files that a pattern matches; no names if these are too many."""
        names: dict[str, None] = {}
        try:
            for folder in folders:
                given = self._globs.names(touched.name, folder) if touched.is_pattern else (touched.name,)
                for place in dict.fromkeys(place for each in given for place in self._places(each, folder)):
                    found = self._names.of(place, folder)
                    self._found += len(found)
                    if self._found > MAX_NAMES:
                        raise TooManyFiles
                    names |= dict.fromkeys(found)
        except TooManyFiles:
            names = {}
        is_sure = touched.is_sure and not (touched.may_be_text and names and not self._names.exists(names))
        below = [f"{each.rstrip('/')}/{ANY_CHILD}" for each in names] if touched.descends else []
        return TouchedFile((*names, *below), touched.is_read, touched.is_changed, is_sure)

    def _places(self, name: str, folder: str) -> Iterator[str]:
        """Yield the absolute names that a shell may derive from a name."""
        head, _, rest = name.partition("/")
        rest = rest.lstrip("/")
        if head in ("~+", "$PWD"):
            yield posixpath.join(folder, rest)
        if head in ("~", "$HOME"):
            yield from (posixpath.join(home, rest) for home in self._homes)
        place = posixpath.join(folder, name)
        yield place
        for _ in range(MAX_LINKS if "/proc/" in place else 0):
            linked = _PROCESS.match(posixpath.normpath(place))
            if linked is None:
                break
            place = posixpath.join(folder if linked[1] == "cwd" else "/", linked[2])
            yield place  # Of the shell, whose process does not exist yet.
