"""A thread that lives as long as this process.

Processes that the thread starts die with it. The thread runs blocking calls one after the other.
"""

from __future__ import annotations

import asyncio
import queue
import subprocess
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from ramet.concurrency.deadline import run_shielded

T = TypeVar("T")

_lock = threading.Lock()
_queue: queue.SimpleQueue[Callable[[], None]] | None = None


def call(work: Callable[[], T]) -> asyncio.Future[T]:
    """Run a function in the thread: it may block, but only briefly.

    Cancelling the returned future undoes nothing.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def deliver(result: T | None, error: Exception | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]  # None only where T admits it

    def body() -> None:
        result, failure = None, None
        try:
            result = work()
        except Exception as error:
            failure = error
        try:
            loop.call_soon_threadsafe(deliver, result, failure)
        except RuntimeError:  # The loop is closed: no caller waits.
            if isinstance(result, subprocess.Popen):
                _terminate(result)

    _work_queue().put(body)
    return done


async def start(argv: Sequence[str], *, stderr: int, pass_fds: Sequence[int]) -> subprocess.Popen[bytes]:
    """Execute a program with no environment, no input and no controlling terminal. Raises OSError.

    The descriptors must stay open until this returns or raises. A cancelled call waits for the start, and undoes it.
    """
    starting = call(
        lambda: subprocess.Popen(
            argv,
            env={},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            pass_fds=pass_fds,
            start_new_session=True,
        )
    )
    try:
        return await run_shielded(starting)
    except asyncio.CancelledError:
        if starting.done() and starting.exception() is None:
            _terminate(starting.result())
        raise


async def wait_all_ended(pidfds: Sequence[int], *, within_s: float) -> bool:
    """Wait for every process behind these descriptors; return False if one takes longer than `within_s`."""
    loop = asyncio.get_running_loop()
    for pidfd in pidfds:
        exit_event = asyncio.Event()
        loop.add_reader(pidfd, exit_event.set)
        try:
            async with asyncio.timeout(within_s):
                await exit_event.wait()
        except TimeoutError:
            return False
        finally:
            loop.remove_reader(pidfd)
    return True


def _terminate(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def _work_queue() -> queue.SimpleQueue[Callable[[], None]]:
    global _queue
    with _lock:
        if _queue is None:
            _queue = queue.SimpleQueue()
            threading.Thread(target=_run, args=(_queue,), name="ramet-lifeline", daemon=True).start()
        return _queue


def _run(work_queue: queue.SimpleQueue[Callable[[], None]]) -> None:
    while True:
        work_queue.get()()
