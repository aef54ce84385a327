"""Folders for files of a user."""

from __future__ import annotations

from pathlib import Path

import pytest

from ramet.cli.paths import display_path, log_dir, user_dir, writable_dir


def test_the_users_folder_is_the_first_of_four(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that exists wins over one that would have to be made, so that no file of a user is lost."""
    monkeypatch.setenv("RAMET_HOME", "~/elsewhere")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert (user_dir(), log_dir()) == (home / "elsewhere", home / "elsewhere" / "logs")
    monkeypatch.delenv("RAMET_HOME")
    assert (user_dir(), log_dir()) == (tmp_path / "config" / "ramet", tmp_path / "state" / "ramet" / "logs")
    (home / ".ramet").mkdir()
    assert user_dir() == home / ".ramet"
    (tmp_path / "config" / "ramet").mkdir(parents=True)
    assert user_dir() == tmp_path / "config" / "ramet"


@pytest.mark.parametrize("ignored", [None, "", "relative/config"])
def test_without_an_absolute_xdg_folder_it_is_in_the_home_folder(
    ignored: str | None, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The specification has relative paths ignored."""
    monkeypatch.delenv("RAMET_HOME")
    for variable in ("XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        if ignored is None:
            monkeypatch.delenv(variable, raising=False)
        else:
            monkeypatch.setenv(variable, ignored)

    assert (user_dir(), log_dir()) == (home / ".ramet", home / ".ramet" / "logs")


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
