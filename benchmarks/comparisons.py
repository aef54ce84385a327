"""Measurements in which peers take part, by the table of docs/design/performance.md that shows them side by side."""

from __future__ import annotations

from benchmarks.measurement import Figure, Measurement
from benchmarks.projects import DURABLE, IN_MEMORY

IN_ONE_PROCESS = "Agents in one process, nothing kept"
KEPT_ON_DISK = "Agents in one process, kept on disk"
LIMITS = "Import, and a limit of 5 model requests under 100 parallel children"
PROCESSES = "A function in a process of its own"

HARNESS_IMPORT = Measurement(
    name="harness-import",
    title="Import, as the harness of the peers measures it",
    kind="harness",
    arguments=("import",),
    figures=(
        Figure("import_s", "time", "s wall"),
        Figure("rss_mb", "the whole process", "MB"),
    ),
    peers=(*IN_MEMORY, "langchain_sqlite", "dbos", "ray"),
    table=LIMITS,
)
LIMIT_OF_PEERS = Measurement(
    name="limit-100",
    title="A limit of 5 model calls under 100 parallel children (ours: ChatOpenAI at a loopback server)",
    kind="measure",
    arguments=("limit", "100"),
    figures=(
        Figure("requests", "model requests made (ours: HTTP requests that arrived)", "requests", exactly=5),
        Figure("wall_s", "from prompt to outcome", "s wall", ours_only=True),
    ),
    most_rounds=3,
    peers=(*IN_MEMORY, "langchain_sqlite"),
    table=LIMITS,
)
ONE_PROCESS = (
    Measurement(
        name="turn",
        title="Turn with one tool",
        kind="harness",
        arguments=("turn",),
        figures=(Figure("cpu_turn_ms", "each", "ms CPU", 0.5),),
        peers=IN_MEMORY,
        table=IN_ONE_PROCESS,
    ),
    Measurement(
        name="child",
        title="Child of one turn",
        kind="harness",
        arguments=("spawn",),
        figures=(Figure("cpu_spawn_ms", "each", "ms CPU", 1.0),),
        peers=IN_MEMORY,
        table=IN_ONE_PROCESS,
    ),
    Measurement(
        name="children-1000",
        title="1,000 children at once, whose model takes 0.1 s",
        kind="harness",
        arguments=("fanout", "1000", "0.1"),
        figures=(
            Figure("cpu_s", "all of them", "s CPU", 1.2),
            Figure("wall_s", "all of them", "s wall"),
            Figure("peak_rss_mb", "peak of the process", "MB", 100),
        ),
        peers=IN_MEMORY,
        table=IN_ONE_PROCESS,
    ),
)
ON_DISK = (
    Measurement(
        name="durable-turn",
        title="Turn with one tool, its journal on",
        kind="durable",
        arguments=("turn",),
        figures=(
            Figure("cpu_turn_ms", "each", "ms CPU", 0.8),
            Figure("turn_ms", "each", "ms wall"),
        ),
        peers=DURABLE,
        table=KEPT_ON_DISK,
    ),
    Measurement(
        name="durable-child",
        title="Child of one turn, its journal on",
        kind="durable",
        arguments=("spawn",),
        figures=(
            Figure("cpu_spawn_ms", "each", "ms CPU", 1.5),
            Figure("spawn_ms", "each", "ms wall"),
        ),
        peers=DURABLE,
        table=KEPT_ON_DISK,
    ),
    Measurement(
        name="durable-children-1000",
        title="1,000 children at once, whose model takes 0.1 s, their journal on",
        kind="durable",
        arguments=("fanout", "1000", "0.1"),
        figures=(
            Figure("cpu_s", "all of them", "s CPU", 1.5),
            Figure("wall_s", "all of them", "s wall"),
            Figure("peak_rss_mb", "peak of the process", "MB", 110),
        ),
        peers=DURABLE,
        table=KEPT_ON_DISK,
    ),
)
ISOLATED_CALL = Measurement(
    name="isolated-call",
    title="A function agent in a process of its own, or an actor: created, called, answered, one after another",
    kind="measure",
    arguments=("isolated_call",),
    figures=(
        Figure("sandbox_p50_ms", "in a sandbox (bwrap), median", "ms wall", ours_only=True),
        Figure("bare_p50_ms", "without a sandbox, median", "ms wall"),
        Figure("sandbox_idle_mb", "memory of an idle one in a sandbox", "MB", ours_only=True),
        Figure("bare_idle_mb", "memory of an idle one without a sandbox", "MB"),
    ),
    most_rounds=3,
    peers=("ray",),
    table=PROCESSES,
)
