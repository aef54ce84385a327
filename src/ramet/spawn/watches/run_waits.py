"""The wait of a run of this process: for whom or what. And its line in a listing."""

from __future__ import annotations

from typing import Final

from ramet.agent.loop import open_calls
from ramet.core.lifecycle import State
from ramet.spawn.run import Run
from ramet.tools.run_info import RunView

#: Waits with a known cause outside the run: their end is an event of the run.
EXPLAINED_WAITS: Final = frozenset({"person", "limit", "pause", "quota", "slot", "room", "child", "mail"})


def find_wait(run: Run) -> str:
    """Return what a run waits for, by the words of `ramet.core.replay.run_replay.RunReplay.waits_for`."""
    if not run.is_living or run.state is State.STOPPING:
        return ""
    if run.context.person_waits:
        return "person"
    match run.state:
        case State.PAUSED:
            return "limit" if run.pauses.recorded_limit is not None and run.pauses.reason is None else "pause"
        case State.IDLE:
            return "mail"
        case State.STARTING:
            return "mail" if run.awaits_prompt else "slot"
        case State.WAITING:
            return _find_outside_wait(run)
    has_no_process = run.grant is not None and run.sandbox.current is None
    if run.agent.function is not None or has_no_process:
        return ""
    return "tool" if open_calls(run.context.history) else "model"


def _find_outside_wait(run: Run) -> str:
    """Return the wait of a run whose calls all wait. A run that waits for nothing more waits for its slot."""
    if run.activity.quota_waits:
        return "quota"
    if run.activity.room_waits:
        return "room"
    is_for_run = bool(run.children) or any(each.is_living for each in run.waits_for)
    return "child" if is_for_run else "slot"


def view_of(run: Run) -> RunView:
    """Return the line of a run in a listing."""
    usage = run.context.last_usage
    return RunView(
        id=run.info.id,
        path=run.info.path,
        name=run.name,
        agent=run.info.agent,
        state=str(run.result.status) if run.result is not None else str(run.state),
        description=run.request.description,
        depth=run.info.depth,
        children=len(run.children),
        usage=run.subtree,
        last_event_at=run.activity.last_event_at,
        waits_for=find_wait(run),
        context_tokens=usage.input_tokens if usage is not None else 0,
        context_window=run.window,
    )
