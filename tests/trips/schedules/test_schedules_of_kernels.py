"""Scheduled runs of one of several kernels that is killed or stopped in order: another kernel continues the runs."""

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


class ActiveTick(NamedTuple):
    """A run that waits for its model, after a call, on kernel one.

    Clients of kernels two and three, and the provider.
    """

    schedule: str
    run: str
    one: Kernel
    others: list[Client]
    model_server: Provider


@pytest.fixture
async def active_tick(all_kernels: Kernels, stack: AsyncExitStack) -> AsyncIterator[ActiveTick]:
    note = Call("Write", {"file_path": "note", "content": "noted once"})
    async with provider([note, Hang(after_chars=5), "It is noted."]) as server:
        settings = {"OPENAI_BASE_URL": f"{server.url}/v1", "OPENAI_API_KEY": "none", "RAMET_BACKEND": "local"}
        settings["RAMET_RULES_SANDBOXED"] = "false"
        one = all_kernels.begin("one", **settings)
        first = await stack.enter_async_context(all_kernels.client(one))
        view = await first.kernel.add_schedule(NIGHTLY, in_s=0, prompt="Note it.", in_process=True)
        await asyncio.wait_for(server.arrived(2), 180)
        others = [all_kernels.begin(name, **settings) for name in ("two", "three")]
        clients = [await stack.enter_async_context(all_kernels.client(each)) for each in others]
        (tick,) = await clients[0].kernel.schedule_results(view.id)
        assert (tick.status, tick.run is not None) == ("running", True)
        yield ActiveTick(view.id, tick.run or "", one, clients, server)


async def wait_for_results(client: Client, schedule: str) -> list[TickResult]:
    """Wait until every tick of a schedule has ended, and return the results."""
    async with asyncio.timeout(180):
        while True:
            results = await client.kernel.schedule_results(schedule)
            if results and all(each.ended is not None for each in results):
                return list(results)
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "told to stop"])
async def test_another_kernel_resumes_a_scheduled_run_in_mid_turn(
    active_tick: ActiveTick, tmp_path: pathlib.Path, number: signal.Signals
) -> None:
    """The tick has one run, which makes no call twice. Followers of the run, and queries, find it."""
    active_tick.one.process.send_signal(number)
    tree_events = [each.event async for each in active_tick.others[0].kernel.events(active_tick.run, follow=True)]
    results = [await wait_for_results(each, active_tick.schedule) for each in active_tick.others]

    assert results[0] == results[1]
    assert [(each.status, each.text, each.run) for each in results[0]] == [
        ("completed", "It is noted.", active_tick.run)
    ]
    assert (type(tree_events[-1]), sum(isinstance(each, ToolStarted) for each in tree_events)) == (RunEnded, 1)
    assert (tmp_path / "one" / "note").read_text() == "noted once"
    assert active_tick.model_server.count == 3, "the reply that was cut off was asked for again, and no other"
    assert active_tick.one.process.wait() in (0, -number)


async def test_another_kernel_resumes_the_run_of_a_removed_schedule(active_tick: ActiveTick) -> None:
    """The schedule is gone, and its run completes."""
    await active_tick.others[0].kernel.remove_schedule(active_tick.schedule)
    active_tick.one.kill()
    tree_events = [each.event async for each in active_tick.others[0].kernel.events(active_tick.run, follow=True)]

    assert isinstance(tree_events[-1], RunEnded)
    assert (tree_events[-1].result.status, list(await active_tick.others[1].kernel.schedules())) == ("completed", [])


async def test_a_scheduled_run_can_be_stopped_after_a_takeover(active_tick: ActiveTick) -> None:
    """A stop succeeds although the run's kernel was just killed, and the tick is `cancelled`."""
    active_tick.model_server.hold = asyncio.Event()
    active_tick.one.kill()
    while True:
        try:
            stop_answer = await active_tick.others[1].kernel.stop(active_tick.run, "enough")
            break
        except Refused as refusal:  # It was on its way to a kernel that was lost in that moment.
            if "may have been done, or not" not in str(refusal):
                raise
    active_tick.model_server.hold.set()

    assert [each.status for each in await wait_for_results(active_tick.others[0], active_tick.schedule)] == [
        "cancelled"
    ]
    assert list(stop_answer.stopped) == ["main"]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another machine")
@pytest.mark.parametrize(
    ("number", "is_there", "status"),
    [(signal.SIGKILL, True, "completed"), (signal.SIGTERM, True, "completed"), (signal.SIGKILL, False, "lost")],
    ids=["killed", "told to stop", "killed with its sandbox"],
)
async def test_a_function_in_a_sandbox_that_outlives_its_kernel_is_called_once(
    stores: str, number: signal.Signals, is_there: bool, status: str
) -> None:
    """The next kernel adopts the sandbox. If the sandbox is gone, the tick is `lost` and no new call is made."""
    async with outliving_kernels() as (all_kernels, machine):
        first = begin_outliving(all_kernels)
        async with all_kernels.client(first) as client:
            view = await client.kernel.add_schedule(HOLDS, in_s=0, args=["2"], policy=Policy(retry_count=1))
            run = await wait_for_sandbox(client, view.id)
            first.process.send_signal(number)
            await asyncio.to_thread(first.process.wait)
        if not is_there:
            await machine.end()
        async with all_kernels.client(begin_outliving(all_kernels)) as client:
            (result,) = await wait_for_results(client, view.id)
            tree_events = [each.event async for each in client.kernel.events(run)]

    assert (result.status, result.run, bool(result.text)) == (status, run, is_there), result
    assert [each.adopted for each in tree_events if isinstance(each, SandboxStarted)] == [False, True][: 1 + is_there]


async def wait_for_sandbox(client: Client, schedule: str) -> str:
    """Return the id of the tick's run, once the run is in a sandbox."""
    async with asyncio.timeout(180):
        while not (ticks := await client.kernel.schedule_results(schedule)) or ticks[0].run is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        async for each in client.kernel.events(ticks[0].run, follow=True):
            if isinstance(each.event, SandboxStarted):
                break
    return ticks[0].run
