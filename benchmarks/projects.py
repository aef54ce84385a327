"""Projects that are measured: ours, and the peers with what they do not do."""

from __future__ import annotations

from dataclasses import dataclass

OURS = "ramet"
#: Ours once more with its journal on: what is to be set against a peer that keeps something.
OURS_DURABLE = "ramet_durable"


@dataclass(frozen=True, kw_only=True)
class Peer:
    """Another project, which `peers/bench_NAME.py` drives."""

    name: str
    label: str
    packages: tuple[str, ...]
    does_not: str = ""  #: in the measured work, and ramet does; found by trying (docs/design/performance-method.md)
    #: Names of packages that the peer needs in another version than `constraints.txt` has.
    own_versions: tuple[str, ...] = ()

    @property
    def version(self) -> str:
        """Return the version of the first package, which is the peer."""
        return self.packages[0].partition("==")[2] if self.packages else ""


PEERS = (
    Peer(
        name="agent_framework",
        label="agent-framework",
        packages=("agent-framework-core==1.23.0", "psutil==7.2.2"),
        does_not="record its children; bound a tree: each agent has limits of its own",
    ),
    Peer(
        name="pydantic_ai",
        label="pydantic-ai",
        packages=("pydantic-ai-slim==2.68.0", "psutil==7.2.2"),
        does_not="record its children; reserve before it asks: parallel children pass a shared limit",
    ),
    Peer(
        name="openai_agents",
        label="openai-agents",
        packages=("openai-agents==0.24.0", "psutil==7.2.2"),
        does_not="record its children; bound a tree: each agent has `max_turns` of its own",
        own_versions=("websockets",),
    ),
    Peer(
        name="deepagents",
        label="deepagents",
        packages=("deepagents==0.7.32", "psutil==7.2.2"),
        does_not="record its children; bound a tree: each agent has a limit of its own",
    ),
    Peer(
        name="langchain_sqlite",
        label="langchain + sqlite",
        packages=(
            "langchain==1.4.7",
            "langgraph==1.2.24",
            "langgraph-checkpoint-sqlite==3.1.2",
            "aiosqlite==0.22.1",
            "psutil==7.2.2",
        ),
        does_not="record its children, as driven here; bound a tree: each agent has a limit of its own",
    ),
    Peer(
        name="dbos",
        label="DBOS on SQLite",
        packages=("dbos==3.4.0", "psutil==7.2.2"),
        does_not="have a model loop; record a step before it begins; stop a step that runs",
    ),
    Peer(
        name="ray",
        label="Ray actor",
        packages=("ray==2.60.0", "psutil==7.2.2"),
        does_not="have a model loop; confine an actor; enforce its memory limit; record anything",
    ),
)
#: Peers that run agents with models and tools in one process, and keep nothing.
IN_MEMORY = ("agent_framework", "pydantic_ai", "openai_agents", "deepagents")
#: Peers that have on disk what happened, before they go on.
DURABLE = ("langchain_sqlite", "dbos")
