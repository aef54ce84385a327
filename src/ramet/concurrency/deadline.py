"""Wait until work is done, a time limit is reached, or the run is stopped."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable
from typing import Any, TypeVar

from ramet.concurrency.cancel import AbortController
from ramet.concurrency.clock import Clock
from ramet.core.errors import Aborted

T = TypeVar("T")


async def wait_with_timeout(
    work: Awaitable[T], *, clock: Clock, seconds: float | None, abort: AbortController | None = None
) -> T:
    """Return the result of `work`; when this raises, `work` has been cancelled and has ended.

    Raises TimeoutError after `seconds`, and Aborted when `abort` fires. An already fired `abort` prevents the start.
    """
    if abort is not None and abort.reason is not None:
        if inspect.iscoroutine(work):
            work.close()
        raise Aborted(abort.reason)
    task = asyncio.ensure_future(work)
    waits: set[asyncio.Future[Any]] = {task}
    abort_task: asyncio.Task[str] | None = None
    if seconds is not None:
        waits.add(asyncio.ensure_future(clock.sleep(seconds)))
    if abort is not None:
        abort_task = asyncio.ensure_future(abort.wait_aborted())
        waits.add(abort_task)
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            if task.cancelled():  # The work cancelled itself: neither it nor our caller was cancelled from outside.
                raise RuntimeError("the awaited task cancelled itself")
            return task.result()
        if abort_task is not None and abort_task.done():
            raise Aborted(abort_task.result())
        raise TimeoutError(f"not done within {seconds:g} s")
    finally:
        for each in waits:
            each.cancel()
        await asyncio.wait(waits)
        if task.done() and not task.cancelled():
            task.exception()  # Mark the exception as retrieved: an error during cancellation has no receiver.


async def run_shielded(work: Awaitable[T]) -> T:
    """Return the result of `work`. A cancellation does not reach `work`, and is raised when `work` is done.

    For a start, which must not lose what it started, and for a clean-up with its own time limit.
    """
    task = asyncio.ensure_future(work)
    cancellation: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancellation = error
    if cancellation is None:
        return task.result()
    if not task.cancelled():
        task.exception()  # Mark the exception as retrieved: the caller gets the cancellation.
    raise cancellation
