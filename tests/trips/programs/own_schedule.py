"""A program that schedules a function of its own, and is killed at the n-th write of a schedule or in the function.

`own_schedule.py PLACE before|after N EFFECTS` kills itself before or after that write.
`own_schedule.py PLACE once|repeatable 0 EFFECTS` kills itself in the first call of the function.
"""

from __future__ import annotations

import asyncio
import os
import pathlib
import signal
import sys
from typing import Any

from ramet import AgentRuntime, AgentScheduler
from ramet.host.control.schedules import KIND
from tests.support.store_addresses import kill_at_put, store_at


def work(effects: str) -> str:
    """Append a line to a file, as an effect that can be counted."""
    with pathlib.Path(effects).open("a") as file:
        file.write("done\n")
    return "worked"


def dies(effects: str) -> str:
    """Append a line, and kill the process after the first one."""
    output = work(effects)
    if pathlib.Path(effects).read_text() == "done\n":
        os.kill(os.getpid(), signal.SIGKILL)
    return output


async def main(store_address: str, kill_point: str, number: int, effects: str) -> None:
    """Schedule the function, and wait until killed."""
    store = store_at(store_address)
    if number:
        kill_at_put(store, kill_point, number, kind=KIND)
    async with AgentRuntime(store=store) as runtime, AgentScheduler(runtime) as scheduler:
        options: Any = {"name": "job", "args": [effects], "repeatable": kill_point == "repeatable"}
        await scheduler.schedule_agent_in(0, work if number else dies, **options, in_process=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]))
