"""Find the end of a here-document. Cases in which shells differ are doubtful."""

from __future__ import annotations

from typing import NamedTuple

from ramet.tools.permissions.shell.words import Word


class Document(NamedTuple):
    """A here-document whose text begins on the next line. `name` is the same Word object as in the command."""

    name: Word
    is_quoted: bool
    strips_tabs: bool
    depth: int

    def is_end(self, line: str) -> bool:
        return self._bare(line) == self.name.text

    def may_be_end(self, line: str, *, nested: bool) -> bool:
        """Return whether a shell may take a line for the end: inside of `$(…)`, bash takes `E)` for the end `E`."""
        return self.is_end(line) or (nested and self._bare(line).startswith(self.name.text))

    def _bare(self, line: str) -> str:
        return line.lstrip("\t") if self.strips_tabs else line


class Ending(NamedTuple):
    """The end of a here-document, as the offsets of the ending line and of the text after it."""

    line_start: int
    next_start: int
    doubtful: bool = False


def ending(document: Document, text: str, at: int, *, nested: bool) -> Ending:
    """Find the end of a here-document whose text begins at `at`. `nested`: in a substitution or in parentheses."""
    doubtful, pieces = False, list[str]()  # Of a continued line.
    while at < len(text):
        line_start, end = at, text.find("\n", at)
        end = len(text) if end < 0 else end
        line, at = text[line_start:end], min(end + 1, len(text))
        if document.is_end(line):
            return Ending(line_start, at, doubtful or bool(pieces))
        continues = line.endswith("\\") and not document.is_quoted
        pieces.append(line[:-1] if continues else line)
        doubtful = doubtful or document.may_be_end("".join(pieces) if not continues else line, nested=nested)
        if not continues:
            pieces = []
    return Ending(len(text), len(text), doubtful=True)
