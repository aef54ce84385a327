r"""Patterns of shell commands: `npm run build`, `npm run test:*`, `git * main`.

`*` matches any text, including blanks. A pattern that ends in `:*` or ` *` matches its prefix, alone or followed by a
blank and any text: `ls:*` matches `ls` and `ls -l`, but not `lsof`. `\\*` is a star, `\\(` and `\\)` are parentheses.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from ramet.tools.permissions.shell.commands import parse
from ramet.tools.permissions.shell.expansions import fits_pattern
from ramet.tools.permissions.shell.invocations import Invocations
from ramet.tools.permissions.shell.programs import LOOSE_WRAPPERS, SHELLS, TEXT_RUNNERS, WRAPPERS

#: Files that a command may write to without changing anything.
_HARMLESS_TARGETS = frozenset({"/dev/null", "/dev/stdout", "/dev/stderr"})
MAX_GLUED = 6  #: characters before a program's name in the same word
#: `-I` of tar, `1e` of sed, `@-` of make.
_BEFORE_PROGRAM = re.compile(r"(-\w{1,4}|\d+\w?|[-+@%^]+|e)\Z")
_STARTERS = SHELLS | TEXT_RUNNERS | LOOSE_WRAPPERS | WRAPPERS.keys()


class CommandPattern(NamedTuple):
    """A pattern as the literal pieces between its stars."""

    pieces: tuple[str, ...]
    open_end: bool = False  #: more text may follow, after a blank

    def fits(self, command: str) -> bool:
        """Return whether the whole command matches; linear in its length for each piece."""
        if _fits_pieces(self.pieces, command):
            return True
        return self.open_end and _fits_pieces((*self.pieces[:-1], f"{self.pieces[-1]} ", ""), command)


@lru_cache(maxsize=4096)
def command_pattern(specifier: str) -> CommandPattern:
    text = specifier.strip()
    if text == "*":
        return CommandPattern(("", ""))
    open_end = False
    for ending in (":*", " *"):
        if text.endswith(ending) and not text.endswith("\\*"):
            text, open_end = text[: -len(ending)].rstrip(), True
            break
    return CommandPattern(tuple(_pieces(text)), open_end)


def narrows(specifier: str, run: Invocations) -> bool:
    """Return whether anything that is run matches: enough for a rule of `deny` or `ask`."""
    pattern = command_pattern(specifier)
    return any(pattern.fits(text) for text in run.texts)


def may_narrow(specifier: str, run: Invocations) -> bool:
    """Return whether something that may be run matches: a word that is unknown so far, or an operand of a program."""
    pattern = command_pattern(specifier)
    prefix = f"{pattern.pieces[0]} " if pattern.open_end and len(pattern.pieces) == 1 else pattern.pieces[0]
    if any(prefix.startswith(text) or prefix.rstrip() == text.rstrip() for text in run.prefixes):
        return True
    program = prefix.partition(" ")[0]
    if any(fits_pattern(each, name) for each in run.patterns for name in (program, *_STARTERS)):
        return True
    return bool(program) and any(_fits_operand(words, program, pattern) for words in run.operands)


def _fits_operand(words: tuple[str, ...], program: str, pattern: CommandPattern) -> bool:
    for at, word in enumerate(words):
        name = word.rpartition("/")[2]
        for each in (name, word) if name != word else (word,):
            for begin in _program_offsets(each, program):
                if pattern.fits(" ".join((each[begin:], *words[at + 1 :]))):
                    return True
    return False


def _program_offsets(word: str, program: str) -> Iterator[int]:
    """Yield where in a word a program's name may begin: at the start, or after the letters of an option."""
    for at in range(min(len(word), MAX_GLUED + 1)):
        if word.startswith(program, at) and (at == 0 or _BEFORE_PROGRAM.match(word[:at])):
            yield at


def widens(specifiers: tuple[str, ...], command: str) -> bool:
    """Return whether each simple command matches one of the patterns of `allow`, and nothing is hidden in the text."""
    patterns = [command_pattern(each) for each in specifiers]
    whole = command.strip()
    if any(each == CommandPattern((whole,)) for each in patterns):
        return True  # Literally equal to the rule.
    parsed = parse(command)
    if not parsed.certain or not parsed.commands:
        return False
    for each in parsed.commands:
        if any(redirected.operator not in ("<", "<<<") and _changes(redirected.target.text) for redirected in each[2]):
            return False
        if not any(pattern.fits(each.text) for pattern in patterns):
            return False
    return True


def _changes(target: str) -> bool:
    return target not in _HARMLESS_TARGETS and not target.isdigit()


def _pieces(text: str) -> list[str]:
    pieces, piece, at = [], [], 0
    while at < len(text):
        if text[at] == "\\" and text[at + 1 : at + 2] in ("*", "(", ")", "\\"):
            piece.append(text[at + 1])
            at += 2
        elif text[at] == "*":
            pieces.append("".join(piece))
            piece = []
            at += 1
        else:
            piece.append(text[at])
            at += 1
    return [*pieces, "".join(piece)]


def _fits_pieces(pieces: tuple[str, ...], text: str) -> bool:
    """Return whether `text` is the pieces in order with any text between them: the leftmost match is enough."""
    if len(pieces) == 1:
        return text == pieces[0]
    first, *inner, last = pieces
    if len(text) < len(first) + len(last) or not text.startswith(first) or not text.endswith(last):
        return False
    at, end = len(first), len(text) - len(last)
    for piece in inner:
        offset = text.find(piece, at, end)
        if offset < 0:
            return False
        at = offset + len(piece)
    return True
