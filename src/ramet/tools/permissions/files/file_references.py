"""Find the files that a shell command names: its redirections, and words of programs that may read or change files.

Rules for Read and Edit are applied to such commands too, as in Claude Code. This helps only against mistakes. A program
may open any file by a name that no command shows; only a sandbox keeps a process from a file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ramet.tools.permissions.files.names import MAX_NAME
from ramet.tools.permissions.files.words import takes_names, uses_of
from ramet.tools.permissions.shell.words import Command, Word, first_program

MAX_REFERENCES = 500
_CHANGES_FOLDER = re.compile(r"(cd|pushd|popd|-C.*|--directory\b.*|--chdir\b.*)\Z", re.DOTALL)
_SURE_SEPARATOR = re.compile("[=@]|file://")
_SEPARATOR = re.compile(r"[=@:,]")
#: An option that excludes its value, in most programs that have it.
_EXCLUDES = re.compile(r"--(exclude|exclude-dir|extend-exclude|ignore|ignore-glob|ignore-pattern|omit|skip)=")
_FOLDER_VARIABLE = re.compile(r"\$\{(PWD|HOME)\}")
_QUOTES = re.compile(r"[\"']")
_BLANK = re.compile(r"\s")
#: Characters that may pass a name from one program to another.
_CONNECTOR = re.compile(r"(?<!\|)\|(?!\|)|[$`<>]")
#: Functions and variables, which may give a known program's name to another one, or other options to the program.
_FUNCTION = re.compile(r"\(\s*\)")
_VARIABLE = re.compile(r"\b(POSIXLY_CORRECT|(PATH|(GIT|LESS|PIP|RIPGREP|UV)\w*|\w+_(ADDOPTS|OPTIONS|OPTS))\+?=)")
_REDEFINING = frozenset({"alias", "enable", "function", "hash"})
_NO_CONNECTION = re.compile(r"[0-9&]?>{1,2}\s?(&[0-9]|/dev/null\b)")


class FileReference(NamedTuple):
    """A file that a command names."""

    name: str
    is_read: bool = False
    is_changed: bool = False
    is_pattern: bool = False  #: the shell replaces the name, possibly by several
    descends: bool = True  #: files below the name count, too
    is_sure: bool = True  #: False: the program may not open it
    may_be_text: bool = False  #: if there is no such file


def references_in(commands: Sequence[Command], text: str = "|") -> tuple[FileReference, ...]:
    """Return the files that commands of a text name, at most `MAX_REFERENCES`."""
    programs = [command.words[first_program(command.words) :] for command in commands]
    is_connected = _CONNECTOR.search(_NO_CONNECTION.sub("", text)) is not None and any(map(takes_names, programs))
    is_redefined = any(each.search(text) for each in (_FUNCTION, _VARIABLE)) or any(map(_redefines, commands))
    references: dict[FileReference, None] = {}
    for command, words in zip(commands, programs, strict=True):
        references |= dict.fromkeys(
            (*_redirection_targets(command), *_program_files(words, is_connected, is_redefined))
        )
        if len(references) >= MAX_REFERENCES:
            break
    return tuple(references)[:MAX_REFERENCES]


def named_folders(commands: Sequence[Command]) -> tuple[str, ...]:
    """Return the possible names of working directories, if the commands change their working directory."""
    words = [word for command in commands for word in command.words]
    if not any(_CHANGES_FOLDER.match(each.text) for each in words):
        return ()
    return tuple(dict.fromkeys(name for each in words for name in _names(each)))


def _redirection_targets(command: Command) -> Iterator[FileReference]:
    for operator, target in command.redirections:
        if "\0" not in target.text and not operator.startswith("<<"):
            yield FileReference(
                target.text, is_read="<" in operator, is_changed=">" in operator, is_pattern=target.is_expanded
            )


def _redefines(command: Command) -> bool:
    """Return whether a command may redefine a name as another program."""
    return any(each.text in _REDEFINING or _VARIABLE.match(each.text) for each in command.words[:2])


def _program_files(words: tuple[Word, ...], is_connected: bool, is_redefined: bool) -> Iterator[FileReference]:
    """Yield the files that a program surely opens, and then those that it may open."""
    if not words:
        return
    uses = uses_of(words)
    for word in uses.files if not uses.lists else ():
        is_excluded = _EXCLUDES.match(word.text) is not None
        may_be_text = not uses.is_known and not word.is_expanded and _BLANK.search(word.text) is not None
        for name in _names(word):
            yield FileReference(
                name, uses.reads, uses.changes, word.is_expanded, uses.descends, not is_excluded, may_be_text
            )
    if uses.is_doubtful or is_redefined or (uses.lists and is_connected):
        for word in (*uses.files, *uses.texts):
            for name in _names(word):
                yield FileReference(name, is_read=True, is_changed=True, is_pattern=word.is_expanded, is_sure=False)


def _names(word: Word) -> Iterator[str]:
    """Yield the file names that a word may contain: the word, and the part after an option's letter or a separator."""
    yield from _parts(word, word.text)
    if word.is_expanded and _FOLDER_VARIABLE.search(word.source):  # The text has nothing in place of braces.
        yield from _parts(word, _FOLDER_VARIABLE.sub(r"$\1", _QUOTES.sub("", word.source)))


def _parts(word: Word, text: str) -> Iterator[str]:
    parts = [text, *(_SURE_SEPARATOR.split(text) if word.is_expanded else _SEPARATOR.split(text))]
    if text[:1] == "-":
        parts = [*parts[1:], text[2:]]
    for each in dict.fromkeys(parts):
        if each and each[0] != "-" and "\0" not in each and len(each) <= MAX_NAME:
            yield each
