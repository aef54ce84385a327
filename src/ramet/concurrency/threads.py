"""Synchronous work beside the event loop, in threads that never keep the process alive."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import TypeVar

_RETRY_S, _RETRIES = 0.05, 200  #: where no thread can be started: a fork bomb may take all processes for a moment

T = TypeVar("T")
#: In a thread that works for a run: the event loop that the run lives in.
home: contextvars.ContextVar[asyncio.AbstractEventLoop | None] = contextvars.ContextVar("ramet_home", default=None)


def in_thread(work: Callable[[], T], *, name: str) -> asyncio.Future[T]:
    """Run `work` in a daemon thread of its own, with the caller's context variables.

    A thread cannot be ended: cancelling the future only stops the waiting. The executor of asyncio is not used
    because the interpreter joins its threads at exit, so one stuck tool would keep the process. Where the machine
    has no room for another thread, the start is tried again for ten seconds; the future raises RuntimeError then.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()
    context.run(home.set, loop)

    def deliver(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)  # type: ignore[arg-type]  # None only where T admits it
        elif isinstance(error, Exception) and not isinstance(error, StopIteration):
            future.set_exception(error)
        else:
            # A future refuses StopIteration; SystemExit would end the event loop, CancelledError look like our own.
            future.set_exception(RuntimeError(f"it raised {type(error).__name__}: {error}"))

    def body() -> None:
        result, error = None, None
        try:
            result = context.run(work)
        except BaseException as raised:
            error = raised
        try:
            loop.call_soon_threadsafe(deliver, result, error)
        except RuntimeError:
            pass  # The loop is closed: nobody waits any more.

    def start(tries: int) -> None:
        if future.done():
            return
        try:
            threading.Thread(target=body, name=name, daemon=True).start()
        except RuntimeError as error:
            if tries:
                loop.call_later(_RETRY_S, start, tries - 1)
            else:
                future.set_exception(error)

    start(_RETRIES)
    return future
