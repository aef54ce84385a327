"""Screen of a terminal: which characters, in which style, a stream of output leaves in which line.

It knows the control sequences that ramet and a shell write, and refuses others, so that no cast shows rubbish.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, replace
from typing import NamedTuple

_PART = re.compile(r"\x1b\[(?P<arguments>[?0-9;]*)(?P<final>[A-Za-z])|(?P<control>[\x00-\x1f])|(?P<text>[^\x00-\x1f]+)")


@dataclass(frozen=True)
class Style:
    """Look of a character. `color` is one of the eight colours of terminals, or None for the usual one."""

    color: int | None = None
    bold: bool = False
    dim: bool = False
    italic: bool = False
    underline: bool = False


class Cell(NamedTuple):
    """One character of a line."""

    char: str
    style: Style


BLANK = Cell(" ", Style())
_SET = {1: "bold", 2: "dim", 3: "italic", 4: "underline"}


class Screen:
    """Lines that a terminal has shown since its start, of which the last `rows` are on its screen."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self.lines: list[list[Cell]] = [[]]
        self._row = self._column = 0
        self._style = Style()

    @property
    def top(self) -> int:
        """Number of lines that have scrolled out at the top."""
        return max(0, len(self.lines) - self.rows)

    def write(self, text: str) -> None:
        """Show output. Raises ValueError for a control sequence that is not known."""
        at = 0
        while at < len(text):
            if not (part := _PART.match(text, at)):
                raise ValueError(f"unknown control sequence: {text[at : at + 12]!r}")
            at = part.end()
            if part["text"]:
                for char in part["text"]:
                    self._put(char)
            elif part["control"]:
                self._control(part["control"])
            else:
                self._sequence(part["arguments"], part["final"])

    def _put(self, char: str) -> None:
        if unicodedata.east_asian_width(char) in "WF" or unicodedata.combining(char):
            raise ValueError(f"not one column wide: {char!r}")
        if self._column == self.columns:
            self._column = 0
            self._line_feed()
        line = self.lines[self._row]
        line.extend([BLANK] * (self._column + 1 - len(line)))
        line[self._column] = Cell(char, self._style)
        self._column += 1

    def _line_feed(self) -> None:
        self._row += 1
        if self._row == len(self.lines):
            self.lines.append([])

    def _control(self, char: str) -> None:
        match char:
            case "\r":
                self._column = 0
            case "\n":
                self._line_feed()
            case "\b":
                self._column = max(0, self._column - 1)
            case _:
                raise ValueError(f"unknown control character: {char!r}")

    def _sequence(self, arguments: str, final: str) -> None:
        if final in "hl" and arguments.startswith("?"):
            return  # modes: cursor shown or hidden, brackets around pasted text
        numbers = [int(each or 0) for each in arguments.split(";")]
        match final:
            case "m":
                for number in numbers:
                    self._select(number)
            case "A":
                self._row = max(self.top, self._row - max(1, numbers[0]))
            case "K" if numbers[0] == 0:
                del self.lines[self._row][self._column :]
            case "K" if numbers[0] == 2:
                self.lines[self._row].clear()
            case "J" if numbers[0] == 0:
                del self.lines[self._row][self._column :]
                del self.lines[self._row + 1 :]
            case _:
                raise ValueError(f"unknown control sequence: CSI {arguments}{final}")

    def _select(self, number: int) -> None:
        if number == 0:
            self._style = Style()
        elif number in _SET:
            self._style = replace(self._style, **{_SET[number]: True})
        elif 30 <= number <= 37:
            self._style = replace(self._style, color=number - 30)
        elif number == 39:
            self._style = replace(self._style, color=None)
        else:
            raise ValueError(f"unknown style: {number}")
