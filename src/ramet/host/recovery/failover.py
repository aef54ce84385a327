"""Failover: living kernels claim the trees of failed kernels, and resume them; exactly one kernel gets each tree."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
from collections.abc import Awaitable, Callable, Sequence

from ramet.core.errors import StoreFailed
from ramet.host.journal.journal import Journal

AT_A_TIME = 16  #: trees that a kernel claims at a time: the other kernels share the rest

_log = logging.getLogger("ramet.recovery")


class FailoverTask:
    """A task that claims the trees of failed kernels, from `start` to `stop`, and passes them to `take` in batches.

    The store notifies the task of a failed kernel; there is no polling. Exceptions of `take` are logged: those trees
    stay with this kernel, for `AgentRuntime.resume`. The task ends with its store.
    """

    def __init__(self, journal: Journal, take: Callable[[Sequence[str]], Awaitable[None]]) -> None:
        self._journal, self._take = journal, take
        self._wakeup = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin; idempotent.

        Trees of already failed kernels are claimed at once. Raises StoreFailed, StoreInUse, Damaged.
        """
        await self._journal.open()
        if self._serving is None:
            unsubscribe = self._journal.store.on_kernels(self._wakeup.set)
            self._serving = asyncio.create_task(self._serve(), name="ramet failover", context=contextvars.Context())
            self._serving.add_done_callback(lambda _: unsubscribe())

    async def stop(self) -> None:
        """Stop claiming, and wait until the claimed trees are resumed or given up; idempotent."""
        serving, self._serving = self._serving, None
        if serving is not None:
            serving.cancel()
            await asyncio.wait({serving})

    async def _serve(self) -> None:
        store = self._journal.store
        with contextlib.suppress(StoreFailed):
            while True:
                self._wakeup.clear()
                if any(not each.alive for each in await store.kernels()):
                    while roots := await store.claim_orphaned(AT_A_TIME):
                        _log.warning("claimed %d trees of failed kernels", len(roots))
                        await self._pass_on(roots)
                await self._wakeup.wait()

    async def _pass_on(self, roots: Sequence[str]) -> None:
        try:
            await self._take(roots)
        except StoreFailed:
            raise
        except Exception as problem:
            _log.exception("claimed trees cannot be resumed here: %s", problem)
