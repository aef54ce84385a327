"""Approved texts: `RAMET_GOLDEN=write pytest …` refreshes them; review the diff."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "golden"


def assert_golden(name: str, text: str) -> None:
    """Compare `text` with `tests/golden/<name>`."""
    path = FOLDER / name
    if os.environ.get("RAMET_GOLDEN") == "write":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    approved = path.read_text(encoding="utf-8")
    differing = difflib.unified_diff(approved.splitlines(), text.splitlines(), name, "now", lineterm="", n=0)
    assert text == approved, "\n".join(differing)
