"""What a run keeps on disk is found, wherever in its folder it is, and also without a name."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from ramet.isolation.disk import ENTRY_BYTES, used_bytes
from tests.support.hostile import bury, field

MIB = 1024 * 1024
MOST = 1000 * MIB


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "folder"
    path.mkdir()
    return path


def test_what_is_written_is_counted_and_holes_are_not(folder: Path) -> None:
    """Once for a file of several names."""
    assert used_bytes(folder, most=MOST) == 0
    (folder / "a").mkdir()
    (folder / "a" / "file").write_bytes(os.urandom(2 * MIB))
    (folder / "a" / "other name").hardlink_to(folder / "a" / "file")
    with (folder / "hole").open("wb") as file:
        file.truncate(500 * MIB)

    assert 2 * MIB <= used_bytes(folder, most=MOST) < 2.1 * MIB


def test_empty_files_are_not_for_nothing(folder: Path) -> None:
    """Or nobody would notice millions."""
    for number in range(100):
        (folder / str(number)).touch()

    assert used_bytes(folder, most=MOST) == 100 * ENTRY_BYTES


def test_a_file_buried_deep_is_found() -> None:
    """However deep."""
    with field() as path:
        bury(path, depth=1000)
        before = used_bytes(path, most=MOST)
        fd = os.open(path, os.O_RDONLY)
        for _ in range(1000):
            below = os.open("d", os.O_RDONLY, dir_fd=fd)
            os.close(fd)
            fd = below
        with open(os.open("big", os.O_WRONLY | os.O_CREAT, dir_fd=fd), "wb") as file:  # noqa: PTH123 - a descriptor
            file.write(bytes(MIB))
        os.close(fd)

        assert used_bytes(path, most=MOST) - before >= MIB


def test_a_removed_file_that_is_still_open_is_found(folder: Path) -> None:
    """Once, though several processes hold it; one that has a name is counted where that is."""
    with (folder / "gone").open("wb") as file, (folder.parent / "elsewhere").open("wb") as other:
        for each in (file, other):
            each.write(bytes(3 * MIB))
            each.flush()
        (folder / "gone").unlink()

        assert used_bytes(folder, most=MOST) == 0
        assert 3 * MIB <= used_bytes(folder, pids=[os.getpid(), os.getpid(), 2**22 + 1], most=MOST) < 3.1 * MIB


def test_counting_ends_when_it_is_enough_or_no_longer_wanted(folder: Path) -> None:
    """So its work is bounded by the limit, not by what a hostile run made."""
    for number in range(1000):
        (folder / str(number)).touch()
    looks = iter(range(10**6))

    assert used_bytes(folder, most=10 * ENTRY_BYTES) == 11 * ENTRY_BYTES
    assert used_bytes(folder, most=MOST, stop=lambda: next(looks) >= 20) == 21 * ENTRY_BYTES


def test_a_folder_that_is_not_there_is_an_error(folder: Path) -> None:
    """Not nothing."""
    with pytest.raises(FileNotFoundError):
        used_bytes(folder / str(time.time()), most=MOST)
