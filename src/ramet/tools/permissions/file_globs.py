"""Files that a pattern in a shell command stands for: `s*/key`, `{a,b}/key`, as the file system has them now."""

from __future__ import annotations

import fnmatch
import os
import posixpath
import re
from collections.abc import Iterator

from ramet.tools.patterns import BadPattern, brace_alternatives

MAX_ENTRIES = 20_000  #: of folders that are looked at for one command
MAX_FILES = 2_000
MAX_PARTS = 100
_MAGIC = re.compile(r"[*?\[]")


class TooManyFiles(Exception):
    """A pattern for which more would have to be looked at than is."""


class FileGlobs:
    """The patterns of one command. A bracket stands for any text, so that no shell finds more."""

    def __init__(self) -> None:
        self._entries = self._files = 0

    def names(self, text: str, cwd: str) -> tuple[str, ...]:
        """Return the names of the files that a pattern stands for in a folder, and those without a star.

        Raises TooManyFiles.
        """
        try:
            alternatives = brace_alternatives(text)
        except BadPattern:
            raise TooManyFiles from None
        found = dict.fromkeys([text, *alternatives])
        for each in alternatives:
            if _MAGIC.search(each):
                parts = [part for part in each.split("/") if part]
                if len(parts) > MAX_PARTS:
                    raise TooManyFiles
                found |= dict.fromkeys(self._matches("/" if each.startswith("/") else cwd, parts))
        return tuple(found)

    def _matches(self, folder: str, parts: list[str]) -> Iterator[str]:
        if not parts:
            self._files += 1
            if self._files > MAX_FILES:
                raise TooManyFiles
            yield folder
        elif not _MAGIC.search(parts[0]):
            self._count()
            path = posixpath.join(folder, parts[0])
            if os.path.lexists(path):
                yield from self._matches(path, parts[1:])
        else:
            wanted = _segment(parts[0])
            for name in self._names(folder):
                if wanted.match(name) and (name[:1] != "." or parts[0][:1] in (".", "[")):
                    yield from self._matches(posixpath.join(folder, name), parts[1:])

    def _count(self) -> None:
        self._entries += 1
        if self._entries > MAX_ENTRIES:
            raise TooManyFiles

    def _names(self, folder: str) -> list[str]:
        names = []
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    self._count()
                    names.append(entry.name)
        except (OSError, ValueError):  # It is no folder, or none that can be read.
            return []
        return names


def _segment(text: str) -> re.Pattern[str]:
    before, bracket, _ = text.partition("[")
    return re.compile(fnmatch.translate(before + ("*" if bracket else "")))
