"""Look for control groups, while others make and remove some."""

from __future__ import annotations

import os
from pathlib import Path


def find_groups(pattern: str) -> list[Path]:
    """Return the control groups whose name matches a pattern; a group that is removed meanwhile is left out."""
    folders = (Path(folder) for folder, _, _ in os.walk("/sys/fs/cgroup"))  # Unlike `Path.rglob`, it passes over gaps.
    return [folder for folder in folders if folder.match(pattern)]
