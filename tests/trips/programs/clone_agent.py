"""A process that is killed while a function works in its clone of a repository.

`clone_agent.py STORE FOLDER BACKEND REPOSITORY repeatable|once`
"""

from __future__ import annotations

import asyncio
import os
import pathlib
import signal
import sys
from typing import Any

from ramet import Agent, AgentRuntime, Policy
from tests.support.store_addresses import store_at
from tests.trips.agents.in_clone import continue_work

AGENT = Agent(name="coder", description="Codes.", function=continue_work, isolation="worktree")


def runtime_of(store_address: str, folder: pathlib.Path, backend: Any) -> AgentRuntime:
    """Return a runtime on the store, with the folders of runs below a folder."""
    return AgentRuntime(folder, store=store_at(store_address), backend=backend, grace_s=1.0)


async def main(store_address: str, folder: pathlib.Path, backend: str, repository: pathlib.Path, kind: str) -> None:
    """Work until the agent has committed, and be killed there: the start of its sandbox is on record by then."""
    loop, committed = asyncio.get_running_loop(), asyncio.Event()

    def look(stream: str, text: str) -> None:
        if "committed" in text:
            loop.call_soon_threadsafe(committed.set)

    async with runtime_of(store_address, folder, backend) as runtime:
        handle = await runtime.spawn(
            AGENT,
            cwd=repository,
            policy=Policy(timeout_seconds=600),
            on_output=look,
            repeatable=kind == "repeatable",
        )
        await committed.wait()
        await handle.run.context.wait_persisted()
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3], pathlib.Path(sys.argv[4]), sys.argv[5]))
