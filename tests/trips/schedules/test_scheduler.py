"""AgentScheduler under a fake clock: each tick runs once, at its time, despite stops, restarts and competitors."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from msgspec.structs import replace

from ramet import Agent, AgentRuntime, AgentScheduler, Limits, Policy
from ramet.concurrency.clock import FakeClock
from ramet.core.errors import InvalidValue, RametError, Unknown
from ramet.core.ids import RunId
from ramet.core.schedules import ticks
from ramet.core.schedules.schedule import Cron, FunctionTarget
from ramet.core.schedules.ticks import Claim, Due, ScheduleRecord, TickResult, TickStatus
from ramet.host.control.schedules import KIND
from ramet.store.contract import Document, Store
from ramet.store.memory import MemoryStore
from tests.support.empty_stores import empty_store_address
from tests.support.store_addresses import KINDS, store_at
from tests.support.waiting import eventually
from tests.trips.agents import scheduled

START = datetime(2026, 1, 1, tzinfo=UTC)
BERLIN = ZoneInfo("Europe/Berlin")
ENDED = frozenset(TickStatus) - {"waiting", "starting", "running"}


class ShiftableClock(FakeClock):
    """A fake clock whose time of day a test can set, without waking a sleeper."""

    def __init__(self, start: datetime = START) -> None:
        super().__init__(start)
        self.shift = timedelta()

    def now(self) -> datetime:
        return super().now() + self.shift


class StaleStore(MemoryStore):
    """A store whose every answer is old when it arrives, as from another thread or process."""

    async def get(self, kind: str, key: str) -> Document | None:
        document = await super().get(kind, key)
        await asyncio.sleep(0)
        return document

    async def put(
        self, kind: str, key: str, data: bytes, *, expected: int | None = None, tree: str | None = None
    ) -> Document:
        await asyncio.sleep(0)
        return await super().put(kind, key, data, expected=expected, tree=tree)


class SchedulerHarness:
    """A store that outlives schedulers, and a clock that a test moves."""

    def __init__(self, clock: FakeClock, store: Store | None = None) -> None:
        self.clock, self.store = clock, store or StaleStore()
        self.runtime = AgentRuntime(clock=clock)
        self.open: list[AgentScheduler] = []

    async def scheduler(self) -> AgentScheduler:
        """Start one more scheduler, as after a restart."""
        self.open.append(await AgentScheduler(self.runtime, store=self.store).start())
        await self.wait_until_idle()
        return self.open[-1]

    async def close(self) -> None:
        """End all schedulers."""
        while self.open:
            await self.open.pop().close()

    async def wait_until_idle(self) -> None:
        """Wait until every decision is made, and each started run has ended or is at the gate."""
        for _ in range(10):  # A scheduler that was just told something still counts as asleep.
            await asyncio.sleep(0)
        await eventually(
            lambda: self.clock.sleeping >= len(self.open) and count_ticks_in_progress() <= scheduled.at_gate()
        )

    async def pass_time(self, seconds: float) -> None:
        """Advance the clock, and at each wake-up wait until the schedulers are idle again."""
        end = self.clock.monotonic() + seconds
        while (remaining_s := end - self.clock.monotonic()) > 0:
            await self.wait_until_idle()
            wakes = [at for at, _, waiter in self.clock._sleepers if not waiter.done()]
            await self.clock.advance(max(0.0, min(remaining_s, min(wakes, default=end) - self.clock.monotonic())))
        await self.wait_until_idle()

    async def wait_ended(self, id: str, count: int) -> list[TickResult]:
        """Return the results of a schedule once so many have ended and nothing runs."""
        async with asyncio.timeout(180):
            while True:
                results = await self.results(id)
                if len(results) >= count and all(each.status in ENDED for each in results):
                    await self.wait_until_idle()
                    return results
                await asyncio.sleep(0)

    async def results(self, id: str) -> list[TickResult]:
        """Return the results that the store holds."""
        return list(ticks.report((await self.book(id)).state))

    async def book(self, id: str) -> ScheduleRecord:
        """Return the whole record of a schedule in the store."""
        document = await self.store.get(KIND, id)
        assert document is not None
        return ticks.decode(id, document.data)

    async def write(self, book: ScheduleRecord) -> None:
        """Write a record into the store, as another process would have left it."""
        await self.store.put(KIND, book.schedule.id, ticks.encode(book))


@pytest.fixture(autouse=True)
def reset_scheduled_agents() -> None:
    """Forget the calls of earlier tests, and close the gate."""
    scheduled.CALLS.clear()
    scheduled.GATE = asyncio.Event()


@pytest.fixture
def clock() -> FakeClock:
    return ShiftableClock()


@pytest.fixture(params=["memory", *KINDS])
async def scheduler_harness(
    clock: FakeClock, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[SchedulerHarness]:
    if request.param == "memory":
        async with open_harness(SchedulerHarness(clock)) as harness:
            yield harness
        return
    with empty_store_address(request.param, tmp_path) as store_address:
        async with open_harness(SchedulerHarness(clock, store_at(store_address))) as harness:
            yield harness


@asynccontextmanager
async def open_harness(harness: SchedulerHarness) -> AsyncIterator[SchedulerHarness]:
    """Open the store and start the runtime of a stage, and close both in the end."""
    await harness.store.open()
    async with harness.runtime:
        yield harness
        scheduled.GATE.set()
        await harness.close()
    await harness.store.close()


@pytest.fixture
async def scheduler(scheduler_harness: SchedulerHarness) -> AgentScheduler:
    return await scheduler_harness.scheduler()


def count_ticks_in_progress() -> int:
    """Return how many ticks are between claim and end."""
    return sum(task.get_name().startswith("ramet tick of") for task in asyncio.all_tasks())


def tick_times(results: list[TickResult]) -> list[float]:
    """Return the times of the ticks, in seconds from the start."""
    return [(each.tick - START).total_seconds() for each in results]


# ---- the ways to schedule


async def test_an_interval_fires_once_at_each_multiple(
    scheduler_harness: SchedulerHarness, scheduler: AgentScheduler
) -> None:
    """AC-S0-9: an interval of 300 s fires at 300, 600 and 900 s, and not before."""
    view = await scheduler.schedule_agent_interval(interval_seconds=300, agent=scheduled.note, in_process=True)
    assert view.next == START + timedelta(seconds=300)

    await scheduler_harness.pass_time(299)
    assert scheduled.CALLS == []
    await scheduler_harness.pass_time(1)
    assert tick_times(await scheduler_harness.wait_ended(view.id, 1)) == [300]
    await scheduler_harness.pass_time(630)

    results = await scheduler_harness.wait_ended(view.id, 3)
    assert tick_times(results) == [300, 600, 900]
    assert [each.began for each in results] == [each.tick for each in results]
    assert {(each.status, each.text) for each in results} == {("completed", "noted note")}
    assert len(scheduled.CALLS) == 3


async def test_a_delay_fires_once(scheduler_harness: SchedulerHarness, scheduler: AgentScheduler) -> None:
    """AC-S0-9: a delay of 10 s does not fire at 9 s, fires at 10 s, and never again."""
    view = await scheduler.schedule_agent_in(delay_seconds=10, agent=scheduled.note_in_thread, in_process=True)
    await scheduler_harness.pass_time(9)
    assert scheduled.CALLS == []

    await scheduler_harness.pass_time(1)
    assert tick_times(await scheduler_harness.wait_ended(view.id, 1)) == [10]
    await scheduler_harness.pass_time(600)

    assert scheduled.CALLS == ["thread"]
    (finished_view,) = await scheduler.list()
    assert (finished_view.next, finished_view.running, finished_view.waiting) == (None, 0, 0)
    assert finished_view.last is not None
    assert finished_view.last.text == "7"


async def test_a_delay_of_zero_fires_at_once(scheduler_harness: SchedulerHarness, scheduler: AgentScheduler) -> None:
    view = await scheduler.schedule_agent_in(0, scheduled.note, in_process=True)

    assert tick_times(await scheduler_harness.wait_ended(view.id, 1)) == [0]


async def test_a_schedule_at_a_time_fires_with_its_arguments(
    scheduler_harness: SchedulerHarness, scheduler: AgentScheduler
) -> None:
    """The time may be in any zone. The function gets `args` and `kwargs`."""
    due_at = datetime(2026, 1, 1, 1, 5, tzinfo=BERLIN)  # five past midnight in UTC
    view = await scheduler.schedule_agent_at(
        due_at, scheduled.note, args=["word"], kwargs={"times": 2}, in_process=True
    )
    assert view.next == due_at

    await scheduler_harness.pass_time(301)

    assert tick_times(await scheduler_harness.wait_ended(view.id, 1)) == [300]
    assert scheduled.CALLS == ["word", "word"]


@pytest.mark.parametrize(
    ("begin", "fires"),
    [
        # 25 October 2026: the clock shows 02:30 twice. The first is meant, once.
        (datetime(2026, 10, 24, 23, 0, tzinfo=UTC), datetime(2026, 10, 25, 0, 30, tzinfo=UTC)),
        # 29 March 2026: the clock skips from 02:00 to 03:00. The end of the skip is meant, once.
        (datetime(2026, 3, 29, 0, 0, tzinfo=UTC), datetime(2026, 3, 29, 1, 0, tzinfo=UTC)),
    ],
)
async def test_a_daily_schedule_fires_once_when_the_clock_changes(begin: datetime, fires: datetime) -> None:
    """A run at 02:30 in Berlin happens once a day, also when the clock shows that time twice or never."""
    harness = SchedulerHarness(FakeClock(begin))
    async with harness.runtime:
        scheduler = await harness.scheduler()
        view = await scheduler.schedule_agent_cron(
            "30 2 * * *", tz="Europe/Berlin", agent=scheduled.note, in_process=True
        )
        assert view.next == fires

        await harness.pass_time(5 * 3600)

        assert [each.tick for each in await harness.wait_ended(view.id, 1)] == [fires]
        (after,) = await scheduler.list()
        assert after.next is not None
        local = after.next.astimezone(BERLIN)
        assert (local.date() - fires.date(), local.hour, local.minute) == (timedelta(days=1), 2, 30)
        await harness.close()


async def test_a_scheduler_notices_that_the_clock_was_set(
    scheduler_harness: SchedulerHarness, clock: ShiftableClock, scheduler: AgentScheduler
) -> None:
    """A step forward makes a due tick run within a minute. A step back makes no tick run again."""
    view = await scheduler.schedule_agent_interval(3600, scheduled.note, in_process=True)
    clock.shift = timedelta(hours=1)

    await scheduler_harness.pass_time(60)
    assert tick_times(await scheduler_harness.wait_ended(view.id, 1)) == [3600]

    clock.shift = timedelta(0)
    await scheduler_harness.pass_time(3600)
    assert tick_times(await scheduler_harness.results(view.id)) == [3600]
    await scheduler_harness.pass_time(3600)
    assert tick_times(await scheduler_harness.wait_ended(view.id, 2)) == [3600, 7200]


async def test_until_is_the_last_time_of_a_tick(scheduler_harness: SchedulerHarness, scheduler: AgentScheduler) -> None:
    """A tick at `until` fires, and no later one does."""
    view = await scheduler.schedule_agent_interval(
        100, scheduled.note, until=START + timedelta(seconds=200), in_process=True
    )

    await scheduler_harness.pass_time(500)

    assert tick_times(await scheduler_harness.wait_ended(view.id, 2)) == [100, 200]
    assert (await scheduler.list())[0].next is None


async def test_jitter_delays_a_tick_to_the_announced_time(
    scheduler_harness: SchedulerHarness, scheduler: AgentScheduler
) -> None:
    """A run starts at most `jitter_seconds` late, at the time that `next` named."""
    view = await scheduler.schedule_agent_interval(100, scheduled.note, jitter_seconds=50, in_process=True)
    assert view.next is not None
    late = (view.next - START).total_seconds() - 100
    assert 0 <= late <= 50

    await scheduler_harness.pass_time(100 + late - 0.001)
    assert scheduled.CALLS == []
    await scheduler_harness.pass_time(0.002)

    (result,) = await scheduler_harness.wait_ended(view.id, 1)
    assert tick_times([result]) == [100]
    assert result.began is not None
    assert result.began >= view.next


# ---- overlap


async def test_runs_do_not_overlap_by_default(scheduler_harness: SchedulerHarness, scheduler: AgentScheduler) -> None:
    """AC-S0-9: a tick during a run never runs, and counts as skipped."""
    view = await scheduler.schedule_agent_interval(60, scheduled.waits, in_process=True)
    await scheduler_harness.pass_time(180)

    (running,) = await scheduler_harness.results(view.id)
    assert running.status in ("starting", "running")
    scheduled.GATE.set()
    await scheduler_harness.wait_ended(view.id, 1)

    assert scheduled.CALLS == ["began", "ended"]
    assert (await scheduler.list())[0].skipped == 2


async def test_queued_ticks_run_one_after_another(
    scheduler_harness: SchedulerHarness, scheduler: AgentScheduler
) -> None:
    """`queue`: every tick runs, and no two run concurrently."""
    view = await scheduler.schedule_agent_interval(60, scheduled.waits, overlap="queue", in_process=True)
    await scheduler_harness.pass_time(180)
    assert [each.status for each in await scheduler_harness.results(view.id)][1:] == ["waiting", "waiting"]
    assert scheduled.CALLS == ["began"]
    scheduled.GATE.set()

    assert tick_times(await scheduler_harness.wait_ended(view.id, 3)) == [60, 120, 180]
    assert scheduled.CALLS == ["began", "ended"] * 3


async def test_overlap_allow_runs_ticks_concurrently(
    scheduler_harness: SchedulerHarness, scheduler: AgentScheduler
) -> None:
    """`allow`: a tick does not wait for the one before it."""
    view = await scheduler.schedule_agent_interval(60, scheduled.waits, overlap="allow", in_process=True)
    await scheduler_harness.pass_time(120)
    await eventually(lambda: scheduled.CALLS == ["began", "began"])
    scheduled.GATE.set()

    assert sorted(tick_times(await scheduler_harness.wait_ended(view.id, 2))) == [60, 120]


async def test_a_paused_run_of_a_schedule_counts_as_running(
    scheduler_harness: SchedulerHarness, scheduler: AgentScheduler
) -> None:
    """Its ticks are skipped as long as it is paused, and run again after its end."""
    view = await scheduler.schedule_agent_interval(60, scheduled.waits, in_process=True)
    await scheduler_harness.pass_time(60)
    await eventually(lambda: scheduled.CALLS == ["began"])
    (running,) = await scheduler_harness.results(view.id)
    assert running.run is not None
    tree = scheduler_harness.runtime.trees[RunId(running.run)].tree
    handle = tree.handle(tree.register.find(running.run))
    await handle.pause("lunch")
    await scheduler_harness.pass_time(120)
    assert (await scheduler.list())[0].skipped == 2
    await handle.resume()
    scheduled.GATE.set()
    await scheduler_harness.wait_ended(view.id, 1)
    assert scheduled.CALLS == ["began", "ended"]


# ---- steering


async def test_a_cancelled_schedule_does_not_fire(
    scheduler_harness: SchedulerHarness, scheduler: AgentScheduler
) -> None:
    """AC-S0-9: `cancel` removes the schedule, and its id is unknown from then on."""
    view = await scheduler.schedule_agent_in(10, scheduled.note, in_process=True)
    other = await scheduler.schedule_agent_in(20, scheduled.note, in_process=True)

    await scheduler.cancel(view.id)
    await scheduler_harness.pass_time(60)

    assert len(await scheduler_harness.wait_ended(other.id, 1)) == 1
    assert scheduled.CALLS == ["note"]
    for method in (scheduler.cancel, scheduler.results, scheduler.trigger, scheduler.pause, scheduler.resume):
        with pytest.raises(Unknown, match=other.id):
            await method(view.id)


async def test_an_active_run_continues_when_its_schedule_is_cancelled(
    scheduler_harness: SchedulerHarness, scheduler: AgentScheduler
) -> None:
    """The schedule is unknown at once, and the store drops its record once the run has ended."""
    view = await scheduler.schedule_agent_interval(100, scheduled.waits, overlap="allow", in_process=True)
    await scheduler_harness.pass_time(100)
    await scheduler.cancel(view.id)
    for ask in (scheduler.get, scheduler.results, scheduler.cancel, scheduler.trigger):
        with pytest.raises(Unknown):
            await ask(view.id)
    assert await scheduler.list() == ()
    await scheduler_harness.pass_time(500)
    assert scheduled.CALLS == ["began"]
    assert await scheduler_harness.store.get(KIND, view.id) is not None
    scheduled.GATE.set()

    await eventually(lambda: scheduled.CALLS == ["began", "ended"])
    async with asyncio.timeout(180):
        while await scheduler_harness.store.get(KIND, view.id) is not None:  # noqa: ASYNC110 - a store tells nobody
            await asyncio.sleep(0)


async def test_ticks_of_a_pause_are_not_run_later(
    scheduler_harness: SchedulerHarness, scheduler: AgentScheduler
) -> None:
    """A paused schedule does not fire, and continues with its next time after the pause."""
    view = await scheduler.schedule_agent_interval(100, scheduled.note, misfire="all", in_process=True)
    assert (await scheduler.pause(view.id)).next is None
    await scheduler_harness.pass_time(350)
    assert (await scheduler.resume(view.id)).next == START + timedelta(seconds=400)

    await scheduler_harness.pass_time(60)

    assert tick_times(await scheduler_harness.wait_ended(view.id, 1)) == [400]


async def test_a_trigger_fires_an_extra_tick(scheduler_harness: SchedulerHarness, scheduler: AgentScheduler) -> None:
    """A paused schedule can be triggered, too, and keeps its own times."""
    view = await scheduler.schedule_agent_interval(100, scheduled.note, in_process=True)
    await scheduler.pause(view.id)
    await scheduler_harness.pass_time(30)
    await scheduler.trigger(view.id)
    (manual,) = await scheduler_harness.wait_ended(view.id, 1)
    assert (tick_times([manual]), manual.manual) == ([30], True)

    await scheduler.resume(view.id)
    await scheduler_harness.pass_time(70)

    assert tick_times(await scheduler_harness.wait_ended(view.id, 2)) == [30, 100]


async def test_a_trigger_during_a_run_waits_for_its_end(
    scheduler_harness: SchedulerHarness, scheduler: AgentScheduler
) -> None:
    """The triggered tick is not lost, and does not overlap the run."""
    view = await scheduler.schedule_agent_in(0, scheduled.waits, in_process=True)
    await eventually(lambda: scheduled.CALLS == ["began"])
    await scheduler.trigger(view.id)
    assert [each.status for each in await scheduler.results(view.id)][1:] == ["waiting"]
    scheduled.GATE.set()

    await scheduler_harness.wait_ended(view.id, 2)
    assert scheduled.CALLS == ["began", "ended"] * 2


async def test_results_show_running_and_failed_ticks(
    scheduler_harness: SchedulerHarness, scheduler: AgentScheduler
) -> None:
    """An active run has the status `running` and its id. A failed run has its error."""
    runs = await scheduler.schedule_agent_in(0, scheduled.waits, in_process=True)
    fails = await scheduler.schedule_agent_in(0, scheduled.breaks, in_process=True)
    await eventually(lambda: len(scheduled.CALLS) == 2)
    (failed_tick,) = await scheduler_harness.wait_ended(fails.id, 1)
    (running,) = await scheduler.results(runs.id)

    assert (failed_tick.status, failed_tick.error and failed_tick.error.type) == ("failed", "ValueError")
    assert failed_tick.error is not None
    assert "luck" in failed_tick.error.message
    assert (running.status, running.ended) == ("running", None)
    assert running.run is not None
    assert scheduler_harness.runtime.get(running.run).view().state == "running"


async def test_a_result_names_its_run_once_the_run_is_recorded(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result does not show the id of a run before its spawn, since that id leads nowhere."""
    async with AgentRuntime(store=MemoryStore(), clock=clock) as runtime, AgentScheduler(runtime) as scheduler:
        spawn, may_be_born, spawn_called = runtime.spawn, asyncio.Event(), asyncio.Event()

        async def late(*args: Any, **options: Any) -> Any:
            spawn_called.set()
            await may_be_born.wait()
            return await spawn(*args, **options)

        monkeypatch.setattr(runtime, "spawn", late)
        view = await scheduler.schedule_agent_in(0, scheduled.waits, in_process=True)
        await asyncio.wait_for(spawn_called.wait(), 180)
        (unborn,) = await scheduler.results(view.id)
        may_be_born.set()
        await eventually(lambda: scheduled.CALLS == ["began"])
        (tick_result,) = await scheduler.results(view.id)

    assert (unborn.status, unborn.run, tick_result.status) == ("starting", None, "running")
    assert tick_result.run is not None


