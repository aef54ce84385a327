"""The file of settings that a command obeys: one that was asked for, or `ramet.yaml` of a folder that is trusted."""

from __future__ import annotations

import os
from pathlib import Path

from ramet.agent.files.trust import trust_of
from ramet.cli.paths import nearby, user_dir
from ramet.core.errors import InvalidValue
from ramet.services.config.load import DEFAULT_FILE


def usual_file(folder: Path) -> Path | None:
    """Return the file of the usual name in a folder, whatever it is; None if nothing has that name."""
    usual = folder / DEFAULT_FILE
    return usual if os.path.lexists(usual) else None


def settings_file(asked: str | None, folder: Path) -> Path | None:
    """Return the file that was asked for, else that of the folder, if there is one.

    Raises InvalidValue for a file of a folder that is not trusted: it would choose who commands a server.
    """
    if asked is not None:
        return Path(asked)
    usual = usual_file(folder)
    if usual is not None and (reason := why_not_trusted(folder)):
        shown = nearby(usual.absolute())
        raise InvalidValue("config", shown, f"{reason}; or the file by its name: --config {shown}")
    return usual


def why_not_trusted(folder: Path) -> str:
    """Return what has to be done, and why, before settings of a folder are obeyed; empty if they are."""
    verdict = trust_of(folder, user_dir())
    if verdict.trusted:
        return ""
    reason = verdict.reason.removesuffix(" (ramet trust DIR)")
    return f"that of a trusted folder: ramet trust {nearby(folder.absolute())} ({reason})"
