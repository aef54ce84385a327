"""The lines of a command's output that nobody has read yet, bounded."""

from __future__ import annotations

import asyncio
import codecs

from ramet.concurrency.pipes import Capture

MAX_LINES = 100  #: in one batch; further ones are counted
MAX_LINE = 400  #: characters of a line


class LineBuffer(Capture):
    """A capture of lines: `take` returns those that are complete, and removes them."""

    __slots__ = ("_decoder", "_lines", "_omitted", "_rest", "has_lines")

    def __init__(self) -> None:
        super().__init__(head=0)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._lines: list[str] = []
        self._rest, self._omitted = "", 0
        self.has_lines = asyncio.Event()

    def append(self, data: bytes) -> None:
        self.total += len(data)
        *lines, rest = (self._rest + self._decoder.decode(data).replace("\0", "␀")).split("\n")
        self._rest = rest[:MAX_LINE]  # The beginning of a line that is too long is kept.
        free = MAX_LINES - len(self._lines)
        self._lines += [line[:MAX_LINE] for line in lines[:free]]
        self._omitted += max(0, len(lines) - free)
        if lines:
            self.has_lines.set()

    def take(self, *, ends: bool = False) -> str:
        """Return the lines as one text; with `ends`, also a last line without its end."""
        lines, self._lines = self._lines, []
        if ends and self._rest:
            lines.append(self._rest)
        if self._omitted:
            lines.append(f"[{self._omitted} more lines were left out]")
        self._omitted = 0
        self.has_lines.clear()
        return "\n".join(lines)