async def test_a_schedule_keeps_its_last_twenty_results(
    scheduler_harness: SchedulerHarness, scheduler: AgentScheduler
) -> None:
    """The newest result is the last one."""
    view = await scheduler.schedule_agent_interval(10, scheduled.note, in_process=True)
    for count in range(1, 23):
        await scheduler_harness.pass_time(10)
        await eventually(lambda count=count: len(scheduled.CALLS) == count)  # type: ignore[misc]
        await scheduler_harness.wait_ended(view.id, min(count, 20))

    assert tick_times(await scheduler_harness.results(view.id)) == [10.0 * n for n in range(3, 23)]


async def test_limits_hold_for_each_run(scheduler_harness: SchedulerHarness, scheduler: AgentScheduler) -> None:
    """A run that exceeds the time limit of its schedule ends with the status `timeout`."""
    view = await scheduler.schedule_agent_in(0, scheduled.waits, limits=Limits(seconds=5), in_process=True)
    await eventually(lambda: scheduled.CALLS == ["began"])

    await scheduler_harness.pass_time(6)

    assert [each.status for each in await scheduler_harness.wait_ended(view.id, 1)] == ["timeout"]


# ---- restarts


async def test_a_schedule_survives_a_restart(scheduler_harness: SchedulerHarness, scheduler: AgentScheduler) -> None:
    """AC-S0-9: another scheduler on that store continues with the same anchor, and repeats no tick."""
    view = await scheduler.schedule_agent_interval(300, scheduled.note, in_process=True)
    await scheduler_harness.pass_time(310)
    await scheduler_harness.wait_ended(view.id, 1)
    await scheduler_harness.close()
    await scheduler_harness.scheduler()

    await scheduler_harness.pass_time(300)

    assert tick_times(await scheduler_harness.wait_ended(view.id, 2)) == [300, 600]


