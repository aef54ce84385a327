"""What can be imported from folders of code, told without running any of it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


def top_level(folders: Iterable[Path]) -> tuple[str, ...]:
    """The names of modules and packages that lie at the top of these folders, sorted."""
    return tuple(sorted({name for folder in folders for entry in os.scandir(folder) if (name := _module(entry))}))


def _module(entry: os.DirEntry[str]) -> str:
    """Its name as code imports it; empty for what is no module, or says by its name that it is nobody else's."""
    is_package = entry.is_dir() and (Path(entry.path) / "__init__.py").is_file()
    name = entry.name if is_package else entry.name.removesuffix(".py") if entry.name.endswith(".py") else ""
    return name if name.isidentifier() and not name.startswith("_") else ""
