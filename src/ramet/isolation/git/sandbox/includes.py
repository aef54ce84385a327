"""Files that a configuration includes under a condition (`includeIf`): their programs count even if it does not hold.

A condition may hold later: ramet's branch and worktree do not exist yet when the configuration is listed.
"""

from __future__ import annotations

# Importing pathlib would take as long as the whole work of the launcher.
# ruff: noqa: PTH111, PTH118, PTH120
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from ramet.isolation.git.sandbox.options import names_a_program
from ramet.isolation.git.sandbox.request import Setting

COMMAND = ("config", "--list", "--show-scope", "--show-origin", "-z")
MAX_FILES = 100  #: the maximum number of files that one repository includes under conditions
_INCLUDE_IF = re.compile(r"includeif\..*\.path\Z", re.DOTALL)
_FILE = "file:"
_GIT_PREFIX = "%(prefix)/"  #: a placeholder for git's installation folder, from which `..` leads anywhere


class IncludeEntry(NamedTuple):
    """A setting, and the file that contains it."""

    scope: str
    origin: str
    setting: Setting


def parse_includes(output: str) -> list[IncludeEntry]:
    fields = output.split("\0")[:-1]
    includes = []
    for scope, origin, text in zip(fields[::3], fields[1::3], fields[2::3], strict=True):
        key, newline, value = text.partition("\n")
        includes.append(IncludeEntry(scope, origin, Setting(key, value if newline else None)))
    return includes


def included_settings(list_with: Callable[[list[Setting]], str]) -> list[Setting]:
    """Return a repository's settings, and those that name programs in files that it includes under a condition.

    `list_with` returns the output of `COMMAND` with additional settings. Raises ValueError for more than MAX_FILES
    files, and for a path that is no regular file.
    """
    entries = parse_includes(list_with([]))
    settings = [entry.setting for entry in entries if entry.scope != "command"]
    files: dict[str, None] = {}
    while new := [path for path in _conditional(entries) if path not in files]:
        files.update(dict.fromkeys(new))
        if len(files) > MAX_FILES:
            raise ValueError(
                f"its configuration includes {len(files)} files under a condition; accepted are {MAX_FILES}"
            )
        entries = parse_includes(list_with([Setting("include.path", path) for path in files if _is_there(path)]))
    if files:
        in_files = (entry.setting for entry in entries if entry.origin.startswith(_FILE))
        settings += [setting for setting in in_files if names_a_program(setting.key)]
    return settings


def _conditional(entries: Iterable[IncludeEntry]) -> Iterator[str]:
    """Yield the files that are included under a condition, as paths that git also accepts on its command line."""
    for entry in entries:
        key, value = entry.setting
        if value and _INCLUDE_IF.match(key):
            folder = os.path.dirname(entry.origin.removeprefix(_FILE))
            yield value if value.startswith(_GIT_PREFIX) else os.path.join(folder, os.path.expanduser(value))


def _is_there(path: str) -> bool:
    """Return whether git can read a file here, now and later.

    Raises ValueError if it is no regular file, such as a pipe.
    """
    if path.startswith(_GIT_PREFIX):
        return True  # Git ignores a missing file.
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return False
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ValueError(f"its configuration includes {path}, which is not a regular file")
    finally:
        os.close(fd)
    return True