@pytest.mark.parametrize(
    ("options", "ran", "skipped"),
    [
        ({"misfire": "skip"}, [], 10),
        ({"misfire": "once"}, [1000], 9),
        ({"misfire": "all", "misfire_max": 3}, [800, 900, 1000], 7),
        ({"misfire": "all", "misfire_max": 50}, [100.0 * n for n in range(1, 11)], 0),
    ],
)
async def test_the_misfire_policy_decides_about_missed_ticks(
    scheduler_harness: SchedulerHarness, scheduler: AgentScheduler, options: Any, ran: list[float], skipped: int
) -> None:
    """AC-S0-9: `skip` runs none, `once` runs the newest, and `all` runs up to `misfire_max` of the newest in order."""
    view = await scheduler.schedule_agent_interval(100, scheduled.note, **options, in_process=True)
    await scheduler_harness.close()
    await scheduler_harness.clock.advance(1065)
    scheduler = await scheduler_harness.scheduler()
    await scheduler_harness.wait_ended(view.id, len(ran))

    assert tick_times(await scheduler_harness.results(view.id)) == ran
    assert (await scheduler.list())[0].skipped == skipped
    await scheduler_harness.pass_time(40)
    assert tick_times(await scheduler_harness.wait_ended(view.id, len(ran) + 1)) == [*ran, 1100]


