"""The event loop in which a runtime works: the caller's, or one in a thread of its own for a caller without a loop."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from ramet.core.errors import RametError

T = TypeVar("T")
_log = logging.getLogger("ramet.runtime")


class LoopThread:
    """An event loop in a thread of its own, running from construction until `close`."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="ramet-portal", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        while True:
            try:
                return self._loop.run_forever()
            except (SystemExit, KeyboardInterrupt) as error:
                # Of code of the user, such as a tool: a task has it by now, too. Every caller waits for this loop.
                _log.warning("code in the event loop raised %r; the loop goes on", error)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop and wait for its result.

        If the wait is interrupted, the coroutine is cancelled, and the call waits for the end of that.
        """
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            if not future.done():
                future.cancel()
                self._settle()
            raise

    def _settle(self) -> None:
        """Wait up to 10 seconds for cancelled tasks to end."""

        async def others() -> None:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            await asyncio.wait(tasks, timeout=10) if tasks else None

        asyncio.run_coroutine_threadsafe(others(), self._loop).result()

    def close(self) -> None:
        """End the loop and its thread."""
        self.call(self._loop.shutdown_asyncgens())
        self.call(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def refuse_in_loop(blocking: str, instead: str) -> None:
    """Raise RametError if an event loop runs in this thread: `blocking` would block the loop, `instead` would not."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RametError(f"{blocking} would block the event loop that runs here; {instead}")


class RuntimeLoop:
    """The event loop that a component works in: the caller's, or a loop of its own from `start` to `stop`."""

    def __init__(self, not_open: str) -> None:
        """Set `not_open`, the error text of a call before `start` or after `stop`."""
        self._not_open = not_open
        self._loop_thread: LoopThread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def is_reachable(self) -> bool:
        """Return whether this loop runs in this thread, or, if no loop runs in this thread, elsewhere."""
        try:
            return self._loop is asyncio.get_running_loop()
        except RuntimeError:
            return self._loop is not None and self._loop.is_running()

    def use_running_loop(self) -> None:
        """Use the loop that runs in this thread. Raises RuntimeError if no loop runs in this thread."""
        self._loop = asyncio.get_running_loop()

    def start(self, start: Callable[[], Coroutine[Any, Any, Any]], *, is_running: bool) -> None:
        """Start a loop in a thread, and call `start` in the loop; idempotent.

        Raises RametError if the component runs in a loop already. Must not be called in a loop.
        """
        if self._loop_thread is None:
            if is_running:
                raise RametError("this runtime was started in an event loop; use it there")
            self._loop_thread = LoopThread()
            self._loop_thread.call(start())

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop, from a thread without a loop, and wait for its result.

        Raises RametError if there is no loop yet.
        """
        if self._loop_thread is not None:
            return self._loop_thread.call(work)
        if self._loop is None or self._loop.is_closed():
            work.close()
            raise RametError(self._not_open)
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def stop(self, stop: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Call `stop` in the loop, then end the loop and its thread; idempotent. Must not be called in a loop."""
        thread, self._loop_thread = self._loop_thread, None
        if thread is not None:
            thread.call(stop())
            thread.close()
