"""Stopping runs and all runs below them.

Runs are asked to stop, cancelled, waited for and fenced off; work that could not be ended is named.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import TypedDict

from ramet.core.lifecycle import Fact, State
from ramet.core.outcome import Status
from ramet.spawn.run import Run
from ramet.spawn.verdict import cancelled_result
from ramet.tools.context import current_call
from ramet.tools.run_info import StopReceipt

#: Seconds in which the processes of a stopped run must end, beyond the grace. Longer only inside the kernel.
PROCESS_END_S = 10.0
Tell = Callable[[Run, Fact, str], None]
End = Callable[[Run], Awaitable[None]]


class StopOptions(TypedDict, total=False):
    """Details of the record of a stop, besides its reason."""

    out_of_time: Run | None
    error_type: str


async def stop_all(
    tops: Collection[Run],
    reason: str,
    status: Status,
    *,
    tell: Tell,
    end: End,
    grace_s: float,
    out_of_time: Run | None = None,
    error_type: str = "Aborted",
) -> StopReceipt:
    """Stop `tops` and everything that ends with them; on return they have ended, or wait for the caller itself.

    A run that is already being stopped keeps the reason and the status of its first stop: a child whose time ends while
    it is stopped with its parent has no timeout of its own. With the status `timeout`, or if `out_of_time` is given,
    each record names the run whose time was over. `error_type` is the type of the error of each of `tops`.

    `tell` moves a run in its lifecycle. `end` ends a run that is idle or ignores cancelling: the run is fenced off,
    whatever its task still does.
    """
    runs_to_stop: list[Run] = []
    stopping: set[int] = set()  #: by an earlier stop, which has cancelled them
    for top_run in tops:
        over = top_run if status is Status.TIMEOUT else out_of_time
        for run in top_run.descendants():
            runs_to_stop.append(run)
            if run.state is State.STOPPING:
                stopping.add(id(run))
            message = reason if run is top_run else f"stopped with its parent: {reason}"
            if run.turn.stop_result is None or run.state is not State.STOPPING:
                own_status = status if run is top_run else Status.CANCELLED
                run.turn.stop_result = cancelled_result(
                    run,
                    own_status,
                    message,
                    scope=over.info.path if over is not None else None,
                    error_type=error_type if run is top_run else "Aborted",
                )
            tell(run, Fact.STOP_ASKED if run is top_run else Fact.PARENT_STOPS, message)
    waiting_ids = _runs_waiting_for_this(runs_to_stop)
    for run in runs_to_stop:
        # If cancelled twice, a run would no longer wait until the sandboxes below it have ended.
        if is_at_work(run) and id(run) not in stopping:
            run.task.cancel()  # type: ignore[union-attr]  # an active run has a task
    for task in await wait_for_ends([run for run in runs_to_stop if id(run) not in waiting_ids], grace_s):
        task.cancel()
    for run in reversed(runs_to_stop):
        if run.is_living and id(run) not in waiting_ids:
            run.turn.verdict = run.turn.stop_result or cancelled_result(run, status, reason)
            await end(run)
    leftover = await _left_running([run for run in runs_to_stop if id(run) not in waiting_ids], grace_s)
    return StopReceipt(stopped=tuple(run.info.path for run in runs_to_stop), left=tuple(leftover))


async def wait_for_ends(runs: Collection[Run], grace_s: float) -> set[asyncio.Task[None]]:
    """Wait at most `grace_s` until the tasks of cancelled runs are done; return the tasks that are not.

    While a process of a run is being ended, that run and the runs above it are waited for until the process has ended.
    The process gets SIGKILL after a time of its own, which may be longer than the grace.
    """
    working = [run.task for run in runs if run.task is not None and is_at_work(run)]
    if not working:
        return set()
    _, pending = await asyncio.wait(working, timeout=grace_s)
    holders = [run for run in runs if run.context.running_processes and is_at_work(run)]
    ending_tasks = pending & {
        ancestor.task for run in holders for ancestor in run.ancestors() if ancestor.task is not None
    }
    if ending_tasks:
        done, _ = await asyncio.wait(ending_tasks, timeout=PROCESS_END_S)
        pending = pending - done
    return {task for task in pending if not task.done()}


def is_at_work(run: Run) -> bool:
    """Return whether a task of the run is in progress."""
    return run.task is not None and not run.task.done()


def _runs_waiting_for_this(runs_to_stop: list[Run]) -> set[int]:
    """Return the runs that wait for the call that stops them: they are cancelled, but cannot be waited for."""
    current, call = asyncio.current_task(), current_call.get(None)
    waiting_ids = {id(run) for run in runs_to_stop if run.task is current and current is not None}
    if call is not None:
        waiting_ids |= {id(each) for run in runs_to_stop if run.context is call.context for each in run.ancestors()}
    return waiting_ids


async def _left_running(stopped_runs: list[Run], grace_s: float) -> list[str]:
    """Give threads the grace to return, then name the remaining threads, and tasks that ignore cancelling."""
    threads = [entry.thread for run in stopped_runs for entry in run.context.orphaned_threads.values()]
    if threads:
        await asyncio.wait(threads, timeout=grace_s)
    names = [
        f"{run.info.path}: {entry.tool}"
        for run in stopped_runs
        for entry in list(run.context.orphaned_threads.values())
        if not entry.thread.done()
    ]
    return names + [f"{run.info.path}: its task ignores cancelling" for run in stopped_runs if is_at_work(run)]
