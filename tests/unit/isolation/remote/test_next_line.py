"""Tests of a machine between two kernels: events of a sandbox before its adoption are reported with the adoption."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ramet.isolation.contract import SandboxSpec
from ramet.isolation.remote import host_agent, messages, node_agent
from ramet.isolation.remote.messages import (
    CHANNEL,
    Adopt,
    Answer,
    Data,
    Ended,
    Forget,
    FromMachine,
    Hello,
    NodeMessage,
    Signal,
    Started,
    Threshold,
)
from ramet.testing.conformance.isolation.harness import ENTRY, GRANT
from ramet.wire import frames
from ramet.wire.frames import Frame
from ramet.wire.guest_protocol import host_to_guest, message_codec
from tests.support.outliving import OutlivingBackend
from tests.support.serving import short_folder
from tests.support.stream_line import StreamLine

#: Questions and answers that a machine has time for while a sandbox there is killed.
TURNS = 300
#: Longer than any word takes; passed only by a machine that says nothing more.
HANG_S = 180.0


class LineClient:
    """Client that sends and receives single messages on a line, as a kernel would."""

    def __init__(self, line: StreamLine) -> None:
        self._line = line

    async def say(self, word: NodeMessage, body: bytes = b"") -> None:
        """Send a message."""
        await self._line.send(Frame(messages.encode(word), body))

    async def hear(self) -> FromMachine:
        """Return the next message of the machine."""
        frame = await asyncio.wait_for(self._line.receive(), HANG_S)
        assert frame is not None, "its line ended"
        return messages.from_machine(frame.control)


@asynccontextmanager
async def open_line(machine: OutlivingBackend) -> AsyncIterator[LineClient]:
    """Open a separate line and close it at the end; started sandboxes continue."""
    line = StreamLine(*await asyncio.open_unix_connection(machine._path))
    try:
        yield LineClient(line)
    finally:
        await line.close()


@asynccontextmanager
async def machine_at(folder: Path) -> AsyncIterator[OutlivingBackend]:
    """Start a machine, and end it at the end."""
    machine = OutlivingBackend(folder / "runs")
    await asyncio.to_thread(machine._begin)
    assert machine.process is not None
    try:
        yield machine
    finally:
        await machine.end()
        await asyncio.to_thread(machine.process.wait, HANG_S)


def start_bytes() -> bytes:
    """Return the first message to a sandbox, as bytes of its channel."""
    word = host_to_guest.StartFunction(run="run-1", path="main", name="f")
    return b"".join(bytes(piece) for piece in frames.pack(message_codec.encode(word), b""))


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another machine")
async def test_the_end_of_a_sandbox_is_reported_after_its_adoption() -> None:
    """Before the adoption the kernel does not know the sandbox, and a message about it would end the line."""
    with short_folder() as folder:
        spec = SandboxSpec(run="run-1", grant=GRANT, workspace=folder / "runs" / "run-1" / "workspace", entry=ENTRY)
        async with machine_at(folder) as machine:
            async with open_line(machine) as first:
                assert isinstance(await first.hear(), Hello)
                await first.say(host_agent._make_start_message(1, spec, is_asked=True))
                while not isinstance(await first.hear(), Started):
                    pass
                await first.say(Signal(number=1, signal=signal.SIGSTOP))  # It does not end by itself.
                await first.say(Data(number=1, stream=CHANNEL), start_bytes())

            async with open_line(machine) as second:
                hello = await second.hear()
                assert isinstance(hello, Hello)
                assert hello.kept == (1,)
                await second.say(Signal(number=1, signal=signal.SIGKILL))
                before = list[FromMachine]()
                for ask in range(1, TURNS):
                    await second.say(Forget(ask=ask, number=0))
                    while not isinstance(word := await second.hear(), Answer):
                        before.append(word)
                assert before == []

                await second.say(Adopt(ask=TURNS, number=1))
                while not isinstance(word := await second.hear(), Ended):
                    assert not isinstance(word, Answer) or word.error is None, word
                assert (word.number, word.reason) == (1, "signalled")


async def test_thresholds_are_reported_only_for_adopted_sandboxes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sandbox that was started on another line and is not adopted gets no report."""
    async with node_agent.open_node_agent(tmp_path) as keeper:
        messages = list[object]()
        monkeypatch.setattr(keeper, "_post", lambda word, body=b"": messages.append(word))
        slot = keeper._new(1)
        slot.run = "run-1"

        keeper._near_a_limit("run-1", "memory", 90.0, 100.0)
        assert messages == []

        monkeypatch.setattr(type(slot), "is_started_reported", True)
        keeper._near_a_limit("run-1", "memory", 90.0, 100.0)
        assert messages == [Threshold(number=1, resource="memory", used=90.0, limit=100.0)]
