"""The command in the error for a missing extra works for the installation that raised it."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest

from ramet.disk.installation import install_command, missing_extra, packages_of_extra

ROOT = Path(__file__).parents[3]


class Installed:
    """The record of an installed ramet; `origin` is the content of its direct_url.json."""

    requires = ("rich>=13", 'mcp<3,>=2; extra == "mcp"', "x[y]>=1; extra == 'server'", "z; extra == 'server'")

    def __init__(self, origin: str | None) -> None:
        self.origin = origin

    def read_text(self, name: str) -> str | None:
        return self.origin if name == "direct_url.json" else None


@pytest.mark.parametrize(
    ("origin", "extra", "command"),
    [
        (None, "server", "pip install 'ramet[server]'"),
        ('{"url": "file:///x", "archive_info": {}}', "server", "pip install 'x[y]>=1' z"),
        ('{"url": "file:///x", "dir_info": {"editable": true}}', "mcp", "pip install 'mcp<3,>=2'"),
        ("{}", "moon", "pip install 'ramet[moon]'"),
    ],
    ids=["index", "wheel", "clone", "unknown"],
)
def test_the_command_names_ramet_only_if_an_index_has_it(
    monkeypatch: pytest.MonkeyPatch, origin: str | None, extra: str, command: str
) -> None:
    """A name that an index does not have, or has from a stranger, is not recommended."""
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: Installed(origin))

    assert install_command(extra) == command
    assert str(missing_extra("this", extra)) == f"this needs the extra {extra!r}; install it with: {command}"


def test_every_extra_that_the_code_asks_for_exists() -> None:
    """No error names an extra that pyproject.toml does not have."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    asked = {
        extra
        for path in (ROOT / "src").rglob("*.py")
        for extra in re.findall(r"\bmissing_extra\(\s*\"[^\"]+\",\s*\"(\w+)\"", path.read_text())
    }

    assert {"server", "postgres", "mcp", "kubernetes"} <= asked <= extras.keys()
    for extra in asked:
        assert packages_of_extra(extra, importlib.metadata.requires("ramet") or ())
