"""Read the hooks of a folder's settings, such as `.claude/settings.json`; nothing is run here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ramet.agent.files.bounded_read import Unreadable, read_text
from ramet.agent.files.trust import HOOK_SETTINGS, MAX_SETTINGS
from ramet.core.errors import InvalidValue


def project_settings(project: Path) -> tuple[Path, ...]:
    """Return the existing settings files of a project that may name hooks, in the order in which their hooks run."""
    return tuple(path for name in HOOK_SETTINGS if (path := project / name).exists())


def hooks_in(path: Path, *, fence: Path | None) -> Mapping[str, Any]:
    """Return the `hooks` of one settings file; empty if there is no file or it names none.

    Raises Unreadable or InvalidValue if it cannot be understood: an invalid gate must not become an open gate.
    """
    if not path.exists():
        return {}
    try:
        settings = json.loads(read_text(path, limit=MAX_SETTINGS, fence=fence).text)
    except (ValueError, RecursionError):
        raise Unreadable(path, "it is not JSON") from None
    hooks = settings.get("hooks", {}) if isinstance(settings, dict) else None
    if not isinstance(hooks, dict):
        raise InvalidValue(f"{path}: hooks", hooks, "a mapping of hook events, as in Claude Code's settings")
    return hooks
