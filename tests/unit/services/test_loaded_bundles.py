"""Bundles that are loaded into one agent: memory, record and disk agree, even if loading is cancelled."""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import Sequence

import pytest

from ramet.core.errors import StoreFailed, Unknown
from ramet.isolation.workspace.run_dirs import RunFolders
from ramet.services.contract import PLAIN, Image, LoadableBundle
from ramet.services.teams.loaded_bundles import AgentImportDir


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
    """The record of loaded bundles: each write waits for `go_on`, and fails if `failing` is set."""

    def __init__(self, bundles: AgentImportDir) -> None:
        self._bundles = bundles
        self.loaded: list[str] = []
        self.has_begun, self.go_on = asyncio.Event(), asyncio.Event()
        self.failing = False

    async def keep(self) -> None:
        loaded_ids = [each.id for each in self._bundles.bundles]
        self.has_begun.set()
        await self.go_on.wait()
        if self.failing:
            raise StoreFailed("journal.db", "the disk is full")
        self.loaded = loaded_ids


def test_an_agent_without_loaded_bundles_requires_none(tmp_path: pathlib.Path) -> None:
    """Bundles that an agent requires are not deleted."""
    bundles = AgentImportDir("agent-0", "", lambda: RunFolders(tmp_path), Images(tmp_path), PLAIN, ())

    assert bundles.required_ids == ()


async def open_bundles(folder: pathlib.Path) -> tuple[AgentImportDir, Record]:
    """Return the loaded bundles of an agent, which hold the bundle "old", and their record."""
    bundles = AgentImportDir("agent-0", "", lambda: RunFolders(folder), Images(folder), PLAIN, ())
    await bundles.open()
    record = Record(bundles)
    bundles.save = record.keep
    record.go_on.set()
    await bundles.load("old", lambda _: None)
    record.has_begun.clear()
    record.go_on.clear()
    return bundles, record


@pytest.mark.parametrize("mode", ["called off", "failed"])
@pytest.mark.parametrize("action", ["load", "unload"])
async def test_a_cancelled_or_failed_change_leaves_the_recorded_bundles(
    tmp_path: pathlib.Path, action: str, mode: str
) -> None:
    """Otherwise a bundle could be deleted that a later server needs to resume the agent."""
    bundles, record = await open_bundles(tmp_path)
    changing = asyncio.create_task(bundles.load("new", lambda _: None) if action == "load" else bundles.unload("old"))
    await record.has_begun.wait()
    record.failing = mode == "failed"
    if mode == "called off":
        changing.cancel()
        await asyncio.sleep(0)
    record.go_on.set()
    with pytest.raises(asyncio.CancelledError if mode == "called off" else StoreFailed):
        await changing
    assert [each.id for each in bundles.bundles] == record.loaded == ["old"]
    assert bundles.required_ids == ("old",)
    assert [each.name for each in bundles.folder.iterdir()] == ["old.py"]
    await bundles.close()


async def test_a_bundle_deleted_by_another_kernel_is_not_loaded(tmp_path: pathlib.Path) -> None:
    """The other kernel did not see the bundle on record yet; the loaded bundles stay as they were."""
    images = Images(tmp_path)
    bundles = AgentImportDir("agent-0", "", lambda: RunFolders(tmp_path), images, PLAIN, ())
    await bundles.open()
    record = Record(bundles)
    bundles.save = record.keep
    record.go_on.set()
    await bundles.load("old", lambda _: None)
    images.removed_id = "new"
    with pytest.raises(Unknown):
        await bundles.load("new", lambda _: None)
    assert [each.id for each in bundles.bundles] == record.loaded == ["old"]
    assert [each.name for each in bundles.folder.iterdir()] == ["old.py"]
    await bundles.close()
