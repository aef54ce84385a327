"""The installation of programs of other makers, without any: what it refuses, and what a failed one leaves."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.agents import install
from tests.support import agent_programs


@pytest.fixture
def empty(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return the folder for programs: an empty one, and no registry to fill it from."""
    folder = tmp_path / "agents"
    monkeypatch.setattr(agent_programs, "INSTALLED", folder)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    return folder


def test_unknown_names_are_refused(empty: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A name that is not pinned is said, with those that are, and nothing is installed."""
    assert install.main(["codex", "emacs"]) == 2

    assert "no such program: emacs. Known: claude-code, codex, " in capsys.readouterr().err
    assert not empty.exists()


def test_a_failed_installation_leaves_nothing(empty: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Where a package cannot be had, there is no folder that looks like it, nor one of an earlier attempt."""
    (empty / ".node-killed" / "package").mkdir(parents=True)

    assert install.main(["codex"]) == 1

    assert os.listdir(empty) == []  # noqa: PTH208
    assert agent_programs.installed("codex") is None
    assert "not installed, attempt 2 of 2" in capfd.readouterr().out


def test_an_installed_version_is_not_looked_at_again(empty: Path) -> None:
    """An installed version stays: no registry is asked, and other versions stay until one is replaced."""
    for name in ("node", "codex"):
        agent_programs.pins()[name].folder.mkdir(parents=True)

    assert install.main(["codex"]) == 0
