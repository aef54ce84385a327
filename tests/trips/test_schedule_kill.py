"""Processes that are killed at each write of a tick: its run begins at most once, and nobody claims otherwise."""

from __future__ import annotations

import asyncio
import pathlib

import pytest

from ramet import AgentRuntime, AgentScheduler
from tests.support.places import killed, store_at

SCRIPT = pathlib.Path(__file__).with_name("schedule_script.py")


#: When it is killed, at which write, how its tick ended, and how often its run took effect.
KILLS: list[tuple[str, int, str, set[int]]] = [
    ("after", 1, "completed", {1}),  # it is written down, and nothing else
    ("before", 2, "completed", {1}),
    ("after", 2, "completed", {1}),  # it is claimed: the run was not born, so it is born now
    ("before", 3, "completed", {1}),
    ("after", 3, "lost", {0}),  # it is started: a run may have been born, so none is born again
    ("before", 4, "lost", {0, 1}),
    ("after", 4, "lost", {0, 1}),  # the run is named
    ("before", 5, "lost", {1}),
    ("after", 5, "completed", {1}),  # its end is noted
]


@pytest.mark.parametrize(
    ("place", "when", "write", "status", "effects"),
    [("sqlite", *kill) for kill in KILLS] + [("postgres", *kill) for kill in KILLS[::2]],
    indirect=["place"],
)
async def test_a_process_killed_at_any_write_begins_a_tick_at_most_once(
    place: str, tmp_path: pathlib.Path, when: str, write: int, status: str, effects: set[int]
) -> None:
    """AC-S0-9, NEG-15: the next process, with another `__main__`, finds the function and does what is left to do."""
    done = tmp_path / "effects"
    await killed(SCRIPT, place, when, write, done)

    store = await store_at(place).open()
    try:
        async with AgentRuntime() as runtime, AgentScheduler(runtime, store=store) as scheduler:
            (view,) = await scheduler.list()
            async with asyncio.timeout(60):
                while not (results := await scheduler.results(view.id)) or results[0].ended is None:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
            await scheduler.cancel(view.id)
    finally:
        await store.close()

    assert [result.status for result in results] == [status]
    assert (len(done.read_text().splitlines()) if done.exists() else 0) in effects
