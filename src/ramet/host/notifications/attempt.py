"""Attempts to deliver a notification: to a command or to a function; and the outcome of any attempt."""

from __future__ import annotations

import asyncio
import inspect
import os
import subprocess
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from ramet.concurrency.clock import Clock
from ramet.concurrency.deadline import wait_with_timeout
from ramet.concurrency.processes import environment, run
from ramet.concurrency.threads import in_thread
from ramet.host.notifications.notification import Notification
from ramet.host.notifications.targets import CallbackTarget, CommandTarget

#: Calls of one synchronous function that have not returned: a thread cannot be ended.
_MAX_THREADS = 8


class Attempt(NamedTuple):
    """The outcome of one attempt."""

    problem: str = ""  #: empty: the notification was delivered
    is_gone: bool = False  #: the target says that it will never accept anything again


#: Tries to deliver one notification. Does not raise for what the target does.
Deliver = Callable[[Notification], Awaitable[Attempt]]


class CommandRunner:
    """A command target: each attempt is one process, which has ended when the attempt has."""

    def __init__(self, target: CommandTarget, clock: Clock) -> None:
        self._target, self._clock = target, clock

    async def deliver(self, notification: Notification) -> Attempt:
        """Run the command with the notification on its standard input."""
        try:
            result = await run(
                self._target.argv,
                clock=self._clock,
                timeout_s=self._target.timeout_s,
                cwd=os.sep,
                env=environment(),
                stdin=notification.as_json() + b"\n",
                stdout=subprocess.DEVNULL,
                grace_s=0,
            )
        except OSError as problem:
            return Attempt(f"it could not be started: {problem.strerror or type(problem).__name__}")
        if result.reason == "timeout":
            return Attempt(f"it did not end within {self._target.timeout_s:g} s")
        return Attempt() if result.code == 0 else Attempt(f"it ended with status {result.code}")


class FunctionCaller:
    """A callback target: an async function is called in the loop, any other in a thread."""

    def __init__(self, target: CallbackTarget, clock: Clock) -> None:
        self._target, self._clock = target, clock
        self._threads: set[asyncio.Future[object]] = set()

    async def deliver(self, notification: Notification) -> Attempt:
        """Call the function with the notification."""
        if len(self._threads) >= _MAX_THREADS:
            return Attempt(f"{_MAX_THREADS} earlier calls have not returned")
        try:
            await wait_with_timeout(self._call(notification), clock=self._clock, seconds=self._target.timeout_s)
        except TimeoutError:
            return Attempt(f"it did not return within {self._target.timeout_s:g} s")
        except Exception as problem:  # whatever the user's function raises
            return Attempt(f"it raised {type(problem).__name__}: {problem}"[:500])
        return Attempt()

    async def _call(self, notification: Notification) -> None:
        try:
            await self._call_function(notification)
        except (SystemExit, KeyboardInterrupt, GeneratorExit) as problem:  # These would end the event loop.
            raise RuntimeError(repr(problem)) from None

    async def _call_function(self, notification: Notification) -> None:
        function = self._target.function
        if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None)):  # noqa: B004 - the method itself is wanted: it may be async
            await function(notification)
            return
        thread = in_thread(lambda: function(notification), name="ramet-notification")
        self._threads.add(thread)
        thread.add_done_callback(self._on_return)
        result = await asyncio.shield(thread)
        if inspect.isawaitable(result):
            await result

    def _on_return(self, thread: asyncio.Future[object]) -> None:
        self._threads.discard(thread)
        if not thread.cancelled():
            thread.exception()  # Mark the exception as retrieved: the wait for it may have been given up.
