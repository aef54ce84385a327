"""A thread that runs functions in sequence for an event loop, for example on one connection."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")
_Work = tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]


class Worker:
    """A thread that runs functions in order. Belongs to the loop that is running when it is created.

    The thread is a daemon: a program that forgets to close its store still ends.
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._work: SimpleQueue[_Work | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def post(self, do: Callable[[], T], then: Callable[[T | None, BaseException | None], None]) -> None:
        """Queue a function; `then` is called on the loop with its result or exception."""
        self._work.put((do, then))

    async def call(self, do: Callable[[], T]) -> T:
        """Return the result of `do`. A cancelled wait does not stop the function."""
        future: asyncio.Future[T] = self._loop.create_future()

        def set_outcome(result: T | None, error: BaseException | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(result)  # type: ignore[arg-type]  # None is a T where it is returned
            else:
                future.set_exception(error)

        self.post(do, set_outcome)
        return await future

    def stop(self) -> None:
        """Finish the queued functions and end the thread; blocks until then."""
        self._work.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            do, then = work
            result, error = None, None
            try:
                result = do()
            except BaseException as problem:
                error = problem
            # RuntimeError: the loop was closed before the store; there is no one to notify.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(then, result, error)
            del work, do, then, result, error  # otherwise they would stay referenced until there is more to do


def mark_retrieved(future: asyncio.Future[None]) -> None:
    """Mark the exception of a future as retrieved; remaining waiters still see it."""
    if not future.cancelled():
        future.exception()