async def test_a_tick_that_is_noticed_a_little_late_is_not_missed(
    scheduler_harness: SchedulerHarness, scheduler: AgentScheduler
) -> None:
    """`skip` still runs a tick that a scheduler notices 30 s after its time."""
    view = await scheduler.schedule_agent_interval(100, scheduled.note, misfire="skip", in_process=True)
    await scheduler_harness.close()
    await scheduler_harness.clock.advance(130)
    await scheduler_harness.scheduler()

    assert tick_times(await scheduler_harness.wait_ended(view.id, 1)) == [100]


async def test_closing_a_scheduler_cancels_its_active_runs(
    scheduler_harness: SchedulerHarness, scheduler: AgentScheduler
) -> None:
    """The result of the tick is `cancelled`."""
    view = await scheduler.schedule_agent_in(0, scheduled.waits, in_process=True)
    await eventually(lambda: scheduled.CALLS == ["began"])
    await scheduler_harness.close()

    (result,) = await scheduler_harness.results(view.id)
    assert (result.status, scheduled.CALLS) == ("cancelled", ["began"])


def record_of_a_killed_process(book: ScheduleRecord, *, run: str | None = None) -> ScheduleRecord:
    """Return the record of a process that was killed while it fired the first tick of an interval."""
    tick = START + timedelta(seconds=100)
    claim = Claim(id="claim-dead", due=Due(tick=tick), owner="scheduler-dead", at=tick, run=run)
    return ScheduleRecord(schedule=book.schedule, state=ticks.TickState(decided=tick, claims=(claim,)))


