"""Who else takes up trees leaves what a schedule promises as it is."""

from __future__ import annotations

import asyncio
import pathlib

import pytest

from ramet import AgentRuntime, AgentScheduler
from tests.support.places import killed, store_at

SCRIPT = pathlib.Path(__file__).with_name("schedule_script.py")


@pytest.mark.parametrize("place", ["sqlite", "postgres"], indirect=True)
@pytest.mark.parametrize("how", ["resume", "adopt"])
async def test_whoever_resumes_all_trees_calls_no_function_of_a_schedule_again(
    place: str, tmp_path: pathlib.Path, how: str
) -> None:
    """A program that begins with `resume`, as it may, and opens its scheduler then."""
    done = tmp_path / "effects"
    await killed(SCRIPT, place, "once", 0, done)

    async with AgentRuntime(store=store_at(place)) as runtime:
        (handle,) = await (runtime.adopt() if how == "adopt" else runtime.resume())
        result = await handle.result()
        async with AgentScheduler(runtime) as scheduler, asyncio.timeout(60):
            while not (results := await scheduler.results("job")) or results[0].ended is None:  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    assert done.read_text() == "done\n"
    assert (result.status, results[0].status) == ("lost", "lost")
