"""Commands of a git configuration, and whether a checkout may bring the programs that they name.

A program with a relative path is another one in each checkout: that of HEAD, of a branch, or of an agent that worked
there. Trust is in the file that a person looked at. So git does not run such a command on the host.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from pathlib import Path

#: Keys whose commands git may run while it makes, looks at or removes a working tree.
_RUN = re.compile(
    r"filter\..*\.(?:smudge|clean|process)|core\.(?:sshcommand|askpass|gitproxy|alternaterefscommand|fsmonitor)"
    r"|remote\..*\.(?:uploadpack|vcs)|credential\.(?:.*\.)?helper",
    re.DOTALL,
)
_TEXTS = re.compile(r"'[^']*'")  #: in which a shell replaces nothing
_BETWEEN = re.compile(r"[\s;&|()<>{}=]+")
#: Programs that run a file, or another program, by a name that looks like any other word.
_STARTERS = re.compile(
    r"(?:ba|da|z|k|c|tc|fi)?sh|python[\d.]*|pypy[\d.]*|perl|ruby|node|deno|bun|php|lua|tclsh|awk|gawk|mawk|make|env|exec"
    r"|eval|source|\.|cd|xargs|nice|nohup|timeout|sudo"
)
_SUBSTITUTION = re.compile(r"[sy]/[^/\n]*/[^/\n]*/[gpiI0-9]*")  #: of sed; no flag of these runs or writes


def is_run_by_checkouts(key: str) -> bool:
    """Whether git may run the value of this key, in lower case, where ramet uses git."""
    return _RUN.fullmatch(key) is not None


def may_be_of_a_checkout(command: str, tops: Iterable[Path]) -> bool:
    """Whether a command may name a file of a working tree; True also where only a shell could tell."""
    if re.search(r"[$`]", _TEXTS.sub("", command)):
        return True
    try:
        words = shlex.split(command)
    except ValueError:
        return True
    is_sed, before, folders = words[:1] == ["sed"], "", list(tops)
    for word in words:
        is_file = before.startswith("-") and before not in ("-e", "-n", "-E", "-r", "--expression")
        if not (is_sed and _SUBSTITUTION.fullmatch(word) and not is_file):
            if any(_may_be_of(each, folders) for each in _BETWEEN.split(word) if each):
                return True
        before = word
    return False


def _may_be_of(word: str, tops: list[Path]) -> bool:
    if word.startswith(("/", "~")):
        return ".." in word.split("/")
    return "/" in word or _STARTERS.fullmatch(word) is not None or any(_is_there(top / word) for top in tops)


def _is_there(path: Path) -> bool:
    try:
        path.lstat()
    except FileNotFoundError:
        return False
    except (OSError, ValueError):  # A name too long, or in a folder that cannot be read.
        return True
    return True
