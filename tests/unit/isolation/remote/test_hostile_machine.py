"""Tests of a hostile machine: messages of a machine that does not read do not pile up in the host."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ramet.core.policy.policy import Isolation
from ramet.isolation.contract import SandboxSpec
from ramet.isolation.remote import host_agent, messages, outbox
from ramet.isolation.remote.host_agent import NodeClient
from ramet.isolation.remote.line import Line
from ramet.isolation.remote.messages import (
    FIRST_OF_MACHINE,
    Adopt,
    Answer,
    Connected,
    Data,
    Ended,
    Hello,
    Threshold,
)
from ramet.testing.conformance.isolation.harness import GRANT
from ramet.wire.frames import Frame
from tests.support.lines import send_message, two_ends
from tests.support.waiting import eventually

FLOOD = 8_000  #: words
#: Longer than any wait here; passed only by a machine that is never lost.
HANG_S = 180.0


class HostileLine:
    """Line to a machine that reports starts and ends of streams one after another, and reads nothing."""

    def __init__(self) -> None:
        self.message_count = 0  #: words that the host has taken
        self.is_flooding, self.is_reading, self._over = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._hello = Hello(
            version=messages.VERSION, python="3.11", level=Isolation.L1, mechanisms={}, kept=(1,), last=1
        )

    async def send(self, frame: Frame) -> None:
        """Accept a frame once the machine reads."""
        await self.is_reading.wait()

    async def receive(self) -> Frame | None:
        """Return the next message."""
        self.message_count += 1
        if self.message_count == 1:
            return Frame(messages.encode(self._hello))
        await self.is_flooding.wait()
        if self.message_count > FLOOD:
            await self._over.wait()
            return None
        stream = FIRST_OF_MACHINE + 2 * ((self.message_count - 2) // 2)
        if self.message_count % 2 == 0:
            return Frame(messages.encode(Connected(number=1, stream=stream)))
        return Frame(messages.encode(Data(number=1, stream=stream)))

    async def close(self) -> None:
        """End the line."""
        self._over.set()
        self.is_reading.set()


@asynccontextmanager
async def flooding_machine(folder: Path, line: HostileLine) -> AsyncIterator[NodeClient]:
    """Yield a machine that floods once the host has adopted a sandbox there."""
    machine = NodeClient(line, level=Isolation.L1)
    spec = SandboxSpec(run="run-1", grant=GRANT, workspace=folder, proxy=folder / "nobody listens")
    adopting = asyncio.ensure_future(machine.adopt(1, spec))
    await eventually(lambda: machine._sandboxes)
    line.is_flooding.set()
    try:
        yield machine
    finally:
        machine._reading.cancel()
        await asyncio.wait((machine._reading,))
        await asyncio.wait((adopting,))
        adopting.exception()
        await machine.close()


async def test_a_machine_that_does_not_read_is_no_longer_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host reads no more messages than MAX_WAITING bytes of answers allow, and continues once the machine reads."""
    monkeypatch.setattr(outbox, "MAX_WAITING", 100_000, raising=False)
    line = HostileLine()
    async with flooding_machine(tmp_path, line) as machine:
        line_count = 0
        while line_count != line.message_count:
            line_count = line.message_count
            for _ in range(1_000):
                await asyncio.sleep(0)
        assert 100 < line_count < FLOOD / 2
        line.is_reading.set()
        await eventually(lambda: line.message_count > FLOOD or not machine.is_open)
        assert machine.is_open


async def test_a_machine_that_reads_nothing_for_long_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sandboxes of the machine end with the reason."""
    monkeypatch.setattr(outbox, "MAX_WAITING", 100_000, raising=False)
    monkeypatch.setattr(host_agent, "_UNREAD_S", 0.05, raising=False)
    async with flooding_machine(tmp_path, HostileLine()) as machine:
        exit = await asyncio.wait_for(machine.wait_ended(), HANG_S)
        assert exit.reason == "lost"
        assert "read nothing for" in exit.detail


async def test_messages_about_a_sandbox_before_its_adoption_are_accepted(tmp_path: Path) -> None:
    """A pod of an older ramet may report the end of its sandbox without a request."""
    end_message = Ended(number=1, code=0, reason="exited")
    async with two_ends() as (near_end, far_end), closing(NodeClient(near_end, level=Isolation.L1)) as machine:
        await send_message(
            far_end, Hello(version=messages.VERSION, python="", level=Isolation.L1, mechanisms={}, kept=(1,))
        )
        await send_message(far_end, end_message)
        await send_message(far_end, Threshold(number=1, resource="memory", used=90.0, limit=100.0))
        adopting = asyncio.ensure_future(machine.adopt(1, SandboxSpec(run="run-1", grant=GRANT, workspace=tmp_path)))
        while not isinstance(request := await word_from(far_end), Adopt):
            pass
        await send_message(far_end, Answer(ask=request.ask))
        await send_message(far_end, end_message)

        sandbox = await asyncio.wait_for(adopting, HANG_S)
        assert (await asyncio.wait_for(sandbox.wait(), HANG_S)).reason == "exited"
        await send_message(far_end, Ended(number=2, code=0, reason="exited"))
        assert "no sandbox 2" in (await asyncio.wait_for(machine.wait_ended(), HANG_S)).detail
        await sandbox.clean_up()


async def word_from(kernel: Line) -> messages.FromKernel:
    """Return the next message of a kernel."""
    frame = await asyncio.wait_for(kernel.receive(), HANG_S)
    assert frame is not None
    return messages.from_kernel(frame.control)


@asynccontextmanager
async def closing(machine: NodeClient) -> AsyncIterator[NodeClient]:
    """Yield the machine, and close it at the end."""
    try:
        yield machine
    finally:
        await machine.close()
