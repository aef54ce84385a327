"""The single thread that runs an agent's own code, so that thread-bound objects stay usable across calls.

The thread can be interrupted, but not terminated: an interrupt is raised when the thread next executes Python code.
Code that blocks elsewhere is left behind with its thread, until the sandbox ends.
"""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import queue
import threading
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from ramet.core.errors import RametError


class _Job(NamedTuple):
    work: Callable[[], Any]
    context: contextvars.Context
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]


class Worker:
    """A thread with its own event loop, which runs only while work awaits something."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._turn = threading.Lock()  #: guards whether it is active
        self._is_running = False
        self._worker_loop: asyncio.AbstractEventLoop | None = None
        self.thread = threading.Thread(target=self._body, name="ramet-python", daemon=True)
        try:
            self.thread.start()
        except RuntimeError:
            raise RametError("no thread can be started to run code in: policy.pids is used up") from None

    def submit(self, work: Callable[[], Any]) -> asyncio.Future[Any]:
        """Queue work with the caller's context variables; return a future of its result."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._jobs.put(_Job(work, contextvars.copy_context(), loop, future))
        return future

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt in the current work, if there is any."""
        with self._turn:
            if not self._is_running:
                return
            _raise_in(self.thread, KeyboardInterrupt)
            if self._worker_loop is not None and not self._worker_loop.is_closed():
                self._worker_loop.call_soon_threadsafe(lambda: None)  # It may be waiting for an event.

    def close(self) -> None:
        """Accept no more work.

        The thread ends when it has done its queued work.
        """
        self._jobs.put(None)

    # ---- in the thread

    def until_complete(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine of the work to its end; tasks left by earlier work continue meanwhile."""
        if self._worker_loop is None:
            self._worker_loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self._worker_loop)
        task = self._worker_loop.create_task(work)
        try:
            return self._worker_loop.run_until_complete(task)
        finally:
            task.cancel()  # It is unfinished only if it was interrupted: the next run of the loop ends it.

    def _body(self) -> None:
        try:
            while (job := self._jobs.get()) is not None:
                self._work(job)
        finally:
            if self._worker_loop is not None:
                _end(self._worker_loop)

    def _work(self, job: _Job) -> None:
        result: Any = None
        error: BaseException | None = None
        try:
            with self._turn:
                self._is_running = True
            result = job.context.run(job.work)
        except BaseException as raised:
            error = raised
        while self._is_running:
            try:
                with self._turn:
                    self._is_running = False
                    _raise_in(self.thread, None)
            except KeyboardInterrupt:  # The interrupt arrived at this late point.
                continue

        def deliver() -> None:
            if job.future.done():
                return
            if error is None:
                job.future.set_result(result)
            else:
                problem = error if type(error) is MemoryError else RuntimeError(f"it ended with {type(error).__name__}")
                job.future.set_exception(problem)

        try:
            job.loop.call_soon_threadsafe(deliver)
        except RuntimeError:
            pass  # The loop is closed: there is no waiter.


def _raise_in(thread: threading.Thread, error: type[BaseException] | None) -> None:
    """Raise an error in a thread, or withdraw one that was not raised yet."""
    exception = None if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), exception)


def _end(loop: asyncio.AbstractEventLoop) -> None:
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks, timeout=1))
    loop.close()
