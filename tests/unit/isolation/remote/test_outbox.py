"""Tests of the queue of messages on a line."""

from __future__ import annotations

import asyncio

from ramet.isolation.remote.messages import Leave
from ramet.isolation.remote.outbox import Outbox
from ramet.wire.frames import Frame
from tests.support.lines import two_ends


async def test_a_line_that_fails_by_a_defect_ends_for_both_sides() -> None:
    """The transport raises what no line is known to raise; nobody waits for messages that are never sent."""
    async with two_ends() as (one, other):

        async def fail(frame: Frame) -> None:
            raise ZeroDivisionError("a defect")

        one.send = fail  # type: ignore[method-assign]  # in place of a transport with a defect
        outbox = Outbox(one)
        outbox.post(Leave())

        async with asyncio.timeout(60):
            assert await other.receive() is None
            await outbox.flush(60)
        await outbox.close()
