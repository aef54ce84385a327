"""A kernel that resumes or takes over trees keeps the promises of their schedules."""

from __future__ import annotations

import asyncio
import builtins
import pathlib
from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ramet import AgentRuntime, AgentScheduler
from ramet.core.schedules import ticks
from ramet.core.schedules.ticks import TickResult
from ramet.host.control.schedules import KIND, ScheduleTable
from ramet.host.journal.journal import TREES
from ramet.host.retention.sweep import sweep
from ramet.spawn.handle import Handle
from ramet.store.contract import Document, Entry
from ramet.store.memory import MemoryStore
from ramet.store.postgres import PostgresStore
from tests.support.postgres import Server, postgres
from tests.support.postgres_stores import end_session, schema
from tests.support.store_addresses import run_program_until_killed, store_at
from tests.support.waiting import eventually
from tests.trips.agents import scheduled

__all__ = ["postgres", "schema"]  # fixtures are used by their names

SCRIPT = pathlib.Path(__file__).parents[1] / "programs" / "own_schedule.py"


@pytest.mark.parametrize("store_address", ["sqlite", "postgres"], indirect=True)
@pytest.mark.parametrize("mode", ["resume", "adopt"])
async def test_resuming_all_trees_does_not_call_a_scheduled_function_again(
    store_address: str, tmp_path: pathlib.Path, mode: str
) -> None:
    """A program may call `resume` first, and open its scheduler then."""
    effects = tmp_path / "effects"
    await run_program_until_killed(SCRIPT, store_address, "once", 0, effects)

    async with AgentRuntime(store=store_at(store_address)) as runtime:
        (handle,) = await (runtime.adopt() if mode == "adopt" else runtime.resume())
        result = await handle.result()
        async with AgentScheduler(runtime) as scheduler, asyncio.timeout(180):
            while not (results := await scheduler.results("job")) or results[0].ended is None:  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    assert effects.read_text() == "done\n"
    assert (result.status, results[0].status) == ("lost", "lost")


class CountingStore(MemoryStore):
    """A store that counts how often all trees are listed."""

    listed = 0

    async def list(self, kind: str, *, prefix: str = "") -> builtins.list[Document]:
        self.listed += kind == TREES
        return await super().list(kind, prefix=prefix)


async def store_left_at_the_gate(*, is_ended: bool = False) -> CountingStore:
    """Return the store of a process that was killed while a scheduled function waited, or after it had `is_ended`."""
    scheduled.CALLS.clear()
    scheduled.GATE = asyncio.Event()
    store, former = MemoryStore(), CountingStore()
    async with AgentRuntime(store=store) as runtime, AgentScheduler(runtime) as scheduler:
        await scheduler.schedule_agent_in(0, scheduled.waits, name="job", in_process=True)
        await eventually(lambda: scheduled.CALLS == ["began"])
        await former.open()
        documents = await store.list(KIND)
        if is_ended:
            scheduled.GATE.set()
            await wait_for_end(scheduler)
        for each in [*documents, *await store.list(TREES)]:
            await former.put(each.kind, each.key, each.data)
        for event in await store.read(limit=1000):
            former.append(Entry(event.tree, event.run, event.seq, event.type, event.data))
    await former.close()
    return former


async def wait_for_end(scheduler: AgentScheduler) -> TickResult:
    """Wait for the end of the one tick, and return its result."""
    async with asyncio.timeout(180):
        while not (results := await scheduler.results("job")) or results[0].ended is None:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    return results[0]


async def test_a_resumed_scheduled_run_is_looked_up_without_listing_trees() -> None:
    """The cost does not grow with the trees in the store, or with the runs that the killed kernel left."""
    store = await store_left_at_the_gate()
    async with AgentRuntime(store=store) as runtime:
        await runtime.open_store()
        await eventually(lambda: store.listed == 1)  # Which of them have outlived their time is looked at once.
        async with AgentScheduler(runtime) as scheduler:
            result = await wait_for_end(scheduler)

    assert (result.status, store.listed) == ("lost", 1)


async def test_a_returning_kernel_records_how_its_run_ended_elsewhere(postgres: Server, schema: str) -> None:
    """Another kernel resumed the run to its end. The tick's result is that end, and not the loss of ownership."""
    scheduled.CALLS.clear()
    scheduled.GATE = asyncio.Event()
    stores = [PostgresStore(postgres.dsn, schema=schema, kernel=name) for name in ("one", "two")]
    async with (
        AgentRuntime(store=stores[0]) as one,
        AgentRuntime(store=stores[1]) as two,
        AgentScheduler(one) as scheduler,
    ):
        await scheduler.schedule_agent_in(0, scheduled.waits, name="job", in_process=True)
        await eventually(lambda: scheduled.CALLS == ["began"])
        ((tick,), handles) = await scheduler.results("job"), list[Handle]()
        with end_session(stores[0], postgres):
            async with asyncio.timeout(180):
                while not handles:
                    handles = await two.resume(only=tick.run)
            assert (await handles[0].result()).status == "lost"
            async with asyncio.timeout(180):
                while await stores[1].owner_of(tick.run or "") is not None:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
        result = await wait_for_end(scheduler)

    assert (result.status, result.error is not None and "not to be called again" in result.error.message) == (
        "lost",
        True,
    )


async def test_sweep_keeps_a_run_whose_tick_is_not_settled(tmp_path: pathlib.Path) -> None:
    """The kernel that takes over the tick needs that run: it would otherwise call the function again."""
    store = await store_left_at_the_gate(is_ended=True)
    await store.open()
    swept_trees = await sweep(store, tmp_path, before=datetime.now(UTC) + timedelta(days=1))
    await store.close()
    async with AgentRuntime(store=store) as runtime, AgentScheduler(runtime) as scheduler:
        result = await wait_for_end(scheduler)
        removed_trees = await sweep(store, tmp_path, before=datetime.now(UTC) + timedelta(days=1))

    assert (scheduled.CALLS, swept_trees, result.status) == (["began", "ended"], [], "completed")
    assert [each.root for each in removed_trees] == [result.run]


class StoppingStore(MemoryStore):
    """A store whose user acts at the moment at which it claims trees."""

    def __init__(self, meanwhile: Callable[[], Coroutine[Any, Any, None]], store: MemoryStore) -> None:
        super().__init__()
        self._tables = store._tables
        self._meanwhile, self.doing = meanwhile, list[asyncio.Task[None]]()

    async def claim(self, trees: Sequence[str]) -> Sequence[str]:
        self.doing.append(asyncio.create_task(self._meanwhile()))
        await asyncio.sleep(0)
        return await super().claim(trees)


async def test_a_runtime_that_stops_during_a_claim_leaves_the_run_to_others() -> None:
    """The runtime can start nothing more, but the tick's status stays `running`."""
    store = StoppingStore(lambda: runtime.stop(), await store_left_at_the_gate())
    runtime, other_runtime = AgentRuntime(store=store), AgentRuntime()
    assert runtime.journal is not None
    runtime.journal.users.add(other_runtime._trees)  # As one does that works in the same folder.
    async with runtime, AgentScheduler(runtime) as scheduler:
        assert scheduler._serving is not None
        await asyncio.wait({scheduler._serving}, timeout=180)
        await asyncio.gather(*store.doing)
        (schedule,) = await ScheduleTable(store).all()
    await runtime.journal.release(other_runtime._trees)

    assert [each.status for each in ticks.report(schedule.record.state)] == ["running"]
