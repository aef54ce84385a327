"""A conversation in a sandbox that outlives its kernel, with a command that it monitors."""

from __future__ import annotations

import pathlib

from ramet import Agent, AgentRuntime, Policy, ScriptedModel, workspace_tools
from ramet.models.scripted.dialogue import Call
from ramet.spawn.handle import Handle

COUNT = 3
COMMAND = f"for number in $(seq {COUNT}); do echo line $number; sleep 0.6; done"
ANSWERED = "I saw it end."


def _model() -> ScriptedModel:
    return ScriptedModel(
        {
            "has ended": [ANSWERED],
            "line": ["I wait on."],
            "watch": [Call("Bash", {"command": COMMAND, "monitor": True}), "I wait."],
        }
    )


async def begin(runtime: AgentRuntime, folder: pathlib.Path) -> Handle | None:
    """Resume or spawn the conversation."""
    model = _model()
    for handle in await runtime.resume(llm=model, tools=workspace_tools()):
        return handle
    if (folder / "begun").exists():
        return None
    agent = Agent(name="watcher", model=model)
    return await runtime.spawn(agent, "watch", tools=workspace_tools(), policy=Policy(memory_mb=512))
