"""The model of a tree, computed from its events: the single source of every view at the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from ramet.cli.render import formatting
from ramet.cli.render.call_summary import describe_call
from ramet.cli.render.formatting import frozen
from ramet.cli.render.refused_requests import MAX_REFUSALS, describe_refusal
from ramet.core.events import (
    Event,
    ForwardRefused,
    MessageDiscarded,
    MessageRecorded,
    ModelAsked,
    ModelRetried,
    PlanUpdated,
    QuotaReached,
    RunEnded,
    RunResumed,
    RunSilent,
    RunSpawned,
    SandboxFrozen,
    StateChanged,
    SubAgentReported,
    TextDelta,
    ToolEnded,
    ToolStarted,
    TurnEnded,
    TurnStarted,
)
from ramet.core.lifecycle import TERMINAL_STATES, State
from ramet.core.outcome import Result, Status, Usage
from ramet.core.replay.reported_agents import ReportedAgent, apply_report, end_reported

#: Tools with which a run waits for others: "waits for 2 agents" is more informative than their names.
WAITING_TOOLS = frozenset({"Agent", "Task", "TaskOutput"})


class Totals(NamedTuple):
    """The totals of the whole tree."""

    agents: int
    living: int
    usage: Usage
    seconds: float


@dataclass(slots=True, kw_only=True, eq=False)
class Row:
    """A run, as its events describe it."""

    run: str
    path: str
    name: str
    agent: str
    depth: int
    parent: str | None
    model: str = ""
    task: str = ""
    state: str = State.STARTING
    pause: str = ""  #: why it is paused
    frozen_mb: float | None = None  #: memory that its frozen process holds
    phase: str = ""  #: activity between tool calls
    silence: str = ""  #: since when it is silent, until it shows a sign of life
    calls: dict[str, tuple[str, str]] = field(default_factory=dict)  #: open calls: id -> (tool, summary)
    usage: Usage = field(default_factory=Usage)  #: of this run alone
    started_at: datetime | None = None
    ended_at: datetime | None = None
    result: Result | None = None
    reported_agents: dict[str, ReportedAgent] = field(default_factory=dict)  #: that its program runs by itself, by id
    is_reported: bool = False  #: an agent that a program of another maker runs by itself, in the sandbox of its parent
    children: list[Row] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        """Return whether the run has ended, in any way."""
        return self.result is not None

    @property
    def living_children(self) -> int:
        """Return the number of direct children that have not ended."""
        return sum(not child.is_over for child in self.children)

    def seconds(self, now: datetime) -> float:
        """Return how long the run has been active, or was."""
        return 0.0 if self.started_at is None else ((self.ended_at or now) - self.started_at).total_seconds()

    def activity(self) -> str:
        """Return the current activity, in a few words, and how long the run was silent if a watch found that."""
        return f"{self._activity()}, {self.silence}" if self.silence else self._activity()

    def _activity(self) -> str:
        if self.state == State.STOPPING:
            return "stopping"
        busy = [words for tool, words in self.calls.values() if tool not in WAITING_TOOLS]
        if busy:
            return busy[-1] + (f" (+{len(busy) - 1})" if len(busy) > 1 else "")
        if self.calls:
            living = self.living_children
            return f"waits for {living} agent{'' if living == 1 else 's'}" if living else "waits"
        if self.state == State.PAUSED:
            paused = "paused" if self.frozen_mb is None else f"paused ({frozen(self.frozen_mb)})"
            return f"{paused}: {self.pause}" if self.pause else paused
        if self.state == State.STARTING:
            return "queued"
        return "idle" if self.state == State.IDLE else self.phase or ("thinks" if self.model else "works")


class TreeModel:
    """The model of a tree. Events of different runs may come in any order; those of one run come in their order."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}  #: by run id, in spawn order
        self.root: Row | None = None
        self.refused_forwards: dict[str, None] = {}  #: refusals with 429 of requests of programs, as texts
        self._orphans: dict[str, list[Row]] = {}  #: children whose events came before their parent's

    def apply(self, event: Event) -> None:
        """Add one event to the model."""
        row = self._row(event)
        row.silence = ""
        match event:
            case RunSpawned():
                row.name, row.model = event.name or row.name, event.model
                row.task = event.description or event.prompt[:500]
                row.state = State.STARTING
            case StateChanged():
                row.pause = event.why if event.state == State.PAUSED else ""
                row.state, row.frozen_mb = event.state, None
                if event.state not in TERMINAL_STATES:
                    row.result = row.ended_at = None  # mail woke it
            case TurnStarted():
                self._end_reported(row, event)
                row.state, row.result, row.ended_at = State.RUNNING, None, None
            case SandboxFrozen():
                row.frozen_mb = event.memory_mb
            case ModelAsked():
                row.phase = "thinks"
            case ModelRetried():
                row.phase = f"asks again in {event.wait_s:.0f}s" if event.wait_s >= 1 else "asks again"
            case QuotaReached():
                row.phase = f"waits for a quota until {event.until:%H:%M:%S} UTC"
            case ForwardRefused() if len(self.refused_forwards) < MAX_REFUSALS:
                self.refused_forwards[describe_refusal(event)] = None
            case RunSilent():
                row.silence = f"silent for {formatting.duration(event.silent_s)}"
            case TextDelta():
                row.phase = "writes"
            case MessageDiscarded():
                row.phase = "thinks"
            case MessageRecorded(usage=Usage() as used):
                row.usage += used
            case ToolStarted():
                row.calls[event.call_id or event.step_id] = (event.tool, describe_call(event.tool, event.args))
                row.phase = ""
            case ToolEnded():
                row.calls.pop(event.call_id or "", None)
                row.usage += Usage(tool_calls=1)
            case PlanUpdated():
                row.phase = next((each.text for each in event.steps if each.status == "in_progress"), row.phase)
            case SubAgentReported():
                if (agent := apply_report(row.reported_agents, event)) is not None:
                    self._show_reported(row, agent)
            case TurnEnded() | RunResumed():
                self._end_reported(row, event)
            case RunEnded():
                self._end_reported(row, event)
                row.result, row.ended_at = event.result, event.at
                row.usage = event.result.usage
                row.state, row.phase = State.ENDED, ""
                row.calls.clear()
            case _:
                pass

    def totals(self, now: datetime) -> Totals:
        """Return the totals."""
        usage = Usage()
        for row in self.rows.values():
            usage += row.usage
        runs = [row for row in self.rows.values() if not row.is_reported]
        living = sum(not row.is_over for row in runs)
        return Totals(len(runs), living, usage, self.root.seconds(now) if self.root else 0.0)

    def walk(self, row: Row | None = None) -> Iterator[Row]:
        """Yield the rows depth first, children in spawn order."""
        tops = [row] if row else [each for each in self.rows.values() if each.parent not in self.rows]
        stack = tops[::-1]
        while stack:
            each = stack.pop()
            yield each
            stack.extend(reversed(each.children))

    def findings(self) -> list[Row]:
        """Return the runs below the root that ended with a text, in spawn order."""
        return [row for row in self.rows.values() if row is not self.root and row.result and row.result.text.strip()]

    def _end_reported(self, row: Row, event: Event) -> None:
        for agent in end_reported(row.reported_agents, event.at):
            self._show_reported(row, agent)

    def _show_reported(self, parent: Row, agent: ReportedAgent) -> None:
        """Show an agent that a program runs by itself as a row below the program's."""
        key = f"{parent.run}/{agent.id}"
        row = self.rows.get(key)
        if row is None:
            row = self.rows[key] = Row(
                run=key,
                path=f"{parent.path}/{agent.id}",
                name=agent.name,
                agent=parent.agent,
                depth=parent.depth + 1,
                parent=parent.run,
                state=State.RUNNING,
                started_at=agent.born,
                is_reported=True,
            )
            parent.children.append(row)
        row.name, row.ended_at = agent.name, agent.ended
        row.result = Result(status=Status(agent.state), value="") if agent.is_over else None

    def _row(self, event: Event) -> Row:
        row = self.rows.get(event.run)
        if row is None:
            name = event.path.rpartition("/")[2] or event.path
            row = Row(
                run=event.run,
                path=event.path,
                name=name,
                agent=event.agent,
                depth=event.depth,
                parent=event.parent,
                started_at=event.at,
            )
            self.rows[event.run] = row
            if event.run == event.root:
                self.root = row
            parent = self.rows.get(event.parent or "")
            if parent is not None:
                parent.children.append(row)
            elif event.parent:
                self._orphans.setdefault(event.parent, []).append(row)
            row.children.extend(self._orphans.pop(row.run, ()))
        return row


#: The word for each status.
ENDINGS: dict[Status, str] = {
    Status.COMPLETED: "completed",
    Status.FAILED: "failed",
    Status.CANCELLED: "cancelled",
    Status.TIMEOUT: "out of time",
    Status.BUDGET_EXHAUSTED: "out of budget",
    Status.OOM: "out of memory",
    Status.CRASHED: "crashed",
    Status.LOST: "lost",
    Status.NEEDS_INPUT: "needs input",
    Status.PAUSED: "paused",
}
