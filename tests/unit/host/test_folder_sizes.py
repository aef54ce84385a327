"""Sizes of a state folder by part, measured in a thread, and bounded whatever agents put there."""

from __future__ import annotations

import os
import pathlib
import threading
from collections.abc import Mapping
from typing import Any

import pytest

from ramet.host.retention.folder_sizes import FolderSizes
from tests.support.waiting import eventually


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """A state folder with files of 64 KiB: one in a run's workspace, one of the journal, two elsewhere."""
    state = tmp_path / ".ramet"
    work = state / "runs" / "run-1" / "workspace"
    work.mkdir(parents=True)
    for path in (work / "file", state / "journal.db-wal", state / "odd", state / "serve.sock"):
        path.write_bytes(os.urandom(65_536))
    return state


async def measure(sizes: FolderSizes) -> Mapping[str, int]:
    """Return the sizes after one measurement."""
    await eventually(sizes.newest_sizes)
    await sizes.stop()
    return sizes.newest_sizes()


async def test_each_part_is_measured(folder: pathlib.Path) -> None:
    """The parts have fixed names; everything else counts as other."""
    sizes = await measure(FolderSizes(folder))

    assert set(sizes) == {"runs", "journal", "other"}
    assert 65_536 <= sizes["runs"] < 131_072
    assert 65_536 <= sizes["journal"] < 131_072
    assert sizes["other"] >= 131_072


async def test_a_measurement_runs_in_a_thread_at_most_once_a_minute(
    folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop never scans the folder, however often the sizes are asked for."""
    threads: list[threading.Thread] = []
    scandir = os.scandir

    def noted(path: Any) -> Any:
        threads.append(threading.current_thread())
        return scandir(path)

    monkeypatch.setattr(os, "scandir", noted)
    sizes = FolderSizes(folder)
    assert sizes.newest_sizes() == {}
    await eventually(sizes.newest_sizes)
    count = len(threads)
    for _ in range(100):
        assert sizes.newest_sizes()
    await sizes.stop()

    assert len(threads) == count == 4
    assert threading.current_thread() not in threads


async def test_links_are_not_followed_and_missing_folders_are_no_error(folder: pathlib.Path) -> None:
    """A guest's link to a large folder counts as a link; a missing folder has no sizes."""
    before = await measure(FolderSizes(folder))
    (folder / "runs" / "run-1" / "workspace" / "link").symlink_to("/usr")
    after = await measure(FolderSizes(folder))
    missing = FolderSizes(folder / "missing")
    missing.newest_sizes()
    await missing.stop()

    assert after["runs"] - before["runs"] < 65_536
    assert missing.newest_sizes() == {}


async def test_the_number_of_counted_entries_is_bounded(folder: pathlib.Path) -> None:
    """Further entries are neither counted nor held in memory."""
    crowd = folder / "runs" / "run-1" / "workspace" / "crowd"
    crowd.mkdir()
    for number in range(200):
        (crowd / str(number)).write_bytes(b"x")

    sizes = await measure(FolderSizes(folder, most_entries=50))

    assert sizes.get("runs", 0) <= 65_536 + 60 * 4_096
