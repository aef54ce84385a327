"""The folders of a user's files: the only module that reads RAMET_HOME."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from ramet.core.errors import InvalidValue


def user_dir() -> Path:
    """Return `RAMET_HOME`, or `~/.ramet`. The folder may not exist yet."""
    chosen = os.environ.get("RAMET_HOME")
    try:
        return Path(chosen).expanduser().absolute() if chosen else Path.home() / ".ramet"
    except RuntimeError as error:  # no such user, no home
        raise InvalidValue("RAMET_HOME", chosen, "a folder; there is no home folder to fall back on") from error


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
