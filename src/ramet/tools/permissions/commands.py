"""A shell command cut into the simple commands that it runs, without running anything.

The cut is for rules, not for a shell. Where a shell would have to be asked, the result says so: `certain` is False for
substitutions, here-documents and quotes without an end, and `unknown_program` is True where a program's name is the
result of an expansion. Rules that narrow are held against every command that may be in the text. A rule that widens
counts only where `certain` is True. One pass, linear in the text but for nesting, which is bounded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

MAX_TEXT = 100_000  #: characters of a command that are looked at
MAX_NESTING = 30
_BLANKS = " \t\r"
_FD = re.compile(r"\d+\Z")
_REDIRECTION = re.compile(r"<<<|<<-?|<>|>>|>\||[<>]&|[<>]")
_SPECIAL_WORDS = frozenset({"[", "[[", "]", "]]", "{", "}"})


class Word(NamedTuple):
    """A word without its quotes. `expanded`: a shell would replace the word, or part of it."""

    text: str
    expanded: bool = False


class Redirection(NamedTuple):
    """A file that a command reads (`<`) or writes (`>`)."""

    operator: str
    target: Word


class Command(NamedTuple):
    """One simple command: its source text, and its words without redirections."""

    text: str
    words: tuple[Word, ...]
    redirections: tuple[Redirection, ...] = ()


class Parsed(NamedTuple):
    """All simple commands of a text, those inside substitutions included."""

    commands: tuple[Command, ...]
    certain: bool = True


def parse(text: str) -> Parsed:
    """Cut `text` into its simple commands."""
    if len(text) > MAX_TEXT:
        return Parsed((), certain=False)
    scanner = _Scanner(text.replace("\\\n", ""))
    scanner.scan()
    commands = list(scanner.commands)
    if not scanner.certain and "\n" in text:  # A quote in a here-document must not hide the lines behind the quote.
        for line in text.split("\n"):
            inner = _Scanner(line)
            inner.scan()
            commands += inner.commands
    return Parsed(tuple(dict.fromkeys(commands)), scanner.certain)


@dataclass
class _Frame:
    """One level of nesting: the command under way, and what ends the level."""

    closer: str  #: ")", "`", "}" or "" for the whole text
    start: int
    quoted: bool = False  #: inside double quotes
    words: list[Word] = field(default_factory=list)
    redirections: list[Redirection] = field(default_factory=list)
    letters: list[str] = field(default_factory=list)
    in_word: bool = False
    expanded: bool = False
    operator: str = ""  #: a redirection whose target is the next word


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.commands: list[Command] = []
        self.certain = True
        self.frames = [_Frame("", 0)]

    def scan(self) -> None:
        while self.at < len(self.text):
            frame = self.frames[-1]
            if frame.quoted:
                self._quoted(frame)
            elif frame.closer == "}":
                self._parameter(frame)
            else:
                self._plain(frame)
        if len(self.frames) > 1 or self.frames[-1].quoted:
            self.certain = False  # Something has no end.
        while self.frames:
            self._end_command(self.frames[-1], len(self.text))
            self.frames.pop()

    # ---- one character, by where it stands

    def _plain(self, frame: _Frame) -> None:
        char = self.text[self.at]
        if char in _BLANKS:
            self._end_word(frame)
            self.at += 1
        elif char == "\n" or char in ";|&":
            self._operator(frame, char)
        elif char == "(":
            self._end_command(frame, self.at)
            self._open(")", 1)
        elif char == ")":
            self._close_or_end(frame)
        elif char in "<>":
            self._redirection(frame)
        elif char == "#" and not frame.in_word:
            end = self.text.find("\n", self.at)
            self._end_command(frame, self.at)
            self.at = frame.start = len(self.text) if end < 0 else end
        elif char == "'":
            self._single(frame)
        elif char == '"':
            frame.in_word = frame.quoted = True
            self.at += 1
        elif char == "\\":
            self._add(frame, self.text[self.at + 1 : self.at + 2], 2)
        elif char in "$`":
            self._expansion(frame)
        else:
            frame.expanded = frame.expanded or char in "*?[{"
            self._add(frame, char, 1)

    def _quoted(self, frame: _Frame) -> None:
        char = self.text[self.at]
        if char == '"':
            frame.quoted = False
            self.at += 1
        elif char == "\\":
            following = self.text[self.at + 1 : self.at + 2]
            self._add(frame, following if following in tuple('$`"\\') else "\\" + following, 2)
        elif char in "$`":
            self._expansion(frame)
        else:
            self._add(frame, char, 1)

    def _parameter(self, frame: _Frame) -> None:
        """Inside `${…}`: only its end and what is nested matter."""
        char = self.text[self.at]
        if char == "}":
            self._close()
        elif char in "$`":
            self._expansion(frame)
        elif char == "'":
            self._single(frame)
        elif char == '"':
            frame.quoted = True
            self.at += 1
        else:
            self.at += 2 if char == "\\" else 1

    # ---- pieces

    def _add(self, frame: _Frame, letters: str, consumed: int) -> None:
        frame.in_word = True
        frame.letters.append(letters)
        self.at += consumed

    def _single(self, frame: _Frame) -> None:
        end = self.text.find("'", self.at + 1)
        if end < 0:
            self.certain = False
            end = len(self.text)
        self._add(frame, self.text[self.at + 1 : end], end + 1 - self.at)

    def _expansion(self, frame: _Frame) -> None:
        """`$(…)`, `${…}`, `$'…'`, a backquote, or a variable's name."""
        frame.in_word = frame.expanded = True
        text, at = self.text, self.at
        if text[at] == "`":
            if any(each.closer == "`" for each in self.frames):
                self._close_backquote()
            else:
                self._open("`", 1)
            return
        following = text[at + 1 : at + 2]
        if following == "(":
            self._open(")", 2)
        elif following == "{":
            self._open("}", 2)
        elif following == "'" and not frame.quoted:
            end = _ansi_end(text, at + 2)
            self.certain = False
            self.at = end
        else:
            frame.letters.append("$" + following)
            self.at += 1 if following in ("", '"', " ", "\n", "`", "$") else 2

    def _operator(self, frame: _Frame, char: str) -> None:
        following = self.text[self.at + 1 : self.at + 2]
        if char == "&" and following == ">":  # `&>` writes to a file.
            self._end_word(frame)
            self.at += 1
            return
        self._end_command(frame, self.at)
        self.at += 1
        frame.start = self.at

    def _redirection(self, frame: _Frame) -> None:
        text = self.text
        if text[self.at + 1 : self.at + 2] == "(":  # A process whose output, or input, stands for a file.
            frame.in_word = frame.expanded = True
            self._open(")", 2)
            return
        if frame.in_word and _FD.match("".join(frame.letters)):
            frame.in_word, frame.letters = False, []
        self._end_word(frame)
        found = _REDIRECTION.match(text, self.at)
        assert found is not None, "it begins with < or >"
        frame.operator = found.group()
        if frame.operator.startswith("<<") and frame.operator != "<<<":
            self.certain = False
        self.at = found.end()

    # ---- nesting

    def _open(self, closer: str, consumed: int) -> None:
        if closer != ")" or self.text[self.at] != "(":  # A subshell in parentheses is only a group.
            self.certain = False
        self.at += consumed
        if len(self.frames) >= MAX_NESTING:
            self.certain = False
            return
        self.frames.append(_Frame(closer, self.at))

    def _close(self) -> None:
        self._end_command(self.frames[-1], self.at)
        closed = self.frames.pop()
        self.at += 1
        below = self.frames[-1]
        if closed.closer == ")" and not below.quoted and not below.in_word:
            below.start = self.at

    def _close_or_end(self, frame: _Frame) -> None:
        if frame.closer == ")":
            self._close()
            return
        self.certain = False  # Such as a pattern of `case`.
        self._end_command(frame, self.at)
        self.at += 1
        frame.start = self.at

    def _close_backquote(self) -> None:
        while self.frames[-1].closer != "`":
            self._end_command(self.frames[-1], self.at)
            self.frames.pop()
            self.certain = False
        self._close()

    # ---- what came of it

    def _end_word(self, frame: _Frame) -> None:
        if not frame.in_word:
            return
        text = "".join(frame.letters)
        word = Word(text, frame.expanded and text not in _SPECIAL_WORDS)
        frame.letters, frame.in_word, frame.expanded = [], False, False
        if frame.operator:
            frame.redirections.append(Redirection(frame.operator, word))
            frame.operator = ""
        else:
            frame.words.append(word)

    def _end_command(self, frame: _Frame, end: int) -> None:
        self._end_word(frame)
        if frame.closer != "}" and (frame.words or frame.redirections):
            text = self.text[frame.start : end].strip()
            self.commands.append(Command(text, tuple(frame.words), tuple(frame.redirections)))
        frame.words, frame.redirections, frame.operator = [], [], ""
        frame.start = end


def _ansi_end(text: str, at: int) -> int:
    """Return the place behind `$'…'`, in which a backslash protects a quote."""
    while at < len(text) and text[at] != "'":
        at += 2 if text[at] == "\\" else 1
    return min(at + 1, len(text))
