"""Tests of the answers of a program to the host's operations."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ramet.concurrency.clock import FakeClock
from ramet.core.errors import ProtocolError, TaskFailed
from ramet.services.agent_types.command.process_calls import Calls
from ramet.wire.command_protocol import Answer, Refusal
from tests.support.waiting import eventually


class Line:
    """Line to a program; `count` operations were sent."""

    def __init__(self) -> None:
        self.count = 0

    def send(self, message: object, body: bytes) -> None:
        self.count += 1


async def test_a_late_or_second_answer_is_ignored() -> None:
    """Another operation may be open meanwhile. An answer to an operation that was never sent ends the program."""
    line: Any = Line()
    clock = FakeClock()
    calls = Calls(line, clock, str.upper)
    late = asyncio.ensure_future(calls.ask("slow", b"", 5))
    await eventually(lambda: clock.sleeping)
    await clock.advance(5)
    with pytest.raises(TaskFailed, match="not answered within 5 s"):
        await late
    refused = asyncio.ensure_future(calls.ask("refuse", b"", 5))
    await eventually(lambda: line.count == 2)

    calls.receive(Answer(id=1), b'"too late"')
    calls.receive(Refusal(id=2), b"not now")
    calls.receive(Answer(id=2), b'"after all"')

    with pytest.raises(TaskFailed, match="NOT NOW"):
        await refused
    with pytest.raises(ProtocolError, match="never requested"):
        calls.receive(Answer(id=3), b"1")
