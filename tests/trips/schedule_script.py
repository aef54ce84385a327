"""A program that schedules a function of its own, and is killed at the n-th write of its store.

`schedule_script.py PLACE before|after N EFFECTS` schedules, and kills itself before or after that write.
"""

from __future__ import annotations

import asyncio
import pathlib
import sys
from typing import Any

from ramet import AgentRuntime, AgentScheduler
from tests.support.places import kill_at_put, store_at


def work(effects: str) -> str:
    """An effect that can be counted."""
    with pathlib.Path(effects).open("a") as file:
        file.write("done\n")
    return "worked"


async def main(place: str, when: str, number: int, effects: str) -> None:
    """Schedule, and go on until killed."""
    store = await kill_at_put(store_at(place), when, number).open()
    async with AgentRuntime() as runtime, AgentScheduler(runtime, store=store) as scheduler:
        options: Any = {"name": "job", "args": [effects]}
        await scheduler.schedule_agent_in(0, work, **options)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]))
