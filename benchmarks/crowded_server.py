"""Many agents at work in a server: `python -m benchmarks.crowded_server FOLDER AGENTS EVENTS_PER_S`.

It is the server that `ramet serve` runs. Its agents are coroutines in one tree, which are charged for requests to a
model, so that each event changes rows up to the root. It says "ready" once all agents are at work, and for each line
that it reads it prints the number of events so far.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Sequence

from ramet import SpawnLimits, SpawnRequest
from ramet.core.events import ModelCharged
from ramet.core.outcome import Usage
from ramet.services.server.server import Server
from ramet.tools.context import ToolUseContext, current

INTERVAL_S = 0.02
WIDTH = 100  #: agents that the root, and each of its children, starts
_CONTEXTS: list[ToolUseContext] = []


async def work(levels: Sequence[int]) -> None:
    """Start the agents of the levels below, and wait."""
    context = current()
    assert context.tree is not None
    _CONTEXTS.append(context)
    for _ in range(levels[0] if levels else 0):
        await context.tree.spawn(context, SpawnRequest(agent=work, args=(levels[1:],)))
    await asyncio.sleep(3600)


async def serve(folder: str, agents: int, events_per_s: int) -> None:
    """Serve until stdin ends."""
    wide = SpawnLimits(depth=2, children=WIDTH, runs=agents + WIDTH + 1, running=None)
    async with Server(folder) as server:
        await server.runtime.spawn(work, args=((WIDTH, agents // WIDTH - 1),), spawn_limits=wide)
        while len(_CONTEXTS) <= agents:  # noqa: ASYNC110 - the agents start each other
            await asyncio.sleep(0.05)
        print("ready", flush=True)
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        charged = [0]
        charging = asyncio.create_task(charge(events_per_s, charged), name="charging")
        while await reader.readline():
            print(charged[0], flush=True)
        charging.cancel()


async def charge(events_per_s: int, charged: list[int]) -> None:
    """Charge agents drawn by lot, evenly over time; count the events."""
    loop, seeded = asyncio.get_running_loop(), random.Random(3)
    began = loop.time()
    while True:
        while charged[0] < (loop.time() - began) * events_per_s:
            context = seeded.choice(_CONTEXTS)
            context.emit(ModelCharged, step_id="", usage=Usage(model_calls=1, input_tokens=900, usd=0.001))
            charged[0] += 1
        await asyncio.sleep(INTERVAL_S)


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
