"""The loop of the scheduler: checks each schedule when its time comes, claims due ticks, and starts them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta

from ramet.agent.definition import Agent
from ramet.concurrency.deadline import wait_with_timeout
from ramet.core.errors import Damaged, InvalidValue
from ramet.core.schedules import ticks
from ramet.core.schedules.schedule import Schedule, seconds_until
from ramet.core.schedules.ticks import Claim, ScheduleRecord
from ramet.host.control.schedules import ScheduleEntry, ScheduleTable
from ramet.host.runtime import AgentRuntime, running_runtimes
from ramet.host.schedules.cron import next_fire
from ramet.host.schedules.dispatch import TickDispatcher
from ramet.store.contract import KernelInfo, Store

#: The longest wait: within this time a changed clock and a schedule of another process are noticed.
CHECK_S = 60.0
#: The interval at which the run of a dead scheduler is checked again while a kernel has it.
RETRY_AFTER = timedelta(seconds=1)
#: A schedule whose last tick ended longer ago is deleted.
KEEP_ENDED = timedelta(days=7)

_log = logging.getLogger("ramet.scheduler")
#: The schedulers that are open in this process. The owner of any other claim is dead, unless its kernel is another one.
_open: set[str] = set()


class SchedulerLoop:
    """An active scheduler, from `run` to its cancellation, or to the end of its runtime."""

    def __init__(
        self,
        runtime: AgentRuntime,
        table: ScheduleTable,
        definitions: Callable[[], Mapping[str, Agent]],
        entropy: Callable[[int], bytes],
    ) -> None:
        self._runtime, self._table, self._entropy = runtime, table, entropy
        self._store = table.store
        self._dispatcher = TickDispatcher(runtime, table, definitions)
        self._id = f"scheduler-{entropy(8).hex()}"
        self._wake = asyncio.Event()
        self._check_all_at = 0.0  #: when to check all schedules, by the monotonic clock
        self._agenda: dict[str, datetime] = {}  #: when to check which schedule
        self._taking_up: set[str] = set()  #: claims of dead schedulers that are being taken over
        self._is_leaving = False  #: no more ticks are started
        self.failure: BaseException | None = None  #: the error that ended the loop, if its owner did not

    def wake(self, id: str) -> None:
        """Check a schedule now: it has changed."""
        self._agenda[id] = self._runtime.clock.now()
        self._wake.set()

    def drain(self) -> None:
        """Start no more ticks: `run` returns once the started runs have ended, or are left to other schedulers."""
        self._is_leaving = True
        self._dispatcher.drain()
        self._wake.set()

    async def run(self) -> None:
        """Fire due ticks until cancelled; the cancellation ends every run that was started here, and notes that."""
        clock = self._runtime.clock
        unsubscribers = [self._table.watch(self.wake)]
        try:
            self._id = f"{self._id}@{await _seat_of(self._store)}"
            unsubscribers.append(self._store.on_kernels(self._check_all_soon))
            _open.add(self._id)
            async with asyncio.TaskGroup() as group:
                self._check_all_at = clock.monotonic()
                while self._runtime in running_runtimes() and not self._is_leaving:
                    if clock.monotonic() >= self._check_all_at:
                        self._check_all_at = clock.monotonic() + CHECK_S
                        await self._check_all(group)
                    now = clock.now()
                    for id in [id for id, at in self._agenda.items() if at <= now]:
                        del self._agenda[id]  # before the store is read: a mark set meanwhile stays
                        await self._try(group, id)
                    await self._wait_for_work()
        except* Exception as problem:
            self.failure = problem.exceptions[0]
            _log.error("the scheduler ends: %s: %s", type(self.failure).__name__, self.failure)
        finally:
            for unsubscribe in unsubscribers:
                unsubscribe()
            _open.discard(self._id)

    def _check_all_soon(self) -> None:
        """Check all schedules: a kernel appeared or failed, so that claims may have lost their owner."""
        self._check_all_at = self._runtime.clock.monotonic()
        self._wake.set()

    async def _check_all(self, group: asyncio.TaskGroup) -> None:
        self._agenda.clear()  # before the store is read: entries added meanwhile stay
        for entry in await self._table.all():
            await self._try(group, entry.record.schedule.id, entry)

    async def _wait_for_work(self) -> None:
        """Wait for the next time, or for a change."""
        clock = self._runtime.clock
        wait = max(0.0, self._check_all_at - clock.monotonic())
        if self._agenda:
            wait = seconds_until(min(self._agenda.values()), clock.now(), maximum=wait)
        with suppress(TimeoutError):
            await wait_with_timeout(self._wake.wait(), clock=clock, seconds=wait)
        self._wake.clear()

    async def _try(self, group: asyncio.TaskGroup, id: str, entry: ScheduleEntry | None = None) -> None:
        """Process one schedule; one with a zone that this machine does not know is logged and left unchanged."""
        try:
            await self._consider(group, id, entry)
        except InvalidValue as problem:
            _log.error("schedule %s does not fire here: %s", id, problem)

    async def _consider(self, group: asyncio.TaskGroup, id: str, entry: ScheduleEntry | None = None) -> None:
        """Reconcile one schedule, claim the ticks that may begin, and start them."""
        while (entry := entry or await self._read(id)) is not None:
            owners = await self._living(entry.record)
            now = self._runtime.clock.now()
            settled = ticks.reconcile(entry.record, now, next_fire, owners.__contains__)
            if ticks.is_deletable(settled) or _is_old(settled, now):
                await self._table.remove(id, entry.version)
                return
            record, claims = ticks.claim_due(settled, now, self._id, self._claim_id)
            if record is entry.record or await self._table.write(record, entry.version):
                for claim in claims:
                    group.create_task(self._fire(record.schedule, claim), name=f"ramet tick of {id}")
                for claim in ticks.orphaned_claims(record, owners.__contains__):
                    if claim.id not in self._taking_up:
                        self._taking_up.add(claim.id)
                        group.create_task(self._take_up(record.schedule, claim), name=f"ramet tick of {id}")
                if (at := ticks.next_tick(record, next_fire)) is not None and id not in self._agenda:
                    self._agenda[id] = at
                return
            entry = None

    async def _living(self, record: ScheduleRecord) -> set[str]:
        """Return the living owners of claims: open schedulers of this kernel, and those of other living kernels."""
        owners = {claim.owner for claim in record.state.claims}
        own_owners = {each for each in owners & _open if _seat_in(each) == _seat_in(self._id)}
        if owners == own_owners:
            return own_owners
        seats = {_seat(each) for each in await self._store.kernels() if each.alive and each.name != self._store.kernel}
        return own_owners | {each for each in owners if _seat_in(each) in seats}

    async def _read(self, id: str) -> ScheduleEntry | None:
        try:
            return await self._table.read(id)
        except Damaged:  # logged when all are listed
            return None

    async def _fire(self, schedule: Schedule, claim: Claim) -> None:
        await self._dispatcher.fire(schedule, claim)
        self.wake(schedule.id)

    async def _take_up(self, schedule: Schedule, claim: Claim) -> None:
        try:
            is_over = await self._dispatcher.take_over(schedule, claim, self._id)
        finally:
            self._taking_up.discard(claim.id)
        if is_over:
            self.wake(schedule.id)
        else:
            next_check = self._runtime.clock.now() + RETRY_AFTER
            self._agenda[schedule.id] = min(next_check, self._agenda.get(schedule.id, next_check))
            self._wake.set()

    def _claim_id(self) -> str:
        return f"claim-{self._entropy(8).hex()}"


async def _seat_of(store: Store) -> str:
    """Return the name by which schedulers of this kernel are known to other kernels."""
    return next(_seat(each) for each in await store.kernels() if each.name == store.kernel)


def _seat(kernel: KernelInfo) -> str:
    return f"{kernel.epoch}/{kernel.name}"


def _seat_in(scheduler: str) -> str:
    return scheduler.partition("@")[2]


def _is_old(record: ScheduleRecord, now: datetime) -> bool:
    """Return whether a schedule has been over for a long time."""
    results = record.state.results
    last = results[-1].ended if results else record.state.decided
    return last is not None and last + KEEP_ENDED < now and ticks.is_over(record, next_fire)