@pytest.mark.parametrize(("misfire", "again"), [("skip", False), ("once", True), ("all", True)])
async def test_a_claimed_tick_without_a_run_is_a_missed_tick(
    scheduler_harness: SchedulerHarness, scheduler: AgentScheduler, misfire: Any, again: bool
) -> None:
    """A process died between claim and spawn, so the misfire policy decides about the tick."""
    view = await scheduler.schedule_agent_interval(100, scheduled.note, misfire=misfire, in_process=True)
    await scheduler_harness.close()
    await scheduler_harness.clock.advance(190)
    await scheduler_harness.write(record_of_a_killed_process(await scheduler_harness.book(view.id)))
    await scheduler_harness.scheduler()

    assert tick_times(await scheduler_harness.wait_ended(view.id, 1 if again else 0)) == ([100] if again else [])
    assert scheduled.CALLS == (["note"] if again else [])


@pytest.mark.parametrize("misfire", ["skip", "once", "all"])
async def test_a_tick_whose_run_is_not_recorded_is_lost(
    scheduler_harness: SchedulerHarness, scheduler: AgentScheduler, misfire: Any
) -> None:
    """The run may have started: the tick never runs again, its result is `lost`, and the schedule continues."""
    view = await scheduler.schedule_agent_interval(100, scheduled.note, misfire=misfire, in_process=True)
    await scheduler_harness.close()
    await scheduler_harness.clock.advance(190)
    await scheduler_harness.write(record_of_a_killed_process(await scheduler_harness.book(view.id), run="run-dead"))
    await scheduler_harness.scheduler()
    assert [each.status for each in await scheduler_harness.wait_ended(view.id, 1)] == ["lost"]
    assert scheduled.CALLS == []

    await scheduler_harness.pass_time(10)

    assert [each.status for each in await scheduler_harness.wait_ended(view.id, 2)] == ["lost", "completed"]


async def test_a_claim_that_was_taken_over_starts_no_run(
    scheduler_harness: SchedulerHarness, scheduler: AgentScheduler
) -> None:
    """A scheduler that was wrongly believed dead finds its claim gone before the spawn."""
    view = await scheduler.schedule_agent_interval(100, scheduled.note, in_process=True)
    book = await scheduler_harness.book(view.id)
    stale = record_of_a_killed_process(book).state.claims[0]

    await scheduler._loop._dispatcher.fire(book.schedule, stale)

    assert (scheduled.CALLS, await scheduler_harness.results(view.id)) == ([], [])


async def test_two_schedulers_on_one_store_fire_each_tick_once(scheduler_harness: SchedulerHarness) -> None:
    """Exactly one of the schedulers wins each tick."""
    first, second = await scheduler_harness.scheduler(), await scheduler_harness.scheduler()
    views = [
        await one.schedule_agent_interval(100, scheduled.note, args=[word], misfire="all", in_process=True)
        for one in (first, second)
        for word in ("a", "b")
    ]
    assert len({view.id for view in views}) == 2  # the same asked for twice is one

    await scheduler_harness.pass_time(1000)

    for view in views:
        assert tick_times(await scheduler_harness.wait_ended(view.id, 10)) == [100.0 * n for n in range(1, 11)]
    assert sorted(scheduled.CALLS, key=str) == ["a"] * 10 + ["b"] * 10


async def test_a_schedule_cancelled_by_one_scheduler_does_not_fire_on_another(
    scheduler_harness: SchedulerHarness,
) -> None:
    """The store decides between a claim and a cancel."""
    first, second = await scheduler_harness.scheduler(), await scheduler_harness.scheduler()
    view = await first.schedule_agent_in(100, scheduled.note, in_process=True)
    await scheduler_harness.pass_time(60)
    await second.cancel(view.id)

    await scheduler_harness.pass_time(60)

    assert scheduled.CALLS == []


# ---- asked for again


async def test_a_program_that_starts_again_does_not_double_its_schedules(
    scheduler_harness: SchedulerHarness, scheduler: AgentScheduler
) -> None:
    """An equal interval of the same function is one schedule and keeps its anchor.

    Delays and other intervals are new schedules.
    """
    view = await scheduler.schedule_agent_interval(300, scheduled.note, in_process=True)
    await scheduler_harness.pass_time(200)
    same_schedule = await scheduler.schedule_agent_interval(300.0, scheduled.note, in_process=True)
    other = await scheduler.schedule_agent_interval(301, scheduled.note, in_process=True)
    once = [await scheduler.schedule_agent_in(300, scheduled.note, in_process=True) for _ in range(2)]

    assert (same_schedule.id, same_schedule.next) == (view.id, START + timedelta(seconds=300))
    assert len({view.id, other.id, once[0].id, once[1].id}) == 4


