"""Two kernels on one database: one resumes the trees that the other has lost, and no work is done by both."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import pathlib
import time
from collections.abc import AsyncIterator

import psutil
import psycopg
import pytest

from ramet import Agent, AgentRuntime, AgentScheduler, Session
from ramet.core.errors import OwnedElsewhere, StoreFailed, Unknown
from ramet.core.outcome import Status
from ramet.core.policy.policy import Policy
from ramet.core.schedules.schedule import Interval
from ramet.core.schedules.ticks import Claim, Due, ScheduleRecord, TickState
from ramet.host.control.operator import OperatorControl
from ramet.host.control.schedules import ScheduleTable
from ramet.host.journal.journal import TREES
from ramet.host.journal.result_cache import KeptResults
from ramet.host.journal.ttl import set_keep
from ramet.host.schedules.request import schedule_of
from ramet.host.schedules.target import target_of
from ramet.models.scripted.model import Call, ScriptedModel
from ramet.spawn.handle import Handle
from ramet.spawn.result_cache import CachedResult
from ramet.store.postgres import PostgresStore
from tests.support.postgres import Server, fresh_schema, postgres
from tests.support.postgres_stores import end_session
from tests.support.waiting import eventually
from tests.trips.agents import scheduled
from tests.trips.kits.sessions import Gate

__all__ = ["postgres"]  # a fixture is used by its name


@pytest.fixture
def stores(postgres: Server) -> dict[str, PostgresStore]:
    """Return closed stores by kernel name, in one schema."""
    schema = fresh_schema()
    return {name: PostgresStore(postgres.dsn, schema=schema, kernel=name) for name in ("one", "two", "three")}


async def test_a_lost_tree_ends_at_one_kernel_and_continues_at_the_other(
    postgres: Server, stores: dict[str, PostgresStore], caplog: pytest.LogCaptureFixture
) -> None:
    """The first kernel cuts the active tool, ends the idle session, and owns what it begins afterwards."""
    gate, second_gate = Gate(), Gate()
    second_gate.open.set()
    adopted_handles: list[Handle] = []
    async with (
        AgentRuntime(store=stores["one"], grace_s=1.0) as one,
        AgentRuntime(store=stores["two"]) as two,
    ):
        handle = await one.spawn(
            Agent(name="lead", model=ScriptedModel([[Call("gate")], "no"])), "go", tools=[gate.tool]
        )
        session = Session(ScriptedModel(["one", "not said"]), runtime=one)
        await session.ask("first")
        await gate.entered.wait()
        assert (
            await two.adopt(adopted_handles.append, llm=ScriptedModel(["it goes on"]), tools=[second_gate.tool]) == []
        )

        with end_session(stores["one"], postgres):
            await eventually(lambda: len(adopted_handles) == 2)
            result = await two.result(handle.id)
            assert (result.status, result.value) == (Status.COMPLETED, "it goes on")
        lost_result = await handle.result()
        await eventually(lambda: one.trees == {})

        assert {each.id for each in adopted_handles} == {handle.id, session.id}
        assert (lost_result.status, lost_result.value) == (Status.FAILED, None)
        assert lost_result.error is not None
        assert lost_result.error.type in (
            "OwnedElsewhere",
            "StoreFailed",
        )  # as it was told of it, or of what it waited for
        assert "does not belong to this kernel" in lost_result.error.message
        assert one.get_status()["state"] == "running"
        assert len([each for each in caplog.records if "a tree ends here" in each.getMessage()]) == 2
        new = await one.spawn(Agent(name="new", model=ScriptedModel(["begun and done"])), "go")
        assert (await new.result()).value == "begun and done"
        assert (await one.result(handle.id)).value == "it goes on"  # as it is on record
        seqs = [each.seq for each in await stores["two"].read(tree=handle.id)]
        assert seqs == list(range(1, len(seqs) + 1))


async def test_an_unreadable_tree_does_not_prevent_failover_of_others(
    postgres: Server, stores: dict[str, PostgresStore], caplog: pytest.LogCaptureFixture
) -> None:
    """The log names the tree, and its document stays as it is: at a failover, and at the next adopt."""
    adopted_handles: list[Handle] = []
    async with AgentRuntime(store=stores["one"], grace_s=1.0) as one, AgentRuntime(store=stores["two"]) as two:
        sessions = [Session(ScriptedModel(["said"]), runtime=one) for _ in range(3)]
        for each in sessions:
            await each.ask("go")
        await two.adopt(adopted_handles.append, llm=ScriptedModel([]))
        spoilt = sessions[1].id
        await stores["two"].put(TREES, spoilt, b"{")

        with end_session(stores["one"], postgres):
            await eventually(lambda: len(adopted_handles) == 2)
        await two.adopt(llm=ScriptedModel([]))

        assert {each.id for each in adopted_handles} == {each.id for each in sessions} - {spoilt}
        document = await stores["two"].get(TREES, spoilt)
        assert document is not None
        assert document.data == b"{"
        log_records = [each for each in caplog.records if each.name == "ramet.recovery" and spoilt in each.getMessage()]
        assert len(log_records) == 2
        await eventually(lambda: one.trees == {})


async def test_sandboxes_of_a_lost_tree_end_with_one_log_line(
    postgres: Server, stores: dict[str, PostgresStore], tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The former kernel lives on, leaves no sandbox of the tree, and records no end of its run."""
    output: list[str] = []
    async with (
        AgentRuntime(tmp_path / "one", store=stores["one"], backend="local", grace_s=1.0) as one,
        AgentRuntime(tmp_path / "two", store=stores["two"], backend="local") as two,
    ):
        handle = await one.start_agent(agent=print_and_sleep, policy=Policy(), on_stdout=output.append)
        await eventually(lambda: output)
        before = sandboxes()
        with end_session(stores["one"], postgres):
            assert await (await two.open_store()).claim([handle.id]) == [handle.id]
        await eventually(lambda: one.trees == {})

        assert len(set(before) & set(sandboxes())) < len(before)
        lines = [each.getMessage() for each in caplog.records if handle.id in each.getMessage()]
        assert len([each for each in lines if "a tree ends here" in each]) == 1, lines
        assert one.get_status()["state"] == "running"
        events = [each.type for each in await stores["two"].read(tree=handle.id)]
        assert "run_ended" not in events


