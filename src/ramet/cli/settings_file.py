"""Find the settings file of a command: the requested one, or `ramet.yaml` of a trusted folder."""

from __future__ import annotations

import os
from pathlib import Path

from ramet.agent.files.trust import trust_of
from ramet.cli.paths import nearby, user_dir
from ramet.core.errors import InvalidValue
from ramet.services.config.load import DEFAULT_FILE


def usual_file(folder: Path) -> Path | None:
    """Return the path of the default name in a folder, whatever its type; None if nothing has that name."""
    usual = folder / DEFAULT_FILE
    return usual if os.path.lexists(usual) else None


def settings_file(asked: str | None, folder: Path) -> Path | None:
    """Return the requested file, otherwise that of the folder, if there is one.

    Raises InvalidValue for a file of an untrusted folder: it would choose the operators of a server.
    """
    if asked is not None:
        return Path(asked)
    usual = usual_file(folder)
    if usual is not None and (reason := why_not_trusted(folder)):
        shown = nearby(usual.absolute())
        raise InvalidValue("config", shown, f"{reason}; or a file given by its name: --config {shown}")
    return usual


def why_not_trusted(folder: Path) -> str:
    """Return what to do, and why, before a folder's settings are used; empty if they are trusted."""
    verdict = trust_of(folder, user_dir())
    if verdict.trusted:
        return ""
    reason = verdict.reason.removesuffix(" (ramet trust DIR)")
    return f"the settings file of a trusted folder: ramet trust {nearby(folder.absolute())} ({reason})"
