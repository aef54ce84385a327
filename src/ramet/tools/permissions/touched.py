"""Files that a shell command names: what it redirects, and the operands of programs that read or change files.

Rules for Read and Edit are held against such commands too, as in Claude Code. That is a help against mistakes only.
A program may open any file by a name that no command shows; only a sandbox keeps a process from a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ramet.tools.permissions.words import Command

MAX_TOUCHED = 500
_READERS = frozenset(
    "awk base32 base64 bat cat cmp comm cp csplit cut diff egrep fgrep fold grep head hexdump install jq less ln more"
    " mv nl od paste rg sed shuf sort source split strings tac tail tar tee uniq view wc xxd zcat .".split()
)
_CHANGERS = frozenset("chmod chown cp dd install ln mkdir mv rm rmdir sed shred tee touch truncate unlink".split())


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


def _touched(command: Command) -> Iterator[Touched]:
    for operator, target in command.redirections:
        if "\0" not in target.text and not operator.startswith("<<"):
            yield Touched(target.text, is_read="<" in operator, is_changed=">" in operator, is_pattern=target.expanded)
    programs = [word.text.rpartition("/")[2] for word in command.words]
    reads, changes = not _READERS.isdisjoint(programs), not _CHANGERS.isdisjoint(programs)
    if not reads and not changes:
        return
    for word in command.words[1:]:
        if not word.text.startswith("-") and word.text and "\0" not in word.text:
            yield Touched(word.text, is_read=reads, is_changed=changes, is_pattern=word.expanded)