async def test_a_name_stands_for_one_schedule(scheduler_harness: SchedulerHarness, scheduler: AgentScheduler) -> None:
    """An equal definition changes nothing. Another definition replaces the old one and keeps its results."""
    await scheduler.schedule_agent_interval(100, scheduled.note, name="daily", in_process=True)
    await scheduler_harness.pass_time(150)
    await scheduler_harness.wait_ended("daily", 1)
    same = await scheduler.schedule_agent_interval(100, scheduled.note, name="daily", in_process=True)
    assert same.next == START + timedelta(seconds=200)

    changed_schedule = await scheduler.schedule_agent_interval(500, scheduled.note, name="daily", in_process=True)

    assert changed_schedule.next == START + timedelta(seconds=650)
    await scheduler_harness.pass_time(500)
    assert tick_times(await scheduler_harness.wait_ended("daily", 2)) == [100, 650]
    assert [view.id for view in await scheduler.list()] == ["daily"]


async def test_a_named_delay_can_be_scheduled_again_after_it_fired(
    scheduler_harness: SchedulerHarness, scheduler: AgentScheduler
) -> None:
    """An equal delay with that name changes nothing until the first one has fired."""
    first = await scheduler.schedule_agent_in(10, scheduled.note, name="soon", in_process=True)
    await scheduler_harness.pass_time(5)
    assert (await scheduler.schedule_agent_in(10, scheduled.note, name="soon", in_process=True)).next == first.next
    await scheduler_harness.pass_time(5)
    await scheduler_harness.wait_ended("soon", 1)

    await scheduler.schedule_agent_in(10, scheduled.note, name="soon", in_process=True)
    await scheduler_harness.pass_time(10)

    assert tick_times(await scheduler_harness.wait_ended("soon", 2)) == [10, 20]


async def test_old_one_off_schedules_are_removed(
    scheduler_harness: SchedulerHarness, scheduler: AgentScheduler
) -> None:
    """A finished delay is removed after some days, and a repeating schedule stays."""
    view = await scheduler.schedule_agent_in(1, scheduled.note, in_process=True)
    await scheduler.schedule_agent_interval(30 * 86_400, scheduled.note, name="monthly", in_process=True)
    await scheduler_harness.pass_time(1)
    await scheduler_harness.wait_ended(view.id, 1)

    await scheduler_harness.close()
    await scheduler_harness.clock.advance(8 * 86_400)
    scheduler = await scheduler_harness.scheduler()

    assert [each.id for each in await scheduler.list()] == ["monthly"]


# ---- what can be scheduled


async def test_a_definition_runs_with_its_prompt(
    scheduler_harness: SchedulerHarness, scheduler: AgentScheduler, tmp_path: Path
) -> None:
    """The store keeps an `Agent` of plain data as data, and its model is asked at the tick."""
    agent = Agent(name="reader", instructions="Be brief.", model="offline", tools=(), limits=Limits(tokens=50_000))
    view = await scheduler.schedule_agent_in(0, agent, prompt="What is here?")

    (result,) = await scheduler_harness.wait_ended(view.id, 1)

    assert (result.status, bool(result.text)) == ("completed", True)


async def test_a_project_definition_is_read_at_the_tick(clock: FakeClock, tmp_path: Path) -> None:
    """A schedule by name checks the name at once. The file at the time of the tick is used."""
    folder = tmp_path / ".claude" / "agents"
    folder.mkdir(parents=True)
    file = folder / "keeper.md"
    file.write_text("---\nname: keeper\ndescription: keeps\nmodel: offline\n---\nKeep.\n")
    harness = SchedulerHarness(clock)
    harness.runtime = AgentRuntime(tmp_path, clock=clock)
    async with harness.runtime:
        scheduler = await harness.scheduler()
        early = await scheduler.schedule_agent_in(10, "keeper", prompt="What is here?")
        renamed = await scheduler.schedule_agent_in(20, "keeper", prompt="What is here?")
        with pytest.raises(Unknown, match="keeper"):
            await scheduler.schedule_agent_in(10, "nobody", prompt="Who?")
        await harness.pass_time(10)
        assert (await harness.wait_ended(early.id, 1))[0].status == "completed"
        file.unlink()
        await harness.pass_time(10)

        (result,) = await harness.wait_ended(renamed.id, 1)
        assert (result.status, result.error and result.error.type) == ("failed", "DefinitionMissing")
        await harness.close()


async def test_a_scheduled_function_with_a_policy_runs_in_a_sandbox(tmp_path: Path) -> None:
    """The value of the sandboxed function is the result."""
    async with (
        AgentRuntime(tmp_path, backend="local") as runtime,
        AgentScheduler(runtime) as scheduler,
    ):
        view = await scheduler.schedule_agent_in(0, scheduled.triples, args=[14], policy=Policy(memory_mb=128))
        async with asyncio.timeout(180):
            while not (results := await scheduler.results(view.id)) or results[0].ended is None:  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    assert (results[0].status, results[0].text) == ("completed", "42")


async def test_a_scheduled_function_of_a_script_runs_in_a_sandbox(tmp_path: Path) -> None:
    """A process of another program loads the function from the script's file."""
    script = tmp_path / "script.py"
    script.write_text("FACTOR = 3\n\ndef work(number):\n    return FACTOR * number\n")
    async with AgentRuntime(backend="local") as runtime, AgentScheduler(runtime) as scheduler:
        view = await scheduler.schedule_agent_in(0, f"{script}:work", args=[14], policy=Policy(memory_mb=128))
        async with asyncio.timeout(180):
            while not (results := await scheduler.results(view.id)) or results[0].ended is None:  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    assert (results[0].status, results[0].text) == ("completed", "42")


async def test_a_missing_function_fails_its_tick(
    scheduler_harness: SchedulerHarness, scheduler: AgentScheduler
) -> None:
    """The result names the function that was renamed. The schedule and the others continue."""
    view = await scheduler.schedule_agent_interval(100, "tests.trips.agents.scheduled:note", in_process=True)
    book = await scheduler_harness.book(view.id)
    missing = FunctionTarget(reference="tests.trips.agents.scheduled:renamed")
    await scheduler_harness.write(ticks.replace_definition(book, replace(book.schedule, target=missing), START))

    await scheduler_harness.pass_time(200)

    results = await scheduler_harness.wait_ended(view.id, 2)
    assert [(each.status, each.error and each.error.type) for each in results] == [("failed", "DefinitionMissing")] * 2
    assert results[0].error is not None
    assert "tests.trips.agents.scheduled:renamed" in results[0].error.message


