"""The catalogue of measurements, with units and goals; worst cases come first."""

from __future__ import annotations

from benchmarks.comparisons import HARNESS_IMPORT, ISOLATED_CALL, LIMIT_OF_PEERS, ON_DISK, ONE_PROCESS
from benchmarks.measurement import Figure, Measurement


def _measure(
    name: str,
    title: str,
    *figures: Figure,
    arguments: tuple[str, ...] = (),
    most_rounds: int = 3,
    on_cluster: bool = False,
) -> Measurement:
    """Return a measurement by a module of `benchmarks.measures`, which `arguments` name; by default `name` does."""
    return Measurement(
        name=name,
        title=title,
        kind="measure",
        arguments=arguments or (name.replace("-", "_"),),
        figures=figures,
        most_rounds=most_rounds,
        on_cluster=on_cluster,
    )


def _cancel(shape: str, label: str) -> Measurement:
    return _measure(
        f"cancel-{shape}",
        f"Cancel a tree of 10,000 coroutine agents: {label}",
        Figure("wall_s", "until all are gone", "s wall", 0.3),
        Figure("cpu_s", "the same", "s CPU", 0.3),
        Figure("grow_us", "birth of one agent in it", "µs CPU"),
        arguments=("cancel", shape),
    )


def _memory(kind: str, label: str, count: int = 1_000) -> Measurement:
    return _measure(
        f"memory-{kind}",
        f"Memory of {count:,} {label}",
        Figure("kb", "each", "KB"),
        arguments=("memory", kind, str(count)),
    )


def _kernels(name: str, label: str, writers: int, listeners: int = 0) -> Measurement:
    notice_figures = (Figure("heard_us", "a commit, to each kernel that hears of it", "µs CPU"),) if listeners else ()
    return _measure(
        name,
        f"Durable events on one PostgreSQL: {label}, each with 20 producers that append 10 before they wait",
        Figure("kernel_us", "each event, of the kernels", "µs CPU"),
        Figure("server_us", "each event, of the server", "µs CPU"),
        Figure("server_commit_us", "each commit, of the server", "µs CPU"),
        Figure("commit_ms", "each commit, all kernels together", "ms wall"),
        Figure("event_wall_us", "each event, all kernels together", "µs wall"),
        Figure("table_bytes", "an event in its table, with indexes", "bytes"),
        Figure("wal_bytes", "an event in the server's log (WAL)", "bytes"),
        Figure("sessions", "sessions of a kernel", "sessions"),
        *notice_figures,
        arguments=("kernels", str(writers), str(listeners)),
    )


def _population(name: str, idle: int, working: int, lasting_s: int, pace_s: int) -> Measurement:
    return _measure(
        name,
        f"{idle:,} conversations at rest in a kernel, {working} at work, a turn each {pace_s} s",
        Figure("base_mb", "the process before those at rest are there", "MB"),
        Figure("idle_kb", "each at rest", "KB"),
        Figure("taken_up_ms", "each at rest, taken up from the journal", "ms CPU"),
        Figure("rss_mb", "the whole process", "MB"),
        Figure("turn_ms", "each turn, with what else the kernel does meanwhile", "ms CPU"),
        Figure("turn_p50_ms", "the same, median", "ms wall"),
        Figure("turn_events", "events of a turn", "events"),
        Figure("busy", "of one processor", "×"),
        Figure("turns_per_s", "turns", "per s"),
        arguments=("population", str(idle), str(working), str(lasting_s * 1000), str(pace_s * 1000)),
        most_rounds=1 if idle > 1_000 else 3,
    )


