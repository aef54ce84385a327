"""Addresses of the project in the metadata of its packages, made of one setting in pyproject.toml; else absent."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class ProjectUrls(MetadataHookInterface):
    """Metadata hook of hatchling that fills `project.urls` from `tool.ramet.repository`."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the URLs, if the project has an address."""
        settings = tomllib.loads(Path(self.root, "pyproject.toml").read_text(encoding="utf-8"))["tool"]["ramet"]
        if repository := settings["repository"].rstrip("/"):
            metadata["urls"] = {name: repository + path for name, path in settings["pages"].items()}