def sandboxes() -> list[psutil.Process]:
    """Return the live processes below this one with a pid namespace of their own; some wait for their first run."""
    entries = []
    for each in psutil.Process().children(recursive=True):
        with contextlib.suppress(OSError, psutil.NoSuchProcess):
            status = pathlib.Path(f"/proc/{each.pid}/status").read_text()
            pid_line = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[2:]
            if pid_line and each.status() != psutil.STATUS_ZOMBIE:
                entries.append(each)
    return entries


def print_and_sleep() -> None:
    """Print a line, then sleep for an hour."""
    print("here", flush=True)  # noqa: T201
    time.sleep(3600)


async def test_trees_of_an_ended_kernel_continue_at_another(stores: dict[str, PostgresStore]) -> None:
    """A session of a kernel whose store closed continues at another; the restarted kernel gets no tree back."""
    async with AgentRuntime(store=stores["two"]) as two:
        adopted_handles: list[Handle] = []
        await two.adopt(adopted_handles.append, llm=ScriptedModel(["second"]))
        one = await AgentRuntime(store=stores["one"]).start()
        session = Session(ScriptedModel(["first"]), runtime=one)
        await session.ask("first")
        await stores["one"].close()  # As if it were killed: nothing of the session is ended before.
        await eventually(lambda: adopted_handles)
        with contextlib.suppress(StoreFailed):
            await one.stop()

        assert [each.id for each in adopted_handles] == [session.id]
        async with AgentRuntime(store=stores["one"]) as restarted_runtime:
            assert await restarted_runtime.resume(llm=ScriptedModel([])) == []


