"""Synchronous work next to the event loop, in threads that never keep the process alive."""

from __future__ import annotations

import asyncio
import contextvars
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import FrameType
from typing import Any, TypeVar

_RETRY_S, _RETRIES = 0.05, 200  #: if no thread can be started: a fork bomb may take all processes for a moment

T = TypeVar("T")
#: In a thread that works for a run: the event loop of the run.
owner_loop: contextvars.ContextVar[asyncio.AbstractEventLoop | None] = contextvars.ContextVar(
    "ramet_home", default=None
)


def in_thread(work: Callable[[], T], *, name: str) -> asyncio.Future[T]:
    """Run `work` in a new daemon thread, with the caller's context variables.

    A thread cannot be ended: cancelling the future only stops the wait. The executor of asyncio is not used because the
    interpreter joins its threads at exit, so one stuck tool would keep the process alive. If the machine cannot start a
    thread, the start is retried for ten seconds; then the future raises RuntimeError.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()
    context.run(owner_loop.set, loop)

    def deliver(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)  # type: ignore[arg-type]  # None only where T admits it
        elif isinstance(error, Exception) and not isinstance(error, StopIteration):
            future.set_exception(error)
        else:
            # A future refuses StopIteration; SystemExit would end the event loop, and CancelledError look like our own.
            future.set_exception(RuntimeError(f"the function raised {type(error).__name__}: {error}"))

    def body() -> None:
        result, error = None, None
        try:
            result = context.run(work)
        except BaseException as raised:
            error = raised
        try:
            loop.call_soon_threadsafe(deliver, result, error)
        except RuntimeError:
            pass  # The loop is closed: no one waits any more.

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


def executor_work(accepts: Callable[[contextvars.Context], bool]) -> Iterator[Future[Any]]:
    """Yield the futures of current executor work whose context variables satisfy `accepts`.

    No other source has this information: a cancelled task no longer refers to its thread. Nothing is found for another
    kind of executor, or for work submitted without a copy of the context variables.
    """
    for frame in sys._current_frames().values():
        outer: FrameType | None = frame
        while outer is not None:
            item = outer.f_locals.get("self") if outer.f_code.co_name == "run" else None
            variables = getattr(getattr(getattr(item, "fn", None), "func", None), "__self__", None)
            future = getattr(item, "future", None)
            if isinstance(variables, contextvars.Context) and isinstance(future, Future) and accepts(variables):
                yield future
            outer = outer.f_back