async def test_a_damaged_document_does_not_stop_other_schedules(
    scheduler_harness: SchedulerHarness, scheduler: AgentScheduler, caplog: pytest.LogCaptureFixture
) -> None:
    """The log names the document once, and it stays as it is."""
    await scheduler_harness.store.put(KIND, "damaged", b"{")
    await scheduler_harness.store.put(KIND, "newer", b'{"version": 99}')
    view = await scheduler.schedule_agent_interval(60, scheduled.note, in_process=True)
    with caplog.at_level(logging.ERROR, "ramet.scheduler"):
        await scheduler_harness.pass_time(180)

    assert len(await scheduler_harness.wait_ended(view.id, 3)) == 3
    assert [view.id for view in await scheduler.list()] == [view.id]
    assert len([each for each in caplog.records if "damaged" in each.getMessage()]) == 1
    assert "version 99" in caplog.text


async def test_an_unknown_time_zone_does_not_stop_other_schedules(
    scheduler_harness: SchedulerHarness, scheduler: AgentScheduler, caplog: pytest.LogCaptureFixture
) -> None:
    """The store may come from another machine: the log says that the schedule with that zone does not fire."""
    view = await scheduler.schedule_agent_cron("* * * * *", tz="UTC", agent=scheduled.note, name="far", in_process=True)
    book = await scheduler_harness.book("far")
    await scheduler_harness.write(
        ticks.replace_definition(book, replace(book.schedule, timing=Cron(line="* * * * *", tz="No/Where")), START)
    )
    other = await scheduler.schedule_agent_in(60, scheduled.note, in_process=True)
    await scheduler_harness.pass_time(120)

    assert len(await scheduler_harness.wait_ended(other.id, 1)) == 1
    assert [each.next for each in await scheduler.list() if each.id == view.id] == [None]
    assert "schedule far does not fire here: tz: 'No/Where'" in caplog.text


REFUSED: list[tuple[str, Callable[[Any], Any]]] = [
    ("interval_seconds", lambda s: s.schedule_agent_interval(-1, scheduled.note)),
    ("interval_seconds", lambda s: s.schedule_agent_interval(0, scheduled.note)),
    ("interval_seconds", lambda s: s.schedule_agent_interval(float("nan"), scheduled.note)),
    ("interval_seconds", lambda s: s.schedule_agent_interval(1e12, scheduled.note)),
    ("interval_seconds", lambda s: s.schedule_agent_interval(True, scheduled.note)),
    ("interval_seconds", lambda s: s.schedule_agent_interval("300", scheduled.note)),
    ("anchor", lambda s: s.schedule_agent_interval(300, scheduled.note, anchor=datetime(2026, 1, 1))),  # noqa: DTZ001
    ("delay_seconds", lambda s: s.schedule_agent_in(-1, scheduled.note)),
    ("delay_seconds", lambda s: s.schedule_agent_in(float("inf"), scheduled.note)),
    ("when", lambda s: s.schedule_agent_at(datetime(2027, 1, 1), scheduled.note)),  # noqa: DTZ001
    ("when", lambda s: s.schedule_agent_at(START - timedelta(seconds=1), scheduled.note)),
    ("when", lambda s: s.schedule_agent_at("tomorrow", scheduled.note)),
    ("cron", lambda s: s.schedule_agent_cron("61 * * * *", tz="UTC", agent=scheduled.note)),
    ("cron", lambda s: s.schedule_agent_cron("* * * * * *", tz="UTC", agent=scheduled.note)),
    ("cron", lambda s: s.schedule_agent_cron("0 0 30 2 *", tz="UTC", agent=scheduled.note)),
    ("cron", lambda s: s.schedule_agent_cron("", tz="UTC", agent=scheduled.note)),
    ("cron", lambda s: s.schedule_agent_cron(5, tz="UTC", agent=scheduled.note)),
    ("tz", lambda s: s.schedule_agent_cron("0 0 * * *", tz="Mars/Olympus", agent=scheduled.note)),
    ("tz", lambda s: s.schedule_agent_cron("0 0 * * *", tz="../../etc/passwd", agent=scheduled.note)),
    ("tz", lambda s: s.schedule_agent_cron("0 0 * * *", tz="Europe", agent=scheduled.note)),
    ("tz", lambda s: s.schedule_agent_cron("0 0 * * *", tz="", agent=scheduled.note)),
    ("agent", lambda s: s.schedule_agent_in(1, scheduled.nameless)),
    ("agent", lambda s: s.schedule_agent_in(1, lambda: None)),
    ("agent", lambda s: s.schedule_agent_in(1, scheduled.make())),
    ("agent", lambda s: s.schedule_agent_in(1, scheduled.Desk().work)),
    ("agent", lambda s: s.schedule_agent_in(1, 5)),
    ("agent", lambda s: s.schedule_agent_in(1, "no.such.module:function")),
    ("agent.function", lambda s: s.schedule_agent_in(1, Agent(name="f", function=scheduled.make()))),
    ("agent.model", lambda s: s.schedule_agent_in(1, Agent(name="a"), prompt="Go.")),
    (
        "agent.tools[0]",
        lambda s: s.schedule_agent_in(
            1, Agent(name="a", model="offline", tools=[scheduled.note_in_thread]), prompt="x"
        ),
    ),
    ("agent.output", lambda s: s.schedule_agent_in(1, Agent(name="a", model="offline", output=Limits), prompt="x")),
    ("args", lambda s: s.schedule_agent_in(1, scheduled.note, args="word")),
    ("args[0]", lambda s: s.schedule_agent_in(1, scheduled.note, args=[object()])),
    ("args[0]", lambda s: s.schedule_agent_in(1, scheduled.note, args=[float("nan")])),
    ("args[0]", lambda s: s.schedule_agent_in(1, scheduled.note, args=[2**64])),
    ("args[0]", lambda s: s.schedule_agent_in(1, scheduled.note, args=["\ud800"])),
    ("args[0]", lambda s: s.schedule_agent_in(1, scheduled.note, args=[(1, 2)])),
    ("args[0]['a']", lambda s: s.schedule_agent_in(1, scheduled.note, args=[{"a": b"bytes"}])),
    ("args", lambda s: s.schedule_agent_in(1, scheduled.note, args=["x" * 300_000])),
    ("args", lambda s: s.schedule_agent_in(1, Agent(name="a", model="offline"), args=[1], prompt="Go.")),
    ("kwargs", lambda s: s.schedule_agent_in(1, scheduled.note, kwargs={1: 2})),
    ("kwargs", lambda s: s.schedule_agent_in(1, scheduled.note, kwargs=[1])),
    ("prompt", lambda s: s.schedule_agent_in(1, scheduled.note, prompt="Go.")),
    ("prompt", lambda s: s.schedule_agent_in(1, Agent(name="a", model="offline"))),
    ("prompt", lambda s: s.schedule_agent_in(1, Agent(name="a", model="offline"), prompt="\ud800")),
    ("name", lambda s: s.schedule_agent_in(1, scheduled.note, name="../etc")),
    ("policy", lambda s: s.schedule_agent_in(1, scheduled.note, policy={"memory_mb": 5})),
    ("policy.secrets", lambda s: s.schedule_agent_in(1, scheduled.note, policy=Policy(secrets={"KEY": "hush"}))),
    ("limits", lambda s: s.schedule_agent_in(1, scheduled.note, limits={"tokens": 5})),
    ("misfire", lambda s: s.schedule_agent_in(1, scheduled.note, misfire="twice")),
    ("misfire_max", lambda s: s.schedule_agent_in(1, scheduled.note, misfire_max=0)),
    ("overlap", lambda s: s.schedule_agent_in(1, scheduled.note, overlap="sometimes")),
    ("jitter_seconds", lambda s: s.schedule_agent_in(1, scheduled.note, jitter_seconds=-1)),
    ("jitter_seconds", lambda s: s.schedule_agent_interval(10, scheduled.note, jitter_seconds=11)),
    ("until", lambda s: s.schedule_agent_in(100, scheduled.note, until=START)),
    ("until", lambda s: s.schedule_agent_in(1, scheduled.note, until=datetime(2027, 1, 1))),  # noqa: DTZ001
]


