"""Skills: `SKILL.md` folders whose full text an agent gets at its start."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ramet.agent.files import frontmatter
from ramet.agent.files.bounded_read import read_text
from ramet.agent.files.search_paths import SearchPath, plugin_search_paths, project_search_paths, user_search_paths
from ramet.core.errors import InvalidValue, Unknown
from ramet.core.ids import checked_name

FILE = "SKILL.md"
MAX_FILE = 256 * 1024
MAX_LISTED = 1_000
_KEYS = ("name", "description", "license", "compatibility", "metadata")
#: Keys of Claude's skills. `allowed-tools` in particular has no effect: a text does not widen its reader's permissions.
_UNSUPPORTED_KEYS = (
    "allowed-tools", "model", "effort", "context", "agent", "hooks", "paths", "shell", "version", "argument-hint",
    "user-invocable", "disable-model-invocation",
)  # fmt: skip


class Skill(NamedTuple):
    """A skill. Its name is its folder's name: definitions refer to that."""

    name: str
    description: str
    text: str
    path: Path  #: of SKILL.md; its other files are in the same folder
    notes: tuple[str, ...] = ()


def skill_search_paths(
    project_dir: Path | None, user_dir: Path, home: Path | None = None, plugin_dirs: Sequence[Path] = ()
) -> tuple[SearchPath, ...]:
    """Return the folders of skills: `skills/` in a project's `.ramet`, `.claude`, `.agents`, the user's, plugins'."""
    project = () if project_dir is None else project_search_paths(project_dir, "skills")
    return (*project, *user_search_paths(user_dir, home, "skills"), *plugin_search_paths(plugin_dirs, "skills"))


def skill_names(search_paths: Iterable[SearchPath]) -> tuple[str, ...]:
    """Return the names of the available skills, sorted."""
    return tuple(sorted({name for search_path in search_paths for name in _names(search_path.folder)}))


def load_skill(name: str, search_paths: Sequence[SearchPath]) -> Skill:
    """Return the skill of a name from the first place that has it.

    Raises InvalidValue for an invalid name (`../x`) or an invalid file, Unknown with the available names, and
    Unreadable for a file that cannot be read or leads out of its project: an agent does not start without its skill.
    """
    checked_name("skill", name)
    for search_path in search_paths:
        path = search_path.folder / name / FILE
        if os.path.lexists(path):
            return parse_skill(read_text(path, limit=MAX_FILE, fence=search_path.fence).text, path=path)
    raise Unknown("skill", name, skill_names(search_paths))


def parse_skill(text: str, *, path: Path) -> Skill:
    """Parse one SKILL.md. Raises InvalidValue with the file and the key."""
    front = frontmatter.parse(text, source=path)
    notes = [*front.notes]
    for key in front.keys:
        if key in _UNSUPPORTED_KEYS:
            notes.append(f"{key}: known, but not supported yet")
        elif key not in _KEYS:
            raise InvalidValue(f"{path}: key", key, "one of " + ", ".join(sorted((*_KEYS, *_UNSUPPORTED_KEYS))))
    name = path.parent.name
    description = front.keys.get("description")
    if not isinstance(description, str) or not description.strip():
        raise InvalidValue(f"{path}: description", description, "text: what the skill is for")
    if front.keys.get("name", name) != name:
        notes.append(f"name: differs from its folder; it is known as {name!r}")
    return Skill(name, description.strip(), front.body, path, tuple(notes))


def load_skills(names: Iterable[str], search_paths: Sequence[SearchPath]) -> tuple[Skill, ...]:
    """Return each named skill once, in order. Raises the errors of `load_skill`."""
    return tuple(load_skill(name, search_paths) for name in dict.fromkeys(names))


def render_skills(skills: Iterable[Skill]) -> str:
    """Return a section for the system prompt with the full text of each skill; empty if there are none."""
    parts = [
        f"## Skill: {skill.name}\n\n{skill.description}\n\nIts files: {skill.path.parent}\n\n{skill.text}".rstrip()
        for skill in skills
    ]
    return "\n\n".join(["# Skills", "Ways of working that were prepared for you.", *parts]) if parts else ""


def _names(folder: Path) -> Iterator[str]:
    try:
        with os.scandir(folder) as listing:
            for count, entry in enumerate(listing):
                if count >= MAX_LISTED:
                    return
                if os.path.lexists(folder / entry.name / FILE):
                    try:
                        yield checked_name("skill", entry.name)
                    except InvalidValue:
                        continue
    except OSError:
        return
