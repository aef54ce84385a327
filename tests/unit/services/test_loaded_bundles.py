"""Bundles that are loaded into one agent: memory, record and disk agree, even if loading is cancelled."""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import Sequence

import pytest

from ramet.core.errors import StoreFailed, Unknown
from ramet.isolation.workspace.run_dirs import RunFolders
from ramet.services.contract import PLAIN, Image, LoadableBundle
from ramet.services.teams.loaded_bundles import AgentShelf


class Images:
    """Packaging that has every requested bundle, with one module of its name."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        self.removed_id = ""

    async def image(self, id: str, team: str) -> Image:
        return PLAIN

    async def bundle(self, id: str, team: str) -> object:
        if id == self.removed_id:
            raise Unknown("bundle", id)
        return id

    async def loadable(self, id: str, beside: Sequence[str], team: str) -> LoadableBundle:
        folder = self._folder / id
        folder.mkdir(exist_ok=True)
        (folder / f"{id}.py").write_text("")
        return LoadableBundle(id, folder, (f"{id}.py",), (), ())


class Record:
    """The record of a shelf: each write waits for `go_on`, and fails if `failing` is set."""

    def __init__(self, shelf: AgentShelf) -> None:
        self._shelf = shelf
        self.loaded: list[str] = []
        self.has_begun, self.go_on = asyncio.Event(), asyncio.Event()
        self.failing = False

    async def keep(self) -> None:
        loaded_ids = [each.id for each in self._shelf.loaded]
        self.has_begun.set()
        await self.go_on.wait()
        if self.failing:
            raise StoreFailed("journal.db", "the disk is full")
        self.loaded = loaded_ids


async def a_shelf(folder: pathlib.Path) -> tuple[AgentShelf, Record]:
    """Return a shelf that holds the bundle "old"."""
    shelf = AgentShelf("agent-0", "", lambda: RunFolders(folder), Images(folder), PLAIN, ())
    await shelf.open()
    record = Record(shelf)
    shelf.save = record.keep
    record.go_on.set()
    await shelf.load("old", lambda _: None)
    record.has_begun.clear()
    record.go_on.clear()
    return shelf, record


@pytest.mark.parametrize("mode", ["called off", "failed"])
@pytest.mark.parametrize("what", ["load", "unload"])
async def test_a_cancelled_or_failed_change_leaves_the_recorded_bundles(
    tmp_path: pathlib.Path, what: str, mode: str
) -> None:
    """Otherwise a bundle could be deleted that a later server needs to resume the agent."""
    shelf, record = await a_shelf(tmp_path)
    changing = asyncio.create_task(shelf.load("new", lambda _: None) if what == "load" else shelf.unload("old"))
    await record.has_begun.wait()
    record.failing = mode == "failed"
    if mode == "called off":
        changing.cancel()
        await asyncio.sleep(0)
    record.go_on.set()
    with pytest.raises(asyncio.CancelledError if mode == "called off" else StoreFailed):
        await changing
    assert [each.id for each in shelf.loaded] == record.loaded == ["old"]
    assert shelf.required_ids == ("old",)
    assert [each.name for each in shelf.folder.iterdir()] == ["old.py"]
    await shelf.close()


async def test_a_bundle_deleted_by_another_kernel_is_not_loaded(tmp_path: pathlib.Path) -> None:
    """The other kernel did not see the bundle on record yet; the shelf stays as it was."""
    images = Images(tmp_path)
    shelf = AgentShelf("agent-0", "", lambda: RunFolders(tmp_path), images, PLAIN, ())
    await shelf.open()
    record = Record(shelf)
    shelf.save = record.keep
    record.go_on.set()
    await shelf.load("old", lambda _: None)
    images.removed_id = "new"
    with pytest.raises(Unknown):
        await shelf.load("new", lambda _: None)
    assert [each.id for each in shelf.loaded] == record.loaded == ["old"]
    assert [each.name for each in shelf.folder.iterdir()] == ["old.py"]
    await shelf.close()
