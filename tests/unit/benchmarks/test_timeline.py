"""The time line of a run names steps that exist, and counts what they take."""

from __future__ import annotations

import asyncio
import time
from unittest import mock

import pytest

from benchmarks import timeline
from benchmarks.timeline import STEPS, TimeLine, instrumented, measure
from ramet.isolation.bwrap import BwrapBackend


@pytest.mark.slow
async def test_each_step_is_taken_in_each_run() -> None:
    """A step that a later change removes or renames fails here, and does not vanish from the time line."""
    line = await measure(3)
    missing = {label for label, step in line.steps.items() if not step.calls}
    # A process enters a group when it is parked, mostly between two runs: that counts for neither.
    for _ in range(50):
        if not missing:
            break
        missing &= {label for label, step in (await measure(3)).steps.items() if not step.calls}
    assert missing == set()
    assert line.steps["record the birth"].calls == [1, 1, 1]
    assert len(line.lines()) == sum(1 for step in line.steps.values() if step.calls) + 2


def test_a_step_that_is_no_more_is_an_error() -> None:
    """Steps before the missing one are left as they were."""
    before = BwrapBackend.start
    steps = (("start", "ramet.isolation.bwrap:BwrapBackend.start"), ("gone", "ramet.isolation.bwrap:Gone.start"))
    with mock.patch.object(timeline, "STEPS", steps), pytest.raises(AttributeError, match="Gone"):
        instrumented(TimeLine())
    assert BwrapBackend.start is before


async def test_the_processor_time_of_a_step_is_that_of_its_own_coroutine() -> None:
    """Work of others while the step waits is not counted, and errors and values pass through the step."""
    line = TimeLine()

    def spin(seconds: float = 0.02) -> None:
        end = time.thread_time() + seconds
        while time.thread_time() < end:
            pass

    async def step(value: int) -> int:
        spin()
        try:
            await asyncio.wait_for(asyncio.Event().wait(), 0.01)
        except TimeoutError:
            await asyncio.sleep(0)
        return value + 1

    label = STEPS[0][0]
    with line.run(counts=True):
        other = asyncio.ensure_future(asyncio.to_thread(lambda: None))
        asyncio.get_running_loop().call_soon(spin, 0.2)
        assert await line.wrapped(label, step)(1) == 2
        await other
    found = line.steps[label]
    assert found.calls == [1]
    assert 20 <= found.cpu_ms[0] < 150
    assert found.took_ms[0] > 200
