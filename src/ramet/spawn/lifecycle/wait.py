"""Waiting with a time limit for a future that others wait for too."""

from __future__ import annotations

import asyncio
from typing import Any

from ramet.concurrency.clock import Clock


async def wait_at_most(future: asyncio.Future[Any], seconds: float, clock: Clock) -> bool:
    """Wait for `future` without cancelling it; return whether it was done within `seconds`."""
    timer = asyncio.ensure_future(clock.sleep(seconds))
    try:
        await asyncio.wait([future, timer], return_when=asyncio.FIRST_COMPLETED)
        return future.done()
    finally:
        timer.cancel()
