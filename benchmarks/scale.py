"""A prediction of the needs of many agents, and of the first limit: `python -m benchmarks.scale [RESULTS]`.

The constants are medians of a file that `python -m benchmarks … --json` wrote; nothing is fitted. What is assumed, of
agents (`Load`) and of machines (`Capacity`), stands here. docs/design/scale.md explains it.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.machine import ROOT
from benchmarks.tables import number

MEASURED = ROOT / "benchmarks" / "results" / "scale.json"
SIZES = (1_000, 10_000, 100_000, 1_000_000)
DAY_S = 86_400


@dataclass(frozen=True, kw_only=True)
class Load:
    """Assumptions about the work of agents."""

    working: float = 0.01  #: this part of all is at work
    pace_s: float = 30.0  #: between the beginnings of two turns of one at work
    events: float = 20.0  #: durable ones in a turn
    connected: float = 0.10  #: this part has a client that is connected and waits
    watched: float = 0.01  #: this part has a client that reads a stream
    in_pods: float = 0.01  #: this part has a pod
    pod_life_s: float = 600.0
    births: float = 0.1  #: new runs for each turn, each with a name of its own


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """Assumptions about what a kernel, the database and a node may use."""

    memory_gb: float = 4.0  #: of a kernel
    busy: float = 0.5  #: of a kernel's one processor; the rest is for peaks
    connections: float = 10_000  #: of a kernel: `Bounds.connections` of ramet.services.http.connections
    takeover_s: float = 10.0  #: until the other kernels have all trees of one that fell
    sessions: float = 97  #: at the server: its default of 100 without those for its superuser
    disk_gb_a_day: float = 100.0  #: that the operator lets the journal grow
    names: float = 2**31  #: trees and runs that were ever named: `names.id` is an integer
    server_cores: float = 8.0  #: that PostgreSQL may use
    pods_a_node: float = 110  #: kubelet's default
    api_per_s: float = 100.0  #: writes that an API server takes; assumed, not measured


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Measured costs."""

    base_mb: float  #: a kernel with nobody
    conversation_kb: float
    client_kb: float
    reader_kb: float
    turn_ms: float  #: of a kernel's processor, with nobody else in its commits
    turn_events: float  #: of that turn, which are taken off it
    event_us: float  #: of a kernel's processor
    taken_up_ms: float  #: of a kernel's processor, for a tree of 200 events
    heard_us: float  #: of a kernel's processor, for a commit of another
    turn_commits: float  #: with nobody else in them
    server_event_us: float
    server_commit_us: float  #: beside its events
    server_heard_us: float  #: for a commit, and each kernel that hears of it
    event_bytes: float
    event_wal_bytes: float
    commit_wal_bytes: float  #: beside its events
    sessions: float
    pod_kb: float
    pod_writes: float  #: to the API in the life of a pod


@dataclass(frozen=True, kw_only=True)
class Need:
    """The predicted needs of so many agents."""

    agents: int
    kernels_for: Mapping[str, float]  #: how many kernels each of their limits asks for, before it is rounded up
    kernels: int
    figures: Mapping[str, float]
    used: Mapping[str, float]  #: of what more kernels do not help: 1 is all there is

    @property
    def decides(self) -> str:
        """Return the limit that decides the number of kernels."""
        return max(self.kernels_for, key=self.kernels_for.__getitem__)

    @property
    def first(self) -> str:
        """Return the most used limit that more kernels do not move."""
        return max(self.used, key=self.used.__getitem__)


