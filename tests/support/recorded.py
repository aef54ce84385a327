"""A folder as an older ramet leaves it: `python -m tests.support.recorded FOLDER` writes it, and kills itself.

The code of 93a443c wrote the archive that stands next to `test_older_records.py`.
"""

from __future__ import annotations

import asyncio
import os
import pathlib
import signal
import sys
import time
from typing import Any

from ramet import AgentRuntime, Policy, ScriptedModel, Session, chain
from ramet.sub_agent_client import load_checkpoint, save_checkpoint
from tests.support.waiting import eventually

SESSION = "chat-7"
PLACE = "/var/tmp"  #: the working directory on record: one that every machine has


def work(policy: Policy, number: int) -> dict[str, Any]:
    """Continue from the checkpoint; without one, save it and never end."""
    if (reached := load_checkpoint()) is not None:
        return {"reached": reached, "number": number, "pids": policy.pids}
    save_checkpoint({"at": number})
    time.sleep(3600)
    return {}


def first(text: str) -> str:
    """The first step."""
    return text.upper()


async def second(text: str) -> str:
    """The second step waits, in the process that is killed."""
    if "RAMET_TEST_WAIT" in os.environ:
        await asyncio.sleep(3600)
    return f"{text}!"


def scripted() -> ScriptedModel:
    """Return the model of the conversation."""
    return ScriptedModel(["Noted: blue.", "Blue, you said."])


async def main(folder: pathlib.Path) -> None:
    """Write all records, and kill this process."""
    os.chdir(PLACE)
    os.environ["RAMET_TEST_WAIT"] = "1"
    async with AgentRuntime(folder, backend="local") as runtime:
        state = await runtime.state("shared")
        state.set("plan", ["made", 1])
        await state.commit("a plan")
        function = await runtime.spawn(work, args=(Policy(pids=17), 4), policy=Policy(timeout_seconds=3600))
        composed = await runtime.spawn(chain(first, second), args=("begun",))
        async with Session(scripted(), runtime=runtime, cwd=PLACE, session_id=SESSION) as session:
            async for _ in session.submit_message("My colour is blue."):
                pass
            await eventually(lambda: any(folder.glob(".ramet/runs/*/checkpoint")))
            sys.stdout.write(f"{function.id} {composed.id}\n")
            sys.stdout.flush()
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    asyncio.run(main(pathlib.Path(sys.argv[1])))
