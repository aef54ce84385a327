"""A kernel killed while it spawns a tree: the spawn is recorded and can be resumed, or it never happened."""

from __future__ import annotations

import asyncio
import pathlib
import signal
import sys
from datetime import UTC, datetime, timedelta

import pytest

from ramet import AgentRuntime
from ramet.host.control.run_queries import JournalReader
from ramet.host.journal.journal import TREES
from ramet.host.retention.sweep import sweep
from ramet.store.contract import Entry
from tests.support import postgres
from tests.trips.kits.terminal import environment
from tests.trips.programs import killed_spawn

ROOT = pathlib.Path(__file__).parents[3]


@pytest.fixture(scope="session", autouse=True)
def server_of_the_stores(pytestconfig: pytest.Config) -> None:
    """Start PostgreSQL if this machine has it. A test reports its absence itself."""
    if not postgres.reason_absent():
        postgres.shared(pytestconfig)


@pytest.fixture(params=["sqlite", "postgres"])
def server(request: pytest.FixtureRequest) -> list[str]:
    """The address of the journal: a file in the folder, or a schema of a server."""
    return [] if request.param == "sqlite" else [postgres.running().dsn, postgres.fresh_schema()]


@pytest.mark.parametrize("moment", ["early", "between", "together", "born"])
async def test_a_spawn_is_resumed_or_never_happened(tmp_path: pathlib.Path, server: list[str], moment: str) -> None:
    """The kill comes around the write of the tree's document. No tree is invisible, and leftovers are collected."""
    words = (str(tmp_path), moment, *server)
    program = (sys.executable, "-m", "tests.trips.programs.killed_spawn", *words)
    process = await asyncio.create_subprocess_exec(*program, cwd=ROOT, env=environment(None))
    assert await process.wait() == -signal.SIGKILL

    store = killed_spawn.store_of(tmp_path, server)
    async with AgentRuntime(tmp_path, store=store) as runtime:
        await store.open()
        types = [each.type for each in await store.read()]
        tree_keys = [each.key for each in await store.list(TREES)]
        handles = await runtime.resume()
        results = [await handle.result() for handle in handles]

    is_born = types[:1] == ["run_spawned"]
    assert moment == "together" or is_born == (moment == "born")
    assert [each.value for each in results] == (["worked"] if is_born else [])
    effects = tmp_path / "effects"
    assert (effects.read_text() if effects.exists() else "") == ("x" if is_born else "")
    assert len(tree_keys) == (0 if moment == "early" else 1)

    await store.open()
    try:
        assert [
            row.is_over for root in await JournalReader(store).trees() for row in await JournalReader(store).rows(root)
        ] == []
        swept_trees = await sweep(store, tmp_path, before=datetime.now(UTC) + timedelta(hours=1))
        assert [each.state for each in swept_trees] == (["completed"] if is_born else [])
        assert (await store.list(TREES), await store.read()) == ([], [])
    finally:
        await store.close()


async def test_a_recorded_spawn_without_its_tree_is_collected(tmp_path: pathlib.Path) -> None:
    """An older kernel could leave such a spawn. No kernel can resume it, so it is removed once it is old."""
    (tmp_path / ".ramet").mkdir()
    store = killed_spawn.store_of(tmp_path, [])
    async with AgentRuntime(tmp_path, store=store) as runtime:
        handle = await runtime.spawn(killed_spawn.work, args=(str(tmp_path),))
        await handle.result()
    await store.open()
    try:
        events = await store.read()
        await store.forget(handle.id)
        await store.delete(TREES, handle.id)
        birth = events[0]
        await store.durable(store.append(Entry(birth.tree, birth.run, birth.seq, birth.type, birth.data)))
        now = datetime.now(UTC)

        assert await sweep(store, tmp_path, before=now - timedelta(hours=1)) == []
        (swept_trees,) = await sweep(store, tmp_path, before=now + timedelta(hours=1))

        assert (swept_trees.root, swept_trees.state, await store.read()) == (handle.id, "interrupted", [])
    finally:
        await store.close()
