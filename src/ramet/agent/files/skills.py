"""Skills: folders with a `SKILL.md`, as the Agent Skills standard describes them.

An agent reads names and descriptions at its start. The text and further files are read by the Skill tool on demand.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ramet.agent.files import frontmatter
from ramet.agent.files.bounded_read import Unreadable, real_path
from ramet.agent.files.search_paths import (
    Problem,
    SearchPath,
    plugin_search_paths,
    project_search_paths,
    user_search_paths,
)
from ramet.core.errors import Denied, InvalidValue, RametError, Unknown
from ramet.tools.skills.skill_folder import BODY, MAX_BODY, SkillFolder, decode, digest_of, read_file
from ramet.tools.skills.skill_tool import NAME as TOOL

EVERY = "*"  #: the entry that stands for every skill that is found
MAX_LISTED = 1_000
MAX_OFFERED = 100
MAX_NAME = 64
MAX_DESCRIPTION = 1024
MAX_COMPATIBILITY = 500
MAX_SHOWN = 16_000  #: characters of all descriptions in a prompt
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*\Z")
_KEYS = ("name", "description", "license", "compatibility", "metadata")
#: Keys of the standard and of Claude's skills that have no effect. `allowed-tools` in particular: a text does not widen
#: its reader's permissions.
_UNSUPPORTED_KEYS = (
    "allowed-tools", "model", "effort", "context", "agent", "hooks", "paths", "shell", "version", "argument-hint",
    "user-invocable", "disable-model-invocation",
)  # fmt: skip
_NAMES = f"1 to {MAX_NAME} lower-case letters, digits and single hyphens, as in pdf-forms"

_HEAD = (
    "# Skills\n\nInstructions for some kinds of work that were prepared for you. Before you do such work, load the "
    f"skill with the {TOOL} tool and follow it."
)


class Skill(NamedTuple):
    """A skill. Its name is its folder's name: definitions refer to that."""

    name: str
    description: str
    text: str
    path: Path  #: of SKILL.md; its other files are in the same folder
    folder: SkillFolder  #: its folder, without links
    notes: tuple[str, ...] = ()


class FoundSkills(NamedTuple):
    """The usable skills of some places, by name, and remarks for their authors."""

    skills: tuple[Skill, ...]
    problems: tuple[Problem, ...] = ()  #: folders that are no usable skills
    notes: tuple[Problem, ...] = ()  #: keys without effect, and skills that another one of that name hides


def skill_search_paths(
    project_dir: Path | None, user_dir: Path | None, home: Path | None = None, plugin_dirs: Sequence[Path] = ()
) -> tuple[SearchPath, ...]:
    """Return the folders of skills, in the order in which the first skill of a name wins.

    These are `skills/` in a project's `.ramet`, `.claude` and `.agents`, in the user's folder, in `.claude` and
    `.agents` of `home`, and in plugins.
    """
    project = () if project_dir is None else project_search_paths(project_dir, "skills")
    user = () if user_dir is None else user_search_paths(user_dir, home, "skills")
    neutral = () if home is None or user_dir is None else (SearchPath(home / ".agents" / "skills", "user"),)
    return (*project, *user, *neutral, *plugin_search_paths(plugin_dirs, "skills"))


def skill_names(search_paths: Iterable[SearchPath]) -> tuple[str, ...]:
    """Return the names of the available skills, sorted."""
    return tuple(sorted({path.name for search_path in search_paths for path in _folders(search_path)}))


def load_skill(name: str, search_paths: Sequence[SearchPath]) -> Skill:
    """Return the skill of a name from the first place that has it.

    Raises InvalidValue for an invalid name (`../x`) or an invalid file, Unknown with the available names, and
    Unreadable for a file that cannot be read or leads out of its project: an agent does not start without its skill.
    """
    if not _is_name(name):
        raise InvalidValue("skill", name, _NAMES)
    for search_path in search_paths:
        if os.path.lexists(search_path.folder / name / BODY):
            return _load(search_path.folder / name, search_path.fence)
    raise Unknown("skill", name, skill_names(search_paths))


def load_skills(names: Iterable[str], search_paths: Sequence[SearchPath]) -> tuple[Skill, ...]:
    """Return each named skill once, in order; `*` stands for every usable one. Raises the errors of `load_skill`."""
    skills: dict[str, Skill] = {}
    for name in dict.fromkeys(names):
        found = find_skills(search_paths).skills[:MAX_OFFERED] if name == EVERY else (load_skill(name, search_paths),)
        skills |= {each.name: skills.get(each.name, each) for each in found}
    return tuple(skills.values())


def load_usable_skills(names: Iterable[str], search_paths: Sequence[SearchPath]) -> tuple[Skill, ...]:
    """Return the named skills as `load_skills` does, without those that cannot be used now."""
    skills: dict[str, Skill] = {}
    for name in dict.fromkeys(names):
        try:
            skills |= {each.name: skills.get(each.name, each) for each in load_skills([name], search_paths)}
        except RametError:
            continue
    return tuple(skills.values())


