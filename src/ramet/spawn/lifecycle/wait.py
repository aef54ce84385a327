"""Waiting for something that others wait for too, but not for ever."""

from __future__ import annotations

import asyncio
from typing import Any

from ramet.concurrency.clock import Clock


async def wait_at_most(future: asyncio.Future[Any], seconds: float, clock: Clock) -> bool:
    """Wait for `future` without cancelling it; say whether it was done within `seconds`."""
    timer = asyncio.ensure_future(clock.sleep(seconds))
    try:
        await asyncio.wait([future, timer], return_when=asyncio.FIRST_COMPLETED)
        return future.done()
    finally:
        timer.cancel()
