"""A process that is killed while the program of an external agent waits for the answer to its question.

`external_agents.py STORE FOLDER BACKEND asked|asked-once|allowed`: killed once the question is on record, or its
answer.
Where it is asked once, the program does not ask again in its next process.
"""

from __future__ import annotations

import asyncio
import os
import pathlib
import signal
import sys
from typing import Any

from ramet import AgentRuntime
from tests.support.store_addresses import store_at
from tests.trips.kits.external import script, scripted

COMMAND = {"command": "make deploy"}
#: The session remembers a word each time, and the reply tells the answer and all words.
PROMPT = script(["remember", "sorrel "], ["call", "1", "Bash", COMMAND], ["ask", "1", "Bash", COMMAND], ["recall"])
ASKED_ONCE = script(["new", ["ask", "1", "Bash", COMMAND]], ["say", "done"])


def runtime_of(store_address: str, folder: pathlib.Path, backend: Any) -> AgentRuntime:
    """Return a runtime on the store, with the folders of runs below a folder."""
    return AgentRuntime(folder, store=store_at(store_address), backend=backend, grace_s=1.0)


async def main(store_address: str, folder: pathlib.Path, backend: str, kill_point: str) -> None:
    """Work until the chosen moment, and be killed there."""
    async with runtime_of(store_address, folder, backend) as runtime:
        handle = await runtime.spawn(scripted(), ASKED_ONCE if kill_point == "asked-once" else PROMPT)
        inbox = runtime.trees[handle.id].inbox
        while not inbox.pending:  # noqa: ASYNC110 - a condition of another task
            await asyncio.sleep(0.002)
        (folder / "question").write_text(inbox.pending[0].id)
        if kill_point == "allowed":
            inbox.answer(inbox.pending[0].id, True)
        await handle.run.context.wait_persisted()
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3], sys.argv[4]))
