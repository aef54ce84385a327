"""A conversation in the host with two commands that do not end: one in the background, and one that is monitored."""

from __future__ import annotations

import pathlib
from typing import Any

from ramet import Agent, AgentRuntime, ScriptedModel, workspace_tools
from ramet.models.scripted.dialogue import Call
from ramet.spawn.handle import Handle

NAMES = ("background", "monitored")


def _command(name: str, **more: Any) -> Call:
    return Call("Bash", {"command": f"sleep 600 & touch {name}; wait", **more})


async def begin(runtime: AgentRuntime, folder: pathlib.Path) -> Handle | None:
    """Spawn the conversation. Each command leaves a file of its name once it runs."""
    background, monitored = NAMES
    calls = [_command(background, run_in_background=True), _command(monitored, monitor=True)]
    agent = Agent(name="lead", model=ScriptedModel([*calls, "I wait."]))
    return await runtime.spawn(agent, "Work.", tools=workspace_tools(), cwd=folder)
