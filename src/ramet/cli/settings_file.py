"""Find the settings file of a command: the requested one, or `ramet.yaml` of a trusted folder."""

from __future__ import annotations

import os
from pathlib import Path

from ramet.agent.files.trust import trust_of
from ramet.cli.paths import display_path, user_dir
from ramet.core.errors import InvalidValue
from ramet.services.config.load import DEFAULT_FILE


def default_file(folder: Path) -> Path | None:
    """Return the path of the default name in a folder, whatever its type; None if nothing has that name."""
    default = folder / DEFAULT_FILE
    return default if os.path.lexists(default) else None


def settings_file(requested: str | None, folder: Path) -> Path | None:
    """Return the requested file, otherwise that of the folder, if there is one.

    Raises InvalidValue for a file of an untrusted folder: it would choose the operators of a server.
    """
    if requested is not None:
        return Path(requested)
    default = default_file(folder)
    if default is not None and (reason := trust_problem(folder)):
        default_name = display_path(default.absolute())
        raise InvalidValue("config", default_name, f"{reason}; or a file given by its name: --config {default_name}")
    return default


def trust_problem(folder: Path) -> str:
    """Return what to do, and why, before a folder's settings are used; empty if they are trusted."""
    verdict = trust_of(folder, user_dir())
    if verdict.is_trusted:
        return ""
    reason = verdict.reason.removesuffix(" (ramet trust DIR)")
    return f"the settings file of a trusted folder: ramet trust {display_path(folder.absolute())} ({reason})"
