"""Folders of kernels are found below mounts, wherever they lie, or the mount is refused."""

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
def place(tmp_path: Path) -> Path:
    """A folder with kernels' folders at several depths, and links to them."""
    place = tmp_path.resolve()
    for name in ("near/.ramet/runs/one/.ramet", "a/b/c/d/.ramet", "near/.ramet/worktrees/one/.ramet", "empty"):
        (place / name).mkdir(parents=True)
    (place / "empty" / ".ramet").write_text("a file")
    (place / "link").symlink_to("a")
    (place / "empty" / "up").symlink_to("..")
    return place


def test_all_folders_of_kernels_are_found_but_those_in_private_ones(place: Path) -> None:
    """Through no link; at the path of the mount and where it lies."""
    found = StateSearch().below({"/mount": str(place), str(place / "a"): str(place / "a"), "/file": __file__})

    below = ("a/b/c/d/.ramet", "near/.ramet", "near/.ramet/worktrees/one/.ramet")
    assert found == tuple(sorted(f"{top}/{name}" for top in ("/mount", place) for name in below))


def test_a_folder_with_too_long_a_path_is_passed_over(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No kernel works there, and a stranger's folder does not make a mount unusable."""
    monkeypatch.chdir(place)
    for _ in range(20):
        Path("x" * 250).mkdir()
        monkeypatch.chdir("x" * 250)

    assert len(StateSearch().below({str(place): str(place)})) == 3


@pytest.mark.parametrize("bound", ["MOST_FOLDERS", "MOST_ENTRIES", "MOST_FOUND", "MOST_S"])
def test_a_mount_that_cannot_be_searched_in_time_is_refused(
    place: Path, bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the mount and the bound."""
    monkeypatch.setattr(state_search, bound, 0 if bound == "MOST_S" else 2)

    with pytest.raises(InvalidValue, match=r"folders? of kernels.*more than [20] ") as refusal:
        StateSearch().below({"/mount": str(place)})

    assert (refusal.value.field, refusal.value.value) == ("readonly_mounts", "/mount")


def test_a_search_that_took_long_is_used_again(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For ten times as long; one that took no time is made anew."""
    search, sources = StateSearch(), {"/mount": str(place)}
    before = search.below(sources)
    (place / "new" / ".ramet").mkdir(parents=True)
    assert len(search.below(sources)) > len(before)

    monkeypatch.setattr(state_search, "_NO_TIME_S", 0.0)
    monkeypatch.setattr(state_search, "_REUSE", 1e9)
    before = search.below(sources)
    (place / "newer" / ".ramet").mkdir(parents=True)
    assert search.below(sources) == before


def test_a_mount_around_a_folder_that_can_only_be_entered_is_refused() -> None:
    """Whoever knows the names in it opens them, and nobody can search it: the error names the folder."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        place = Path(name).resolve()
        (place / "homes" / "own" / ".ramet").mkdir(parents=True)
        place.chmod(0o755)
        (place / "homes").chmod(0o311)
        with ordinary_user(), pytest.raises(InvalidValue, match=rf"{place}/homes can only be entered") as refusal:
            StateSearch().below({"/mount": str(place)})
        (place / "homes").chmod(0o755)

    assert (refusal.value.field, refusal.value.value) == ("readonly_mounts", "/mount")


def test_a_folder_that_cannot_be_entered_hides_what_is_in_it() -> None:
    """A sandbox sees nothing of it either, and the mount is not refused."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        place = Path(name).resolve()
        (place / "other" / ".ramet").mkdir(parents=True)
        place.chmod(0o755)
        (place / "other").chmod(0o000)
        with ordinary_user():
            found = StateSearch().below({"/mount": str(place)})
        (place / "other").chmod(0o755)

    assert found == ()


@contextlib.contextmanager
def ordinary_user() -> Iterator[None]:
    """This thread's files are opened as an ordinary user would."""
    if os.geteuid():
        yield
        return
    os.seteuid(60_719)
    try:
        yield
    finally:
        os.seteuid(0)
