"""Parse git's configuration files like git, without running it: which keys are set, and which may run programs.

Anything that is not understood is an error. A guess would show a person something different from git's behaviour. So
Python's rules for blanks and line ends are not used: git knows four blanks, and a carriage return alone ends no line.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

BLANKS = " \t\r"  #: of git, besides the line end
_SECTION = re.compile(r'\[([A-Za-z0-9.-]+)(?:[ \t\r]+"((?:[^"\\\n]|\\[^\n])*)")?\]')
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]*")
_BLANK = re.compile(r"(?:[ \t\r\n]+|[#;][^\n]*)*")
_SPACES = str.maketrans("\t\r", "  ")
_ESCAPES = {"t": "\t", "b": "\b", "n": "\n", "\\": "\\", '"': '"', "\n": ""}

#: Keys whose values git neither runs nor uses as the name of a file to obey. Every other key counts.
_HARMLESS = re.compile(
    r"(?:branch|color)\..*"
    r"|remote\..*\.(?:url|pushurl|fetch|push|mirror|prune|prunetags|tagopt|promisor|partialclonefilter|gh-resolved)"
    r"|core\.(?:repositoryformatversion|filemode|bare|logallrefupdates|ignorecase|precomposeunicode|symlinks|autocrlf|"
    r"eol|safecrlf|checkstat|trustctime|quotepath|abbrev|compression|bigfilethreshold|untrackedcache|preloadindex|"
    r"sparsecheckout|sparsecheckoutcone|splitindex|multipackindex|commitgraph|longpaths|sharedrepository|whitespace)"
    r"|(?:advice|author|column|commit|committer|feature|fetch|gc|index|log|pack|pull|push|rebase|receive|rerere|stash|"
    r"status|tag|user|versionsort)\.[^.]*"
    r"|submodule\..*\.(?:url|active|branch|ignore|shallow)|submodule\.active"
    r"|extensions\.(?:objectformat|compatobjectformat|partialclone|refstorage|worktreeconfig|relativeworktrees)"
    r"|merge\.(?:ff|conflictstyle|log|renames|renamelimit|stat|verbosity)"
    r"|diff\.(?:algorithm|renames|renamelimit|mnemonicprefix|noprefix|colormoved|context|submodule)"
    r"|lfs\.(?:repositoryformatversion|.*\.(?:access|locksverify))",
    re.DOTALL,
)
#: Exceptions in otherwise harmless sections: a hook, and options with which a merge starts a program.
_RUNNING = re.compile(r"gc\.recentobjectshook|branch\..*\.mergeoptions", re.DOTALL)
_HELPER = "::"  #: in an address: the part before it names a program, and `ext::` is followed by a command
_INCLUDE = re.compile(r"include(?:if\..*)?\.path", re.DOTALL)


class NotUnderstood(ValueError):
    """The error for a configuration that git would refuse, or that has an unusual form."""


class Entry(NamedTuple):
    """A key with its value; section and name are in lower case, as git lists them."""

    key: str
    value: str | None

    @property
    def may_run(self) -> bool:
        """Return whether git may run something because of the entry, or obey another file."""
        is_harmless = _HARMLESS.fullmatch(self.key) and not _RUNNING.fullmatch(self.key)
        return not is_harmless or _HELPER in (self.value or "")

    @property
    def is_include(self) -> bool:
        """Return whether the value is the name of another configuration file."""
        return _INCLUDE.fullmatch(self.key) is not None


def parse(data: bytes) -> Iterator[Entry]:
    """Yield every entry of a configuration file, in order. Raises NotUnderstood.

    A blank in a value is kept unchanged; git before 2.45 replaces it by a space.
    """
    if b"\0" in data:  # Git's names and values end there.
        raise NotUnderstood("it holds a zero byte")
    text = data.decode("utf-8-sig", "surrogateescape").replace("\r\n", "\n")
    at, section = _skip(text, 0), ""
    while at < len(text):
        if section_match := _SECTION.match(text, at):
            name, sub = section_match.group(1).lower(), section_match.group(2)
            section = name if sub is None else f"{name}.{_unescape(sub)}"
            at = _skip(text, section_match.end())
            continue
        name_match = _NAME.match(text, at)
        if not name_match or not section:
            raise NotUnderstood(f"line {text.count(chr(10), 0, at) + 1} is not understood")
        value, at = _value(text, name_match.end())
        yield Entry(f"{section}.{name_match.group().lower()}", value)
        at = _skip(text, at)


def include_path(path: Path, name: str) -> Path:
    """Return the file that an include in `path` names. Raises NotUnderstood.

    Git resolves the name relative to the including file's name, wherever that leads by links, and resolves `..` only
    when it opens the file. A reader of the returned path must do the same.
    """
    # %(prefix)/ is a folder of git's own. The file for a name with an unusual blank depends on git's version.
    if name.startswith("%(") or set(name) & set("\t\r"):
        raise NotUnderstood(f"the include {name!r} is not understood")
    return path.parent / os.path.expanduser(name)  # noqa: PTH111 - Path would drop `./`, and expand `./~`


def spellings(value: str) -> tuple[str, ...]:
    """Return a value as different versions of git read it: before 2.45 each blank becomes a space."""
    return tuple(dict.fromkeys((value, value.translate(_SPACES))))


def _skip(text: str, at: int) -> int:
    match = _BLANK.match(text, at)
    return match.end() if match else at


def _unescape(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text)


class _Value(NamedTuple):
    value: str | None
    end: int


def _value(text: str, at: int) -> _Value:
    while at < len(text) and text[at] in " \t":  # No carriage return: git refuses it here.
        at += 1
    if at >= len(text) or text[at] == "\n":
        return _Value(None, at)
    if text[at] != "=":
        raise NotUnderstood(f"line {text.count(chr(10), 0, at) + 1} is not understood")
    text_value, length, is_quoted, at = "", 0, False, at + 1
    while at < len(text) and (is_quoted or text[at] not in "#;\n"):
        char = text[at]
        at += 1
        if char == '"':
            is_quoted = not is_quoted
            length = len(text_value)
        elif char == "\\":
            if text[at : at + 1] not in _ESCAPES:
                raise NotUnderstood(f"line {text.count(chr(10), 0, at) + 1} has an unknown escape")
            text_value += _ESCAPES[text[at]]
            length, at = len(text_value), at + 1
        elif char == "\n":
            break
        elif text_value or is_quoted or char not in BLANKS:
            text_value += char
            length = len(text_value) if is_quoted or char not in BLANKS else length
    if is_quoted:
        raise NotUnderstood(f"line {text.count(chr(10), 0, at) + 1} has a quote without an end")
    while at < len(text) and text[at] != "\n":
        at += 1
    return _Value(text_value[:length], at)
