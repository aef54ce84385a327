"""The folders of a user's files: the only module that reads RAMET_HOME, XDG_CONFIG_HOME and XDG_STATE_HOME for them."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from ramet.core.errors import InvalidValue


def user_dir() -> Path:
    """Return the folder with the user's settings, agents, skills, memory, logins and trusted folders.

    The first of these: `RAMET_HOME`; `ramet` in `XDG_CONFIG_HOME`, if that folder exists; `~/.ramet`, if it exists or
    `XDG_CONFIG_HOME` is not set; the second one, which may not exist yet.
    """
    chosen = os.environ.get("RAMET_HOME")
    try:
        if chosen:
            return Path(chosen).expanduser().absolute()
        of_config = _xdg_folder("XDG_CONFIG_HOME")
        if of_config is not None and of_config.is_dir():
            return of_config
        in_home = Path.home() / ".ramet"
    except RuntimeError as error:  # no such user, no home
        raise InvalidValue("RAMET_HOME", chosen, "a folder; there is no home folder to fall back on") from error
    return in_home if of_config is None or in_home.is_dir() else of_config


def log_dir() -> Path:
    """Return the folder for the details of errors: `ramet/logs` in `XDG_STATE_HOME`, or `logs` of the user's folder."""
    of_state = None if os.environ.get("RAMET_HOME") else _xdg_folder("XDG_STATE_HOME")
    return (user_dir() if of_state is None else of_state) / "logs"


def _xdg_folder(variable: str) -> Path | None:
    """Return our folder in one of the XDG Base Directory Specification, which ignores paths that are not absolute."""
    chosen = Path(os.environ.get(variable, ""))
    return chosen / "ramet" if chosen.is_absolute() else None


def writable_dir(folder: Path) -> Path | None:
    """Return `folder`, created if necessary, if files can be written there; otherwise None."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError:
        return None


def temp_dir() -> Path:
    """Create a folder that only this user can read."""
    return Path(tempfile.mkdtemp(prefix="ramet-"))


def display_path(path: Path) -> str:
    """Return a path as a person would type it here: relative if it is inside, `~` for home, otherwise absolute."""
    here, home = Path.cwd(), os.environ.get("HOME")
    if path.is_relative_to(here) and here != Path(here.anchor):
        return str(path.relative_to(here))
    if home and home != "/" and path.is_relative_to(home):
        return "~/" + str(path.relative_to(home))
    return str(path)
