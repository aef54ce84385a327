"""Words and simple commands of a shell text, and what can be determined about them without the surrounding text."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

ASSIGNMENT = re.compile(r"[A-Za-z_]\w*(\[[^\]]*\])?\+?=")
#: Folders of the kernel, and file names there with data that a process is given.
_OF_KERNEL = ("/dev/", "/proc/")
_INHERITED = re.compile(r"(stdin|tty|environ|cmdline|\d+)\Z")
#: Keywords of the shell, after which a command begins.
KEYWORDS = frozenset({"if", "then", "elif", "else", "while", "until", "do", "!", "{"})


class Word(NamedTuple):
    """A word without its quotes. `is_expanded`: a shell would replace the word, or its part after `literal`."""

    text: str
    is_expanded: bool = False
    literal: str = ""
    source: str = ""  #: the word as written; empty if unknown


class Redirection(NamedTuple):
    """A file that a command reads (`<`) or writes (`>`), or a text that it reads (`<<<`, and `<<` with the text)."""

    operator: str
    target: Word


class Command(NamedTuple):
    """A simple command: its source text, and its words without redirections."""

    text: str
    words: tuple[Word, ...]
    redirections: tuple[Redirection, ...] = ()


def with_document(command: Command, name: Word, body: str) -> Command:
    """Return a command with the text of a here-document in place of the document's name."""
    if not any(each.target is name for each in command.redirections):
        return command
    redirections = [Redirection("<<", Word(body)) if each.target is name else each for each in command.redirections]
    return command._replace(redirections=tuple(redirections))


def begins_case(words: Sequence[Word]) -> bool:
    """Return whether the words begin a `case`."""
    return next((word.text for word in words if word.text not in KEYWORDS), "") == "case"


def first_program(words: tuple[Word, ...]) -> int:
    """Return the index of the program's name: after assignments and keywords."""
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
    """Return what `coproc` runs: the words after a name, if a compound command follows the name."""
    compound = len(words) > 1 and words[1].text in (KEYWORDS | {"for", "case", "select", "[["})
    return words[1:] if compound and words[0].text not in KEYWORDS else words


def spellings(words: tuple[Word, ...]) -> Iterator[str]:
    """Yield a command as text, with and without the folder of its program."""
    text = " ".join(word.text for word in words)
    yield text
    folder, _, _ = words[0].text.rpartition("/")
    if folder or words[0].text.startswith("/"):
        yield text[len(folder) + 1 :]


def is_unknown_file(file: Word) -> bool:
    """Return whether it is unknown which file a name means, or what the file contains."""
    if file.is_expanded or file.text == "-":
        return True
    name = re.sub("^//", "/", posixpath.normpath(file.text))
    return name.startswith(_OF_KERNEL) or _INHERITED.match(posixpath.basename(name)) is not None


def _is_keyword(word: Word) -> bool:
    return word.text in KEYWORDS and not word.is_expanded


def _is_assignment(word: Word) -> bool:
    """Return whether a word is an assignment: the result of an expansion is none."""
    name = word.literal if word.is_expanded else word.text
    return ASSIGNMENT.match(word.text) is not None and ("=" in name or "[" in name)
