"""Events of a tree, for tests of its display: a root and two children, one of which is cut short."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from ramet.core.events import (
    Event,
    MessageRecorded,
    ModelAsked,
    ModelRetried,
    Notice,
    RunEnded,
    RunSpawned,
    StateChanged,
    ToolEnded,
    ToolStarted,
    TurnStarted,
)
from ramet.core.outcome import ErrorInfo, Result, Status, Usage

NOTHING = Usage()
START = datetime(2026, 11, 20, 12, 0, 0, tzinfo=UTC)


def at(seconds: float) -> datetime:
    """Return a moment of the story."""
    return START + timedelta(seconds=seconds)


class TreeEventWriter:
    """A writer of a tree's events, stamped and in order."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def add(self, kind: type[Event], path: str, seconds: float, /, **fields: Any) -> Event:
        """Add one event of the run at `path`."""
        above = path.rpartition("/")[0]
        event = kind(
            root="run-main",
            run=f"run-{path}",
            path=path,
            agent=fields.pop("agent", "explore" if above else "general-purpose"),
            depth=path.count("/"),
            parent=f"run-{above}" if above else None,
            seq=len(self.events) + 1,
            at=at(seconds),
            **fields,
        )
        self.events.append(event)
        return event

    def add_spawn(self, path: str, seconds: float, prompt: str = "", **fields: Any) -> None:
        """Add the start of a run."""
        self.add(RunSpawned, path, seconds, name=path.rpartition("/")[2], prompt=prompt, model="offline", **fields)
        self.add(TurnStarted, path, seconds, turn=1)

    def add_reply(self, path: str, seconds: float, tokens: int, usd: float = 0.0) -> None:
        """Add an answer of a model."""
        self.add(ModelAsked, path, seconds, step_id=f"{path}:{seconds}", model="offline")
        usage = Usage(model_calls=1, input_tokens=tokens, usd=usd)
        self.add(MessageRecorded, path, seconds, message={}, step_id=f"{path}:{seconds}", usage=usage)

    def add_tool_start(self, path: str, seconds: float, call: str, tool: str, /, **args: Any) -> None:
        """Add the start of a tool call."""
        self.add(ToolStarted, path, seconds, call_id=call, tool=tool, step_id=call, args=args)

    def add_tool_end(
        self, path: str, seconds: float, call: str, tool: str, status: str = "ok", preview: str = ""
    ) -> None:
        """Add the result of a tool call."""
        self.add(ToolEnded, path, seconds, call_id=call, tool=tool, status=status, preview=preview)

    def add_end(
        self,
        path: str,
        seconds: float,
        status: Status,
        text: str,
        usage: Usage,
        error: str = "",
        below: Usage = NOTHING,
    ) -> None:
        """Add the end of a run."""
        is_completed = status is Status.COMPLETED
        result = Result(
            status=status,
            value=text if is_completed else None,
            partial="" if is_completed else text,
            error=ErrorInfo(type="X", message=error) if error else None,
            usage=usage,
            usage_subtree=usage + below,
        )
        self.add(RunEnded, path, seconds, result=result)


def active_story(usd: float = 0.0) -> TreeEventWriter:
    """Return a story of three agents at 3.2 seconds: one done, one active, and the root waiting."""
    writer = TreeEventWriter()
    writer.add_spawn("main", 0, "Why?")
    writer.add_reply("main", 0.1, 1200, usd)
    writer.add_tool_start("main", 0.2, "c1", "Agent", prompt="Search the logs for errors", subagent_type="explore")
    writer.add_tool_start("main", 0.2, "c2", "Agent", prompt="Read the sources", subagent_type="explore")
    writer.add_spawn("main/logs", 0.3, "Search the logs for errors")
    writer.add_spawn("main/sources", 0.3, "Read the sources")
    writer.add(StateChanged, "main", 0.3, state="waiting")
    writer.add_reply("main/logs", 0.4, 900, usd)
    writer.add_tool_start("main/logs", 0.5, "l1", "Grep", pattern="ERROR|timeout", path="logs")
    writer.add_tool_end("main/logs", 0.9, "l1", "Grep", preview="3 matches")
    writer.add_reply("main/sources", 0.6, 2500, usd)
    writer.add_tool_start("main/sources", 0.7, "s1", "Read", file_path="src/payments/client.py")
    writer.add(ModelRetried, "main/logs", 1.0, step_id="x", model="offline", reason="busy", attempt=2, wait_s=0.2)
    usage = Usage(model_calls=1, tool_calls=1, input_tokens=900, usd=usd)
    writer.add_end("main/logs", 1.4, Status.COMPLETED, "# Findings\n\n**logs/app.log:12**: timeout after 2 s", usage)
    writer.add_tool_end("main", 1.4, "c1", "Agent")
    return writer


def cancelled_story() -> TreeEventWriter:
    """Return that story, cancelled at 3.2 seconds."""
    writer = active_story()
    usage = Usage(model_calls=1, tool_calls=1, input_tokens=2500)
    writer.add_end("main/sources", 3.2, Status.CANCELLED, "client.py sets no retry", usage, "Ctrl-C")
    own_usage = Usage(model_calls=1, tool_calls=2, agents=2, input_tokens=1200)
    usage_below = Usage(model_calls=2, tool_calls=2, input_tokens=3400)
    writer.add_end("main", 3.2, Status.CANCELLED, "", own_usage, "Ctrl-C", usage_below)
    return writer


def hostile_story() -> TreeEventWriter:
    """Return a story whose names, arguments and findings try to control the terminal."""
    writer = TreeEventWriter()
    bad = "\x1b[2J\x1b]0;owned\x07\x1b[31mred\x1b[0m [bold]x[/bold] :smile: \u202egnp.exe\r\nsecond\x00"
    writer.add_spawn("main", 0)
    writer.add_spawn("main/evil", 0, bad, agent=bad)
    writer.add_tool_start("main/evil", 0.1, "e1", bad, command=bad)
    writer.add(Notice, "main/evil", 0.2, text=bad)
    writer.add_tool_end("main/evil", 0.3, "e1", bad, "denied", bad)
    writer.add_end("main/evil", 0.4, Status.FAILED, bad, Usage(), bad)
    writer.add_end("main", 0.5, Status.COMPLETED, bad, Usage())
    return writer
