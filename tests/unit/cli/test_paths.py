"""Where things are kept for a person."""

from __future__ import annotations

from pathlib import Path

import pytest

from ramet.cli.paths import display_path, user_dir, writable_dir


def test_the_folder_of_a_user(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """RAMET_HOME, or `.ramet` in the home folder."""
    monkeypatch.setenv("RAMET_HOME", "~/elsewhere")
    assert user_dir() == home / "elsewhere"
    monkeypatch.delenv("RAMET_HOME")
    assert user_dir() == home / ".ramet"


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    """Made if need be; None where that fails."""
    assert writable_dir(tmp_path / "a" / "b") == tmp_path / "a" / "b"
    assert list((tmp_path / "a" / "b").iterdir()) == []
    assert writable_dir(Path("/proc/none")) is None
    assert writable_dir(Path("/dev/null/x")) is None


def test_paths_are_shown_as_one_would_type_them(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative inside this folder, `~` inside home, whole elsewhere."""
    monkeypatch.chdir(tmp_path)

    assert [display_path(tmp_path / "a"), display_path(home / "b"), display_path(Path("/c"))] == ["a", "~/b", "/c"]
    monkeypatch.chdir("/")
    assert display_path(Path("/var/lib/ramet")) == "/var/lib/ramet"
