"""Find programs that git would run in a folder because of the repository's own configuration. Trust covers them.

Hooks are not included: ramet's git never runs them.

A program with a relative path differs between checkouts: that of HEAD, of a branch, or of an agent that worked there.
The trust covers only the file that a person looked at. So git does not run such a command on the host.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from ramet.agent.files.bounded_read import Unreadable, read_bytes
from ramet.agent.files.scripts import names
from ramet.tools.git import git_config
from ramet.tools.git.git_checkout import NoCheckout, find

MAX_CONFIG = 1024 * 1024
_MAX_FILES = 100  #: maximum files of one repository's configuration, including includes
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


class GitFile(NamedTuple):
    """A file of git's configuration that names a program, or includes another file."""

    path: Path
    description: str  #: for display
    content: str  #: content that must not change
    values: tuple[str, ...]  #: possible commands
    checkout_commands: tuple[str, ...] = ()  #: commands that name a file whose version depends on the checkout


def git_programs(folder: Path) -> Iterator[GitFile]:
    """Yield every such file of `folder`'s repository; none outside of a repository. Raises Unreadable."""
    try:
        checkout = find(folder)
    except NoCheckout:
        return
    except OSError as error:
        raise Unreadable(folder, f"its git repository cannot be looked at: {error.strerror}") from None
    common = checkout.common_dir
    queue = [common / "config", common / "config.worktree", checkout.git_dir / "config.worktree"]
    queue += sorted((common / "worktrees").glob("*/config.worktree"))
    visited: dict[Path, None] = {}
    while queue:
        path = queue.pop(0)  # As git opens it: `link/..` is not the folder of the link.
        if path in visited:
            continue
        visited[path] = None
        if len(visited) > _MAX_FILES:
            raise Unreadable(common / "config", f"it includes more than {_MAX_FILES} files")
        if not os.path.lexists(path):
            if path.parent != common and path.name != "config.worktree":
                yield GitFile(path, "an included file that is not there", "", ())
            continue
        entries = _entries(path)
        queue += [_resolve_include(path, each.value) for each in entries if each.is_include and each.value]
        if running_entries := [each for each in entries if each.may_run]:
            description = "git: " + "; ".join(
                f"{each.key} {json.dumps(each.value, ensure_ascii=False)}" for each in running_entries
            )
            values = tuple(
                variant
                for each in running_entries
                if each.value and not each.is_include
                for variant in git_config.spellings(each.value)
            )
            tops = (checkout.top, checkout.main)
            checkout_commands = tuple(
                f"{each.key} {json.dumps(each.value, ensure_ascii=False)}"
                for each in running_entries
                if each.value and may_run_in_checkout(each.key) and may_use_checkout_file(each.value, tops)
            )
            yield GitFile(path, description, json.dumps(running_entries), values, checkout_commands)
    yield from _attributes(common / "info" / "attributes")


def runs_checkout_commands(folder: Path) -> bool:
    """Return whether git would run a program of a checkout there. Raises Unreadable."""
    return any(each.checkout_commands for each in git_programs(folder))


def _attributes(path: Path) -> Iterator[GitFile]:
    if os.path.lexists(path):
        text = read_bytes(path, limit=MAX_CONFIG).data.decode("utf-8", "surrogateescape")
        lines = [line for each in text.split("\n") if (line := each.strip(git_config.BLANKS)) and line[0] != "#"]
        if lines:
            yield GitFile(path, "git attributes: " + "; ".join(lines), json.dumps(text), ())


def _entries(path: Path) -> list[git_config.Entry]:
    try:
        return list(git_config.parse(read_bytes(path, limit=MAX_CONFIG).data))
    except git_config.NotUnderstood as error:
        raise Unreadable(path, f"this git configuration is not understood: {error}") from None


def _resolve_include(path: Path, name: str) -> Path:
    try:
        return git_config.include_path(path, name)
    except git_config.NotUnderstood as error:
        raise Unreadable(path, str(error)) from None


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
