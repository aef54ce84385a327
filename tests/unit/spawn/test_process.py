"""Tests of `spawn/sandbox/process.py`: the last messages of a process that has exited are read, however late."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ramet.concurrency.clock import FakeClock
from ramet.core.outcome import ErrorInfo
from ramet.isolation.contract import KILL_GRACE_S
from ramet.spawn.sandbox import process
from ramet.spawn.sandbox.channel import FinalMessage, GuestChannel
from ramet.spawn.sandbox.process import RunningSandbox, terminate, wait_result
from ramet.wire.guest_protocol.guest_to_host import Done, Note
from tests.support.waiting import eventually
from tests.unit.spawn.test_channel import BusyHandler, open_channel


class Exited:
    """A sandbox whose process has exited."""

    async def wait(self) -> None:
        """Return at once."""


def running(channel: GuestChannel) -> RunningSandbox:
    sandbox: Any = Exited()
    return RunningSandbox(sandbox, channel)


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the waits after the exit."""
    monkeypatch.setattr(process, "_EXIT_WAIT_S", 0.001)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return a list that grows with each look at whether the host delays messages."""
    results: list[bool] = []
    is_throttled: Any = GuestChannel.is_throttled

    def look(channel: GuestChannel) -> bool:
        results.append(is_throttled.fget(channel))
        return results[-1]

    monkeypatch.setattr(GuestChannel, "is_throttled", property(look))
    return results


async def test_a_result_that_the_host_delays_is_received(monkeypatch: pytest.MonkeyPatch, looks: list[bool]) -> None:
    """The guest used the host's time, so it waits for its share; its process exits meanwhile, with a result."""
    clock, handler = FakeClock(), BusyHandler(monkeypatch)
    async with open_channel(clock, handler) as (channel, guest, _):
        await guest.say(Note(text="costly"))
        await eventually(lambda: handler.notes)
        await guest.say(Done(ok=True))
        waiting = asyncio.create_task(wait_result(running(channel)))
        guest.leave()
        await eventually(lambda: len(looks) > 3 or waiting.done())

        assert not waiting.done()
        await clock.advance(60)
        finished = await waiting

    assert finished is not None
    assert finished.done.ok


async def test_a_channel_that_a_descendant_holds_is_given_up(looks: list[bool]) -> None:
    """Nothing more comes from it: the process ended without a result."""
    async with open_channel() as (channel, _, _handler):
        assert await wait_result(running(channel)) is None

    assert not any(looks)


class Hanging:
    """Sandbox whose process ends only when it is killed; `graces` are the seconds that it was given."""

    def __init__(self) -> None:
        self.graces: list[float] = []

    async def wait(self) -> None:
        await asyncio.Event().wait()

    async def kill(self, grace_s: float) -> None:
        self.graces.append(grace_s)


@pytest.mark.parametrize(
    ("finished", "grace_s"),
    [(FinalMessage(Done(ok=False, error=ErrorInfo(type="TaskFailed", message="no")), b""), 0), (None, KILL_GRACE_S)],
    ids=["it has said its result", "it has said nothing"],
)
async def test_a_process_that_does_not_exit_is_killed(finished: FinalMessage | None, grace_s: float) -> None:
    """Only a process without a result gets time for its handler of SIGTERM: it may still write something."""
    sandbox: Any = Hanging()

    await terminate(sandbox, finished)

    assert sandbox.graces == [grace_s]


async def test_the_wait_for_delayed_messages_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A descendant of the process could send messages without end: they are no result."""
    monkeypatch.setattr(process, "_MAX_DRAIN_S", 0.05)
    monkeypatch.setattr(GuestChannel, "is_throttled", property(lambda _: True))
    async with open_channel() as (channel, _, _handler):
        assert await wait_result(running(channel)) is None