async def test_an_invalid_schedule_is_refused_by_field(
    scheduler_harness: SchedulerHarness, scheduler: AgentScheduler
) -> None:
    """The error names the field and shows no secret, and nothing is stored."""
    for field, ask in REFUSED:
        with pytest.raises(InvalidValue) as refusal:
            await ask(scheduler)
        assert refusal.value.field == field, refusal.value
        assert "hush" not in str(refusal.value)
    assert await scheduler_harness.store.list(KIND) == []


# ---- whose runtime


async def test_a_scheduler_attaches_to_the_only_active_runtime(clock: FakeClock) -> None:
    """The seed's code works as shown, without an argument and without a start."""
    async with AgentRuntime(clock=clock) as runtime:
        scheduler = AgentScheduler()
        await scheduler.schedule_agent_interval(interval_seconds=300, agent=scheduled.note, in_process=True)
        view = await scheduler.schedule_agent_in(delay_seconds=10, agent=scheduled.waits, in_process=True)
        await clock.advance(11)
        await eventually(lambda: scheduled.CALLS == ["began"])
        (running,) = await scheduler.results(view.id)
        assert running.run in runtime.trees
        await scheduler.close()
        assert runtime.get_status()["state"] == "running"


async def test_schedules_of_a_runtime_outlive_their_scheduler(clock: FakeClock) -> None:
    """Schedules without a store of their own live as long as the runtime."""
    async with AgentRuntime(clock=clock):
        async with AgentScheduler() as first:
            await first.schedule_agent_in(10, scheduled.note, name="later", in_process=True)
        async with AgentScheduler() as second:
            assert [view.id for view in await second.list()] == ["later"]


async def test_a_scheduler_without_a_runtime_opens_one_and_stops_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runtime works in the current directory, or in `working_dir`."""
    monkeypatch.chdir(tmp_path)
    for scheduler, folder in (
        (AgentScheduler(), tmp_path),
        (AgentScheduler(working_dir=tmp_path / "there"), tmp_path / "there"),
    ):
        async with scheduler:
            runtime = scheduler._runtime
            assert runtime.working_dir == folder
            assert runtime.get_status()["state"] == "running"
        assert runtime.get_status()["state"] == "stopped"


async def test_a_scheduler_does_not_choose_between_several_runtimes() -> None:
    """The error says how many runtimes there are, and which argument to pass."""
    async with AgentRuntime() as one, AgentRuntime():
        with pytest.raises(InvalidValue, match="one of the 2 runtimes") as refusal:
            await AgentScheduler().list()
        assert refusal.value.field == "runtime"
        async with AgentScheduler(runtime=one) as scheduler:
            assert await scheduler.list() == ()
    with pytest.raises(InvalidValue, match="working_dir"):
        AgentScheduler(one, working_dir=".")


async def test_a_scheduler_ends_with_its_runtime(
    scheduler_harness: SchedulerHarness, scheduler: AgentScheduler
) -> None:
    """A stopped runtime fires no tick and records no failure, and later calls raise an error."""
    view = await scheduler.schedule_agent_in(10, scheduled.note, in_process=True)
    scheduler_harness.open.clear()
    await scheduler_harness.runtime.stop()
    await scheduler_harness.clock.advance(60)

    with pytest.raises(RametError, match="was stopped"):
        await scheduler.schedule_agent_in(10, scheduled.note, in_process=True)
    assert await scheduler_harness.results(view.id) == []
    await scheduler.close()


async def test_a_scheduler_ends_and_logs_when_its_store_fails(
    scheduler_harness: SchedulerHarness, scheduler: AgentScheduler, caplog: pytest.LogCaptureFixture
) -> None:
    """Later calls raise an error, too."""
    await scheduler.schedule_agent_in(10, scheduled.note, in_process=True)
    scheduler_harness.open.clear()
    await scheduler_harness.store.close()
    await scheduler_harness.clock.advance(10)
    await eventually(lambda: "the scheduler ends" in caplog.text)

    with pytest.raises(RametError, match="closed"):
        await scheduler.schedule_agent_in(10, scheduled.note, in_process=True)
    await scheduler.close()
