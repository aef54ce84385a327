"""Tests of the search for kernels' folders below mounts: each one is found, or the mount is refused."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ramet.core.errors import InvalidValue
from ramet.isolation import state_search
from ramet.isolation.state_search import StateSearch


@pytest.fixture
def search_root(tmp_path: Path) -> Path:
    """Return a folder with kernels' folders at several depths, and links to them."""
    search_root = tmp_path.resolve()
    for name in ("near/.ramet/runs/one/.ramet", "a/b/c/d/.ramet", "near/.ramet/worktrees/one/.ramet", "empty"):
        (search_root / name).mkdir(parents=True)
    (search_root / "empty" / ".ramet").write_text("a file")
    (search_root / "link").symlink_to("a")
    (search_root / "empty" / "up").symlink_to("..")
    return search_root


def test_folders_of_kernels_are_found_except_below_private_ones(search_root: Path) -> None:
    """The search follows no link, and reports paths at the mount and at its source."""
    folders = StateSearch().find_folders(
        {"/mount": str(search_root), str(search_root / "a"): str(search_root / "a"), "/file": __file__}
    )

    state_names = ("a/b/c/d/.ramet", "near/.ramet", "near/.ramet/worktrees/one/.ramet")
    assert folders == tuple(sorted(f"{top}/{name}" for top in ("/mount", search_root) for name in state_names))


def test_a_folder_with_a_too_long_path_is_skipped(search_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No kernel works there, and a foreign folder does not make a mount unusable."""
    monkeypatch.chdir(search_root)
    for _ in range(20):
        Path("x" * 250).mkdir()
        monkeypatch.chdir("x" * 250)

    assert len(StateSearch().find_folders({str(search_root): str(search_root)})) == 3


@pytest.mark.parametrize("limit_name", ["MOST_FOLDERS", "MOST_ENTRIES", "MOST_FOUND", "MOST_S"])
def test_a_mount_above_a_search_limit_is_refused(
    search_root: Path, limit_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the mount and the limit."""
    monkeypatch.setattr(state_search, limit_name, 0 if limit_name == "MOST_S" else 2)

    with pytest.raises(InvalidValue, match=r"folders? of kernels.*more than [20] ") as refusal:
        StateSearch().find_folders({"/mount": str(search_root)})

    assert (refusal.value.field, refusal.value.value) == ("readonly_mounts", "/mount")


def test_a_slow_search_is_cached(search_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A result is reused for ten times its duration; a quick search is repeated."""
    search, sources = StateSearch(), {"/mount": str(search_root)}
    before = search.find_folders(sources)
    (search_root / "new" / ".ramet").mkdir(parents=True)
    assert len(search.find_folders(sources)) > len(before)

    monkeypatch.setattr(state_search, "_NO_TIME_S", 0.0)
    monkeypatch.setattr(state_search, "_REUSE", 1e9)
    before = search.find_folders(sources)
    (search_root / "newer" / ".ramet").mkdir(parents=True)
    assert search.find_folders(sources) == before


def test_a_mount_around_a_folder_that_can_only_be_entered_is_refused() -> None:
    """A folder without read permission cannot be searched, but its files can be opened by name; the error names it."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        search_root = Path(name).resolve()
        (search_root / "homes" / "own" / ".ramet").mkdir(parents=True)
        search_root.chmod(0o755)
        (search_root / "homes").chmod(0o311)
        with ordinary_user(), pytest.raises(InvalidValue, match=rf"{search_root}/homes can only be entered") as refusal:
            StateSearch().find_folders({"/mount": str(search_root)})
        (search_root / "homes").chmod(0o755)

    assert (refusal.value.field, refusal.value.value) == ("readonly_mounts", "/mount")


def test_a_folder_that_cannot_be_entered_is_skipped() -> None:
    """A sandbox cannot enter it either, so the mount is accepted."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        search_root = Path(name).resolve()
        (search_root / "other" / ".ramet").mkdir(parents=True)
        search_root.chmod(0o755)
        (search_root / "other").chmod(0o000)
        with ordinary_user():
            folders = StateSearch().find_folders({"/mount": str(search_root)})
        (search_root / "other").chmod(0o755)

    assert folders == ()


@contextlib.contextmanager
def ordinary_user() -> Iterator[None]:
    """Open files in this thread with the rights of an ordinary user."""
    if os.geteuid():
        yield
        return
    os.seteuid(60_719)
    try:
        yield
    finally:
        os.seteuid(0)
