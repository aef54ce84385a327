"""Runs that schedules began, of a kernel of several that is killed, or ended in order: another goes on with them."""

from __future__ import annotations

import asyncio
import os
import pathlib
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import NamedTuple

import pytest

from ramet.core.events import RunEnded, SandboxStarted, ToolStarted
from ramet.core.policy.policy import Policy
from ramet.core.schedules.ticks import TickResult
from ramet.services.client.client import Client
from ramet.services.client.errors import Refused
from ramet.services.operator.contract import PlainAgent
from tests.support.kernels import Kernel, Kernels, all_kernels, stack
from tests.support.outliving_kernels import begin_outliving, outliving_kernels
from tests.support.providers import Call, Hang, Provider, provider

__all__ = ["all_kernels", "stack"]  # fixtures are used by their names

pytestmark = pytest.mark.parametrize("stores", ["postgres"])  # It is there for those who say so.
NIGHTLY = PlainAgent(name="nightly", model="openai:gpt-5.4-mini", tools=["Write"])


HOLDS = "tests.support.slow_functions:holds"


class Going(NamedTuple):
    """A run that waits for its model, behind a call, at kernel one; clients of two and three, and who is asked."""

    schedule: str
    run: str
    one: Kernel
    others: list[Client]
    asked: Provider


@pytest.fixture
async def going(all_kernels: Kernels, stack: AsyncExitStack) -> AsyncIterator[Going]:
    note = Call("Write", {"file_path": "note", "content": "noted once"})
    async with provider([note, Hang(after_chars=5), "It is noted."]) as asked:
        settings = {"OPENAI_BASE_URL": f"{asked.url}/v1", "OPENAI_API_KEY": "none", "RAMET_BACKEND": "local"}
        settings["RAMET_RULES_SANDBOXED"] = "false"
        one = all_kernels.begin("one", **settings)
        first = await stack.enter_async_context(all_kernels.client(one))
        view = await first.kernel.add_schedule(NIGHTLY, in_s=0, prompt="Note it.", in_process=True)
        await asyncio.wait_for(asked.arrived(2), 180)
        others = [all_kernels.begin(name, **settings) for name in ("two", "three")]
        clients = [await stack.enter_async_context(all_kernels.client(each)) for each in others]
        (tick,) = await clients[0].kernel.schedule_results(view.id)
        assert (tick.status, tick.run is not None) == ("running", True)
        yield Going(view.id, tick.run or "", one, clients, asked)


async def ended(client: Client, schedule: str) -> list[TickResult]:
    """How its ticks ended, once all have."""
    async with asyncio.timeout(180):
        while True:
            results = await client.kernel.schedule_results(schedule)
            if results and all(each.ended is not None for each in results):
                return list(results)
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "told to stop"])
async def test_another_kernel_goes_on_in_the_middle_of_a_turn(
    going: Going, tmp_path: pathlib.Path, number: signal.Signals
) -> None:
    """The tick has the one run, in which no call is made twice; whoever follows that, or asks for it, finds it."""
    going.one.process.send_signal(number)
    told = [each.event async for each in going.others[0].kernel.events(going.run, follow=True)]
    results = [await ended(each, going.schedule) for each in going.others]

    assert results[0] == results[1]
    assert [(each.status, each.text, each.run) for each in results[0]] == [("completed", "It is noted.", going.run)]
    assert (type(told[-1]), sum(isinstance(each, ToolStarted) for each in told)) == (RunEnded, 1)
    assert (tmp_path / "one" / "note").read_text() == "noted once"
    assert going.asked.count == 3, "the reply that was cut off was asked for again, and no other"
    assert going.one.process.wait() in (0, -number)


async def test_the_run_of_a_schedule_that_was_cancelled_goes_on_as_well(going: Going) -> None:
    """Cancelled it is forgotten, and its run is not."""
    await going.others[0].kernel.remove_schedule(going.schedule)
    going.one.kill()
    told = [each.event async for each in going.others[0].kernel.events(going.run, follow=True)]

    assert isinstance(told[-1], RunEnded)
    assert (told[-1].result.status, list(await going.others[1].kernel.schedules())) == ("completed", [])


async def test_a_run_is_stopped_wherever_it_goes_on(going: Going) -> None:
    """Who says so while nobody has it is not told that it is gone; its tick is told as it ended."""
    going.asked.hold = asyncio.Event()
    going.one.kill()
    while True:
        try:
            stopped = await going.others[1].kernel.stop(going.run, "enough")
            break
        except Refused as refused:  # It was on its way to a kernel that was lost in that moment.
            if "may have been done, or not" not in str(refused):
                raise
    going.asked.hold.set()

    assert [each.status for each in await ended(going.others[0], going.schedule)] == ["cancelled"]
    assert list(stopped.stopped) == ["main"]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another machine")
@pytest.mark.parametrize(
    ("number", "is_there", "status"),
    [(signal.SIGKILL, True, "completed"), (signal.SIGTERM, True, "completed"), (signal.SIGKILL, False, "lost")],
    ids=["killed", "told to stop", "killed with its sandbox"],
)
async def test_a_function_in_a_sandbox_that_outlives_its_kernel_is_called_once(
    stores: str, number: signal.Signals, is_there: bool, status: str
) -> None:
    """The next kernel goes on with it where it is, and calls none again that is there no more."""
    async with outliving_kernels() as (all_kernels, machine):
        first = begin_outliving(all_kernels)
        async with all_kernels.client(first) as client:
            view = await client.kernel.add_schedule(HOLDS, in_s=0, args=["2"], policy=Policy(retry_count=1))
            run = await begun(client, view.id)
            first.process.send_signal(number)
            await asyncio.to_thread(first.process.wait)
        if not is_there:
            await machine.end()
        async with all_kernels.client(begin_outliving(all_kernels)) as client:
            (result,) = await ended(client, view.id)
            told = [each.event async for each in client.kernel.events(run)]

    assert (result.status, result.run, bool(result.text)) == (status, run, is_there), result
    assert [each.adopted for each in told if isinstance(each, SandboxStarted)] == [False, True][: 1 + is_there]


async def begun(client: Client, schedule: str) -> str:
    """The id of its tick's run, once that is in a sandbox."""
    async with asyncio.timeout(180):
        while not (ticks := await client.kernel.schedule_results(schedule)) or ticks[0].run is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        async for each in client.kernel.events(ticks[0].run, follow=True):
            if isinstance(each.event, SandboxStarted):
                break
    return ticks[0].run
