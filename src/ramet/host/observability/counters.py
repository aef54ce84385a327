"""Totals of the events of a runtime's trees, for monitoring: a view of the events, like spans.

The totals begin at zero with the process, as counters do. Counting costs one table lookup for each event.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final

from ramet.core import events
from ramet.core.events import Event
from ramet.core.outcome import Usage
from ramet.host.journal.recorder import Recorder
from ramet.host.journal.subscription import Listener, listen

START_S: Final = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
LAG_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
TURN_S: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
OTHER: Final = "other"
_MOST_KINDS: Final = 50  #: kinds of one counter: some names come from models and guests


class Histogram:
    """The number of values that were at most as large as each of `bounds`, and the sum of the values."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds, self.sum = tuple(bounds), 0.0
        self._counts = [0] * (len(self.bounds) + 1)  #: between a bound and the one below it; the last is above all

    def observe(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        """The number of counted values."""
        return sum(self._counts)

    def cumulative(self) -> list[tuple[float, int]]:
        """Return each bound with the number of values that were at most that large."""
        total, buckets = 0, list[tuple[float, int]]()
        for bound, count in zip(self.bounds, self._counts, strict=False):
            total += count
            buckets.append((bound, total))
        return buckets


class Counts:
    """The totals of all attached trees, since the creation of this object."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self.now = now
        self.spawned = self.resumed = 0
        self.ended: Counter[str] = Counter()  #: runs by status
        self.turns: Counter[str] = Counter()  #: by status
        self.tools: Counter[str] = Counter()  #: calls by status
        self.tokens: Counter[str] = Counter()  #: input | output | cache_read, which is a part of input
        self.usd = 0.0
        self.asked = self.retried = 0  #: requests to models
        self.refused: Counter[str] = Counter()  #: budgets by resource
        self.spawn_refusals: Counter[str] = Counter()  #: refused spawns by limit
        self.gate: Counter[str] = Counter()  #: intentions: committed | refused
        self.approvals: Counter[str] = Counter()  #: asked | allowed | denied
        self.sandboxes: Counter[str] = Counter()  #: by backend
        self.starts = Histogram(START_S)  #: from a run's spawn to its first turn
        self.turn_seconds = Histogram(TURN_S)  #: from a turn's start to its end, by the times of its events
        self.lag = Histogram(LAG_S)  #: from the time of an event to its durable record

    def count_refusal(self, limit: str) -> None:
        """Count a spawn that this limit refused."""
        _count(self.spawn_refusals, limit)

    def attach(self, recorder: Recorder) -> Listener:
        """Count the events of a tree from now on, until it closes."""
        return listen(recorder, _Tree(self).on_event)


class _Tree:
    """The counting of one tree; its memory of earlier events ends with the tree."""

    def __init__(self, counts: Counts) -> None:
        self._all = counts
        self._spawned_at: dict[str, datetime] = {}  #: runs without a turn so far
        self._turn_started_at: dict[str, datetime] = {}  #: when a run's turn began
        self._handlers: dict[type[Event], Callable[[Any], None]] = {
            events.RunSpawned: self._count_spawn,
            events.RunResumed: self._count_resume,
            events.RunEnded: self._count_end,
            events.TurnStarted: self._observe_turn_start,
            events.TurnEnded: self._observe_turn_end,
            events.ModelAsked: self._count_requests,
            events.ModelRetried: self._count_retry,
            events.ModelCharged: lambda event: self._count_usage(event.usage),
            events.MessageRecorded: lambda event: self._count_usage(event.usage),
            events.ToolEnded: lambda event: _count(counts.tools, event.status),
            events.BudgetRefused: lambda event: _count(counts.refused, event.resource),
            events.IntentionDecided: lambda event: _count(counts.gate, "committed" if event.committed else "refused"),
            events.ApprovalAsked: lambda event: _count(counts.approvals, "asked"),
            events.ApprovalAnswered: lambda event: _count(counts.approvals, "allowed" if event.allowed else "denied"),
            events.SandboxStarted: lambda event: _count(counts.sandboxes, event.backend),
        }

    def on_event(self, event: Event) -> None:
        """Count an event."""
        if event.at is not None:
            self._all.lag.observe(max(0.0, (self._all.now() - event.at).total_seconds()))
        if (handler := self._handlers.get(type(event))) is not None:
            handler(event)

    def _count_spawn(self, event: events.RunSpawned) -> None:
        self._all.spawned += 1
        if event.at is not None:
            self._spawned_at[event.run] = event.at

    def _count_resume(self, event: events.RunResumed) -> None:
        self._all.resumed += 1

    def _observe_turn_start(self, event: events.TurnStarted) -> None:
        spawned_at = self._spawned_at.pop(event.run, None)
        if spawned_at is not None and event.at is not None:
            self._all.starts.observe(max(0.0, (event.at - spawned_at).total_seconds()))

        if event.at is not None:
            self._turn_started_at[event.run] = event.at

    def _observe_turn_end(self, event: events.TurnEnded) -> None:
        _count(self._all.turns, event.status)
        started_at = self._turn_started_at.pop(event.run, None)
        if started_at is not None and event.at is not None:
            self._all.turn_seconds.observe(max(0.0, (event.at - started_at).total_seconds()))

    def _count_end(self, event: events.RunEnded) -> None:
        self._spawned_at.pop(event.run, None)
        self._turn_started_at.pop(event.run, None)
        _count(self._all.ended, str(event.result.status))

    def _count_requests(self, event: events.ModelAsked) -> None:
        self._all.asked += event.requests

    def _count_retry(self, event: events.ModelRetried) -> None:
        self._all.retried += 1

    def _count_usage(self, usage: Usage | None) -> None:
        if usage is not None:
            tokens = self._all.tokens
            tokens["input"] += usage.input_tokens
            tokens["output"] += usage.output_tokens
            tokens["cache_read"] += usage.cache_read_tokens
            self._all.usd += usage.usd


def _count(counter: Counter[str], kind: str) -> None:
    counter[kind if kind in counter or len(counter) < _MOST_KINDS else OTHER] += 1
