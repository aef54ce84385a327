"""An event loop in a thread of its own, for programs without one: what they call is done there."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from ramet.core.errors import RametError

T = TypeVar("T")


class Portal:
    """Open from its making until `close`."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="ramet-portal", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something in the loop and wait for it; an interrupt of the waiting cancels it, and waits for that."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            if not future.done():
                future.cancel()
                self._settle()
            raise

    def _settle(self) -> None:
        """Let what was cancelled come to its end."""

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


def refuse_in_loop(name: str) -> None:
    """Raise where an event loop runs in this thread: it would stand still."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RametError(f"{name}_sync() would block the event loop that runs here; await {name}() instead")


class OwnLoop:
    """The event loop of somebody who was started without one: open from `begin` to `end`."""

    def __init__(self) -> None:
        self._portal: Portal | None = None

    @property
    def is_open(self) -> bool:
        """Whether it was begun here, and not in a loop of the caller's."""
        return self._portal is not None

    def begin(self, start: Callable[[], Coroutine[Any, Any, Any]], *, is_running: bool) -> None:
        """Start it there; idempotent. Raises RametError inside a loop, and where it runs in one already."""
        refuse_in_loop("start")
        if self._portal is None:
            if is_running:
                raise RametError("this runtime was started in an event loop; use it there")
            self._portal = Portal()
            self._portal.call(start())

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something there, and wait for it."""
        assert self._portal is not None, "it was begun"
        return self._portal.call(work)

    def end(self, stop: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Stop it there, and the loop; idempotent. Raises RametError inside a loop."""
        refuse_in_loop("stop")
        portal, self._portal = self._portal, None
        if portal is not None:
            portal.call(stop())
            portal.close()