def predict(agents: int, costs: Costs, load: Load | None = None, capacity: Capacity | None = None) -> Need:
    """Return the least that is enough for all agents."""
    load, capacity = load or Load(), capacity or Capacity()
    turns = agents * load.working / load.pace_s
    events, commits = turns * load.events, turns * costs.turn_commits
    connections = agents * (load.connected + load.watched)
    pods = math.ceil(agents * load.in_pods)
    memory_gb = (
        agents * (costs.conversation_kb + load.connected * costs.client_kb + load.watched * costs.reader_kb)
        + pods * costs.pod_kb
    ) / 2**20
    turn_s = costs.turn_ms / 1e3 + (load.events - costs.turn_events) * costs.event_us / 1e6
    left = capacity.busy - commits * costs.heard_us / 1e6  # Each kernel hears every commit of all others.
    kernels_for = {
        "memory": memory_gb / (capacity.memory_gb - costs.base_mb / 2**10),
        "processor": turns * turn_s / left if left > 0 else math.inf,
        "connections": (connections + pods) / capacity.connections,
        "takeover": _kernels_for_takeover(agents * costs.taken_up_ms / 1e3, capacity),
    }
    most = max(kernels_for.values())
    kernels = math.ceil(most) if most < math.inf else 0
    commit_s = costs.server_commit_us / 1e6
    locked = commits * commit_s + events * costs.server_event_us / 1e6
    server = locked + commits * max(kernels - 1, 0) * costs.server_heard_us / 1e6
    day_gb = events * costs.event_bytes * DAY_S / 2**30
    wal = events * costs.event_wal_bytes + commits * costs.commit_wal_bytes
    figures = {
        "turns/s": turns,
        "durable events/s": events,
        "commits/s, none shared": commits,
        "memory of all kernels, GB": memory_gb + kernels * costs.base_mb / 2**10,
        "agents in a kernel": agents / max(kernels, 1),
        "descriptors in a kernel": (connections + pods) / max(kernels, 1),
        "sessions at PostgreSQL": kernels * costs.sessions,
        "WAL, MB/s": wal / 2**20,
        "journal, GB/day": day_gb,
        "processors of PostgreSQL": server,
        "notices to all kernels /s": commits * max(kernels - 1, 0),
        "pods": float(pods),
        "nodes for them": float(math.ceil(pods / capacity.pods_a_node)),
        "writes to the API /s": pods / load.pod_life_s * costs.pod_writes,
    }
    used = {
        "the one row of the journal": locked,
        "processors of PostgreSQL": server / capacity.server_cores,
        "sessions at PostgreSQL": kernels * costs.sessions / capacity.sessions,
        "notices": commits * costs.heard_us / 1e6 / capacity.busy,
        "disk": day_gb / capacity.disk_gb_a_day,
        "names, in a year": turns * load.births * DAY_S * 365 / capacity.names,
        "the API server": figures["writes to the API /s"] / capacity.api_per_s,
    }
    return Need(agents=agents, kernels_for=kernels_for, kernels=kernels, figures=figures, used=used)


def _kernels_for_takeover(cpu_s: float, capacity: Capacity) -> float:
    """Return the number n of kernels that take over in time: n (n - 1) = CPU time / (time · busy)."""
    asked = cpu_s / (capacity.takeover_s * capacity.busy)
    return max(2.0, (1 + math.sqrt(1 + 4 * asked)) / 2)


def measured(path: Path = MEASURED) -> Costs:
    """Return the costs from a file of results. Raises KeyError for a missing one."""
    measurements = json.loads(path.read_text())["measurements"]

    def of(measurement: str, figure: str) -> float:
        return float(measurements[measurement]["figures"][figure]["median"])

    full, alone = "kernels-1", "kept-turn-alone"
    commits, events = of(alone, "commits"), of("kept-turn", "events")
    # A commit that is full tells what an event costs, one of a turn by itself what is left for the commit.
    return Costs(
        base_mb=of("population", "base_mb"),
        conversation_kb=of("served", "conversation_kb"),
        client_kb=max(of("served", "client_kb"), 0.0),
        reader_kb=max(of("served", "reader_kb"), 0.0),
        turn_ms=of(alone, "kernel_ms"),
        turn_events=events,
        event_us=of(full, "kernel_us"),
        taken_up_ms=of("recovery", "recovery_cpu_s"),  # of 1,000
        heard_us=of("kernels-heard", "heard_us"),
        turn_commits=commits,
        server_event_us=of(full, "server_us"),
        server_commit_us=max(of(alone, "server_ms") * 1e3 - events * of(full, "server_us"), 0.0) / commits,
        server_heard_us=max(of("kernels-heard", "server_commit_us") - of(full, "server_commit_us"), 0.0) / 3,
        event_bytes=of(full, "table_bytes"),
        event_wal_bytes=of(full, "wal_bytes"),
        commit_wal_bytes=max(of(alone, "wal_bytes") - events * of(full, "wal_bytes"), 0.0) / commits,
        sessions=math.ceil(of("kernels-3", "sessions")),
        pod_kb=POD_KB,
        pod_writes=POD_WRITES,
    )


