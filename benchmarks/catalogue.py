"""What is measured, in which unit, and what is to be reached; worst cases come first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One number of a measurement. `key` is its name in what the process prints."""

    key: str
    label: str
    unit: str
    at_most: float | None = None
    exactly: float | None = None

    @property
    def goal(self) -> str:
        """The goal as a table shows it."""
        if self.exactly is not None:
            return f"{self.exactly:g}"
        return "" if self.at_most is None else f"≤ {self.at_most:g}"

    def is_met(self, value: float) -> bool | None:
        """Whether `value` is as good as the goal; None where there is none."""
        if self.exactly is not None:
            return value == self.exactly
        return None if self.at_most is None else value <= self.at_most


Kind = Literal["import", "harness", "durable", "measure"]


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One process, run `rounds` times (or fewer where it takes long), which prints figures."""

    name: str
    title: str
    kind: Kind  #: a bare import; the harness of `peers/`, so that peers are measured beside it; `benchmarks.measures`
    arguments: tuple[str, ...]
    figures: tuple[Figure, ...]
    most_rounds: int = 100
    on_cluster: bool = False  #: needs a Kubernetes, by KUBECONFIG and REGISTRY


def _cpu_ms(key: str, label: str, at_most: float | None = None) -> Figure:
    return Figure(key=key, label=label, unit="ms CPU", at_most=at_most)


def _cancel(shape: str, label: str) -> Measurement:
    return Measurement(
        name=f"cancel-{shape}",
        title=f"Cancel a tree of 10,000 coroutine agents: {label}",
        kind="measure",
        arguments=("cancel", shape),
        figures=(
            Figure(key="wall_s", label="until all are gone", unit="s wall", at_most=0.3),
            Figure(key="cpu_s", label="the same", unit="s CPU", at_most=0.3),
            Figure(key="grow_us", label="birth of one agent in it", unit="µs CPU"),
        ),
        most_rounds=3,
    )


def _limit(children: int) -> Measurement:
    return Measurement(
        name=f"limit-{children}",
        title=f"A limit of 5 model calls under {children:,} parallel children, ChatOpenAI at a loopback server",
        kind="measure",
        arguments=("limit", str(children)),
        figures=(
            Figure(key="requests", label="HTTP requests that arrived", unit="requests", exactly=5),
            Figure(key="wall_s", label="from prompt to outcome", unit="s wall"),
        ),
        most_rounds=3,
    )


def _memory(kind: str, label: str, count: int = 1_000) -> Measurement:
    return Measurement(
        name=f"memory-{kind}",
        title=f"Memory of {count:,} {label}",
        kind="measure",
        arguments=("memory", kind, str(count)),
        figures=(Figure(key="kb", label="each", unit="KB"),),
        most_rounds=3,
    )


def _ms(key: str, label: str, at_most: float | None = None) -> Figure:
    return Figure(key=key, label=label, unit="ms wall", at_most=at_most)


def _us(key: str, label: str) -> Figure:
    return Figure(key=key, label=label, unit="µs CPU")


def _kernels(name: str, label: str, writers: int, listeners: int = 0) -> Measurement:
    heard = (_us("heard_us", "a commit, to each kernel that hears of it"),) if listeners else ()
    return Measurement(
        name=name,
        title=f"Durable events on one PostgreSQL: {label}, each with 20 producers that append 10 before they wait",
        kind="measure",
        arguments=("kernels", str(writers), str(listeners)),
        figures=(
            _us("kernel_us", "each event, of the kernels"),
            _us("server_us", "each event, of the server"),
            _us("server_commit_us", "each commit, of the server"),
            Figure(key="commit_ms", label="each commit, all kernels together", unit="ms wall"),
            Figure(key="event_wall_us", label="each event, all kernels together", unit="µs wall"),
            Figure(key="table_bytes", label="an event in its table, with indexes", unit="bytes"),
            Figure(key="wal_bytes", label="an event in the server's log (WAL)", unit="bytes"),
            Figure(key="sessions", label="sessions of a kernel", unit="sessions"),
            *heard,
        ),
        most_rounds=3,
    )


def _population(name: str, idle: int, working: int, lasting_s: int, pace_s: int) -> Measurement:
    return Measurement(
        name=name,
        title=f"{idle:,} conversations at rest in a kernel, {working} at work, a turn each {pace_s} s",
        kind="measure",
        arguments=("population", str(idle), str(working), str(lasting_s * 1000), str(pace_s * 1000)),
        figures=(
            Figure(key="base_mb", label="the process before those at rest are there", unit="MB"),
            Figure(key="idle_kb", label="each at rest", unit="KB"),
            Figure(key="taken_up_ms", label="each at rest, taken up from the journal", unit="ms CPU"),
            Figure(key="rss_mb", label="the whole process", unit="MB"),
            Figure(key="turn_ms", label="each turn, with what else the kernel does meanwhile", unit="ms CPU"),
            Figure(key="turn_p50_ms", label="the same, median", unit="ms wall"),
            Figure(key="turn_events", label="events of a turn", unit="events"),
            Figure(key="busy", label="of one processor", unit="×"),
            Figure(key="turns_per_s", label="turns", unit="per s"),
        ),
        most_rounds=1 if idle > 1_000 else 3,
    )


CATALOGUE: tuple[Measurement, ...] = (
    Measurement(
        name="import-session",
        title="`from ramet import Session, Agent` in a bare interpreter",
        kind="import",
        arguments=("from ramet import Session, Agent",),
        figures=(
            Figure(key="s", label="time", unit="s wall"),
            Figure(key="mb", label="the whole process", unit="MB"),
        ),
    ),
    Measurement(
        name="import",
        title="`import ramet` in a bare interpreter",
        kind="import",
        arguments=("import ramet",),
        figures=(
            Figure(key="s", label="time", unit="s wall", at_most=0.15),
            Figure(key="mb", label="the whole process", unit="MB", at_most=35),
        ),
    ),
    Measurement(
        name="harness-import",
        title="Import, as the harness of the peers measures it",
        kind="harness",
        arguments=("import",),
        figures=(
            Figure(key="import_s", label="time", unit="s wall"),
            Figure(key="rss_mb", label="the whole process", unit="MB"),
        ),
    ),
    Measurement(
        name="turn",
        title="Turn with one tool",
        kind="harness",
        arguments=("turn",),
        figures=(_cpu_ms("cpu_turn_ms", "each", 0.5),),
    ),
    Measurement(
        name="child",
        title="Child of one turn",
        kind="harness",
        arguments=("spawn",),
        figures=(_cpu_ms("cpu_spawn_ms", "each", 1.0),),
    ),
    Measurement(
        name="children-1000",
        title="1,000 children at once, whose model takes 0.1 s",
        kind="harness",
        arguments=("fanout", "1000", "0.1"),
        figures=(
            Figure(key="cpu_s", label="all of them", unit="s CPU", at_most=1.2),
            Figure(key="wall_s", label="all of them", unit="s wall"),
            Figure(key="peak_rss_mb", label="peak of the process", unit="MB", at_most=100),
        ),
    ),
    Measurement(
        name="crowd",
        title="500 children asked for in one reply, under the default limits: 64 live at once, 16 work",
        kind="measure",
        arguments=("crowd",),
        figures=(
            _cpu_ms("child_ms", "each"),
            Figure(key="wall_s", label="all of them", unit="s wall"),
        ),
        most_rounds=3,
    ),
    Measurement(
        name="dynamic",
        title="Agents that agents write down",
        kind="measure",
        arguments=("dynamic",),
        figures=(
            _cpu_ms("create_ms", "made, registered and durable", 1.0),
            _ms("create_wall_ms", "the same"),
            _ms("cold_ms", "its handle followed after a restart", 5),
            _ms("deep_ms", "the same, 10 levels down", 10),
            _ms("among_ms", "the same, among 100,000 of one creator", 5),
        ),
        most_rounds=3,
    ),
    _cancel("wide", "100 children of 99 each"),
    _cancel("deep", "100 chains of 100"),
    _cancel("flat", "10,000 children of one"),
    Measurement(
        name="depth",
        title="The same at depth 100 and at depth 1",
        kind="measure",
        arguments=("depth",),
        figures=(
            Figure(
                key="event_far_us",
                label="an event recorded and delivered to a reader of the tree, depth 100",
                unit="µs CPU",
            ),
            Figure(key="event_near_us", label="the same, depth 1", unit="µs CPU"),
            Figure(key="event_ratio", label="depth 100 to depth 1", unit="×", at_most=1.1),
            Figure(key="turn_far_us", label="a turn with one tool, depth 100", unit="µs CPU"),
            Figure(key="turn_near_us", label="the same, depth 1", unit="µs CPU"),
        ),
        most_rounds=3,
    ),
    _limit(1_000),
    _limit(100),
    Measurement(
        name="opening",
        title="A session opened, one prompt with one tool call, closed",
        kind="measure",
        arguments=("opening",),
        figures=(
            _cpu_ms("first_ms", "the first of a process"),
            _cpu_ms("folder_ms", "later ones, in a folder, with a journal"),
            _cpu_ms("later_ms", "later ones, in memory"),
        ),
        most_rounds=3,
    ),
    Measurement(
        name="history",
        title="A prompt with one tool call after 500 messages",
        kind="measure",
        arguments=("history",),
        figures=(
            _cpu_ms("budget_ms", "with a budget that counts tokens"),
            _cpu_ms("long_ms", "without"),
            _cpu_ms("short_ms", "the same in a short conversation"),
        ),
        most_rounds=3,
    ),
    Measurement(
        name="batch",
        title="One reply with 1,000 tool calls",
        kind="measure",
        arguments=("batch",),
        figures=(
            Figure(key="add_sync_us", label="a synchronous tool, in threads, each call", unit="µs CPU"),
            Figure(key="add_us", label="an async tool, one after another, each call", unit="µs CPU"),
            Figure(key="add_safe_us", label="an async tool that may run at once, each call", unit="µs CPU"),
        ),
        most_rounds=3,
    ),
    Measurement(
        name="tree",
        title="A tree of models three levels deep: 10 × 10 × 10 sub-agents",
        kind="measure",
        arguments=("tree",),
        figures=(
            _cpu_ms("agent_ms", "each of the 1,110"),
            Figure(key="wall_s", label="all of them", unit="s wall"),
            Figure(key="peak_mb", label="peak of the process", unit="MB"),
        ),
        most_rounds=3,
    ),
    Measurement(
        name="recording",
        title="Recording an event",
        kind="measure",
        arguments=("recording",),
        figures=(
            Figure(key="disk_message_us", label="a message of 1 KB, on disk before it is shown", unit="µs CPU"),
            Figure(key="disk_small_us", label="a small event, on disk with the next message", unit="µs CPU"),
            Figure(key="memory_message_us", label="a message of 1 KB, in memory", unit="µs CPU"),
        ),
        most_rounds=3,
    ),
    Measurement(
        name="durable-turn",
        title="Turn with one tool, its journal on",
        kind="durable",
        arguments=("turn",),
        figures=(_cpu_ms("cpu_turn_ms", "each", 0.8),),
    ),
    Measurement(
        name="durable-child",
        title="Child of one turn, its journal on",
        kind="durable",
        arguments=("spawn",),
        figures=(_cpu_ms("cpu_spawn_ms", "each", 1.5),),
    ),
    Measurement(
        name="durable-children-1000",
        title="1,000 children at once, whose model takes 0.1 s, their journal on",
        kind="durable",
        arguments=("fanout", "1000", "0.1"),
        figures=(
            Figure(key="cpu_s", label="all of them", unit="s CPU", at_most=1.5),
            Figure(key="wall_s", label="all of them", unit="s wall"),
            Figure(key="peak_rss_mb", label="peak of the process", unit="MB", at_most=110),
        ),
    ),
    Measurement(
        name="recovery",
        title="After a kill: 1,000 runs with 200 events each, from the journal to runs that can go on",
        kind="measure",
        arguments=("recovery",),
        figures=(
            Figure(key="recovery_s", label="all of them", unit="s wall", at_most=1.0),
            Figure(key="recovery_cpu_s", label="the same", unit="s CPU"),
            Figure(key="event_us", label="each event", unit="µs CPU"),
        ),
        most_rounds=3,
    ),
    Measurement(
        name="takeover",
        title="Several kernels on one PostgreSQL: one of three that has 200 trees is killed with SIGKILL",
        kind="measure",
        arguments=("takeover",),
        figures=(
            Figure(key="takeover_s", label="until the other two have taken up all of them", unit="s wall", at_most=2.0),
            Figure(key="heard_s", label="until the first of them was claimed and taken up", unit="s wall"),
        ),
        most_rounds=3,
    ),
    _kernels("kernels-1", "one kernel", 1),
    _kernels("kernels-2", "two kernels", 2),
    _kernels("kernels-3", "three kernels", 3),
    _kernels("kernels-heard", "one kernel, and three more that hear of it", 1, 3),
    Measurement(
        name="kept-turn",
        title="A turn with one tool, its journal on PostgreSQL: 20 agents at once",
        kind="measure",
        arguments=("kept_turn",),
        figures=(
            Figure(key="events", label="events", unit="rows"),
            Figure(key="data_bytes", label="their JSON", unit="bytes"),
            Figure(key="table_bytes", label="in the table, with indexes", unit="bytes"),
            Figure(key="wal_bytes", label="in the server's log (WAL)", unit="bytes"),
            Figure(key="commits", label="commits, shared with the others", unit="commits"),
            _cpu_ms("kernel_ms", "of the kernel"),
            _cpu_ms("server_ms", "of the server"),
        ),
        most_rounds=3,
    ),
    Measurement(
        name="kept-turn-alone",
        title="The same, one agent by itself",
        kind="measure",
        arguments=("kept_turn", "1", "200"),
        figures=(
            Figure(key="commits", label="commits", unit="commits"),
            Figure(key="wal_bytes", label="in the server's log (WAL)", unit="bytes"),
            _cpu_ms("kernel_ms", "of the kernel"),
            _cpu_ms("server_ms", "of the server"),
        ),
        most_rounds=3,
    ),
    Measurement(
        name="served",
        title="Who is there in a server and does nothing: 100 conversations after a turn, 300 clients, 300 readers",
        kind="measure",
        arguments=("served",),
        figures=(
            Figure(key="conversation_kb", label="a conversation", unit="KB"),
            Figure(key="conversation_fds", label="the same", unit="fds"),
            _cpu_ms("conversation_ms", "its spawn and its turn"),
            Figure(key="client_kb", label="a client that is connected", unit="KB"),
            Figure(key="client_fds", label="the same", unit="fds"),
            Figure(key="reader_kb", label="a client that reads a stream", unit="KB"),
            Figure(key="reader_fds", label="the same", unit="fds"),
        ),
        most_rounds=3,
    ),
    _population("population", 1_000, 20, 5, 1),
    _population("population-5000", 5_000, 50, 15, 3),
    Measurement(
        name="pods",
        title="Agents as pods, beside bare pods of the same image that print a byte",
        kind="measure",
        arguments=("pods",),
        on_cluster=True,
        figures=(
            Figure(
                key="frame_ratio", label="create → first frame, times a bare pod's first byte", unit="", at_most=1.2
            ),
            Figure(key="frame_s", label="create → first frame, median", unit="s wall"),
            Figure(key="bare_s", label="a bare pod: create → first byte, median", unit="s wall"),
            Figure(key="mounted_ratio", label="the same, times that of one with an agent's volumes", unit=""),
            Figure(key="mounted_s", label="a bare pod with these volumes, median", unit="s wall"),
            Figure(key="start_s", label="create → an agent's entry point is called, median", unit="s wall"),
            Figure(key="crowd_s", label="20 at once, all started", unit="s wall", at_most=8),
            Figure(key="idle_kb", label="of the kernel's memory, each that is idle", unit="kB", at_most=200),
        ),
        most_rounds=2,
    ),
    Measurement(
        name="team-pod",
        title="Runs that start in the pod of their team",
        kind="measure",
        arguments=("team_pod",),
        on_cluster=True,
        figures=(
            Figure(key="median_ms", label="start → all gates are shut, median", unit="ms wall", at_most=15),
            Figure(key="worst_ms", label="the same, worst of 60", unit="ms wall"),
            _cpu_ms("cpu_ms", "the same, of the kernel's processor time"),
            Figure(key="first_s", label="the first one, whose pod is made", unit="s wall"),
        ),
        most_rounds=2,
    ),
    Measurement(
        name="journal",
        title="The journal in SQLite: 1,000,000 events, 20 producers that append 10 before they wait",
        kind="measure",
        arguments=("journal",),
        figures=(
            Figure(key="durable_us", label="each event, durable (20 µs are 50,000 per s)", unit="µs wall", at_most=20),
            Figure(key="durable_cpu_us", label="the same", unit="µs CPU"),
            Figure(key="single_us", label="the same, each awaited by itself", unit="µs wall"),
            Figure(key="commits_per_s", label="commits meanwhile", unit="per s"),
            _ms("ack_p50_ms", "one producer, append to durable, median", 0.5),
            _ms("ack_p99_ms", "the same, 99 of 100"),
            Figure(key="follow_us", label="each event read by cursor", unit="µs wall", at_most=10),
            Figure(key="size_ratio", label="the file to the JSON of its events", unit="×", at_most=2),
        ),
        most_rounds=3,
    ),
    Measurement(
        name="state",
        title="State in SQLite: one key of 1,000 changed and committed, forks, one of 100,000 entries found cold",
        kind="measure",
        arguments=("state",),
        figures=(
            _ms("commit_p50_ms", "a commit, durable, median", 0.5),
            _ms("commit_p99_ms", "the same, 99 of 100"),
            _cpu_ms("commit_cpu_ms", "the same"),
            Figure(key="commit_bytes", label="what it adds", unit="bytes"),
            _ms("fork_p50_ms", "a fork, durable, median", 0.2),
            _ms("cold_p50_ms", "open, and find one entry, median", 5),
            _ms("cold_p99_ms", "the same, 99 of 100"),
            Figure(key="entry_us", label="each of 100,000 entries committed at once", unit="µs CPU"),
        ),
        most_rounds=3,
    ),
    Measurement(
        name="isolated",
        title="A function agent in a sandbox, request to result, one after another",
        kind="measure",
        arguments=("isolated",),
        figures=(
            _ms("parked_p50_ms", "bwrap, from a parked process, median", 1.5),
            _ms("parked_p99_ms", "the same, 99 of 100", 20),
            _ms("cold_p50_ms", "bwrap, forked when asked for, median", 6),
            _ms("cold_p99_ms", "the same, 99 of 100", 20),
            _ms("local_p50_ms", "local, forked when asked for, median"),
            _ms("fresh_p50_ms", "a sandbox from nothing, median", 20),
            _ms("megabyte_ms", "more for a typed result of 1 MB", 8),
        ),
        most_rounds=3,
    ),
    Measurement(
        name="isolated-tree",
        title="Sandboxed agents three levels deep",
        kind="measure",
        arguments=("isolated_tree",),
        figures=(
            _ms("nested_p50_ms", "request to result, median", 25),
            Figure(
                key="beyond_grace_s",
                label="cancel with every level deaf, beyond the grace of 1 s",
                unit="s wall",
                at_most=0.2,
            ),
        ),
        most_rounds=3,
    ),
    Measurement(
        name="isolated-model",
        title="A model agent in a sandbox",
        kind="measure",
        arguments=("isolated_model",),
        figures=(
            _ms("turn_p50_ms", "request to the end of its first turn, median", 50),
            Figure(
                key="private_mb", label="its process for itself, while it waits for its model", unit="MB", at_most=12
            ),
        ),
        most_rounds=3,
    ),
    Measurement(
        name="isolated-rate",
        title="Sandboxes for 60 s, four at a time",
        kind="measure",
        arguments=("isolated_many", "rate", "60"),
        figures=(
            Figure(key="per_s", label="started, used and gone", unit="per s"),
            Figure(key="fds_left", label="descriptors more than before", unit="fds", exactly=0),
            Figure(key="groups_left", label="control groups more than before", unit="groups", exactly=0),
        ),
        most_rounds=1,
    ),
    Measurement(
        name="isolated-idle",
        title="1,000 sandboxed agents that wait",
        kind="measure",
        arguments=("isolated_many", "idle", "1000"),
        figures=(
            Figure(key="each_mb", label="memory of the machine for each", unit="MB", at_most=3),
            Figure(key="start_s", label="until all were there", unit="s wall"),
            Figure(key="cancel_s", label="until all were gone", unit="s wall"),
        ),
        most_rounds=1,
    ),
    Measurement(
        name="isolated-death",
        title="kill -9 of a kernel with 50 agents that ignore SIGTERM and call setsid",
        kind="measure",
        arguments=("isolated_death",),
        figures=(_ms("until_gone_ms", "until nothing is left", 200),),
        most_rounds=3,
    ),
    Measurement(
        name="services",
        title="The services over a Unix socket",
        kind="measure",
        arguments=("services",),
        figures=(
            Figure(key="request_us", label="a small request on one of 32 connections", unit="µs CPU", at_most=33),
            _ms("request_p99_ms", "the same, 99 of 100, seen by the client", 3),
            _ms("spawn_ms", "a spawn"),
            _ms("spawn_over_ms", "more than a spawn without HTTP", 3),
            _ms("turn_over_ms", "a turn of one word, by ramet's client in the server's process", 1),
            _ms("turn_plain_ms", "the same on a plain connection"),
            Figure(key="tokens_1_us", label="a token to one reader", unit="µs CPU", at_most=2),
            Figure(key="tokens_many_us", label="a token to each of 100 readers", unit="µs CPU", at_most=2.5),
            Figure(key="tokens_most_us", label="a token to each of 1,000 readers", unit="µs CPU", at_most=8.3),
            _ms("first_most_ms", "until the last of 1,000 readers has the first", 200),
            _ms("image_ms", "an image of a bundle of 1 MB in 100 files", 100),
            _ms("image_again_ms", "the same again", 20),
            Figure(key="open_mb", label="1,000 open turns, with their readers", unit="MB", at_most=150),
        ),
        most_rounds=3,
    ),
    _memory("session", "sessions of one runtime, idle after a turn", 300),
    _memory("idle", "sub-agents idle after a turn, each with a function asleep below it"),
    _memory("waiting", "sub-agents waiting for their model"),
    _memory("asleep", "function agents asleep"),
    _memory("over", "trees of `AgentRuntime.spawn` that are over: what stays"),
)


def named(names: list[str]) -> tuple[Measurement, ...]:
    """The measurements of these names, all for none, in the order of the catalogue. Raises LookupError."""
    known = {each.name for each in CATALOGUE}
    for name in names:
        if name not in known:
            raise LookupError(f"no measurement {name!r}; there are {', '.join(sorted(known))}")
    return tuple(each for each in CATALOGUE if not names or each.name in names)
