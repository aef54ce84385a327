"""Wait for a coroutine in code without a running event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from ramet.core.errors import Bug, RametError

T = TypeVar("T")


def done(work: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop | None, name: str) -> T:
    """Return the result of a coroutine: in its loop, which runs in another thread, or here if it never waits."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        work.close()
        raise RametError(f"{name}_sync() would block the event loop that runs here; await {name}() instead")
    if loop is not None:
        if not loop.is_running():
            work.close()
            raise RametError(f"{name}_sync() needs the event loop of its store, which does not run any more")
        return asyncio.run_coroutine_threadsafe(work, loop).result()
    return run_nowait(work)


def run_nowait(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that never waits, such as a method of a store in memory."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    work.close()
    raise Bug("a store in memory waited")
