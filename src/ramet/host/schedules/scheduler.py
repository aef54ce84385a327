"""`AgentScheduler`: agents that run later, repeatedly, or by the calendar, across restarts."""

from __future__ import annotations

import asyncio
import contextvars
import os
import secrets
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Self, Unpack

from ramet.agent.definition import Agent
from ramet.concurrency.deadline import run_shielded
from ramet.core.errors import InvalidValue, RametError, Unknown
from ramet.core.schedules import ticks
from ramet.core.schedules.schedule import (
    LONGEST_S,
    Cron,
    Interval,
    Once,
    checked_number,
    just_before,
    next_fire_time,
    utc,
)
from ramet.core.schedules.ticks import ScheduleRecord, TickResult, TickState
from ramet.host.control.run_queries import JournalReader
from ramet.host.control.schedules import ScheduleTable
from ramet.host.runtime import AgentRuntime, reachable, running_runtimes
from ramet.host.schedules.cron import check, next_fire
from ramet.host.schedules.loop import SchedulerLoop
from ramet.host.schedules.request import Options, schedule_of
from ramet.host.schedules.target import target_of
from ramet.host.schedules.view import ScheduleView, mark_starting, refresh_status, view_now, view_of
from ramet.store.contract import Store

Agentlike = Agent | Mapping[str, Any] | Callable[..., Any] | str

DEFAULT_DIR = "."


