"""Files that a shell command names: what it redirects, and words of programs that may read or change files.

Rules for Read and Edit are held against such commands too, as in Claude Code. That is a help against mistakes only.
A program may open any file by a name that no command shows; only a sandbox keeps a process from a file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ramet.tools.permissions.programs import WRAPPERS
from ramet.tools.permissions.words import ASSIGNMENT, Command, Word, first_program

MAX_TOUCHED = 500
MAX_NAME = 4_096  #: characters of a name that the kernel takes
#: Programs that read files and change none.
_READERS = frozenset(
    "base32 base64 bat cat cksum cmp comm cut diff du egrep expand fgrep file fmt fold grep head hexdump jq ls"
    " md5sum more nl od paste pr realpath rev rg sha1sum sha256sum sha512sum source stat strings tac tail tr wc"
    " zcat .".split()
)
#: Programs that change files, and show nothing of what these hold.
_CHANGERS = frozenset("chgrp chmod chown mkdir rm rmdir shred touch truncate unlink".split())
#: Programs that open no file that their words name.
_NEITHER = frozenset(
    ": [ [[ alias basename break cd continue declare dirname echo exit export false kill let local popd printf pushd"
    " pwd read readonly return seq set shift shopt sleep test trap true type typeset umask unalias unset wait"
    " which".split()
)
_CHANGES_FOLDER = re.compile(r"(cd|pushd|popd|-C.*|--directory\b.*|--chdir\b.*)\Z", re.DOTALL)
_SURE_SEPARATOR = re.compile("[=@]|file://")
_SEPARATOR = re.compile(r"[=@:,]")


class Touched(NamedTuple):
    """A file that a command names."""

    name: str
    is_read: bool = False
    is_changed: bool = False
    is_pattern: bool = False  #: the shell replaces the name, perhaps by several


def touched_by(commands: Sequence[Command]) -> tuple[Touched, ...]:
    """Return the files that commands name, at most `MAX_TOUCHED`."""
    found = dict.fromkeys(each for command in commands for each in _touched(command))
    return tuple(found)[:MAX_TOUCHED]


def named_folders(commands: Sequence[Command]) -> tuple[str, ...]:
    """Return names that may be those of working directories, if the commands change their working directory."""
    words = [word for command in commands for word in command.words]
    if not any(_CHANGES_FOLDER.match(each.text) for each in words):
        return ()
    return tuple(dict.fromkeys(name for each in words for name in _names(each)))


def _touched(command: Command) -> Iterator[Touched]:
    for operator, target in command.redirections:
        if "\0" not in target.text and not operator.startswith("<<"):
            yield Touched(target.text, is_read="<" in operator, is_changed=">" in operator, is_pattern=target.expanded)
    words = command.words[first_program(command.words) :]
    program = _program(words)
    if program in _NEITHER:
        return
    for word in words[1:]:
        for name in _names(word):
            reads, changes = program not in _CHANGERS, program not in _READERS
            yield Touched(name, is_read=reads, is_changed=changes, is_pattern=word.expanded)


def _program(words: Sequence[Word]) -> str:
    """Return the name of the program that words start, behind the programs that start it; empty if it is not known."""
    skipped, is_wrapped = 0, False
    for word in words:
        name = word.text.rpartition("/")[2]
        if word.expanded or (is_wrapped and name.startswith("-")):
            return ""
        if skipped:
            skipped -= 1
        elif name in WRAPPERS:
            skipped, is_wrapped = WRAPPERS[name].positionals, True
        elif not (is_wrapped and ASSIGNMENT.match(word.text)):
            return name
    return ""


def _names(word: Word) -> Iterator[str]:
    """Yield the names of files that a word may give: the word, and what is behind an option's letter or a separator."""
    text = word.text
    parts = [text, *(_SURE_SEPARATOR.split(text) if word.expanded else _SEPARATOR.split(text))]
    if text[:1] == "-":
        parts = [*parts[1:], text[2:]]
    for each in dict.fromkeys(parts):
        if each and each[0] != "-" and "\0" not in each and len(each) <= MAX_NAME:
            yield each