POD_KB = 71.0  #: a pod's line: docs/design/sandboxes-elsewhere.md
#: Its Secret made, given to it and removed; itself made, made nobody's and removed:
#: ramet/isolation/kubernetes/pods/pod.py
POD_WRITES = 6.0


def table(needs: Sequence[Need]) -> str:
    """Return a table in Markdown, with a column for each size."""
    lines = [
        f"| agents | {' | '.join(f'{each.agents:,}' for each in needs)} |",
        f"|---|{'--:|' * len(needs)}",
        _line("**kernels**", [f"**{each.kernels}**" if each.kernels else "**–**" for each in needs]),
        _line("because of", [each.decides for each in needs]),
    ]
    for name in needs[0].kernels_for:
        lines.append(_line(f"kernels for {name} alone", [number(each.kernels_for[name]) for each in needs]))
    for name in needs[0].figures:
        lines.append(_line(name, [number(each.figures[name]) for each in needs]))
    for name in needs[0].used:
        lines.append(_line(f"used: {name}", [f"{each.used[name]:.1%}" for each in needs]))
    lines.append(_line("**most used**", [each.first for each in needs]))
    return "\n".join(lines)


def _line(name: str, cells: Sequence[str]) -> str:
    return f"| {name} | {' | '.join(cells)} |"


def check_prediction(path: Path = MEASURED) -> str:
    """Return a table in Markdown: the large population as the small one predicts it, and as it was measured."""
    measurements = json.loads(path.read_text())["measurements"]
    small, large = (
        {key: float(figure["median"]) for key, figure in measurements[name]["figures"].items()}
        for name in ("population", "population-5000")
    )
    rows = (
        ("memory of the process, MB", small["base_mb"] + (LARGE + WORKING) * small["idle_kb"] / 1024, large["rss_mb"]),
        ("taking them up, s of CPU", LARGE * small["taken_up_ms"] / 1e3, LARGE * large["taken_up_ms"] / 1e3),
        ("turns/s", WORKING / PACE_S, large["turns_per_s"]),
        ("events/s", WORKING / PACE_S * small["turn_events"], large["turns_per_s"] * large["turn_events"]),
        ("of one processor", WORKING / PACE_S * small["turn_ms"] / 1e3, large["busy"]),
    )
    lines = ["| 5,000 at rest, 50 at work | predicted | measured | measured ÷ predicted |", "|---|--:|--:|--:|"]
    lines += [_line(name, [number(one), number(other), f"{other / one:.2f}"]) for name, one, other in rows]
    return "\n".join(lines)


#: Of `population-5000`; what the process of the small one had before anybody was at rest is in its `base_mb`.
LARGE, WORKING, PACE_S = 5_000, 50, 3.0


def main(argv: Sequence[str]) -> None:
    """Print both tables."""
    path = Path(argv[0]) if argv else MEASURED
    costs = measured(path)
    print(table([predict(size, costs) for size in SIZES]), check_prediction(path), sep="\n\n")


if __name__ == "__main__":
    main(sys.argv[1:])
