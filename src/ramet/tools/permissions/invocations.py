"""Every way to write the programs that a shell command starts, so that a rule that narrows meets one of the ways.

`FOO=1 sudo /bin/rm -r x` is also `sudo /bin/rm -r x`, `/bin/rm -r x` and `rm -r x`; `sh -c 'rm x'` is also `rm x`.
What a program does by itself cannot be seen here: `python -c …` and scripts are their own names and nothing more.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from ramet.tools.permissions.commands import Command, Word, parse

MAX_OPERANDS = 64  #: words behind a program that starts another one
MAX_DEPTH = 3  #: commands inside the words of commands
MAX_INVOCATIONS = 2_000
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*(\[[^\]]*\])?\+?=")
_KEYWORDS = frozenset({"if", "then", "elif", "else", "while", "until", "do", "time", "!", "{", "coproc"})
#: Programs that run their words as a command.
_WRAPPERS = frozenset(
    "builtin busybox chroot command doas entr env exec find flock ionice nice nohup nsenter parallel prlimit"
    " proxychains runuser script setarch setpriv setsid stdbuf strace su sudo taskset timeout unbuffer unshare watch"
    " xargs".split()
)
#: Programs that run a text as a command.
_SHELLS = frozenset({"ash", "bash", "dash", "eval", "ksh", "sh", "ssh", "trap", "zsh"})


class Invocations(NamedTuple):
    """What a text may start. `unknown`: something that cannot be told from the text may be started besides."""

    texts: tuple[str, ...]
    commands: tuple[Command, ...]
    unknown: bool = False


def invocations(text: str) -> Invocations:
    """Return every way to write what `text` starts."""
    found = _Found()
    found.take(text, 0)
    return Invocations(tuple(found.texts), tuple(found.commands), found.unknown)


@dataclass
class _Found:
    texts: dict[str, None] = field(default_factory=dict)  #: in the order in which they were found
    commands: list[Command] = field(default_factory=list)
    unknown: bool = False

    def take(self, text: str, depth: int) -> None:
        parsed = parse(text)
        if not parsed.commands and not parsed.certain:
            self.unknown = True  # Too long, or nothing but an open quote.
        if not parsed.certain and "\\`" in text:
            self.unknown = True  # Backquotes inside backquotes.
        self._add(text.strip())
        for command in parsed.commands:
            self.commands.append(command)
            self._add(command.text)
            self._unwrap(command.words, depth)

    def _add(self, text: str) -> None:
        if len(self.texts) >= MAX_INVOCATIONS:
            self.unknown = True
        else:
            self.texts[text] = None

    def _unwrap(self, words: tuple[Word, ...], depth: int) -> None:
        words = words[_first(words) :]
        if not words:
            return
        program = words[0]
        if program.expanded:
            self.unknown = True
        for text in _spellings(words):
            self._add(text)
        name = program.text.rpartition("/")[2]
        if name in _SHELLS:
            self._nested(words[1:], depth)
            self.unknown = self.unknown or any(word.expanded for word in words[1:])
        elif name in _WRAPPERS:
            self._nested(words[1:], depth)
            self.unknown = self.unknown or _starts_unknown(words[1:])

    def _nested(self, operands: tuple[Word, ...], depth: int) -> None:
        if len(operands) > MAX_OPERANDS or (operands and depth >= MAX_DEPTH):
            self.unknown = True
            return
        for at, word in enumerate(operands):
            self._unwrap_operand(operands[at:], word, depth + 1)

    def _unwrap_operand(self, rest: tuple[Word, ...], word: Word, depth: int) -> None:
        for text in _spellings(rest):
            self._add(text)
        if rest[0].text.rpartition("/")[2] in _SHELLS:
            self.unknown = self.unknown or any(each.expanded for each in rest[1:])
        if any(char in word.text for char in " \t\n;|&"):
            self.take(word.text, depth)


def _first(words: tuple[Word, ...]) -> int:
    """Return the place of the program's name: behind assignments and words of the shell's own."""
    for at, word in enumerate(words):
        if word.text not in _KEYWORDS and not _ASSIGNMENT.match(word.text):
            return at
    return len(words)


def _spellings(words: tuple[Word, ...]) -> Iterator[str]:
    text = " ".join(word.text for word in words)
    yield text
    folder, _, _ = words[0].text.rpartition("/")
    if folder or words[0].text.startswith("/"):
        yield text[len(folder) + 1 :]


def _starts_unknown(operands: tuple[Word, ...]) -> bool:
    """Return whether the first word that may be a program's name is the result of an expansion."""
    for word in operands:
        plain = word.text.lstrip("-").isdigit() or _ASSIGNMENT.match(word.text)
        if word.expanded:
            return True
        if not word.text.startswith("-") and not plain:
            return False
    return False
