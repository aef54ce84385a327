"""The agent types of a folder, as this user and this folder define them."""

from __future__ import annotations

import os
from pathlib import Path

from ramet.agent.files.definitions import Definitions, load_definitions
from ramet.agent.files.trust import is_trusted
from ramet.cli.places import user_dir


def load(project: Path) -> Definitions:
    """Read them all; hooks of the folder's own files only if the folder is trusted."""
    mine, home = user_dir(), os.environ.get("HOME")
    return load_definitions(
        project, user_dir=mine, home=Path(home) if home else None, trusted=is_trusted(project, mine)
    )
