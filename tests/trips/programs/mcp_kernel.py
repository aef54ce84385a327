"""A kernel whose agent waits for its MCP servers, which have started processes: `mcp_kernel FOLDER BACKEND MARK`.

It prints a line once a server has asked a person.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import ramet
from ramet.core.events import ApprovalAsked
from ramet.models.scripted.dialogue import Call
from tests.trips.kits.mcp import PROGRAMS, agent, server


async def main(folder: str, backend: Any, mark: str) -> None:
    """Work until it is killed."""
    search, leave = Call("ToolSearch", {"query": "work"}), Call("mcp__own__work", {"value": "answer"})
    model = ramet.ScriptedModel([search, leave, Call("mcp__calc__work", {}), "Never."])
    servers = [
        server("plain", "leaves", mark),
        server("plain", "leaves", mark, name="own", policy={"memory_mb": 128, "cpu_cores": 0.5}),
    ]
    rights = {"readonly_mounts": [str(PROGRAMS)], "memory_mb": 64, "cpu_cores": 0.5}
    servers.append(server("shares", f"# {mark}", name="board", policy=rights, shared="tree"))
    async with ramet.AgentRuntime(folder, backend=backend) as runtime:
        handle = await runtime.spawn(agent(*servers, model=model, tool_search=True), "Play.")
        async for event in handle.events():
            if isinstance(event, ApprovalAsked):
                sys.stdout.write("asked\n")
                sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3]))
