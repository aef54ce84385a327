"""Find the files that a shell command names, with all of their names, from each folder that it may change to."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ramet.tools.permissions.files.file_references import MAX_REFERENCES, FileReference, named_folders, references_in
from ramet.tools.permissions.files.globs import FileGlobs, GlobOptions, TooManyFiles
from ramet.tools.permissions.files.names import MAX_LINKS, FileNames
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
    references = references_in(commands, text)
    if len(references) >= MAX_REFERENCES:
        return (TouchedFile((), is_read=True, is_changed=True),)
    files = _Files(cwd, homes, FileGlobs(GlobOptions.of(text)))
    try:
        folders = files.folders(named_folders(commands))
    except TooManyFiles:
        folders = ()
    return tuple(files.resolve(each, folders) for each in references)


class _Files:
    """A resolver of the names in one command."""

    def __init__(self, cwd: str, homes: tuple[str, ...], globs: FileGlobs) -> None:
        self._cwd, self._homes, self._globs = cwd, homes, globs
        self._names, self._name_count = FileNames(), 0

    def folders(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return the folders from which names may be resolved. Raises TooManyFiles."""
        folders = [self._cwd]
        if len(names) > MAX_REFERENCES:
            raise TooManyFiles
        for base in folders:  # The list grows: a folder may be named from another.
            for path in (path for name in names for path in self._paths_of(name, base)):
                for folder in (posixpath.normpath(path), self._names.real(path)):
                    if folder not in folders and self._names.is_folder(folder):
                        folders.append(folder)
            if len(folders) > MAX_FOLDERS:
                raise TooManyFiles
        return tuple(folders)

    def resolve(self, reference: FileReference, folders: tuple[str, ...]) -> TouchedFile:
        """Return a named file, with the files that a pattern matches; no names if these are too many."""
        names: dict[str, None] = {}
        try:
            for folder in folders:
                patterns = self._globs.names(reference.name, folder) if reference.is_pattern else (reference.name,)
                for path in dict.fromkeys(path for each in patterns for path in self._paths_of(each, folder)):
                    file_names = self._names.of(path, folder)
                    self._name_count += len(file_names)
                    if self._name_count > MAX_NAMES:
                        raise TooManyFiles
                    names |= dict.fromkeys(file_names)
        except TooManyFiles:
            names = {}
        is_sure = reference.is_sure and not (reference.may_be_text and names and not self._names.exists(names))
        child_patterns = [f"{each.rstrip('/')}/{ANY_CHILD}" for each in names] if reference.descends else []
        return TouchedFile((*names, *child_patterns), reference.is_read, reference.is_changed, is_sure)

    def _paths_of(self, name: str, folder: str) -> Iterator[str]:
        """Yield the absolute names that a shell may derive from a name."""
        head, _, tail = name.partition("/")
        tail = tail.lstrip("/")
        if head in ("~+", "$PWD"):
            yield posixpath.join(folder, tail)
        if head in ("~", "$HOME"):
            yield from (posixpath.join(home, tail) for home in self._homes)
        path = posixpath.join(folder, name)
        yield path
        for _ in range(MAX_LINKS if "/proc/" in path else 0):
            process_link = _PROCESS.match(posixpath.normpath(path))
            if process_link is None:
                break
            path = posixpath.join(folder if process_link[1] == "cwd" else "/", process_link[2])
            yield path  # Of the shell, whose process does not exist yet.