def find_skills(search_paths: Sequence[SearchPath]) -> FoundSkills:
    """Return every usable skill, sorted by name. Never raises for the content of a folder."""
    winners: dict[str, Path] = {}
    skills: list[Skill] = []
    problems: list[Problem] = []
    notes: list[Problem] = []
    seen: set[str] = set()
    for search_path in search_paths:
        if (place := os.path.realpath(search_path.folder)) in seen:
            continue  # A home directory as project has its folders twice.
        seen.add(place)
        for folder in _folders(search_path):
            try:
                skill = _load(folder, search_path.fence)
            except (InvalidValue, Unreadable) as error:
                problems.append(Problem(folder / BODY, f"{str(error).removeprefix(f'{folder / BODY}: ')}; skipped"))
                continue
            if winner := winners.get(skill.name):
                notes.append(Problem(skill.path, f"{winner} has the same name, and is used"))
                continue
            winners[skill.name] = skill.path
            skills.append(skill)
            notes += (Problem(skill.path, each) for each in skill.notes)
    return FoundSkills(tuple(sorted(skills)), tuple(problems), tuple(notes))


def parse_skill(text: str, *, path: Path, folder: SkillFolder) -> Skill:
    """Parse one SKILL.md, and check the limits of the standard. Raises InvalidValue with the file and the key."""
    front = frontmatter.parse(text, source=path)
    keys, name = front.keys, path.parent.name
    notes = [*front.notes]
    for key in keys:
        if key in _UNSUPPORTED_KEYS:
            notes.append(f"{key}: known, but has no effect")
        elif key not in _KEYS:
            raise InvalidValue(f"{path}: key", key, "one of " + ", ".join(sorted((*_KEYS, *_UNSUPPORTED_KEYS))))
    if not _is_name(name):
        raise InvalidValue(f"{path}: folder", name, _NAMES)
    if keys.get("name") is None:
        notes.append(f"name: missing; the standard requires it; it is known as {name!r}, like its folder")
    elif keys["name"] != name:
        raise InvalidValue(f"{path}: name", keys["name"], f"{name}, the name of its folder")
    description = _text(path, keys, "description", MAX_DESCRIPTION)
    if not description:
        raise InvalidValue(f"{path}: description", keys.get("description"), "text: what the skill is for, and when")
    _text(path, keys, "compatibility", MAX_COMPATIBILITY)
    metadata = keys.get("metadata")
    if metadata is not None and not isinstance(metadata, dict):
        raise InvalidValue(f"{path}: metadata", metadata, "a mapping")
    return Skill(name, description, front.body, path, folder, tuple(notes))


def render_listing(skills: Sequence[Skill]) -> str:
    """Return a section for the system prompt with names and descriptions; empty if there are no skills."""
    lines, remaining = [], MAX_SHOWN
    for skill in skills:
        description = " ".join(skill.description.split())
        remaining -= len(description)
        lines.append(f"- {skill.name}: {description}" if remaining >= 0 else f"- {skill.name}")
    return "\n".join([_HEAD, "", *lines]) if lines else ""


def _load(folder: Path, fence: Path | None) -> Skill:
    """Return the skill of a folder. Raises InvalidValue or Unreadable."""
    path = folder / BODY
    real = real_path(folder, fence=fence)
    try:
        data = read_file(str(real), BODY, limit=MAX_BODY)
        text = decode(data, BODY)
    except FileNotFoundError:
        raise Unreadable(path, "there is no such file") from None
    except Denied as error:
        raise Unreadable(path, error.reason) from None
    except InvalidValue as error:
        raise Unreadable(path, f"it is not {error.accepted}") from None
    return parse_skill(text, path=path, folder=SkillFolder(folder.name, str(real), digest_of(data)))


def _text(path: Path, keys: dict[str, Any], key: str, limit: int) -> str:
    value = keys.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InvalidValue(f"{path}: {key}", value, "text (in quotes, if YAML would read it as another type)")
    text = value.strip()
    if len(text) > limit:
        raise InvalidValue(f"{path}: {key}", f"{len(text)} characters", f"at most {limit}")
    return text


def _is_name(name: object) -> bool:
    return isinstance(name, str) and len(name) <= MAX_NAME and bool(_NAME.match(name))


def _folders(search_path: SearchPath) -> Iterator[Path]:
    """Yield the folders of a place that have a SKILL.md, by name."""
    try:
        real_path(search_path.folder, fence=search_path.fence)
        with os.scandir(search_path.folder) as listing:
            names = sorted(entry.name for _, entry in zip(range(MAX_LISTED), listing, strict=False))
    except (Unreadable, OSError):
        return
    for name in names:
        if os.path.lexists(search_path.folder / name / BODY):
            yield search_path.folder / name
