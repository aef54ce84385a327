"""A shell command cut into the simple commands that it runs, without running anything.

The cut is for rules, not for a shell. `certain` is False where a shell would have to be asked: substitutions,
here-documents, quotes without an end. `doubtful` is True where a shell may cut elsewhere, so that something may be
hidden. Rules that narrow are held against every command that may be in the text, and a doubtful text needs a person.
A rule that widens counts only where `certain` is True. One pass, linear in the text but for nesting, which is bounded.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ramet.tools.permissions.shell.scanner import Scanner
from ramet.tools.permissions.shell.words import Command

MAX_TEXT = 100_000  #: characters of a command that are looked at
#: Forms of arithmetic in which `<<` is no here-document; subscripts are another one.
_ARITHMETIC = re.compile(r"\(\(|\$\[")
_SUBSCRIPT = re.compile(r"\w\[")
_SUBSCRIPT_END = re.compile(r"[\]\n]")
#: Patterns with parentheses, which some shells read only if told to.
_EXTENDED_PATTERN = re.compile(r"[?*+@!]\(")


class Parsed(NamedTuple):
    """All simple commands of a text, those inside substitutions included."""

    commands: tuple[Command, ...]
    certain: bool = True
    doubtful: bool = False
    evaluated: tuple[str, ...] = ()  #: arithmetic expressions and subscripts
    parameters: tuple[str, ...] = ()  #: what `${…}` holds


def parse(text: str) -> Parsed:
    """Cut `text` into its simple commands."""
    if len(text) > MAX_TEXT:
        return Parsed((), certain=False, doubtful=True)
    scanner = Scanner(text)
    scanner.scan()
    commands = list(scanner.commands)
    doubtful = scanner.doubtful or _EXTENDED_PATTERN.search(text) is not None
    doubtful = doubtful or ("<<" in text and _may_shift(text))
    if doubtful and "\n" in text:  # What hides the lines behind it must not hide the commands in them.
        for line in text.split("\n"):
            inner = Scanner(line)
            inner.scan()
            commands += inner.commands
    certain = scanner.certain and not doubtful
    return Parsed(
        tuple(dict.fromkeys(commands)), certain, doubtful, tuple(scanner.evaluated), tuple(scanner.parameters)
    )


def _may_shift(text: str) -> bool:
    """Return whether a `<<` in the text may be arithmetic. One pass: an expression would look from each bracket on."""
    if _ARITHMETIC.search(text):
        return True
    for part in _SUBSCRIPT_END.split(text):
        opened = _SUBSCRIPT.search(part)
        if opened is not None and part.find("<<", opened.end()) >= 0:
            return True
    return False
