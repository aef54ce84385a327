"""The command in the error for a missing extra works for the installation that raised it."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

from ramet.disk.installation import install_command, missing_extra, packages_command, packages_of_extra

ROOT = Path(__file__).parents[3]
WHEEL = '{"url": "file:///a%20wheel", "archive_info": {}}'


class Installed:
    """The record of an installed ramet; `origin` is the content of its direct_url.json."""

    requires = ("rich>=13", 'mcp<3,>=2; extra == "mcp"', "x[y]>=1; extra == 'server'", "z; extra == 'server'")

    def __init__(self, origin: str | None) -> None:
        self.origin = origin

    def read_text(self, name: str) -> str | None:
        return self.origin if name == "direct_url.json" else None


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Environment of Python whose shell has not activated it, with pip."""
    prefix = tmp_path / "venvs" / "agents"
    (prefix / "lib" / "python3" / "site-packages" / "pip").mkdir(parents=True)
    (prefix / "bin").mkdir()
    (prefix / "bin" / "pip").touch(0o755)
    monkeypatch.setattr(sys, "prefix", str(prefix))
    monkeypatch.setattr(sys, "executable", str(prefix / "bin" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    return prefix


def command_of(origin: str | None, extra: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the command for an extra, as the error has it."""
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: Installed(origin))
    command = install_command(extra)
    assert str(missing_extra("this", extra)) == f"this needs the extra {extra!r}; install it with: {command}"
    return command


@pytest.mark.parametrize(
    ("origin", "extra", "packages"),
    [
        (None, "server", "'ramet[server]'"),
        (WHEEL, "server", "'x[y]>=1' z"),
        ('{"url": "file:///x", "dir_info": {"editable": true}}', "mcp", "'mcp<3,>=2'"),
        ("{}", "moon", "'ramet[moon]'"),
    ],
    ids=["index", "wheel", "clone", "unknown"],
)
def test_the_command_names_ramet_only_if_an_index_has_it(
    environment: Path, monkeypatch: pytest.MonkeyPatch, origin: str | None, extra: str, packages: str
) -> None:
    """A name that an index does not have, or has from a stranger, is not recommended."""
    assert command_of(origin, extra, monkeypatch) == f"{sys.executable} -m pip install {packages}"

    monkeypatch.setenv("PATH", str(environment / "bin"))
    assert command_of(origin, extra, monkeypatch) == f"pip install {packages}"


def test_the_command_fits_the_tool_that_made_the_environment(
    environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Environments of uv and pipx have no pip, nothing stays in one of `uvx`, and Debian's pip refuses."""
    python = sys.executable
    (environment / "pyvenv.cfg").write_text("home = /usr/bin\nuv = 0.13.9\n")
    assert command_of(WHEEL, "server", monkeypatch) == f"{python} -m pip install 'x[y]>=1' z"
    shutil.rmtree(environment / "lib")
    assert command_of(WHEEL, "server", monkeypatch) == f"uv pip install --python {python} 'x[y]>=1' z"
    (environment / "pipx_metadata.json").touch()
    assert command_of(None, "server", monkeypatch) == "pipx inject agents 'x[y]>=1' z"

    for_one = environment.rename(tmp_path / "987b78")
    monkeypatch.setattr(sys, "prefix", str(for_one))
    assert command_of(WHEEL, "server", monkeypatch) == "pipx run --spec '/a wheel[server]' ramet"
    assert packages_command(["p>=1"]) == "pipx run --with 'p>=1' --spec '/a wheel' ramet"
    (for_one / "pipx_metadata.json").unlink()
    (tmp_path / "archive-v0").mkdir()
    monkeypatch.setattr(sys, "prefix", str(for_one.rename(tmp_path / "archive-v0" / "-x")))
    assert command_of(WHEEL, "server", monkeypatch) == "uvx --from '/a wheel[server]' ramet"
    git = '{"url": "https://forge.example/ramet", "vcs_info": {"vcs": "git", "commit_id": "ab"}}'
    assert command_of(git, "mcp", monkeypatch) == "uvx --from 'ramet[mcp] @ git+https://forge.example/ramet@ab' ramet"

    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    (tmp_path / "EXTERNALLY-MANAGED").touch()
    assert packages_command(["p"]) == f"{python} -m pip install --break-system-packages p"


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