async def test_the_garbage_collector_waits_until_all_claimed_trees_are_resumed(
    postgres: Server, stores: dict[str, PostgresStore]
) -> None:
    """A collection after each tree would look at all trees before it."""
    were_enabled: list[bool] = []
    async with AgentRuntime(store=stores["one"], grace_s=1.0) as one, AgentRuntime(store=stores["two"]) as two:
        for each in [Session(ScriptedModel(["said"]), runtime=one) for _ in range(3)]:
            await each.ask("go")
        await two.adopt(lambda _: were_enabled.append(gc.isenabled()), llm=ScriptedModel([]))

        with end_session(stores["one"], postgres):
            await eventually(lambda: len(were_enabled) == 3)
        await eventually(lambda: one.trees == {})

    assert were_enabled == [False, False, False]
    assert gc.isenabled()


async def test_any_kernel_returns_the_result_of_an_ended_run(
    stores: dict[str, PostgresStore],
) -> None:
    """Each kernel has the result, and the cached results of equal calls, before and after the first kernel ended."""
    async with AgentRuntime(store=stores["two"]) as two:
        one = await AgentRuntime(store=stores["one"]).start()
        handle = await one.spawn(Agent(name="lead", model=ScriptedModel(["found"])), "go")
        assert (await handle.result()).value == "found"
        assert one.journal is not None
        cached = CachedResult("found", handle.id, one.clock.now())
        await KeptResults(one.journal, one.clock).put("equal", cached, 3600)
        assert (await two.result(handle.id)).value == "found"
        await stores["one"].close()
        with contextlib.suppress(StoreFailed):
            await one.stop()

        assert (await two.result(handle.id)).value == "found"
        assert two.journal is not None
        assert await KeptResults(two.journal, two.clock).get("equal", 3600) == cached
        assert await two.resume(llm=ScriptedModel([])) == []
    async with AgentRuntime(store=stores["three"]) as three:
        assert (await three.result(handle.id)).value == "found"


async def test_a_tree_with_a_missing_tool_waits_for_a_resume_with_that_tool(
    stores: dict[str, PostgresStore], caplog: pytest.LogCaptureFixture
) -> None:
    """The log names the tree and the tool that is missing; the other tree continues."""
    gate = Gate()
    one = await AgentRuntime(store=stores["one"], grace_s=1.0).start()
    lead = await one.spawn(Agent(name="lead", model=ScriptedModel([[Call("gate")]])), "go", tools=[gate.tool])
    session = Session(ScriptedModel(["first"]), runtime=one)
    await session.ask("first")
    await gate.entered.wait()
    await stores["one"].close()
    with contextlib.suppress(StoreFailed):
        await one.stop()
    async with AgentRuntime(store=stores["two"]) as two:
        model = ScriptedModel(["done"])
        with caplog.at_level(logging.ERROR, "ramet.recovery"):
            assert [each.id for each in await two.adopt(llm=model)] == [session.id]
        (message,) = [each.getMessage() for each in caplog.records if each.name == "ramet.recovery"]
        assert lead.id in message
        assert "'gate'" in message
        gate.open.set()
        handles = await two.resume(llm=model, tools=[gate.tool])

        assert [each.id for each in handles] == [lead.id]
        assert (await two.result(lead.id)).value == "done"


async def test_a_failing_callback_does_not_prevent_failover_of_other_trees(
    stores: dict[str, PostgresStore], caplog: pytest.LogCaptureFixture
) -> None:
    """The callback fails at the first tree; both trees are active, and one line names the failure."""
    one = await AgentRuntime(store=stores["one"]).start()
    sessions = [Session(ScriptedModel(["first"]), runtime=one) for _ in range(2)]
    for each in sessions:
        await each.ask("first")
    adopted_handles: list[str] = []

    def on_adoption(handle: Handle) -> None:
        adopted_handles.append(handle.id)
        if len(adopted_handles) == 1:
            raise ValueError("no place for it")

    async with AgentRuntime(store=stores["two"]) as two:
        await two.adopt(on_adoption, llm=ScriptedModel(["second"]))
        with caplog.at_level(logging.ERROR, "ramet.recovery"):
            await stores["one"].close()
            await eventually(lambda: len(adopted_handles) == 2)
        with contextlib.suppress(StoreFailed):
            await one.stop()

        assert set(adopted_handles) == {each.id for each in sessions} == set(two.trees)
        (line,) = [each for each in caplog.records if each.name == "ramet.recovery" and each.levelno == logging.ERROR]
        assert adopted_handles[0] in line.getMessage()
        assert "no place for it" in line.getMessage()
        assert line.exc_info is None


