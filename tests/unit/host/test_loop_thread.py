"""Tests of the event loop in a thread: code in it that wants to end the program does not end the loop."""

from __future__ import annotations

import asyncio
import contextlib
import sys

import pytest

from ramet.host.loop_thread import LoopThread


async def leave() -> None:
    sys.exit(3)


async def leave_in_a_task() -> str:
    with contextlib.suppress(SystemExit):
        await asyncio.ensure_future(leave())
    return "it goes on"


async def leave_in_a_callback() -> str:
    loop, is_after = asyncio.get_running_loop(), asyncio.Event()
    loop.call_soon(sys.exit, 3)
    loop.call_soon(is_after.set)
    await is_after.wait()
    return "it goes on"


def test_an_exit_does_not_end_the_loop() -> None:
    """Otherwise whoever waits for a result would wait forever. The caller of the code that exits gets SystemExit."""
    portal = LoopThread()
    try:
        assert portal.call(leave_in_a_task()) == "it goes on"
        assert portal.call(leave_in_a_callback()) == "it goes on"
        with pytest.raises(SystemExit):
            portal.call(leave())
        assert portal.call(leave_in_a_task()) == "it goes on"
    finally:
        portal.close()