class AgentScheduler:
    """A scheduler that runs agents at their times, each tick in one run, while it is open; the schedules outlive it.

    It works in `runtime`, or one for `working_dir`, else in the only runtime that runs in this process, else in one for
    the current directory. A runtime that the scheduler opened itself is stopped when the scheduler is closed. The
    scheduler begins at the first schedule or query, or with `async with`.

    **Guarantees for a tick.** A tick has one run at most, also with several schedulers on one store, and after any
    crash. If a process dies before it has noted the coming run, the tick is missed. The next scheduler handles a missed
    tick by `misfire`: `once` and `all` run it. If the process dies later, the next scheduler of the store continues the
    run, as `AgentRuntime.resume` does. A function that was called is called again only if its schedule is `repeatable`,
    for it may have had effects; otherwise its tick is `lost`. A tick whose run needs a missing object is `lost`, too.
    Once such a run is resumed, the tick has the state of the run.
    """

    def __init__(
        self,
        runtime: AgentRuntime | None = None,
        *,
        working_dir: str | os.PathLike[str] | None = None,
        store: Store | None = None,
        entropy: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        if runtime is not None and working_dir is not None:
            raise InvalidValue("working_dir", working_dir, "None with a runtime, which has its own")
        self._given_runtime, self._working_dir, self._given_store = runtime, working_dir, store
        self._entropy = entropy
        self._starting = asyncio.Lock()
        self._is_open = False
        self._serving: asyncio.Task[None] | None = None
        self._own_runtime = False
        self._runtime: AgentRuntime  # from here on: set by `start`
        self._table: ScheduleTable
        self._loop: SchedulerLoop

    # ---- start and close

    async def start(self) -> Self:
        """Begin; idempotent. Raises InvalidValue if several runtimes run here and none was named."""
        async with self._starting:
            if not self._is_open:
                self._runtime, self._own_runtime = self._find_runtime()
                await self._runtime.start()
                try:
                    self._table = ScheduleTable(await self._find_store())
                except BaseException:
                    await self._stop_own_runtime()
                    raise
                self._loop = SchedulerLoop(self._runtime, self._table, self._definitions, self._entropy)
                self._is_open = True
                self._serve()
        return self

    async def close(self) -> None:
        """End the runs that it started, note that, and stop; idempotent. Schedules stay for the next scheduler."""
        async with self._starting:
            if self._is_open:
                self._is_open = False
                await run_shielded(self._end())

    async def leave(self, patience_s: float) -> None:
        """Start no more ticks, and wait for started functions; after `patience_s` end them, and note that.

        For a process that is about to end. Another scheduler of the store continues with due ticks, and with functions
        that may be called again. It also continues the runs that can continue in their middle, which are not waited
        for. Idempotent.
        """
        if (serving := self._serving) is not None:
            self._loop.drain()
            await asyncio.wait({serving}, timeout=patience_s)
            serving.cancel()
            await asyncio.wait({serving})

    def _serve(self) -> None:
        # In a context of its own: if it begins inside a tool, it is no part of that tool's call.
        self._serving = asyncio.create_task(self._loop.run(), name="ramet scheduler", context=contextvars.Context())

    async def _end(self) -> None:
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.wait({self._serving})
            self._serving = None
        await self._stop_own_runtime()

    async def _stop_own_runtime(self) -> None:
        if self._own_runtime:
            await self._runtime.stop()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # ---- scheduling

    async def schedule_agent_interval(
        self,
        interval_seconds: float,
        agent: Agentlike,
        *,
        anchor: datetime | None = None,
        **options: Unpack[Options],
    ) -> ScheduleView:
        """Run an agent at a fixed interval in seconds, counted from `anchor`.

        Without an anchor the interval counts from now, so that the first tick is after one interval. The n-th tick is
        anchor + n·interval: there is no drift. A repeated request without a `name`, or with the same name and content,
        returns the existing schedule; the same name with another content changes that schedule.
        """
        now = await self._now()
        timing = Interval(seconds=interval_seconds, anchor=now if anchor is None else anchor)
        requested = ["interval", timing.seconds, None if anchor is None else timing.anchor]
        return await self._add(timing, requested, agent, now if anchor is None else just_before(now), options)

    async def schedule_agent_in(
        self, delay_seconds: float, agent: Agentlike, **options: Unpack[Options]
    ) -> ScheduleView:
        """Run an agent once, after a delay in seconds."""
        now = await self._now()
        delay = timedelta(seconds=checked_number("delay_seconds", delay_seconds, 0, LONGEST_S))
        return await self._add(Once(at=now + delay), ["in", float(delay_seconds)], agent, just_before(now), options)

    async def schedule_agent_at(self, when: datetime, agent: Agentlike, **options: Unpack[Options]) -> ScheduleView:
        """Run an agent once, at a future time; the datetime must be aware, so that its zone is clear."""
        now = await self._now()
        at = utc("when", when)
        if at < now:
            raise InvalidValue("when", when, f"a future time; it is now {now.isoformat()}")
        return await self._add(Once(at=at), ["at", at], agent, just_before(now), options)

    async def schedule_agent_cron(
        self, cron: str, agent: Agentlike, *, tz: str, **options: Unpack[Options]
    ) -> ScheduleView:
        """Run an agent at the times of a cron line on the clocks of zone `tz`.

        A time that the clock shows twice fires once; a time that the clock skips fires at the end of the skip. A line
        with `*` for its minutes or hours fires at an even rate instead.
        """
        now = await self._now()
        check(cron, tz, now)
        return await self._add(Cron(line=cron, tz=tz), ["cron", cron.split(), tz], agent, now, options)

    # ---- inspection and control

    async def list(self) -> tuple[ScheduleView, ...]:
        """Return every schedule, in order of ids; ended schedules stay for a week, or until they are cancelled."""
        await self.start()
        records = self._records()
        return tuple([await view_now(record, records) for record in await self._table.current_records()])

    async def get(self, id: str) -> ScheduleView:
        """Return one schedule. Raises Unknown."""
        await self.start()
        return await view_now(await self._read(id), self._records())

    async def cancel(self, id: str) -> None:
        """Delete a schedule: none of its ticks fires from now on; an active run continues. Raises Unknown."""
        await self.start()
        if not await self._table.cancel(id):
            raise await self._unknown(id)

    async def pause(self, id: str) -> ScheduleView:
        """Start no ticks of a schedule until `resume`; an active run continues. Raises Unknown."""
        return await self._change(id, ticks.pause)

    async def resume(self, id: str) -> ScheduleView:
        """Resume a schedule with its next time; ticks that were missed during the pause are dropped. Raises Unknown."""
        now = await self._now()
        return await self._change(id, lambda record: ticks.resume(record, now))

    async def trigger(self, id: str) -> ScheduleView:
        """Run a schedule now, besides its times, also while it is paused. Raises Unknown.

        If one of its runs is active, the new run starts after that, unless `overlap="allow"`.
        """
        now = await self._now()
        return await self._change(id, lambda record: ticks.trigger(record, now))

    async def results(self, id: str) -> tuple[TickResult, ...]:
        """Return a schedule's last ticks: the newest twenty that ended, the running ones, the waiting ones.

        Raises Unknown.

        A tick that was lost with its process has the present state of its run, if the run was resumed.
        """
        await self.start()
        tick_results = ticks.report((await self._read(id)).state)
        records = self._records()
        if records is not None and self._table.store is records.store:
            tick_results = tuple([await mark_starting(records, each) for each in tick_results])
        return tuple([await refresh_status(records, each) for each in tick_results])

    # ---- internal

    def _find_runtime(self) -> tuple[AgentRuntime, bool]:
        if self._given_runtime is not None:
            return self._given_runtime, False
        running = reachable() if self._working_dir is None else []
        if len(running) > 1:
            raise InvalidValue("runtime", None, f"one of the {len(running)} runtimes that run in this process")
        if running:
            return running[0], False
        return AgentRuntime(self._working_dir if self._working_dir is not None else DEFAULT_DIR), True

    async def _find_store(self) -> Store:
        """Open a store. The caller closes a store that it gave; the store of a runtime lives as long as the runtime."""
        if self._given_store is not None:
            return await self._given_store.open()
        return await self._runtime.open_store()

    def _records(self) -> JournalReader | None:
        """Return a reader of the recorded runs of its runtime."""
        journal = self._runtime.journal
        return JournalReader(journal.store, journal.living) if journal is not None and journal.is_open else None

    def _definitions(self) -> Mapping[str, Agent]:
        return self._runtime.open_project(self._runtime.working_dir)

    async def _now(self) -> datetime:
        await self.start()
        if self._loop.failure is not None:
            raise self._loop.failure
        if self._runtime not in running_runtimes():
            raise RametError("the runtime of this scheduler was stopped")
        return self._runtime.clock.now()

    async def _add(
        self,
        timing: Interval | Once | Cron,
        requested: object,
        agent: Agentlike,
        decided: datetime,
        options: Options,
    ) -> ScheduleView:
        target = target_of(agent, self._definitions)
        schedule = schedule_of(timing, requested, target, self._entropy(4), **options)
        if next_fire_time(schedule, decided, next_fire) is None:
            raise InvalidValue("until", options.get("until"), "a moment not before the first tick, or None")
        while True:
            entry = await self._table.read(schedule.id)
            if entry is None:
                record, version = ScheduleRecord(schedule=schedule, state=TickState(decided=decided)), 0
            elif entry.record.schedule.asked == schedule.asked and not (
                entry.record.state.cancelled or ticks.is_over(entry.record, next_fire)
            ):
                return self._touch(entry.record)
            else:
                record, version = ticks.replace_definition(entry.record, schedule, decided), entry.version
            if await self._table.write(record, version):
                return self._touch(record)

    async def _change(self, id: str, step: Callable[[ScheduleRecord], ScheduleRecord | None]) -> ScheduleView:
        await self._now()
        record = await self._table.change(id, lambda record: None if record.state.cancelled else step(record))
        if record is None:
            raise await self._unknown(id)
        return self._touch(record)

    async def _read(self, id: str) -> ScheduleRecord:
        entry = await self._table.read(id)
        if entry is None or entry.record.state.cancelled:
            raise await self._unknown(id)
        return entry.record

    async def _unknown(self, id: str) -> Unknown:
        return Unknown("schedule", str(id), tuple(record.schedule.id for record in await self._table.current_records()))

    def _touch(self, record: ScheduleRecord) -> ScheduleView:
        self._loop.wake(record.schedule.id)
        return view_of(record)
