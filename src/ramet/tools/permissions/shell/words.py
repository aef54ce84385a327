"""Words and simple commands of a shell's text, and what can be said of them without the text around."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

ASSIGNMENT = re.compile(r"[A-Za-z_]\w*(\[[^\]]*\])?\+?=")
#: Folders of the kernel, and the last parts of files there that hold what a process is given.
_OF_KERNEL = ("/dev/", "/proc/")
_GIVEN = re.compile(r"(stdin|tty|environ|cmdline|\d+)\Z")
#: Words of the shell's own, behind which a command begins.
KEYWORDS = frozenset({"if", "then", "elif", "else", "while", "until", "do", "!", "{"})


class Word(NamedTuple):
    """A word without its quotes. `expanded`: a shell would replace the word, or part of it, behind `literal`."""

    text: str
    expanded: bool = False
    literal: str = ""
    source: str = ""  #: the word as it was written; empty if it is not known


class Redirection(NamedTuple):
    """A file that a command reads (`<`) or writes (`>`), or a text that it reads (`<<<`, and `<<` with the text)."""

    operator: str
    target: Word


class Command(NamedTuple):
    """One simple command: its source text, and its words without redirections."""

    text: str
    words: tuple[Word, ...]
    redirections: tuple[Redirection, ...] = ()


def with_document(command: Command, name: Word, body: str) -> Command:
    """Return a command with the text of a here-document in the place of the document's name."""
    if not any(each.target is name for each in command.redirections):
        return command
    found = [Redirection("<<", Word(body)) if each.target is name else each for each in command.redirections]
    return command._replace(redirections=tuple(found))


def begins_case(words: Sequence[Word]) -> bool:
    """Return whether the words begin a `case`."""
    return next((word.text for word in words if word.text not in KEYWORDS), "") == "case"


def first_program(words: tuple[Word, ...]) -> int:
    """Return the place of the program's name: behind assignments and words of the shell's own."""
    at = 0
    while at < len(words):
        if words[at].text == "function":
            at += 2
        elif _is_keyword(words[at]) or _is_assignment(words[at]):
            at += 1
        else:
            break
    return at


def without_name(words: tuple[Word, ...]) -> tuple[Word, ...]:
    """Return what `coproc` runs: behind a name, if a compound command follows the name."""
    compound = len(words) > 1 and words[1].text in (KEYWORDS | {"for", "case", "select", "[["})
    return words[1:] if compound and words[0].text not in KEYWORDS else words


def spellings(words: tuple[Word, ...]) -> Iterator[str]:
    """Yield a command as text, with and without the folder of its program."""
    text = " ".join(word.text for word in words)
    yield text
    folder, _, _ = words[0].text.rpartition("/")
    if folder or words[0].text.startswith("/"):
        yield text[len(folder) + 1 :]


def is_untold(file: Word) -> bool:
    """Return whether it cannot be told which file a name means, or what the file holds."""
    if file.expanded or file.text == "-":
        return True
    name = re.sub("^//", "/", posixpath.normpath(file.text))
    return name.startswith(_OF_KERNEL) or _GIVEN.match(posixpath.basename(name)) is not None


def _is_keyword(word: Word) -> bool:
    return word.text in KEYWORDS and not word.expanded


def _is_assignment(word: Word) -> bool:
    """Return whether a word is an assignment: what an expansion brings does not make one."""
    name = word.literal if word.expanded else word.text
    return ASSIGNMENT.match(word.text) is not None and ("=" in name or "[" in name)
