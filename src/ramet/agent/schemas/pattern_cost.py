"""Compute the cost of a pattern from its text, before it is compiled.

The engine copies a part for each of its repeats, and a class of letters of all scripts is a large automaton. A match is
linear in its text, but each character may meet every copy. So both numbers are computed here, never too low. The text
is parsed like in the engine; the cost of a pattern that the engine would refuse is arbitrary.
"""

from __future__ import annotations

import re
from typing import NamedTuple

LETTERS = 315  #: of a class of letters, such as \w, which has an automaton of about 100 KB
_BASE = 100  #: of any pattern
_RANGE = 6  #: of a class with non-ASCII characters, or of nearly everything, such as `.`
_ESCAPES = {**dict.fromkeys("wWpP", LETTERS), **dict.fromkeys("dD", 80), "s": 5, "S": 8}
_FOLDED = 5_000  #: to find the other case of each letter of a long range, each time the range is written
_SEQUENCE_PLACES = 64  #: maximum places of a pattern without alternative places, whatever its length

_REPEATS = re.compile(r"\{\s*(\d*)\s*(?:(,)\s*(\d*)\s*)?\}")
_GROUP = re.compile(r"\(\?([A-Za-z-]*)[:)]|\(\?P?<[^>]*>|\(")
_ESCAPE = re.compile(r"\\[pPxuU]\{[^}]*\}|\\[pP].|\\x..|\\u.{4}|\\U.{8}|\\.", re.DOTALL)
_OPERATORS = ("&&", "--", "~~")


class UnreadablePattern(Exception):
    """The error for a pattern in a notation that is not counted. The message has the accepted notation."""


class Cost(NamedTuple):
    """The maximum cost of compiling a pattern and of matching it."""

    size: int  #: units of about 300 bytes, and a microsecond, of a compiled pattern
    places: int  #: places of the pattern that one character of a text may be compared with

    def plus(self, other: Cost) -> Cost:
        return Cost(self.size + other.size, self.places + other.places)

    def times(self, count: int) -> Cost:
        return Cost(self.size * count + 1, self.places * count + 1)


_NOTHING = Cost(0, 0)


def cost_of(pattern: str) -> Cost:
    """Return the cost of a pattern. Raises UnreadablePattern."""
    return _Reader(pattern).cost()


class _Reader:
    def __init__(self, pattern: str) -> None:
        self._pattern, self._at = pattern, 0
        self._folds = any("i" in (each[1] or "") for each in _GROUP.finditer(pattern))
        self._fixed_size = _BASE  # not repeated with its part
        self._is_sequence = pattern.startswith("^")  # of characters and classes, from the beginning of a text
        self._choices = 0  # repeats of a sequence that may have several lengths
        self._later_places = 0  # places after the first of them

    def cost(self) -> Cost:
        """Return the cost of the whole pattern: the sum of its parts, each multiplied by its repeats."""
        outer: list[Cost] = []
        done, last = _NOTHING, _NOTHING  # of the current group, and of its last part, which may be repeated
        while self._at < len(self._pattern):
            match self._pattern[self._at]:
                case "(":
                    if self._open():
                        outer.append(done.plus(last))
                        done, last = _NOTHING, _NOTHING
                case ")":
                    done, last = outer.pop() if outer else _NOTHING, Cost(2, 1).plus(done).plus(last)
                    self._at += 1
                case "*" | "+" | "?" | "{" if (repeats := self._repeats()) is not None:
                    last = last.times(repeats)
                case "|":
                    self._is_sequence = False
                    done, last = done.plus(last), Cost(1, 1)
                    self._at += 1
                case _:
                    done, last = done.plus(last), Cost(self._character(), 1)
                    self._later_places += self._choices
        for each in outer:  # open groups, which the engine refuses
            done = done.plus(each)
        size, places = done.plus(last)
        if self._is_sequence and self._choices <= 1:
            places = min(places, _SEQUENCE_PLACES + self._later_places)
        return Cost(size + self._fixed_size, places)

    def _open(self) -> bool:
        """Skip the beginning of a group, and return True; or skip flags, which form no group."""
        match = _GROUP.match(self._pattern, self._at)
        self._is_sequence = False
        assert match is not None, "a parenthesis alone is the last choice"
        if "x" in (match[1] or ""):
            raise UnreadablePattern("without the verbose flag x")
        self._at = match.end()
        return not match[0].endswith(")")

    def _repeats(self) -> int | None:
        """Skip a repeat, and return its number of copies; None if there is none."""
        if self._pattern[self._at] != "{":
            self._at += 1
            self._choices += 1
            return 1
        match = _REPEATS.match(self._pattern, self._at)
        if match is None:
            return None
        least, most = int(match[1] or 0), int(match[3] or match[1] or 0)
        self._at = match.end()
        self._later_places += self._choices * most
        self._choices += bool(match[2]) and match[3] != match[1]
        return max(least, most, 1)

    def _character(self) -> int:
        """Skip a character, an escape or a class, and return its size."""
        if self._pattern[self._at] == "[":
            return self._class()
        size, is_long = self._item()
        if self._folds:
            self._fixed_size += _FOLDED * is_long
            size = max(size, _RANGE)
        return size

    def _item(self) -> tuple[int, bool]:
        """Skip a character or an escape. Return its size, and whether it may have many other cases."""
        start = self._at
        if self._pattern[start] != "\\":
            self._at += 1
            text = self._pattern[start]
            return (_RANGE if text == "." or not text.isascii() else 1), False
        match = _ESCAPE.match(self._pattern, start)
        self._at = match.end() if match is not None else start + 1
        kind = self._pattern[start + 1 : start + 2]
        return _ESCAPES.get(kind, _RANGE if kind in "xuU" else 1), kind in "pP"

    def _class(self) -> int:
        """Skip a class and its nested classes, and return their size."""
        start, depth, size, parts = self._at, 0, 0, 0
        while self._at < len(self._pattern):
            char = self._pattern[self._at]
            if char == "[":
                depth, parts = depth + 1, parts + 1
                size += self._open_class()
            elif char == "]":
                depth, self._at = depth - 1, self._at + 1
                if depth == 0:
                    break
            else:
                parts += self._pattern.startswith(_OPERATORS, self._at)
                size += self._item()[0] - 1  # less one character or range, see below
        text = self._pattern[start : self._at]
        if self._folds and (parts > 1 or not text.isascii() or re.search(r"\\[^wds\W]", text)):
            self._fixed_size += _FOLDED * parts
        return size * parts + 1 + len(text) // 8  # ranges of ASCII are one part of an automaton

    def _open_class(self) -> int:
        """Skip the beginning of a class, including a bracket that is a literal there; return its size."""
        self._at += 1
        size = 0
        if self._pattern.startswith("^", self._at):
            self._at, size = self._at + 1, _RANGE
        dashes = self._at
        while self._pattern.startswith("-", self._at):
            self._at += 1
        if self._at == dashes and self._pattern.startswith("]", self._at):
            self._at += 1
        return size
