"""Find programs that git would run in a folder because of the repository's own configuration. Trust covers them.

Hooks are not included: ramet's git never runs them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ramet.agent.files.bounded_read import Unreadable, read_bytes
from ramet.agent.files.git_commands import may_run_in_checkout, may_use_checkout_file
from ramet.tools.git import git_config
from ramet.tools.git.git_checkout import NoCheckout, find

MAX_CONFIG = 1024 * 1024
_MAX_FILES = 100  #: maximum files of one repository's configuration, including includes


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
