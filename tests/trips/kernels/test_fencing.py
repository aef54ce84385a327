"""A kernel that lost its lock to another kernel ends its active trees, begins nothing, and reports it."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ramet import Agent, AgentRuntime, AgentScheduler, Session
from ramet.core.errors import StoreFailed
from ramet.core.outcome import Status
from ramet.models.scripted.model import Call, Script, ScriptedModel
from ramet.store.postgres import PostgresStore
from tests.support.empty_stores import empty_store_address
from tests.support.postgres import Server, postgres
from tests.support.postgres_stores import end_session, session_of
from tests.support.store_addresses import store_at
from tests.support.waiting import eventually
from tests.trips.agents import scheduled
from tests.trips.kits.sessions import Gate

__all__ = ["postgres"]  # a fixture is used by its name


@pytest.fixture
async def stores(postgres: Server) -> AsyncIterator[tuple[PostgresStore, PostgresStore]]:
    """Yield the stores of two kernels at one address; the second is not open."""
    with empty_store_address("postgres", postgres.socket) as store_address:
        first, second = store_at(store_address), store_at(store_address)
        assert isinstance(first, PostgresStore)
        assert isinstance(second, PostgresStore)
        yield await first.open(), second


async def test_a_replaced_kernel_ends_its_trees_and_begins_nothing(
    postgres: Server, stores: tuple[PostgresStore, PostgresStore], caplog: pytest.LogCaptureFixture
) -> None:
    """The kernel cuts the active tool and ends the idle session; the other kernel alone completes the tree."""
    first_store, others = stores
    gate, second_gate = Gate(), Gate()
    script: Script = [[Call("gate")], "no"]
    runtime = await AgentRuntime(store=first_store, grace_s=1.0).start()
    handle = await runtime.spawn(Agent(name="lead", model=ScriptedModel(script)), "go", tools=[gate.tool])
    session = Session(ScriptedModel(["one", "not said"]), runtime=runtime)
    await session.ask("first")
    await gate.entered.wait()

    with end_session(first_store, postgres):
        async with AgentRuntime(store=others) as other:
            model = ScriptedModel(["it goes on"])
            second_gate.open.set()
            handles = await other.resume(llm=model, tools=[second_gate.tool])
            assert {each.id for each in handles} == {handle.id, session.id}
            assert (await other.result(handle.id)).value == "it goes on"
    result = await handle.result()
    await eventually(lambda: runtime.trees == {})

    assert (result.status, result.value) == (Status.FAILED, None)
    assert result.error is not None
    assert result.error.type == "StoreFailed"
    assert "another kernel" in result.error.message
    assert runtime.get_status() == {"state": "fenced", "sessions": {}}
    assert any(
        each.levelno == logging.CRITICAL and "open trees end (2)" in each.getMessage() for each in caplog.records
    )
    await runtime.start()  # It changes nothing: this one runs.
    with pytest.raises(StoreFailed, match="another kernel"):
        await runtime.spawn(Agent(name="late", model=ScriptedModel(["no"])), "go")
    with pytest.raises(StoreFailed, match="another kernel"):
        await runtime.resume(llm=ScriptedModel([]))
    with pytest.raises(StoreFailed):
        await runtime.stop()
    assert runtime.get_status()["state"] == "stopped"


async def test_a_kernel_that_gets_its_lock_back_continues(
    postgres: Server, stores: tuple[PostgresStore, PostgresStore]
) -> None:
    """The kernel begins nothing without its connection; afterwards the same run continues."""
    first_store, _ = stores
    gate = Gate()
    model = ScriptedModel([[Call("gate")], "done"])
    async with AgentRuntime(store=first_store) as runtime:
        handle = await runtime.spawn(Agent(name="lead", model=model), "go", tools=[gate.tool])
        await gate.entered.wait()
        with end_session(first_store, postgres):
            before = session_of(first_store)
            gate.open.set()
            await eventually(lambda: first_store._open is not None and first_store._open.batches._writing is not None)
            assert len(model.requests) == 1  # The second waits for the answer of the tool to be on record.
        result = await handle.result()

        assert (result.status, result.value) == (Status.COMPLETED, "done")
        assert session_of(first_store) != before
        assert runtime.get_status()["state"] == "running"


async def test_a_scheduler_of_a_replaced_kernel_fires_nothing(
    postgres: Server, stores: tuple[PostgresStore, PostgresStore]
) -> None:
    """`trigger` raises StoreFailed, and the function is not called."""
    first_store, others = stores
    scheduled.CALLS.clear()
    runtime = await AgentRuntime(store=first_store).start()
    scheduler = await AgentScheduler(runtime).start()
    view = await scheduler.schedule_agent_in(3600, scheduled.note, in_process=True)
    with end_session(first_store, postgres):
        await others.open()
    await eventually(lambda: runtime.get_status()["state"] == "fenced")

    with pytest.raises(StoreFailed, match="another kernel"):
        await scheduler.trigger(view.id)
    assert scheduled.CALLS == []
    await scheduler.close()
    with pytest.raises(StoreFailed):
        await runtime.stop()
    await others.close()


async def test_a_kernel_ends_its_trees_once_another_writes_to_its_file(tmp_path: Path) -> None:
    """A second kernel without a lock writes a newer epoch into the file of the first, which is then fenced."""
    runtime = await AgentRuntime(tmp_path, grace_s=1.0).start()
    session = Session(ScriptedModel(["one", "not said"]), runtime=runtime)
    await session.ask("first")
    with contextlib.closing(sqlite3.connect(tmp_path / ".ramet/journal.db")) as journal, journal:
        assert journal.execute("UPDATE marks SET value = value + 1 WHERE name = 'epoch'").rowcount == 1

    handle = await runtime.spawn(Agent(name="lead", model=ScriptedModel(["not said"])), "go")
    result = await handle.result()
    await eventually(lambda: runtime.trees == {})

    assert (result.status, result.value) == (Status.FAILED, None)
    assert runtime.get_status()["state"] == "fenced"
    with pytest.raises(StoreFailed, match="another kernel writes to it"):
        await runtime.spawn(Agent(name="lead", model=ScriptedModel(["not said"])), "go")
    with pytest.raises(StoreFailed):
        await runtime.stop()
