"""The metrics of a server: the totals of its runtime, its present state, and its requests."""

from __future__ import annotations

import os
import pathlib
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from ramet.disk.state_folder import JOURNAL, state_folder
from ramet.host.observability.counters import Counts, Histogram
from ramet.host.observability.loop_lag import LoopLag
from ramet.host.retention.folder_sizes import FolderSizes
from ramet.host.runtime import AgentRuntime
from ramet.services.operator.prometheus import Family, Sample, buckets, samples_by
from ramet.services.version import ramet_version

if TYPE_CHECKING:
    from ramet.services.teams.agents import AgentTable

_PAGE: Final = resource.getpagesize()


class Requests:
    """The HTTP requests of a server, by the path of their route."""

    def __init__(self) -> None:
        self.under_way = 0
        self.answered: Counter[tuple[str, str, str]] = Counter()  #: by method, path and status
        self.seconds: dict[str, float] = {}  #: by path

    def record(self, method: str, path: str, status: int, seconds: float) -> None:
        """Count a completed request; without a status, its client left before an answer began."""
        self.answered[method, path, str(status or "none")] += 1
        self.seconds[path] = self.seconds.get(path, 0.0) + seconds


class Metrics:
    """The metrics of one server, between `start` and `stop`."""

    def __init__(self, runtime: AgentRuntime, agents: AgentTable, *, is_public: bool = False) -> None:
        """Create the metrics. With `is_public`, every client can read them; else only the operator can."""
        self.is_public, self.requests = is_public, Requests()
        self._runtime, self._agents = runtime, agents
        self.open_streams: Callable[[], int] = lambda: 0
        self._lag = LoopLag()
        journal = runtime.journal
        folder = journal.folder if journal is not None else None
        self._database = folder / JOURNAL if folder is not None else None
        self._sizes = FolderSizes(state_folder(runtime.working_dir)) if runtime.working_dir is not None else None
        self._batches = 0
        self._stop_listening: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Start to count the work of trees. The journal must be open."""
        if self._runtime.telemetry.counts is None:
            self._runtime.telemetry.counts = Counts(self._runtime.clock.now)
        if self._runtime.journal is not None:
            self._stop_listening = self._runtime.journal.store.on_commit(self._count_batch)
        self._lag.start()

    async def stop(self) -> None:
        """Stop counting; idempotent."""
        self._lag.stop()
        self._stop_listening()
        if self._sizes is not None:
            await self._sizes.stop()

    def families(self) -> Iterator[Family]:
        yield Family("ramet_build_info", "gauge", "The version that runs.", [Sample(1, {"version": ramet_version()})])
        yield from self._now()
        if (counts := self._runtime.telemetry.counts) is not None:
            yield from _totals(counts)
        yield from self._journal()
        yield from self._disk()
        yield Family(
            "ramet_event_loop_lag_seconds", "histogram", "How late the event loop was.", buckets(self._lag.seconds)
        )
        yield Family("ramet_streams_open", "gauge", "Streams of events being read.", [Sample(self.open_streams())])
        yield from self._stalls()
        yield from self._notifications()
        yield from _http(self.requests)
        yield from _process()

    def _count_batch(self, ticket: int) -> None:
        self._batches += 1

    def _now(self) -> Iterator[Family]:
        trees = self._runtime.trees
        active_runs = [run for tree in trees.values() for run in tree.tree.register.living()]
        runs = Counter(str(run.state) for run in active_runs)
        sandboxes = {
            "living": len(self._runtime.sandboxes.contexts_by_run),
            "parked": self._runtime.sandboxes.parked_count,
        }
        unread = sum(len(run.context.mailbox) for run in active_runs)
        finished = self._runtime.finished_trees
        agents = Counter(str(active_runs.state) for active_runs in self._agents)
        teams = {active_runs.row.team for active_runs in self._agents}
        yield Family("ramet_trees", "gauge", "Trees that are open.", [Sample(len(trees))])
        yield Family("ramet_trees_kept", "gauge", "Ended trees that can still be queried.", [Sample(finished)])
        yield Family("ramet_mail_unread", "gauge", "Messages that no run has read yet.", [Sample(unread)])
        yield Family(
            "ramet_sandboxes",
            "gauge",
            "Sandboxes of runs, and warm processes for new sandboxes.",
            samples_by("state", sandboxes),
        )
        yield Family("ramet_runs", "gauge", "Runs that have not ended, by state.", samples_by("state", runs))
        yield Family("ramet_agents", "gauge", "Agents of teams, by state.", samples_by("state", agents))
        yield Family("ramet_teams_with_agents", "gauge", "Teams that have an agent.", [Sample(len(teams))])

    def _journal(self) -> Iterator[Family]:
        journal = self._runtime.journal
        if journal is None:
            return
        waiting = sum(tree.recorder.waiting for tree in self._runtime.trees.values())
        store = {"store": journal.store.name}
        yield Family(
            "ramet_journal_events_total",
            "counter",
            "Events recorded durably since the journal was opened.",
            [Sample(journal.store.committed, store)],
        )
        yield Family(
            "ramet_journal_commits_total", "counter", "Batches of recorded events.", [Sample(self._batches, store)]
        )
        yield Family("ramet_journal_waiting", "gauge", "Events that are not recorded yet.", [Sample(waiting, store)])

    def _disk(self) -> Iterator[Family]:
        if self._database is not None:
            files = {"database": self._database, "wal": self._database.with_name(f"{JOURNAL}-wal")}
            bytes_of = {name: size for name, path in files.items() if (size := _size(path)) is not None}
            yield Family("ramet_journal_bytes", "gauge", "Files of the journal.", samples_by("file", bytes_of))
        if self._sizes is not None:
            sizes = samples_by("part", self._sizes.newest_sizes())
            yield Family("ramet_folder_bytes", "gauge", "Disk usage of the state folder.", sizes)

    def _notifications(self) -> Iterator[Family]:
        if (notifier := self._runtime.notifier) is None:
            return
        queues = notifier.queues.values()
        outcomes = [
            Sample(count, {"target": queue.name, "outcome": outcome})
            for queue in queues
            for outcome, count in sorted(queue.outcomes.items())
        ]
        waiting = {queue.name: queue.waiting for queue in queues}
        yield Family("ramet_notifications_total", "counter", "Outcomes of notifications, by target.", outcomes)
        yield Family(
            "ramet_notifications_waiting",
            "gauge",
            "Notifications in memory that are not delivered.",
            samples_by("target", waiting),
        )

    def _stalls(self) -> Iterator[Family]:
        if (watch := self._runtime.stalls) is None:
            return
        so_far, stood_still = watch.so_far, "the event loop was blocked."
        yield Family("ramet_event_loop_stalls_total", "counter", f"Times that {stood_still}", [Sample(so_far.count)])
        seconds = [Sample(so_far.seconds)]
        yield Family("ramet_event_loop_stalled_seconds_total", "counter", f"Seconds that {stood_still}", seconds)


def _size(path: pathlib.Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


#: The totals of a runtime, in the order of the answer: name, meaning, field of `Counts`, and label of its values.
_TOTALS: Final = (
    ("ramet_runs_spawned_total", "Runs that were spawned.", "spawned", ""),
    ("ramet_runs_resumed_total", "Runs resumed after a kill.", "resumed", ""),
    ("ramet_runs_ended_total", "Runs that ended, by status.", "ended", "status"),
    ("ramet_run_start_seconds", "From the spawn of a run to its first turn.", "starts", ""),
    ("ramet_turns_total", "Turns that ended, by status.", "turns", "status"),
    ("ramet_turn_seconds", "From a turn's start to its end.", "turn_seconds", ""),
    ("ramet_tool_calls_total", "Tool calls that ended, by status.", "tools", "status"),
    ("ramet_model_requests_total", "Requests to models.", "asked", ""),
    ("ramet_model_retries_total", "Requests to models that had to be repeated.", "retried", ""),
    ("ramet_tokens_total", "Tokens, by kind; input counts those read from a cache.", "tokens", "kind"),
    ("ramet_spent_usd_total", "Cost of models, in US dollars.", "usd", ""),
    ("ramet_budget_refusals_total", "Refusals of budgets, by resource.", "refused", "resource"),
    ("ramet_spawn_refusals_total", "Spawns that were refused, by limit.", "spawn_refusals", "limit"),
    ("ramet_gate_decisions_total", "Decisions of safety gates, by decision.", "gate", "decision"),
    ("ramet_approvals_total", "Questions to people, by step.", "approvals", "step"),
    ("ramet_sandboxes_started_total", "Sandboxes, by backend.", "sandboxes", "backend"),
    ("ramet_journal_lag_seconds", "From an event to its durable record.", "lag", ""),
)


def _totals(counts: Counts) -> Iterator[Family]:
    for name, meaning, field, label in _TOTALS:
        total = getattr(counts, field)
        if isinstance(total, Histogram):
            yield Family(name, "histogram", meaning, buckets(total))
        else:
            yield Family(name, "counter", meaning, samples_by(label, total) if label else [Sample(total)])


def _http(requests: Requests) -> Iterator[Family]:
    counts = sorted(requests.answered.items())
    totals = [
        Sample(count, {"method": method, "path": path, "status": status}) for (method, path, status), count in counts
    ]
    of_path: Counter[str] = Counter()
    for (_, path, _), count in counts:
        of_path[path] += count
    durations = [
        sample
        for path in sorted(requests.seconds)
        for sample in (
            Sample(requests.seconds[path], {"path": path}, "_sum"),
            Sample(of_path[path], {"path": path}, "_count"),
        )
    ]
    yield Family("ramet_http_requests_under_way", "gauge", "Requests being answered.", [Sample(requests.under_way)])
    yield Family("ramet_http_requests_total", "counter", "Requests, by route and status.", totals)
    yield Family("ramet_http_request_seconds", "summary", "To the end of their answers, by route.", durations)


def _process() -> Iterator[Family]:
    """Yield the usual metrics of a process, under their common names."""
    yield Family("process_cpu_seconds_total", "counter", "User and system time.", [Sample(time.process_time())])
    try:
        with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - read at each scrape
            resident = int(file.read().split()[1]) * _PAGE
        descriptors = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names are not needed
    except OSError:  # no /proc
        return
    yield Family("process_resident_memory_bytes", "gauge", "Resident memory.", [Sample(resident)])
    yield Family("process_open_fds", "gauge", "Open descriptors.", [Sample(descriptors)])
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield Family("process_max_fds", "gauge", "The limit of open file descriptors.", [Sample(soft)])
