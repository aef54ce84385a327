"""A conversation in a sandbox that pauses: it gives its process up, and keeps its place in the line of a limit.

What it has is on record, so that another process goes on when the request fits. The amount that it then gets is held
until that process has asked again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, TypeVar

from ramet.core.budget import Hold
from ramet.core.errors import BudgetExceeded
from ramet.core.events import LimitPaused
from ramet.core.limits import RESOURCES, Amount
from ramet.spawn.run import Run
from ramet.spawn.sandbox.channel import FinalMessage
from ramet.spawn.sandbox.process import RunningSandbox, wait_result
from ramet.tools.context import ToolUseContext
from ramet.tools.python import NAME as PYTHON

T = TypeVar("T")

#: Tools whose process holds what no record has: the namespace of an agent's own code.
_STATEFUL_TOOLS = frozenset({PYTHON})


def as_refusal(pause: LimitPaused) -> BudgetExceeded:
    """Return a recorded pause as the refusal that caused it."""
    return BudgetExceeded(pause.resource, asked=pause.asked, left=pause.left, scope=pause.scope)


class GivenUp(Exception):
    """The conversation paused, and its process was ended."""


class _Granted(NamedTuple):
    """A reservation that waits for the process that will use it."""

    value: Any
    undo: Callable[[Any], None]


class ConversationPause:
    """The waits of one conversation, at limits and for the end of pauses by a person.

    It is the `Pauses` of the conversation's requests, and its `wait_at_limit` is their `WaitAtLimit`.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._wait: asyncio.Task[_Granted | None] | None = None  #: of the request that waits
        self._context: ToolUseContext | None = None  #: of that request
        self._granted: _Granted | None = None
        self._is_given_up = False
        self.began = asyncio.Event()  #: set while only a decision, or the end of others, can help
        self.is_cut = False  #: the process is to be ended, whatever it does
        run.sandbox.cut = self.cut
        run.sandbox.on_pause = lambda: self.began.set() if run.pauses.awaits_decision else self.began.clear()

    @property
    def can_give_up(self) -> bool:
        """True if the process holds nothing that the record does not have."""
        return not any(tool.name in _STATEFUL_TOOLS for tool in self._run.context.tools)

    @property
    def is_waiting(self) -> bool:
        """True if the next request waits for a decision, and the process can be given up meanwhile."""
        has_wait = self._wait is not None and not self._wait.done()
        return has_wait and self._run.pauses.awaits_decision and self.can_give_up

    def __bool__(self) -> bool:
        return bool(self._run.context.pauses)

    def covers(self, context: ToolUseContext) -> bool:
        """Return whether the run, or a run above it, is paused by a person."""
        return self._run.context.is_paused

    async def wait(self, context: ToolUseContext, *, is_counted: bool = False) -> None:
        """Wait until no pause by a person covers the run: see `Pauses.wait`."""
        if self._run.context.is_paused:
            self.release()
            await self._outlive_process(context, self._run.context.wait_unpaused(is_counted=is_counted))

    async def wait_at_limit(
        self,
        context: ToolUseContext,
        refusal: BudgetExceeded,
        attempt: Callable[[], T],
        undo: Callable[[T], None],
        *,
        is_counted: bool = False,
    ) -> T:
        """Wait until a request fits: see `ramet.tools.context.WaitAtLimit`.

        A request for which an earlier process waited uses what that wait brought.
        """
        wait_at_limit = self._run.context.wait_at_limit
        assert wait_at_limit is not None, "a run of a tree has it"
        if self._granted is not None:
            with context.budget.passing_lines():
                self.release()
                try:
                    return attempt()
                except BudgetExceeded as larger:  # It asks for more than before.
                    refusal = larger

        async def wait() -> _Granted:
            value = await wait_at_limit(context, refusal, attempt, undo, is_counted=is_counted)
            return _Granted(value, lambda value: undo(value))

        granted = await self._outlive_process(context, wait())
        assert granted is not None, "this wait brings an amount"
        value: T = granted.value
        return value

    async def _outlive_process(
        self, context: ToolUseContext, wait: Coroutine[Any, Any, _Granted | None]
    ) -> _Granted | None:
        """Wait in a task that goes on if the process, and this request of it, is given up."""
        self._context, self._wait = context, asyncio.create_task(wait)
        try:
            granted = await asyncio.shield(self._wait)
            if self._is_given_up:  # Its process is being ended, and this with it.
                await asyncio.get_running_loop().create_future()
        except BaseException:
            if not self._is_given_up:
                await self._end_wait()
            raise
        self._wait = None
        return granted

    def cut(self) -> None:
        """Let the process be ended, unless it waits for another run: its calls are answered as cut off."""
        if self.can_give_up and not self._run.children:
            self.is_cut = True
            self.began.set()

    def give_up(self) -> bool:
        """Let the wait go on without the process, if there is one; what it brings is not recorded as a request."""
        if self._context is None or not self.is_waiting:
            return False
        self._is_given_up = True
        self._context.record = lambda event: event
        return True

    async def wait_result(self, running: RunningSandbox) -> FinalMessage | None:
        """Wait for the last message of the guest; None if it ended without one.

        Raises GivenUp if the conversation pauses at a limit and does nothing else, ProtocolError if the guest broke the
        protocol.
        """
        if not self.can_give_up:
            return await wait_result(running)
        finished = asyncio.ensure_future(wait_result(running))
        try:
            while not finished.done():
                pause = asyncio.ensure_future(self.began.wait())
                try:
                    await asyncio.wait((finished, pause), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    pause.cancel()
                is_waiting = running.channel.requests_in_progress == 1
                if not finished.done() and (self.is_cut or (is_waiting and self.give_up())):
                    raise GivenUp
                self.began.clear()  # It does more than wait: look again when its pause changes.
            return finished.result()
        finally:
            finished.cancel()
            await asyncio.wait((finished,))

    async def wait_granted(self) -> None:
        """Wait until the request of a process that was given up may go on.

        Raises BudgetExceeded if its scope has closed.
        """
        self.is_cut = False
        if self._wait is None:  # It was cut.
            return await self._run.context.wait_unpaused(is_counted=True)
        try:
            self._granted = await asyncio.shield(self._wait) or self._granted
        except BaseException:
            await self._end_wait()
            raise
        self._wait, self._is_given_up = None, False

    async def wait_resumed(self, refusal: BudgetExceeded) -> None:
        """Wait where an earlier kernel recorded that the run paused, before a process is started."""
        budget = self._run.context.budget
        asked: dict[str, Any] = {refusal.resource: refusal.asked if refusal.resource == "usd" else int(refusal.asked)}

        def reserve() -> Hold:
            return budget.reserve(Amount(**asked))

        if refusal.resource in RESOURCES and budget.owner(refusal.resource) is not None:
            hold = await self._run.context.reserve(reserve, Hold.refund, is_counted=True)
            hold.keep()
            self._granted = _Granted(hold, Hold.refund)
            self._run.pauses.recorded_limit = None

    def release(self) -> None:
        """Return an amount that was granted and not used. Idempotent."""
        granted, self._granted = self._granted, None
        if granted is not None:
            granted.undo(granted.value)

    async def close(self) -> None:
        """End the wait, and return what it brought. Idempotent."""
        self._run.sandbox.on_pause = self._run.sandbox.cut = None
        await self._end_wait()
        self.release()

    async def _end_wait(self) -> None:
        wait, self._wait, self._is_given_up = self._wait, None, False
        if wait is None:
            return
        wait.cancel()
        await asyncio.wait({wait})
        if not wait.cancelled() and wait.exception() is None and (granted := wait.result()) is not None:
            granted.undo(granted.value)
