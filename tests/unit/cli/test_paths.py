"""Folders for files of a user."""

from __future__ import annotations

from pathlib import Path

import pytest

from ramet.cli.paths import display_path, user_dir, writable_dir


def test_the_users_folder_is_ramet_home_or_dot_ramet(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """RAMET_HOME goes before `.ramet` in the home folder."""
    monkeypatch.setenv("RAMET_HOME", "~/elsewhere")
    assert user_dir() == home / "elsewhere"
    monkeypatch.delenv("RAMET_HOME")
    assert user_dir() == home / ".ramet"


def test_a_writable_folder_is_created_or_is_none(tmp_path: Path) -> None:
    """None means that it cannot be made."""
    assert writable_dir(tmp_path / "a" / "b") == tmp_path / "a" / "b"
    assert list((tmp_path / "a" / "b").iterdir()) == []
    assert writable_dir(Path("/proc/none")) is None
    assert writable_dir(Path("/dev/null/x")) is None


def test_paths_are_shown_in_their_shortest_form(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths are relative inside this folder, begin with `~` inside home, and are absolute elsewhere."""
    monkeypatch.chdir(tmp_path)

    assert [display_path(tmp_path / "a"), display_path(home / "b"), display_path(Path("/c"))] == ["a", "~/b", "/c"]
    monkeypatch.chdir("/")
    assert display_path(Path("/var/lib/ramet")) == "/var/lib/ramet"
