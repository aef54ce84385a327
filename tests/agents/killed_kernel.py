"""A kernel that is killed while the program of an external agent waits for the answer to its question.

`killed_kernel.py PRESET MODEL FOLDER`: the id of the question is in the folder then.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import ramet


async def main(preset: str, model: str, folder: Path) -> None:
    """Work until the question is on record."""
    async with ramet.AgentRuntime(folder, backend="bwrap") as runtime:
        agent = ramet.Agent(name="coder", external=preset, model=model)
        handle = await runtime.spawn(agent, "Please [write].")
        inbox = runtime.trees[handle.id].inbox
        while not inbox.pending:  # noqa: ASYNC110 - a condition of another task
            await asyncio.sleep(0.02)
        (folder / "question").write_text(inbox.pending[0].id)
        await handle.run.context.wait_persisted()
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
