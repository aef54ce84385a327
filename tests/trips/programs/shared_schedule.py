"""One of several kernels on a database, which schedules a function and is killed at a write of its tick.

`shared_schedule.py DSN SCHEMA N EFFECTS`: the process kills itself after its n-th write of a schedule.
"""

from __future__ import annotations

import asyncio
import sys

from ramet import AgentRuntime, AgentScheduler
from ramet.host.control.schedules import KIND
from ramet.store.postgres import PostgresStore
from tests.support.store_addresses import kill_at_put
from tests.trips.agents.scheduled import tell


async def main(dsn: str, schema: str, number: int, effects: str) -> None:
    """Schedule the function, and wait until killed."""
    store = await kill_at_put(PostgresStore(dsn, schema=schema, kernel="one"), "after", number, kind=KIND).open()
    async with AgentRuntime(store=store) as runtime, AgentScheduler(runtime) as scheduler:
        await scheduler.schedule_agent_in(0, tell, name="job", args=[effects], in_process=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]))
