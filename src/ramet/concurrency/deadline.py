"""Waiting with an end: until the work is done, the time is up, or the run is stopped."""

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
    """Return what `work` returns; when this raises, `work` has been cancelled and has ended.

    Raises TimeoutError after `seconds`, and Aborted when `abort` fires; one that has fired already prevents the start.
    """
    if abort is not None and abort.reason is not None:
        if inspect.iscoroutine(work):
            work.close()
        raise Aborted(abort.reason)
    task = asyncio.ensure_future(work)
    waits: set[asyncio.Future[Any]] = {task}
    stopped: asyncio.Task[str] | None = None
    if seconds is not None:
        waits.add(asyncio.ensure_future(clock.sleep(seconds)))
    if abort is not None:
        stopped = asyncio.ensure_future(abort.wait_aborted())
        waits.add(stopped)
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            if task.cancelled():  # By itself: nobody asked it to, and our caller was not cancelled.
                raise RuntimeError("it cancelled itself")
            return task.result()
        if stopped is not None and stopped.done():
            raise Aborted(stopped.result())
        raise TimeoutError(f"not done within {seconds:g} s")
    finally:
        for each in waits:
            each.cancel()
        await asyncio.wait(waits)
        if task.done() and not task.cancelled():
            task.exception()  # Seen: what it raised on its way out is nobody's.


async def run_shielded(work: Awaitable[T]) -> T:
    """Return what `work` returns. A cancel does not reach it, and is raised when it is done.

    For a start, which must not lose what it started, and for clean-up that is bounded by its own time.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None:
        return task.result()
    if not task.cancelled():
        task.exception()  # Seen: the cancel is what the caller is to hear of.
    raise cancelled
