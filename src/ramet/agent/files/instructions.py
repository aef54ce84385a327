"""Load a project's instructions: AGENTS.md from its root down to the working directory, the nearest last."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from ramet.agent.files.bounded_read import Unreadable, read_text
from ramet.agent.files.search_paths import Problem
from ramet.core.errors import InvalidValue

NAMES = ("AGENTS.md", "CLAUDE.md")  #: the first that exists in a folder is used
MAX_FILE = 64 * 1024
MAX_TOTAL = 128 * 1024
MIN_PART = 1024  #: a smaller part of a file is omitted
MAX_FOLDERS = 64

_HEAD = (
    "# Instructions of this project\n\nFrom the project's root down to the working directory. Where they disagree, the "
    "later one, which is nearer, holds."
)


class Instructions(NamedTuple):
    """The instructions of a project for its agents."""

    text: str  #: a section for the system prompt, or empty
    files: tuple[Path, ...] = ()  #: source files, the root's first
    problems: tuple[Problem, ...] = ()  #: omitted parts, with reasons


def project_root(cwd: Path, root: Path | None = None) -> Path:
    """Return the nearest folder from `cwd` up that has a `.git`; otherwise the given root, or `cwd` itself."""
    for folder in (cwd, *cwd.parents)[:MAX_FOLDERS]:
        if os.path.lexists(folder / ".git"):
            return folder
    return cwd if root is None else root


def load_instructions(cwd: Path, *, root: Path | None = None) -> Instructions:
    """Load the instructions. Files above the project's root, and links out of it, are not read; problems are reported.

    Bounded per file and in total; the nearest files are kept first. Raises InvalidValue if `cwd` is not below `root`.
    """
    cwd = cwd.resolve()
    top = project_root(cwd, None if root is None else root.resolve())
    if not cwd.is_relative_to(top):
        raise InvalidValue("cwd", str(cwd), f"a folder below {top}")
    folders = [folder for folder in (cwd, *cwd.parents) if folder.is_relative_to(top)][:MAX_FOLDERS]
    parts: list[str] = []
    files: list[Path] = []
    problems: list[Problem] = []
    remaining_bytes = MAX_TOTAL
    for folder in folders:  # Nearest first, so that the far ones are omitted.
        path = next((folder / name for name in NAMES if os.path.lexists(folder / name)), None)
        if path is None:
            continue
        if remaining_bytes < MIN_PART:
            problems.append(Problem(path, f"omitted: the nearer files fill {MAX_TOTAL} bytes"))
            continue
        limit = min(MAX_FILE, remaining_bytes)
        try:
            content = read_text(path, limit=limit, fence=top, cut=True)
        except Unreadable as error:
            problems.append(Problem(path, f"{error.reason}; omitted"))
            continue
        if content.cut:
            problems.append(Problem(path, f"only its first {limit} bytes are used"))
        if content.text.strip():
            remaining_bytes -= len(content.text.encode())
            files.append(path)
            name = path.relative_to(top).as_posix()
            parts.append(f"## {name}\n\n{content.text.strip()}" + ("\n\n[cut here: too long]" if content.cut else ""))
    text = "\n\n".join([_HEAD, *reversed(parts)]) if parts else ""
    return Instructions(text, tuple(reversed(files)), tuple(reversed(problems)))
