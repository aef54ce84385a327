"""Wait for a coroutine in code without a running event loop."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from ramet.core.errors import Bug, RametError

P = ParamSpec("P")
T = TypeVar("T")


def without_loop(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    """Return the method `…_sync` of an asynchronous method of a state, for programs without an event loop.

    The work is done in the loop of the state's store, which runs in another thread, or here if the store never waits.
    """

    @functools.wraps(method)
    def run(state: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        name, loop = method.__name__, state._loop
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            raise RametError(f"{name}_sync() would block the event loop that runs here; await {name}() instead")
        if loop is None:
            return run_nowait(method(state, *args, **kwargs))
        if not loop.is_running():
            raise RametError(f"{name}_sync() needs the event loop of its store, which does not run any more")
        return asyncio.run_coroutine_threadsafe(method(state, *args, **kwargs), loop).result()

    run.__name__, run.__qualname__ = f"{method.__name__}_sync", f"{method.__qualname__}_sync"
    return run


def run_nowait(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that never waits, such as a method of a store in memory."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    work.close()
    raise Bug("a store in memory waited")
