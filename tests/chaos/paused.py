"""Trees that their owner pauses and lets go on, for kernels that are killed meanwhile.

The owner works in the kernel's process. A later kernel goes on where the record of an earlier one ends.
"""

from __future__ import annotations

import asyncio
import json
import pathlib

from ramet import Agent, AgentRuntime, Limits, Policy
from ramet.core.limits import SpawnLimits
from ramet.models.scripted.dialogue import Call, Script
from ramet.spawn.handle import Handle
from tests.chaos import limited, planned, talking
from tests.chaos.deadly import die

ASKED, ANSWERED = "have both halves tallied", "both halves are tallied"
HALVES = ("left", "right")
NOTES = 3
CONFINED = "confined"
#: How many requests the tree makes if no kill and no pause cuts one: two of the root, and those of its children.
REQUESTS = 2 + len(HALVES) * (NOTES + 1)
REASON = "lunch"


def script(trip: str) -> Script:
    """Return the dialogue of a trip. On the trip `talk` the first half is tallied in a sandbox, on `outliving` all."""
    agents = (CONFINED if trip == "talk" else "general-purpose", "general-purpose")
    return {
        ASKED: [
            [
                Call("Agent", {"prompt": f"tally {half}", "subagent_type": agent})
                for half, agent in zip(HALVES, agents, strict=True)
            ],
            ANSWERED,
        ],
        **{
            f"tally {half}": [
                *(Call("note", {"text": f"{half} {number}"}) for number in range(NOTES)),
                f"{half} is tallied",
            ]
            for half in HALVES
        },
    }


async def begin(runtime: AgentRuntime, folder: pathlib.Path, trip: str) -> Handle | None:
    """Resume or spawn the tree, and let its owner attend to it."""
    tools = planned.tools(folder) if trip == "host" else talking.tools()
    for handle in await runtime.resume(llm=limited.model(folder), tools=tools, agents=[_confined()]):
        return _attend(handle, folder)
    if (folder / "begun").exists():
        return None
    handle = await runtime.spawn(
        Agent(name="lead", model=limited.model(folder)),
        ASKED,
        tools=tools,
        agents={**limited.general(), CONFINED: _confined()},
        limits=Limits(model_calls=100),
        spawn_limits=SpawnLimits(children=4, running=4),
        policy=Policy(allow_sub_agents=True, memory_mb=4096, cpu_cores=8) if trip == "outliving" else None,
    )
    return _attend(handle, folder)


async def take_over(runtime: AgentRuntime, folder: pathlib.Path, trip: str) -> Handle | None:
    """Wait until the tree of a dead kernel can be taken over, and let its owner attend to it here."""
    return _attend(await limited.adopted(runtime, folder, trip), folder)


def _confined() -> Agent:
    return Agent(name=CONFINED, description="Tallies in a sandbox.", policy=Policy())


def _attend(handle: Handle, folder: pathlib.Path) -> Handle:
    limited.keep(asyncio.create_task(_pause_once(handle, folder)))
    return handle


async def _pause_once(handle: Handle, folder: pathlib.Path) -> None:
    is_paused = handle.run.pauses.reason is not None
    limited.note_line(folder / "found", {"paused": is_paused})
    if (folder / "never").exists() or (not is_paused and (folder / "resuming").exists()):
        return
    if not is_paused:
        after = int((folder / "pause after").read_text())
        while handle.run.context.budget.spent_amount("model_calls") < after:  # noqa: ASYNC110 - as owners do
            await asyncio.sleep(0.001)
        await handle.pause(REASON, now=(folder / "now").exists())
    while (await handle.pause(REASON)).working:  # noqa: ASYNC110 - a repetition is not recorded
        await asyncio.sleep(0.005)
    await asyncio.to_thread(limited.mark, folder, "paused")
    if (folder / "dies paused").exists():
        (folder / "dies paused").unlink()
        die()
    await asyncio.to_thread(limited.mark, folder, "resumed")
    (folder / "resuming").touch()
    await handle.resume()


def found(folder: pathlib.Path) -> list[bool]:
    """Return for each kernel that took the tree up whether it was paused there."""
    file = folder / "found"
    return [json.loads(each)["paused"] for each in file.read_text().splitlines()] if file.exists() else []
