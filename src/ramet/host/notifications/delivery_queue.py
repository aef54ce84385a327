"""The queue of one target: notifications in the order of their run, several runs at a time, each tried until delivered.

A run whose notification fails waits, longer after each failure, and holds up no other run. Only a bounded number of
attempts is made at a time. Changes are logged, and not attempts: the first run that fails, and the end of the last
failure.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import logging
import random
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from ramet.concurrency.clock import Clock
from ramet.concurrency.deadline import wait_with_timeout
from ramet.host.notifications.attempt import Attempt, Deliver
from ramet.host.notifications.notification import Notification
from ramet.host.notifications.targets import NotificationTarget

IN_FLIGHT: Final = 8  #: attempts of one target at a time
MAX_BYTES: Final = 16 * 2**20  #: of waiting notifications in memory; the rest stays in the journal
_MAX_DOUBLINGS: Final = 30
_OVERHEAD: Final = 1_024  #: bytes of a waiting notification besides its texts

_log = logging.getLogger("ramet.notifications")


@dataclass(eq=False, kw_only=True)
class Entry:
    """A notification that waits."""

    notification: Notification
    order: str  #: notifications with the same text here are delivered in order: the id of a run
    #: Records that the notification needs no further attempt; returns False if another notifier sends it from now on.
    record: Callable[[Entry], Awaitable[bool]]
    seq: int = 0
    approval: str = ""  #: the question that it is about
    size: int = 0
    is_moot: bool = False  #: answered during an attempt: if that fails, it is the last one

    def __post_init__(self) -> None:
        self.size = _OVERHEAD + len(self.notification.as_json())


@dataclass(eq=False)
class _Run:
    """The waiting notifications of one run."""

    order: str
    entries: deque[Entry] = field(default_factory=deque)
    failures: int = 0  #: of the first entry
    is_busy: bool = False  #: an attempt is being made, or its outcome is being recorded
    due_at: float = 0.0  #: when the first entry is tried; another time in the heap of due runs is outdated


class DeliveryQueue:
    """The notifications of one target that are in memory."""

    def __init__(self, name: str, target: NotificationTarget, deliver: Deliver, clock: Clock) -> None:
        self.name, self.target = name, target
        self.outcomes: Counter[str] = Counter()  #: delivered | failed (an attempt) | answered | expired | dropped
        self.on_room: Callable[[], None] = lambda: None  #: called when there is room again
        self.has_stopped = False  #: the target is gone, and its settings say that this ends it
        self._deliver, self._clock = deliver, clock
        self._runs: dict[str, _Run] = {}
        self._due: list[tuple[float, int, _Run]] = []
        self._numbers = itertools.count()
        self._in_flight = self._bytes = self._failing = 0
        self._changed, self._processed = asyncio.Event(), asyncio.Event()

    @property
    def waiting(self) -> int:
        """The number of notifications in memory that are not delivered."""
        return sum(len(each.entries) for each in self._runs.values())

    @property
    def has_room(self) -> bool:
        """Return whether another notification fits into memory."""
        return self._bytes < MAX_BYTES

    @property
    def is_settled(self) -> bool:
        """Return whether nothing is being tried, and whatever waits has failed before."""
        return not self._in_flight and all(each.failures for each in self._runs.values())

    def push(self, entry: Entry) -> None:
        """Add a notification behind the others of its run."""
        run = self._runs.get(entry.order)
        if run is None:
            run = self._runs[entry.order] = _Run(entry.order)
            self._schedule(run, self._clock.monotonic())
        run.entries.append(entry)
        self._bytes += entry.size

    def drop(self) -> None:
        """Count a notification that finds no room, and that no journal has."""
        if not self.outcomes["dropped"]:
            _log.error("target %s of notifications has no room for more, and loses some", self.name)
        self.outcomes["dropped"] += 1

    def take_back(self, should_go: Callable[[Entry], bool]) -> list[Entry]:
        """Remove and return the waiting notifications that `should_go`. One that is being tried is not tried again."""
        gone = list[Entry]()
        for run in list(self._runs.values()):
            first = run.entries[0] if run.is_busy else None
            if first is not None and should_go(first):
                first.is_moot = True
            leaving = [each for each in run.entries if each is not first and should_go(each)]
            if leaving:
                if first is None and leaving[0] is run.entries[0] and run.failures:
                    run.failures = 0
                    self._end_failure()
                    self._schedule(run, self._clock.monotonic())  # The next one has not failed, and waits for nothing.
                run.entries = deque(each for each in run.entries if each not in leaving)
                self._bytes -= sum(each.size for each in leaving)
                gone += leaving
            if not run.entries:
                del self._runs[run.order]
        self._processed.set()
        return gone

    async def settle(self, within_s: float) -> None:
        """Wait until nothing is being tried and whatever waits has failed before, at most so many seconds."""
        with contextlib.suppress(TimeoutError):
            await wait_with_timeout(self._wait_settled(), clock=self._clock, seconds=within_s)

    async def _wait_settled(self) -> None:
        while not self.is_settled:
            self._processed.clear()
            await self._processed.wait()

    async def run(self) -> None:
        """Deliver until cancelled. Raises StoreFailed if a delivery cannot be recorded."""
        async with asyncio.TaskGroup() as group:
            while True:
                self._changed.clear()
                while self._due and self._in_flight < IN_FLIGHT and self._due[0][0] <= self._clock.monotonic():
                    at, _, run = heapq.heappop(self._due)
                    if self._runs.get(run.order) is run and run.entries and not run.is_busy and run.due_at == at:
                        self._in_flight += 1
                        run.is_busy = True
                        group.create_task(self._process(run), name=f"ramet notification {self.name}")
                is_full = self._in_flight >= IN_FLIGHT
                seconds = None if is_full or not self._due else self._due[0][0] - self._clock.monotonic()
                with contextlib.suppress(TimeoutError):
                    await wait_with_timeout(self._changed.wait(), clock=self._clock, seconds=seconds)

    async def _process(self, run: _Run) -> None:
        """Make one attempt for the first notification of a run, and record its outcome."""
        entry, delay, is_mine = run.entries[0], 0.0, True
        try:
            outcome = await self._try(run, entry)
            if not outcome and entry.is_moot:
                outcome = "answered"
            if outcome:
                is_mine = await entry.record(entry)
                if is_mine:
                    self._count(outcome, entry)
            else:
                delay = self._backoff_s(run.failures)
        finally:
            run.is_busy = False
            self._in_flight -= 1
            self._changed.set()
        if outcome or not is_mine:
            self._remove_first(run, entry)
        if run.entries:
            self._schedule(run, self._clock.monotonic() + delay)
        elif self._runs.get(run.order) is run:
            del self._runs[run.order]
        self._processed.set()
        if self._bytes < MAX_BYTES // 2:
            self.on_room()

    async def _try(self, run: _Run, entry: Entry) -> str:
        """Return the final outcome of a notification; empty if it is to be tried again."""
        if self.has_stopped:
            return "dropped"
        if self._clock.now() - entry.notification.time > timedelta(seconds=self.target.max_age_s):
            return "expired"
        try:
            attempt = await self._deliver(entry.notification)
        except Exception as problem:  # Any error, such as a thread that cannot be started: other targets go on.
            attempt = Attempt(f"{type(problem).__name__}: {problem}"[:500])
        if not attempt.problem:
            return "delivered"
        self.outcomes["failed"] += 1
        if attempt.is_gone and getattr(self.target, "stop_when_gone", False):
            self.has_stopped = True
            _log.error("target %s of notifications is gone, and gets nothing more: %s", self.name, attempt.problem)
            return "dropped"
        self._begin_failure(run, attempt)
        return ""

    def _begin_failure(self, run: _Run, attempt: Attempt) -> None:
        if not run.failures:
            self._failing += 1
            if self._failing == 1:
                _log.warning(
                    "target %s of notifications fails, and is tried again: %s (%d waiting)",
                    self.name,
                    attempt.problem,
                    self.waiting,
                )
        run.failures += 1

    def _end_failure(self) -> None:
        self._failing -= 1
        if not self._failing:
            _log.warning("target %s of notifications has no failures any more (%d waiting)", self.name, self.waiting)

    def _count(self, outcome: str, entry: Entry) -> None:
        self.outcomes[outcome] += 1
        if outcome == "expired":
            _log.error("notification %s for target %s is too old, and given up", entry.notification.id, self.name)

    def _remove_first(self, run: _Run, entry: Entry) -> None:
        if run.entries and run.entries[0] is entry:
            run.entries.popleft()
            self._bytes -= entry.size
        if run.failures:
            run.failures = 0
            self._end_failure()

    def _schedule(self, run: _Run, at: float) -> None:
        run.due_at = at
        heapq.heappush(self._due, (at, next(self._numbers), run))
        self._changed.set()

    def _backoff_s(self, failures: int) -> float:
        """Return the wait after so many failures: doubled each time, bounded, and spread over its upper half."""
        seconds = self.target.first_retry_s * 2.0 ** min(failures - 1, _MAX_DOUBLINGS)
        return min(self.target.longest_retry_s, seconds) * random.uniform(0.5, 1.0)
