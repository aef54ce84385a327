"""The membership of this kernel in its store: announce its address, watch other kernels, and take over lost ones."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import Final

from ramet.core.errors import RametError
from ramet.services.cluster.auth import PeerAuth
from ramet.services.cluster.directory import Directory, LocalOwnership
from ramet.services.cluster.forward import Forwarder
from ramet.services.cluster.router import KernelRouter
from ramet.store.contract import Store

_log = logging.getLogger("ramet.serve")
_RETRY_S: Final = 1.0


class Kernels:
    """The kernels of a store, as seen by this one. Usable between `open` and `close`.

    Teams that no living kernel owns are taken over. Active requests to a lost kernel are ended.
    """

    def __init__(self, store: Store, operator: str, local: LocalOwnership) -> None:
        """Prepare the directory and the router. Raises MissingExtra."""
        self._store, self._spawner = store, local.spawner
        self.directory = Directory(store, store.kernel)
        self._forwarder = Forwarder()
        self.router = KernelRouter(self.directory, PeerAuth(store.kernel, operator), self._forwarder, local)
        self._tasks: set[asyncio.Task[None]] = set()
        self._takeover_task: asyncio.Task[None] | None = None
        self._is_requested = False

    async def open(self) -> None:
        """Subscribe to changes of the other kernels."""
        self.directory.on_lost = self._on_lost
        self.directory.on_news = self._on_news
        await self.directory.open()

    async def announce(self, address: str) -> None:
        """Publish the address of this kernel to the other kernels."""
        await self._store.announce(address)

    async def drain(self) -> None:
        """Withdraw the address of this kernel, and end the streams that are read through it."""
        await self._store.announce("")
        await self._forwarder.end_streams()

    async def close(self) -> None:
        """End the subscription, and all active requests to other kernels. Idempotent."""
        await self.directory.close()
        while self._tasks:
            for each in self._tasks:
                each.cancel()
            await asyncio.wait(self._tasks)
        await self._forwarder.close()

    def _on_lost(self, kernel: str) -> None:
        _log.warning("kernel %s is lost", kernel)
        self._begin(self._forwarder.cancel_requests(kernel))

    def _on_news(self) -> None:
        self._is_requested = True
        if self._takeover_task is None or self._takeover_task.done():
            self._takeover_task = self._begin(self._run_takeovers())

    async def _run_takeovers(self) -> None:
        while self._is_requested:
            self._is_requested = False
            try:
                if await self.directory.ownership_changed(self._spawner.teams):
                    await self._spawner.take_over()
            except Exception as problem:  # Any error: other teams may still need a takeover.
                reason = problem if isinstance(problem, RametError) else f"{type(problem).__name__}: {problem}"
                _log.error("the teams of other kernels cannot be taken over for now: %s", reason)
                self._is_requested = True
                await asyncio.sleep(_RETRY_S)

    def _begin(self, work: Awaitable[None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
