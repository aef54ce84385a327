"""A conversation in a sandbox that pauses at a limit: it gives its process up, and keeps its place in line.

What it has is on record, so that another process goes on when the request fits. The amount that it then gets is held
until that process has asked again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from ramet.core.budget import Hold
from ramet.core.errors import BudgetExceeded
from ramet.core.events import LimitPaused
from ramet.core.limits import RESOURCES, Amount
from ramet.spawn.run import Run
from ramet.tools.context import ToolUseContext

T = TypeVar("T")

#: Tools whose process holds what no record has: the namespace of an agent's own code.
_STATEFUL_TOOLS = frozenset({"Python"})


def as_refusal(pause: LimitPaused) -> BudgetExceeded:
    """Return a recorded pause as the refusal that caused it."""
    return BudgetExceeded(pause.resource, asked=pause.asked, left=pause.left, scope=pause.scope)


class GivenUp(Exception):
    """The conversation paused at a limit, and its process was ended."""


class _Granted(NamedTuple):
    """A reservation that waits for the process that will use it."""

    value: Any
    undo: Callable[[Any], None]


class ConversationPause:
    """The waits of one conversation at limits. Its `wait` is the `WaitAtLimit` of the conversation's requests."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._wait: asyncio.Task[_Granted] | None = None  #: of the request that waits
        self._context: ToolUseContext | None = None  #: of that request
        self._granted: _Granted | None = None
        self._is_given_up = False
        self.began = asyncio.Event()  #: set while only a raise, or the end of others, can help
        run.sandbox.on_limit = lambda: self.began.set() if run.is_at_limit else self.began.clear()

    @property
    def can_give_up(self) -> bool:
        """True if the process holds nothing that the record does not have."""
        return not any(tool.name in _STATEFUL_TOOLS for tool in self._run.context.tools)

    async def wait(
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
            return _Granted(
                await wait_at_limit(context, refusal, attempt, undo, is_counted=is_counted), lambda value: undo(value)
            )

        self._context, self._wait = context, asyncio.create_task(wait())
        try:
            granted: T = (await asyncio.shield(self._wait)).value
            if self._is_given_up:  # Its process is being ended, and this with it.
                await asyncio.get_running_loop().create_future()
        except BaseException:
            if not self._is_given_up:
                await self._end_wait()
            raise
        self._wait = None
        return granted

    def give_up(self) -> bool:
        """Let the wait go on without the process, if there is one; what it brings is not recorded as a request."""
        if self._context is None or self._wait is None or self._wait.done() or not self._run.is_at_limit:
            return False
        self._is_given_up = True
        self._context.record = lambda event: event
        return True

    async def wait_granted(self) -> None:
        """Wait until the request of a process that was given up fits. Raises BudgetExceeded if its scope has closed."""
        assert self._wait is not None, "it was given up while it waited"
        try:
            self._granted = await asyncio.shield(self._wait)
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
            self._run.limit_pause = None

    def release(self) -> None:
        """Return an amount that was granted and not used. Idempotent."""
        granted, self._granted = self._granted, None
        if granted is not None:
            granted.undo(granted.value)

    async def close(self) -> None:
        """End the wait, and return what it brought. Idempotent."""
        self._run.sandbox.on_limit = None
        await self._end_wait()
        self.release()

    async def _end_wait(self) -> None:
        wait, self._wait, self._is_given_up = self._wait, None, False
        if wait is None:
            return
        wait.cancel()
        await asyncio.wait({wait})
        if not wait.cancelled() and wait.exception() is None:
            granted = wait.result()
            granted.undo(granted.value)
