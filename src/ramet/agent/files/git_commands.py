"""Commands of a git configuration, and whether a checkout may bring the programs that they name.

A program with a relative path is another one in each checkout: that of HEAD, of a branch, or of an agent that worked
there. Trust is in the file that a person looked at. So git does not run such a command on the host.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable
from pathlib import Path

from ramet.agent.files.scripts import names

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
    r"(?:(?:ba|da|z|k|mk|c|tc|fi|pw)?sh|busybox|python|pypy|perl|ruby|node|nodejs|deno|bun|php|lua|luajit|tclsh|wish|expect"
    r"|guile|julia|Rscript|awk|gawk|mawk|m4|[gb]?make|just|rake|npm|npx|pnpm|yarn|uv|uvx|cargo|go|env|exec|eval|source|\."
    r"|command|cd|xargs|nice|nohup|setsid|stdbuf|timeout|sudo)[\d.]*"
)
_FILE_OF_SED = re.compile(r"-\w*f|--f")
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
    if any(Path(each).name == "sed" for each in words) and any(map(_FILE_OF_SED.match, words)):
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
    parts = [each for each in word.split("/") if each not in ("", ".")]
    if _STARTERS.fullmatch(parts[-1] if parts else word):
        return True
    if word.startswith(("/", "~")):
        is_of_system = parts[:1] in (["proc"], ["dev"]) and parts != ["dev", "null"]
        return ".." in parts or is_of_system or _leads_through_a_link(word, tops)
    return "/" in word or any(_is_there(top / name) for top in tops for name in names(word))


def _leads_through_a_link(word: str, tops: list[Path]) -> bool:
    """Whether a whole path leads through a link of a working tree: to `/proc/self/cwd`, for example."""
    path = Path(os.path.expanduser(word))  # noqa: PTH111 - Path raises for a user who is not there
    for each in (path, *path.parents):
        try:
            if each.is_symlink() and any(each.parent.resolve().is_relative_to(top) for top in tops):
                return True
        except (OSError, RuntimeError, ValueError):
            return True
    return False


def _is_there(path: Path) -> bool:
    try:
        path.lstat()
    except FileNotFoundError:
        return False
    except (OSError, ValueError):  # A name too long, or in a folder that cannot be read.
        return True
    return True
