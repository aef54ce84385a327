"""Wait for a turn until it is over, or until nothing in its tree can go on."""

from __future__ import annotations

import asyncio

from ramet.core.outcome import Result
from ramet.host.trees.turn_stream import TurnStream
from ramet.spawn.registry import RunRegistry


async def wait_until_paused(turn: TurnStream, register: RunRegistry) -> Result | None:
    """Return the result of a turn; None once a run of its tree is paused and no other works."""
    has_changed = asyncio.Event()
    register.on_state.append(has_changed.set)
    reading = asyncio.ensure_future(turn.wait())
    try:
        while not reading.done() and not register.is_paused:
            has_changed.clear()
            change = asyncio.ensure_future(has_changed.wait())
            try:
                await asyncio.wait((reading, change), return_when=asyncio.FIRST_COMPLETED)
            finally:
                change.cancel()
        return turn.result
    finally:
        register.on_state.remove(has_changed.set)
        reading.cancel()
        await asyncio.wait((reading,))