async def test_control_of_another_kernels_run_raises_its_address(
    stores: dict[str, PostgresStore],
) -> None:
    """OwnedElsewhere has the kernel and its address; a run of no kernel raises Unknown."""
    async with (
        AgentRuntime(store=stores["one"]) as one,
        AgentRuntime(store=stores["two"]) as two,
    ):
        session = Session(ScriptedModel(["first"]), runtime=one)
        await session.ask("first")
        await stores["one"].announce("http://one:8080")
        store = await two.open_store()
        control = OperatorControl([two._trees], store)

        for deed in (control.send(session.id, "hello"), control.stop(session.id, "enough")):
            with pytest.raises(OwnedElsewhere) as refusal:
                await deed
            assert (refusal.value.kernel, refusal.value.address) == ("one", "http://one:8080")
        with pytest.raises(Unknown):
            await control.stop("run-nobody", "enough")
        await set_keep(store, session.id, on=True)


async def test_a_schedule_fires_once_among_three_kernels(stores: dict[str, PostgresStore]) -> None:
    """Three kernels have a scheduler that looks at the same moments; one of them fires each tick."""
    scheduled.CALLS.clear()
    async with contextlib.AsyncExitStack() as stack:
        schedulers = []
        for store in stores.values():
            runtime = await stack.enter_async_context(AgentRuntime(store=store))
            schedulers.append(await stack.enter_async_context(AgentScheduler(runtime)))
        view = await schedulers[0].schedule_agent_in(3600, scheduled.note, name="job", in_process=True)
        for n, scheduler in enumerate(schedulers, 1):
            for each in schedulers:
                each._loop.wake(view.id)
            await scheduler.trigger(view.id)
            for each in schedulers:
                each._loop.wake(view.id)
            await eventually(lambda n=n: len(scheduled.CALLS) >= n)  # type: ignore[misc]
            await _ended(scheduler, view.id, n)

        assert scheduled.CALLS == ["note"] * 3


async def test_a_claimed_tick_belongs_to_its_kernel_while_that_lives(stores: dict[str, PostgresStore]) -> None:
    """Another kernel's scheduler does not touch the tick; it decides anew at once when that kernel ends."""
    scheduled.CALLS.clear()
    two = await stores["two"].open()
    async with AgentRuntime(store=stores["one"]) as one, AgentScheduler(one) as scheduler:
        now = one.clock.now()
        timing = Interval(seconds=3600, anchor=now)
        target = target_of(scheduled.note, dict)
        schedule = schedule_of(timing, ["test"], target, b"\1\2\3\4", name="job", misfire="once", in_process=True)
        due = Due(tick=now, manual=True)
        claim = Claim(id="claim-1", due=due, owner="scheduler-other@1/two", at=now)
        book = ScheduleRecord(schedule=schedule, state=TickState(decided=now, claims=(claim,)))
        books = ScheduleTable(stores["one"])
        assert await books.write(book, 0)
        scheduler._loop._check_all_soon()
        await scheduler.trigger(schedule.id)  # It waits behind the one that was claimed.
        waiting = [str(each.status) for each in await scheduler.results(schedule.id)]
        assert waiting == ["starting", "waiting"]
        assert scheduled.CALLS == []

        await two.close()
        await eventually(lambda: len(scheduled.CALLS) == 2)
        await _ended(scheduler, schedule.id, 2)


async def _ended(scheduler: AgentScheduler, id: str, number: int) -> None:
    async with asyncio.timeout(180):
        while sum(each.ended is not None for each in await scheduler.results(id)) < number:  # noqa: ASYNC110 - as users do
            await asyncio.sleep(0.005)


@pytest.fixture(autouse=True)
async def drop_schema(postgres: Server, stores: dict[str, PostgresStore]) -> AsyncIterator[None]:
    """Drop the schema after the test."""
    yield
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute(f'DROP SCHEMA IF EXISTS "{stores["one"]._place.schema}" CASCADE')
