"""Load what a folder defines, for this user."""

from __future__ import annotations

import os
from pathlib import Path

from ramet.agent.files.definitions import Definitions, load_definitions
from ramet.agent.files.permissions import FoundPermissions, find_permissions
from ramet.agent.files.skills import FoundSkills, find_skills, skill_search_paths
from ramet.agent.files.trust import is_trusted
from ramet.cli.paths import user_dir
from ramet.host.trees.project import Project


def load(folder: Path) -> Definitions:
    """Return the folder's agent types; hooks of its own files only if the folder is trusted."""
    own_dir = user_dir()
    return load_definitions(folder, user_dir=own_dir, home=home_folder(), trusted=is_trusted(folder, own_dir))


def is_project_trusted(folder: Path) -> bool:
    """Return whether the user trusts the folder in its present state."""
    return is_trusted(folder, user_dir())


def permissions(folder: Path) -> FoundPermissions:
    """Return the folder's permission rules. Raises Unreadable or InvalidValue for invalid settings."""
    return find_permissions(folder, user_dir=user_dir(), home=home_folder())


def skills(folder: Path) -> FoundSkills:
    """Return the skills that agents of the folder may use."""
    return find_skills(skill_search_paths(folder, user_dir(), home_folder()))


def open_project(folder: Path) -> Project:
    """Return the folder's agent types and hooks. Raises Unreadable or InvalidValue for invalid settings."""
    return Project.open(folder, user_dir=user_dir(), home=home_folder())


def home_folder() -> Path | None:
    """Return the user's home directory, if the environment names one."""
    home = os.environ.get("HOME")
    return Path(home) if home else None
