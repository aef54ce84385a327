"""Find the files that a pattern in a shell command matches now: `s*/key`, `{a,b}/key`."""

from __future__ import annotations

import fnmatch
import os
import posixpath
import re
from collections.abc import Iterator
from typing import NamedTuple

from ramet.tools.glob_patterns import MAX_ALTERNATIVES, BadPattern, brace_alternatives

MAX_ENTRIES = 20_000  #: maximum folder entries examined for one command
MAX_FILES = 2_000
MAX_PARTS = 100
MAX_DEPTH = 100  #: maximum folder depth of `**`
_NUMBER = "\x02"  #: stands for any number
_MAGIC = re.compile(f"[*?\\[{_NUMBER}]")
_SEQUENCE = re.compile(r"\{(?:(-?\d{1,9})\.\.(-?\d{1,9})|([A-Za-z])\.\.([A-Za-z]))(?:\.\.(-?\d{1,9}))?\}")


class TooManyFiles(Exception):
    """The error for a pattern that would need too many files to be examined."""


class GlobOptions(NamedTuple):
    """Options of bash for patterns that a command may set."""

    folds_case: bool = False
    finds_hidden: bool = False
    descends: bool = False  #: `**` matches any folders

    @staticmethod
    def of(text: str) -> GlobOptions:
        return GlobOptions("nocaseglob" in text, "dotglob" in text or "GLOBIGNORE" in text, "globstar" in text)


class FileGlobs:
    """The patterns of one command. A bracket matches any text, so that no shell finds more files."""

    def __init__(self, options: GlobOptions = GlobOptions()) -> None:  # noqa: B008 - it is immutable
        self._options = options
        self._entries = self._files = 0

    def names(self, text: str, cwd: str) -> tuple[str, ...]:
        """Return the names of the files that a pattern matches in a folder, and its alternatives without a star.

        Raises TooManyFiles.
        """
        try:
            alternatives = brace_alternatives(_without_sequences(text))
        except BadPattern:
            raise TooManyFiles from None
        names = dict.fromkeys([text, *alternatives])
        for each in alternatives:
            if _MAGIC.search(each):
                parts = [part for part in each.split("/") if part]
                if len(parts) > MAX_PARTS:
                    raise TooManyFiles
                names |= dict.fromkeys(self._matches("/" if each.startswith("/") else cwd, parts))
        return tuple(names)

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
        elif parts[0] == "**" and self._options.descends:
            if folder.count("/") > MAX_DEPTH:
                raise TooManyFiles
            yield from self._matches(folder, parts[1:])
            for name in self._names(folder):
                if not os.path.islink(child := posixpath.join(folder, name)):  # noqa: PTH114 - text
                    yield from self._matches(child, parts)
        else:
            segment = _segment(parts[0], folds_case=self._options.folds_case)
            finds_hidden = self._options.finds_hidden or parts[0][:1] in (".", "[")
            for name in self._names(folder):
                if segment.match(name) and (name[:1] != "." or finds_hidden):
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
        except (OSError, ValueError):  # It is no folder, or an unreadable one.
            return []
        return names


def _segment(text: str, *, folds_case: bool) -> re.Pattern[str]:
    before, bracket, _ = text.partition("[")
    translated = fnmatch.translate(before + ("*" if bracket else "")).replace(_NUMBER, "-?[0-9]+")
    return re.compile(translated, re.IGNORECASE if folds_case else 0)


def _without_sequences(text: str) -> str:
    """Return a pattern with `{1..3}` and `{a..c}` replaced by their members; by a wildcard, if these are many."""
    count = 1
    for match in _SEQUENCE.finditer(text):
        count *= len(_members(match))
    return _SEQUENCE.sub(lambda match: _sequence_text(match, are_few=count <= MAX_ALTERNATIVES), text)


def _members(match: re.Match[str]) -> range:
    first, last = (int(match[1]), int(match[2])) if match[1] else (ord(match[3]), ord(match[4]))
    step = abs(int(match[5] or 1)) or 1
    return range(first, last + 1, step) if first <= last else range(first, last - 1, -step)


def _sequence_text(match: re.Match[str], *, are_few: bool) -> str:
    members = _members(match)
    if len(members) > 1 and not are_few:
        return _NUMBER if match[1] else "?"
    if not match[1]:
        names = [chr(each) for each in members]
    else:
        is_padded = any(each.lstrip("-").startswith("0") and len(each.lstrip("-")) > 1 for each in match.group(1, 2))
        width = max(map(len, match.group(1, 2))) if is_padded else 0
        names = [f"{each:0{width}d}" for each in members]
    return names[0] if len(names) == 1 else "{" + ",".join(names) + "}"
