"""The folders that are searched for agents' files, in the order of precedence."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple

from ramet.agent.definition import Scope
from ramet.agent.files.bounded_read import FileStamp, Unreadable, real_path

#: Folders of a project that hold tools' files; the first wins. `.agents` belongs to no tool and is read by several.
PROJECT_FOLDERS = (".ramet", ".claude", ".agents")
#: The form of agent files: Claude Code's, which is also ramet's, or another program's.
Dialect = Literal["claude", "codex", "opencode", "deepagents"]
#: Further folders of a project with agent files, in the dialects of other programs.
DIALECT_FOLDERS: tuple[tuple[str, Dialect], ...] = (
    (".codex/agents", "codex"),
    (".opencode/agents", "opencode"),
    (".opencode/agent", "opencode"),
    (".deepagents/agents", "deepagents"),
)
#: The same of a user, below the home directory.
_HOME_FOLDERS: tuple[tuple[str, Dialect], ...] = (
    (".agents/agents", "claude"),
    (".codex/agents", "codex"),
    (".config/opencode/agents", "opencode"),
    (".config/opencode/agent", "opencode"),
)
MAX_ENTRIES = 1_000  #: maximum entries examined below one folder
MAX_DEPTH = 4


class SearchPath(NamedTuple):
    """A folder to search. Nothing outside of `fence` is read; None: the user's own links may lead anywhere."""

    folder: Path
    scope: Scope
    fence: Path | None = None
    dialect: Dialect = "claude"

    def is_agent_file(self, path: Path) -> bool:
        """Return whether a file of this name defines an agent in this dialect."""
        if self.dialect == "deepagents":
            return path.name == "AGENTS.md" and path.parent.parent == self.folder
        return path.suffix == (".toml" if self.dialect == "codex" else ".md")


class Candidate(NamedTuple):
    """A file that may contain a definition, with its current stamp."""

    path: Path
    stamp: FileStamp


class Problem(NamedTuple):
    """A problem and its place, in one sentence; `path` is None for definitions from code."""

    path: Path | None
    sentence: str

    def __str__(self) -> str:
        return self.sentence if self.path is None else f"{self.path}: {self.sentence}"


def project_search_paths(project_dir: Path, kind: str) -> tuple[SearchPath, ...]:
    """Return a project's folders of `kind` ("agents", "skills")."""
    return tuple(SearchPath(project_dir / each / kind, "project", project_dir) for each in PROJECT_FOLDERS)


def agent_search_paths(project_dir: Path) -> tuple[SearchPath, ...]:
    """Return a project's folders of agent files, in every dialect."""
    others = (SearchPath(project_dir / name, "project", project_dir, dialect) for name, dialect in DIALECT_FOLDERS)
    return (*project_search_paths(project_dir, "agents"), *others)


def user_agent_search_paths(user_dir: Path, home: Path | None) -> tuple[SearchPath, ...]:
    """Return the user's folders of agent files, in every dialect."""
    own = user_search_paths(user_dir, home, "agents")
    if home is None:
        return own
    return (*own, *(SearchPath(home / name, "user", None, dialect) for name, dialect in _HOME_FOLDERS))


def user_search_paths(user_dir: Path, home: Path | None, kind: str) -> tuple[SearchPath, ...]:
    """Return the user's folders of `kind`: ramet's own, then that of Claude users."""
    own = SearchPath(user_dir / kind, "user")
    return (own,) if home is None else (own, SearchPath(home / ".claude" / kind, "user"))


def plugin_search_paths(plugin_dirs: Sequence[Path], kind: str) -> tuple[SearchPath, ...]:
    """Return the plugins' folders of `kind`."""
    return tuple(SearchPath(each / kind, "plugin", each) for each in plugin_dirs)


def agent_files(search_path: SearchPath) -> Iterator[Candidate | Unreadable]:
    """Yield every agent file below a place, by name, and every obstacle; one stat per entry, without reading.

    Linked folders are not entered, so link loops are not followed. Bounded in depth and number. A missing folder is
    empty; one that cannot be listed is an obstacle with the folder's own path.
    """
    if not os.path.lexists(search_path.folder):
        return
    try:
        real_path(search_path.folder, fence=search_path.fence)
    except Unreadable as obstacle:
        yield obstacle
        return
    folders, count = [(search_path.folder, 1)], 0
    while folders:
        folder, depth = folders.pop(0)
        try:
            with os.scandir(folder) as listing:
                entries = sorted(islice(listing, MAX_ENTRIES + 1 - count), key=lambda entry: entry.name)
        except FileNotFoundError:
            continue
        except OSError as error:
            yield Unreadable(folder, f"it cannot be listed: {error.strerror}")
            continue
        for entry in entries:
            count += 1
            if count > MAX_ENTRIES:
                yield Unreadable(search_path.folder, f"it holds more than {MAX_ENTRIES} entries; the rest is not read")
                return
            path = folder / entry.name
            if entry.name.startswith("."):
                continue
            try:
                if entry.is_dir(follow_symlinks=False):
                    if depth < MAX_DEPTH:
                        folders.append((path, depth + 1))
                    else:
                        yield Unreadable(path, f"folders are read {MAX_DEPTH} deep, this one is deeper")
                elif entry.is_symlink() and entry.is_dir():
                    yield Unreadable(path, "linked folders are not entered")
                elif search_path.is_agent_file(path):
                    yield _check_file(path, entry, search_path.fence)
            except OSError as error:
                yield Unreadable(path, f"it cannot be reached: {error.strerror}")


def _check_file(path: Path, entry: os.DirEntry[str], fence: Path | None) -> Candidate | Unreadable:
    if entry.is_symlink():
        try:
            real_path(path, fence=fence)
        except Unreadable as obstacle:
            return obstacle
    status = entry.stat()
    return (
        Candidate(path, FileStamp.of(status))
        if stat.S_ISREG(status.st_mode)
        else Unreadable(path, "it is not a regular file")
    )
