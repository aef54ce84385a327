"""Split a shell command into the simple commands that it runs, without running anything.

The split serves rules, not a shell. `certain` is False where only a shell could decide: substitutions, here-documents,
unclosed quotes. `doubtful` is True where a shell may split differently, so that something may be hidden. Narrowing
rules are applied to every command that may be in the text, and a doubtful text needs a person. A widening rule applies
only if `certain` is True. The parser makes one pass, linear in the text except for nesting, which is bounded.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ramet.tools.permissions.shell.scanner import Scanner
from ramet.tools.permissions.shell.words import Command

MAX_TEXT = 100_000  #: maximum characters of a command that is parsed
#: Forms of arithmetic in which `<<` is no here-document; subscripts are another one.
_ARITHMETIC = re.compile(r"\(\(|\$\[")
_SUBSCRIPT = re.compile(r"\w\[")
_SUBSCRIPT_END = re.compile(r"[\]\n]")
#: Patterns with parentheses, which some shells support only with an option.
_EXTENDED_PATTERN = re.compile(r"[?*+@!]\(")


class ParsedText(NamedTuple):
    """The simple commands of a text, including those inside substitutions."""

    commands: tuple[Command, ...]
    certain: bool = True
    doubtful: bool = False
    expressions: tuple[str, ...] = ()  #: arithmetic expressions and subscripts
    parameters: tuple[str, ...] = ()  #: the contents of `${…}`


def parse(text: str) -> ParsedText:
    """Split `text` into its simple commands."""
    if len(text) > MAX_TEXT:
        return ParsedText((), certain=False, doubtful=True)
    scanner = Scanner(text)
    scanner.scan()
    commands = list(scanner.commands)
    doubtful = scanner.doubtful or _EXTENDED_PATTERN.search(text) is not None
    doubtful = doubtful or ("<<" in text and _may_shift(text))
    if doubtful and "\n" in text:  # A construct that hides the following lines must not hide the commands in them.
        for line in text.split("\n"):
            inner = Scanner(line)
            inner.scan()
            commands += inner.commands
    certain = scanner.certain and not doubtful
    return ParsedText(
        tuple(dict.fromkeys(commands)), certain, doubtful, tuple(scanner.expressions), tuple(scanner.parameters)
    )


def _may_shift(text: str) -> bool:
    """Return whether a `<<` in the text may be arithmetic.

    One pass: an expression would search from each bracket on.
    """
    if _ARITHMETIC.search(text):
        return True
    for part in _SUBSCRIPT_END.split(text):
        subscript = _SUBSCRIPT.search(part)
        if subscript is not None and part.find("<<", subscript.end()) >= 0:
            return True
    return False
