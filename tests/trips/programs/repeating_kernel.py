"""A kernel whose agents call tools of MCP servers that do not answer: `repeating_kernel FOLDER BACKEND [RUN]`.

It prints the run of each agent, or resumes one of them.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import ramet
from ramet.agent.hooks.hooks import hook
from ramet.core.limits import Limits
from ramet.models.scripted.dialogue import Call
from tests.trips.kits.mcp import agent, server

#: By agent: what its entry says of repeatable tools, how many calls are not answered, and its limit of calls.
ENTRIES: dict[str, tuple[Any, int, int | None]] = {
    "listed": (["again"], 2, None),
    "silent": ((), 1, None),
    "limited": ("annotated", 1, 1),
    "paused": (["again"], 2, None),
}
CALLED: dict[str, list[Any]] = {
    "listed": [
        Call("mcp__calc__note", {"value": "listed"}),
        [Call("mcp__calc__again", {"value": "listed"}), Call("mcp__calc__once", {"value": "listed"})],
    ],
    "silent": [Call("mcp__calc__again", {"value": "silent"})],
    "limited": [Call("mcp__calc__again", {"value": "limited"})],
    "paused": [Call("mcp__calc__again", {"value": "paused"})],
}
SCRIPT = {name: [*calls, f"{name} is done."] for name, calls in CALLED.items()}


@hook("PreToolUse")
def mark(payload: dict[str, Any]) -> dict[str, Any]:
    """Change the arguments of each call."""
    value = payload["tool_input"]["value"]
    return {"hookSpecificOutput": {"updatedInput": {"value": f"{value}!"}}}


def agents() -> list[ramet.Agent]:
    """Return the agents."""
    model = ramet.ScriptedModel(SCRIPT)
    servers = {
        name: server("plain", "counts", str(unanswered), repeatable=repeatable)
        for name, (repeatable, unanswered, _) in ENTRIES.items()
    }
    return [agent(each, model=model, hooks=[mark]).replace(name=name) for name, each in servers.items()]


async def main(folder: str, backend: Any, run: str = "") -> None:
    """Work until it is killed."""
    async with ramet.AgentRuntime(folder, backend=backend) as runtime:
        if run:
            await runtime.resume(only=run, agents=agents())
        else:
            runs = {}
            for each in agents():
                limits = Limits(tool_calls=ENTRIES[each.name][2])
                handle = await runtime.spawn(each, each.name, limits=limits)
                runs[each.name] = handle.run.info.id
            sys.stdout.write(f"{json.dumps(runs)}\n")
            sys.stdout.flush()
        await asyncio.get_running_loop().create_future()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