CATALOGUE: tuple[Measurement, ...] = (
    Measurement(
        name="import-session",
        title="`from ramet import Session, Agent` in a bare interpreter",
        kind="import",
        arguments=("from ramet import Session, Agent",),
        figures=(
            Figure("s", "time", "s wall"),
            Figure("mb", "the whole process", "MB"),
        ),
    ),
    Measurement(
        name="import",
        title="`import ramet` in a bare interpreter",
        kind="import",
        arguments=("import ramet",),
        figures=(
            Figure("s", "time", "s wall", 0.15),
            Figure("mb", "the whole process", "MB", 35),
        ),
    ),
    HARNESS_IMPORT,
    *ONE_PROCESS,
    _measure(
        "crowd",
        "500 children asked for in one reply, under the default limits: 64 live at once, 16 work",
        Figure("child_ms", "each", "ms CPU"),
        Figure("wall_s", "all of them", "s wall"),
    ),
    _measure(
        "dynamic",
        "Agents that agents write down",
        Figure("create_ms", "made, registered and durable", "ms CPU", 1.0),
        Figure("create_wall_ms", "the same", "ms wall"),
        Figure("cold_ms", "its handle followed after a restart", "ms wall", 5),
        Figure("deep_ms", "the same, 10 levels down", "ms wall", 10),
        Figure("among_ms", "the same, among 100,000 of one creator", "ms wall", 5),
    ),
    _cancel("wide", "100 children of 99 each"),
    _cancel("deep", "100 chains of 100"),
    _cancel("flat", "10,000 children of one"),
    _measure(
        "depth",
        "The same at depth 100 and at depth 1",
        Figure("event_far_us", "an event recorded and delivered to a reader of the tree, depth 100", "µs CPU"),
        Figure("event_near_us", "the same, depth 1", "µs CPU"),
        Figure("event_ratio", "depth 100 to depth 1", "×", 1.1),
        Figure("turn_far_us", "a turn with one tool, depth 100", "µs CPU"),
        Figure("turn_near_us", "the same, depth 1", "µs CPU"),
    ),
    _measure(
        "limit-1000",
        "A limit of 5 model calls under 1,000 parallel children, ChatOpenAI at a loopback server",
        Figure("requests", "HTTP requests that arrived", "requests", exactly=5),
        Figure("wall_s", "from prompt to outcome", "s wall"),
        arguments=("limit", "1000"),
    ),
    LIMIT_OF_PEERS,
    _measure(
        "opening",
        "A session opened, one prompt with one tool call, closed",
        Figure("first_ms", "the first of a process", "ms CPU"),
        Figure("folder_ms", "later ones, in a folder, with a journal", "ms CPU"),
        Figure("later_ms", "later ones, in memory", "ms CPU"),
    ),
    _measure(
        "history",
        "A prompt with one tool call after 500 messages",
        Figure("budget_ms", "with a budget that counts tokens", "ms CPU"),
        Figure("long_ms", "without", "ms CPU"),
        Figure("short_ms", "the same in a short conversation", "ms CPU"),
    ),
    _measure(
        "batch",
        "One reply with 1,000 tool calls",
        Figure("add_sync_us", "a synchronous tool, in threads, each call", "µs CPU"),
        Figure("add_us", "an async tool, one after another, each call", "µs CPU"),
        Figure("add_safe_us", "an async tool that may run at once, each call", "µs CPU"),
    ),
    _measure(
        "tree",
        "A tree of models three levels deep: 10 × 10 × 10 sub-agents",
        Figure("agent_ms", "each of the 1,110", "ms CPU"),
        Figure("wall_s", "all of them", "s wall"),
        Figure("peak_mb", "peak of the process", "MB"),
    ),
    _measure(
        "recording",
        "Recording an event",
        Figure("disk_message_us", "a message of 1 KB, on disk before it is shown", "µs CPU"),
        Figure("disk_small_us", "a small event, on disk with the next message", "µs CPU"),
        Figure("memory_message_us", "a message of 1 KB, in memory", "µs CPU"),
    ),
    *ON_DISK,
    _measure(
        "recovery",
        "After a kill: 1,000 runs with 200 events each, from the journal to runs that can go on",
        Figure("recovery_s", "all of them", "s wall", 0.6),
        Figure("recovery_cpu_s", "the same", "s CPU"),
        Figure("event_us", "each event", "µs CPU"),
    ),
    _measure(
        "recovery-long",
        "The same: one run with 1,000,000 events",
        Figure("recovery_s", "all of them", "s wall", 1.0),
        Figure("recovery_cpu_s", "the same", "s CPU"),
        Figure("event_us", "each event", "µs CPU"),
        arguments=("recovery", "1", "1000000"),
        most_rounds=1,
    ),
    _measure(
        "takeover",
        "Several kernels on one PostgreSQL: one of three that has 200 trees is killed with SIGKILL",
        Figure("takeover_s", "until the other two have taken up all of them", "s wall", 2.0),
        Figure("heard_s", "until the first of them was claimed and taken up", "s wall"),
    ),
    _measure(
        "takeover-1000",
        "The same, of a kernel that has 1,000 trees",
        Figure("takeover_s", "until the other two have taken up all of them", "s wall", 1.0),
        Figure("heard_s", "until the first of them was claimed and taken up", "s wall"),
        arguments=("takeover", "1000"),
    ),
    _measure(
        "scheduled-takeover",
        "The same, of a kernel at which 200 runs of schedules are at work",
        Figure("takeover_s", "until all of them go on at the other two", "s wall", 2.0),
        Figure("heard_s", "until the first of them does", "s wall"),
        arguments=("scheduled_takeover",),
    ),
    _kernels("kernels-1", "one kernel", 1),
    _kernels("kernels-2", "two kernels", 2),
    _kernels("kernels-3", "three kernels", 3),
    _kernels("kernels-heard", "one kernel, and three more that hear of it", 1, 3),
    _measure(
        "kept-turn",
        "A turn with one tool, its journal on PostgreSQL: 20 agents at once",
        Figure("events", "events", "rows"),
        Figure("data_bytes", "their JSON", "bytes"),
        Figure("table_bytes", "in the table, with indexes", "bytes"),
        Figure("wal_bytes", "in the server's log (WAL)", "bytes"),
        Figure("commits", "commits, shared with the others", "commits"),
        Figure("kernel_ms", "of the kernel", "ms CPU"),
        Figure("server_ms", "of the server", "ms CPU"),
    ),
    _measure(
        "kept-turn-alone",
        "The same, one agent by itself",
        Figure("commits", "commits", "commits"),
        Figure("wal_bytes", "in the server's log (WAL)", "bytes"),
        Figure("kernel_ms", "of the kernel", "ms CPU"),
        Figure("server_ms", "of the server", "ms CPU"),
        arguments=("kept_turn", "1", "200"),
    ),
    _measure(
        "served",
        "Who is there in a server and does nothing: 100 conversations after a turn, 300 clients, 300 readers",
        Figure("conversation_kb", "a conversation", "KB"),
        Figure("conversation_fds", "the same", "fds"),
        Figure("conversation_ms", "its spawn and its turn", "ms CPU"),
        Figure("client_kb", "a client that is connected", "KB"),
        Figure("client_fds", "the same", "fds"),
        Figure("reader_kb", "a client that reads a stream", "KB"),
        Figure("reader_fds", "the same", "fds"),
    ),
    _population("population", 1_000, 20, 5, 1),
    _population("population-5000", 5_000, 50, 15, 3),
    _measure(
        "pods",
        "Agents as pods, beside bare pods of the same image that print a byte",
        Figure("frame_ratio", "create → first frame, times a bare pod's first byte", "", 1.2),
        Figure("frame_s", "create → first frame, median", "s wall"),
        Figure("bare_s", "a bare pod: create → first byte, median", "s wall"),
        Figure("mounted_ratio", "the same, times that of one with an agent's volumes", ""),
        Figure("mounted_s", "a bare pod with these volumes, median", "s wall"),
        Figure("start_s", "create → an agent's entry point is called, median", "s wall"),
        Figure("waited_ms", "the same, where a pod waits for it (`pods.warm`)", "ms wall"),
        Figure("crowd_s", "20 at once, all started", "s wall", 8),
        Figure("idle_kb", "of the kernel's memory, each that is idle", "kB", 200),
        most_rounds=2,
        on_cluster=True,
    ),
    _measure(
        "team-pod",
        "Runs that start in the pod of their team",
        Figure("median_ms", "start → all gates are shut, median", "ms wall", 15),
        Figure("worst_ms", "the same, worst of 60", "ms wall"),
        Figure("cpu_ms", "the same, of the kernel's processor time", "ms CPU"),
        Figure("first_s", "the first one, whose pod is made", "s wall"),
        most_rounds=2,
        on_cluster=True,
    ),
    _measure(
        "journal",
        "The journal in SQLite: 1,000,000 events, 20 producers that append 10 before they wait",
        Figure("durable_us", "each event, durable (20 µs are 50,000 per s)", "µs wall", 20),
        Figure("durable_cpu_us", "the same", "µs CPU"),
        Figure("single_us", "the same, each awaited by itself", "µs wall"),
        Figure("commits_per_s", "commits meanwhile", "per s"),
        Figure("ack_p50_ms", "one producer, append to durable, median", "ms wall", 0.5),
        Figure("ack_p99_ms", "the same, 99 of 100", "ms wall"),
        Figure("follow_us", "each event read by cursor", "µs wall", 10),
        Figure("size_ratio", "the file to the JSON of its events", "×", 2),
    ),
    _measure(
        "state",
        "State in SQLite: one key of 1,000 changed and committed, forks, one of 100,000 entries found cold",
        Figure("commit_p50_ms", "a commit, durable, median", "ms wall", 0.5),
        Figure("commit_p99_ms", "the same, 99 of 100", "ms wall"),
        Figure("commit_cpu_ms", "the same", "ms CPU"),
        Figure("commit_bytes", "what it adds", "bytes"),
        Figure("fork_p50_ms", "a fork, durable, median", "ms wall", 0.2),
        Figure("cold_p50_ms", "open, and find one entry, median", "ms wall", 5),
        Figure("cold_p99_ms", "the same, 99 of 100", "ms wall"),
        Figure("entry_us", "each of 100,000 entries committed at once", "µs CPU"),
    ),
    _measure(
        "isolated",
        "A function agent in a sandbox, request to result, one after another",
        Figure("parked_p50_ms", "bwrap, from a parked process, median", "ms wall", 1.5),
        Figure("parked_p99_ms", "the same, 99 of 100", "ms wall", 20),
        Figure("cold_p50_ms", "bwrap, forked when asked for, median", "ms wall", 6),
        Figure("cold_p99_ms", "the same, 99 of 100", "ms wall", 20),
        Figure("local_p50_ms", "local, forked when asked for, median", "ms wall"),
        Figure("fresh_p50_ms", "a sandbox from nothing, median", "ms wall", 20),
        Figure("megabyte_ms", "more for a typed result of 1 MB", "ms wall", 8),
    ),
    ISOLATED_CALL,
    _measure(
        "isolated-tree",
        "Sandboxed agents three levels deep",
        Figure("nested_p50_ms", "request to result, median", "ms wall", 25),
        Figure("beyond_grace_s", "cancel with every level deaf, beyond the grace of 1 s", "s wall", 0.2),
    ),
    _measure(
        "isolated-model",
        "A model agent in a sandbox",
        Figure("turn_p50_ms", "request to the end of its first turn, median", "ms wall", 50),
        Figure("private_mb", "memory for each one more that waits for its model", "MB", 12),
    ),
    _measure(
        "isolated-rate",
        "Sandboxes for 60 s, four at a time",
        Figure("per_s", "started, used and gone", "per s"),
        Figure("fds_left", "descriptors more than before", "fds", exactly=0),
        Figure("groups_left", "control groups more than before", "groups", exactly=0),
        arguments=("isolated_many", "rate", "60"),
        most_rounds=1,
    ),
    _measure(
        "isolated-idle",
        "1,000 sandboxed agents that wait",
        Figure("each_mb", "memory of the machine for each", "MB", 3),
        Figure("start_s", "until all were there", "s wall"),
        Figure("cancel_s", "until all were gone", "s wall"),
        arguments=("isolated_many", "idle", "1000"),
        most_rounds=1,
    ),
    _measure(
        "isolated-death",
        "kill -9 of a kernel with 50 agents that ignore SIGTERM and call setsid",
        Figure("until_gone_ms", "until nothing is left", "ms wall", 200),
    ),
    _measure(
        "ui",
        "The page in Chromium without a graphics processor, scrolled: 10,000 agents at work, 2,000 events a second",
        Figure("frames_per_s", "frames", "per s"),
        Figure("frame_p99_ms", "99 of 100 frames", "ms wall"),
        Figure("frame_cpu_ms", "a frame, of the main thread of the page", "ms CPU", 16),
        Figure("events_per_s", "events of the agents meanwhile", "per s"),
        Figure("paint_ms", "first paint", "ms wall", 200),
        Figure("drawn_ms", "until the table is drawn", "ms wall"),
        Figure("rows_ms", "until all agents are in the table", "ms wall"),
        Figure("first_kb", "scripts before the table is drawn", "KB", 65),
        Figure("all_kb", "all scripts", "KB", 100),
        Figure("sent_kb", "all scripts, compressed as they are sent", "KB", 46),
        arguments=("page_frames",),
    ),
    _measure(
        "services",
        "The services over a Unix socket",
        Figure("request_us", "a small request on one of 32 connections", "µs CPU", 33),
        Figure("request_p99_ms", "the same, 99 of 100, seen by the client", "ms wall", 3),
        Figure("spawn_ms", "a spawn", "ms wall"),
        Figure("spawn_over_ms", "more than a spawn without HTTP", "ms wall", 3),
        Figure("turn_over_ms", "a turn of one word, by ramet's client in the server's process", "ms wall", 1),
        Figure("turn_plain_ms", "the same on a plain connection", "ms wall"),
        Figure("tokens_1_us", "a token to one reader", "µs CPU", 2),
        Figure("tokens_many_us", "a token to each of 100 readers", "µs CPU", 2.5),
        Figure("tokens_most_us", "a token to each of 1,000 readers", "µs CPU", 8.3),
        Figure("first_most_ms", "until the last of 1,000 readers has the first", "ms wall", 200),
        Figure("image_ms", "an image of a bundle of 1 MB in 100 files", "ms wall", 100),
        Figure("image_again_ms", "the same again", "ms wall", 20),
        Figure("open_mb", "1,000 open turns, with their readers", "MB", 150),
    ),
    _memory("session", "sessions of one runtime, idle after a turn", 300),
    _memory("idle", "sub-agents idle after a turn, each with a function asleep below it"),
    _memory("waiting", "sub-agents waiting for their model"),
    _memory("asleep", "function agents asleep"),
    _memory("over", "trees of `AgentRuntime.spawn` that are over: what stays"),
)


def named(names: list[str]) -> tuple[Measurement, ...]:
    """Return the measurements of these names in the order of the catalogue, or all for no names. Raises LookupError."""
    known = {each.name for each in CATALOGUE}
    for name in names:
        if name not in known:
            raise LookupError(f"no measurement {name!r}; there are {', '.join(sorted(known))}")
    return tuple(each for each in CATALOGUE if not names or each.name in names)
