"""Assertions on what a tree of agents did: calls, spawns, usage, and runs that have not ended.

Each one fails with an AssertionError that says what happened instead. `source` is what `events_of` takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from ramet.core.arguments import check_instance
from ramet.core.errors import InvalidValue
from ramet.core.events import Event, RunSpawned, ToolEnded, ToolStarted
from ramet.core.ids import ROOT_NAME
from ramet.core.lifecycle import State
from ramet.core.limits import RESOURCES, Limits
from ramet.core.outcome import AgentResult, Result, Usage
from ramet.host.runtime import AgentRuntime
from ramet.host.sandbox.handle import AgentHandle
from ramet.spawn.handle import Handle
from ramet.testing.recorded_events import Tree, events_of, open_trees
from ramet.tools.run_info import RunView

MAX_LINES: Final = 40  #: of a failure
MAX_VALUE: Final = 120  #: characters of a value in a failure


def assert_called(source: Tree | Iterable[object], tool: str, /, **args: Any) -> list[ToolStarted]:
    """Return the calls of `tool` that began with at least these arguments, in order; fail if there is none.

    Arguments are compared by `==`, so `unittest.mock.ANY` and the like work. A call that was denied, or whose tool is
    unknown, never began. For the calls of one run pass `events_of(source, path="main/scout")`.
    """
    __tracebackhide__ = True
    events = events_of(source)
    found = _calls(events, tool, args)
    if not found:
        raise AssertionError(f"no call of {_call(tool, args)}; {_list_calls(events)}")
    return found


def assert_not_called(source: Tree | Iterable[object], tool: str, /, **args: Any) -> None:
    """Fail if a call of `tool` began with at least these arguments."""
    __tracebackhide__ = True
    events = events_of(source)
    if found := _calls(events, tool, args):
        raise AssertionError(f"calls of {_call(tool, args)}: {len(found)}; {_list_calls(events)}")


def assert_spawned(
    source: Tree | Iterable[object], agent: str, /, *, below: str | None = None, times: int | None = None
) -> list[RunSpawned]:
    """Return the spawns of `agent` below the root, or directly below the run at the path `below`.

    Fails if there are not exactly `times`, or without `times` if there is none.
    """
    __tracebackhide__ = True
    spawns = [event for event in events_of(source, RunSpawned) if event.depth > 0]
    found = [
        event for event in spawns if event.agent == agent and (below is None or event.path.rpartition("/")[0] == below)
    ]
    if len(found) == times or (times is None and found):
        return found
    place = f" below {below}" if below is not None else ""
    expected = "at least 1" if times is None else str(times)
    lines = [f"  {event.path}: {event.agent}, {_short(event.prompt)}" for event in spawns]
    raise AssertionError(
        f"spawns of {agent!r}{place}: {len(found)}, expected {expected}; "
        + _listing("spawns in all", lines, "nothing was spawned")
    )


def assert_within(source: Tree | Result | AgentResult | Usage, limits: Limits, /) -> Usage:
    """Return the usage of a whole tree, or of a run and all below it; fail if a part of it is above a limit.

    A session stands for its tree, a handle or a result for its run and all runs below. `seconds` is the time between
    the first and the last event of a session or a handle's run. Raises InvalidValue for `seconds` of a result, which
    has no times.
    """
    __tracebackhide__ = True
    check_instance("limits", limits, Limits, "ramet.Limits")
    usage = _usage_of(source)
    used: dict[str, float] = {name: getattr(usage, name) for name in RESOURCES}
    if limits.seconds is not None:
        used["seconds"] = _seconds_of(source)
    above = [
        f"  {name}: {_number(used[name])} used, {_number(limit)} allowed"
        for name in (*RESOURCES, "seconds")
        if (limit := getattr(limits, name)) is not None and used[name] > limit
    ]
    if above:
        total = ", ".join(f"{name} {_number(value)}" for name, value in used.items())
        raise AssertionError("\n".join(["above the limits:", *above, f"used in all: {total}", *_usage_by_run(source)]))
    return usage


def assert_no_run_left(source: Tree | AgentRuntime, /) -> None:
    """Fail if a run of a tree has not ended, and name each with its state and what it waits for.

    A conversation that is idle may remain: the root of a session, between two turns. A runtime stands for all its
    trees. This does not wait: await the background agents first, or stop the runtime.
    """
    __tracebackhide__ = True
    left = []
    for opened in open_trees(source):
        for run in opened.tree.register.living():
            if run.info.depth == 0 and run.state is State.IDLE:
                continue
            left.append(f"  {run.info.path}: {run.info.agent}, {run.state.value}")
    if left:
        raise AssertionError(_listing("runs that have not ended", left, ""))


def _calls(events: Iterable[Event], tool: str, args: Mapping[str, Any]) -> list[ToolStarted]:
    return [
        event
        for event in events
        if isinstance(event, ToolStarted)
        and event.tool == tool
        and all(name in event.args and event.args[name] == value for name, value in args.items())
    ]


def _list_calls(events: Iterable[Event]) -> str:
    """Return every call of the events as a line, with its end; calls that never began, too."""
    began: dict[tuple[str, str | None], str] = {}
    lines: dict[tuple[str, str | None], str] = {}
    for event in events:
        key = (event.run, event.call_id)
        if isinstance(event, ToolStarted):
            began[key] = f"  {event.path}: {_call(event.tool, event.args)}"
            lines[key] = f"{began[key]}, not ended"
        elif isinstance(event, ToolEnded):
            began_line = began.get(key, f"  {event.path}: {event.tool}(…), never began")
            why = "" if event.status == "ok" else f" ({_short(event.preview)})"
            lines[key] = f"{began_line}, {event.status}{why}"
    return _listing("calls in all", list(lines.values()), "no tool was called")


def _call(tool: str, args: Mapping[str, Any]) -> str:
    return f"{tool}({', '.join(f'{name}={_short(value)}' for name, value in args.items())})"


def _listing(title: str, lines: list[str], nothing: str) -> str:
    if not lines:
        return nothing
    more = [f"  … and {len(lines) - MAX_LINES} more"] if len(lines) > MAX_LINES else []
    return "\n".join([f"{title} ({len(lines)}):", *lines[:MAX_LINES], *more])


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= MAX_VALUE else f"{text[:MAX_VALUE]}…"


def _number(value: float) -> str:
    return f"{value:,.6g}" if isinstance(value, float) else f"{value:,}"


def _usage_of(source: Tree | Result | AgentResult | Usage) -> Usage:
    match source:
        case Usage():
            return source
        case Result():
            return source.usage_subtree
        case AgentResult():
            return source.usage
    return next((view.usage for view in _views(source) if view.path == _path_of(source)), Usage())


def _seconds_of(source: Tree | Result | AgentResult | Usage) -> float:
    if isinstance(source, Usage | Result | AgentResult):
        raise InvalidValue("limits.seconds", type(source).__name__, "None: usage and results have no times")
    path = source.path if isinstance(source, Handle | AgentHandle) else None
    times = [event.at for event in events_of(source, path=path) if event.at is not None]
    return (times[-1] - times[0]).total_seconds() if times else 0.0


def _usage_by_run(source: Tree | Result | AgentResult | Usage) -> list[str]:
    """Return the usage of each run and those below it, where the source has runs."""
    if isinstance(source, Usage | Result | AgentResult):
        return []
    lines = [
        f"  {view.path}: " + ", ".join(f"{name} {_number(getattr(view.usage, name))}" for name in RESOURCES)
        for view in _views(source)
    ]
    return [_listing("runs, each with those below it", lines, "")]


def _views(source: Tree) -> list[RunView]:
    return [view for opened in open_trees(source) for view in opened.tree.views()]


def _path_of(source: Tree) -> str:
    return source.path if isinstance(source, Handle | AgentHandle) else ROOT_NAME
