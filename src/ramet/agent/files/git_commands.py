"""Decide whether a command in a git configuration may use programs from a checkout.

A program with a relative path differs between checkouts: that of HEAD, of a branch, or of an agent that worked there.
The trust covers only the file that a person looked at. So git does not run such a command on the host.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable
from pathlib import Path

from ramet.agent.files.scripts import names

#: Keys whose commands git may run while it creates, inspects or removes a working tree.
_RUN_KEYS = re.compile(
    r"filter\..*\.(?:smudge|clean|process)|core\.(?:sshcommand|askpass|gitproxy|alternaterefscommand|fsmonitor)"
    r"|remote\..*\.(?:uploadpack|vcs)|credential\.(?:.*\.)?helper",
    re.DOTALL,
)
_QUOTED_TEXTS = re.compile(r"'[^']*'")  #: quoted texts, in which a shell substitutes nothing
_SEPARATORS = re.compile(r"[\s;&|()<>{}=]+")
#: Programs that run a file, or another program, given by an ordinary word.
_STARTERS = re.compile(
    r"(?:(?:ba|da|z|k|mk|c|tc|fi|pw)?sh|busybox|python|pypy|perl|ruby|node|nodejs|deno|bun|php|lua|luajit|tclsh|wish|expect"
    r"|guile|julia|Rscript|awk|gawk|mawk|m4|[gb]?make|just|rake|npm|npx|pnpm|yarn|uv|uvx|cargo|go|env|exec|eval|source|\."
    r"|command|cd|xargs|nice|nohup|setsid|stdbuf|timeout|sudo)[\d.]*"
)
_FILE_OF_SED = re.compile(r"-\w*f|--f")
_SUBSTITUTION = re.compile(r"[sy]/[^/\n]*/[^/\n]*/[gpiI0-9]*")  #: of sed; none of these flags runs or writes anything


def may_run_in_checkout(key: str) -> bool:
    """Return whether git may run the value of this key (lower case) in ramet's uses of git."""
    return _RUN_KEYS.fullmatch(key) is not None


def may_use_checkout_file(command: str, working_trees: Iterable[Path]) -> bool:
    """Return whether a command may name a file of a working tree; True also if only a shell could tell."""
    if re.search(r"[$`]", _QUOTED_TEXTS.sub("", command)):
        return True
    try:
        words = shlex.split(command)
    except ValueError:
        return True
    if any(Path(each).name == "sed" for each in words) and any(map(_FILE_OF_SED.match, words)):
        return True
    is_sed, previous, folders = words[:1] == ["sed"], "", list(working_trees)
    for word in words:
        is_file = previous.startswith("-") and previous not in ("-e", "-n", "-E", "-r", "--expression")
        if not (is_sed and _SUBSTITUTION.fullmatch(word) and not is_file):
            if any(_may_name_checkout_file(each, folders) for each in _SEPARATORS.split(word) if each):
                return True
        previous = word
    return False


def _may_name_checkout_file(word: str, tops: list[Path]) -> bool:
    parts = [each for each in word.split("/") if each not in ("", ".")]
    if _STARTERS.fullmatch(parts[-1] if parts else word):
        return True
    if word.startswith(("/", "~")):
        is_of_system = parts[:1] in (["proc"], ["dev"]) and parts != ["dev", "null"]
        return ".." in parts or is_of_system or _leads_through_a_link(word, tops)
    return "/" in word or any(_may_exist(top / name) for top in tops for name in names(word))


def _leads_through_a_link(word: str, tops: list[Path]) -> bool:
    """Return whether an absolute path leads through a link of a working tree, for example to `/proc/self/cwd`."""
    path = Path(os.path.expanduser(word))  # noqa: PTH111 - Path raises for an unknown user
    for each in (path, *path.parents):
        try:
            if each.is_symlink() and any(each.parent.resolve().is_relative_to(top) for top in tops):
                return True
        except (OSError, RuntimeError, ValueError):
            return True
    return False


def _may_exist(path: Path) -> bool:
    try:
        path.lstat()
    except FileNotFoundError:
        return False
    except (OSError, ValueError):  # The name is too long, or the folder cannot be read.
        return True
    return True
