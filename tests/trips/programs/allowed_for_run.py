"""A process that is killed once a person's answer for the whole run is recorded, before the call has begun.

`allowed_for_run.py PLACE FOLDER`: the process spawns the tree, answers its first question, and dies.
"""

from __future__ import annotations

import asyncio
import pathlib
import sys
from typing import Any

from ramet import Agent, AgentRuntime, ScriptedModel
from ramet.core.policy.permissions import Permissions
from ramet.host.safety.gate import SafetyGate
from ramet.models.scripted.dialogue import Call
from ramet.tools.permissions.parsing import parse_rule
from ramet.tools.workspace import workspace_tools
from tests.support.store_addresses import store_at
from tests.trips.kits.safety import ALLOW_ALL
from tests.trips.programs.approvals import kill_when_answered, question

PAY = "echo pay >> effects"


def shell(command: str, id: str) -> Call:
    return Call("Bash", {"command": command}, id=id)


def model() -> ScriptedModel:
    """Return a model that runs one command twice, others, and the same again in a child."""
    child = Call("Agent", {"prompt": "below", "name": "child", "subagent_type": "general-purpose"}, id="child")
    steps: list[Any] = [
        *(shell(PAY, "first"), shell(PAY, "same"), shell(f"{PAY}; echo more >> effects", "longer")),
        *(shell("rm effects", "denied"), child, "done"),
    ]
    return ScriptedModel({"Go.": steps, "below": [shell(PAY, "below"), "done below"]})


def lead() -> Agent:
    """Return the root, whose rules ask about every command but one, which they deny."""
    texts = (("Bash", "ask"), ("Bash(rm:*)", "deny"))
    rules = tuple(
        parse_rule(text, effect, source="code", field=effect)  # type: ignore[arg-type]  # of the three effects
        for text, effect in texts
    )
    return Agent(name="lead", model=model(), permissions=Permissions(rules=rules))


async def main(store_address: str, folder: pathlib.Path) -> None:
    """Work until a person has answered, and be killed there."""
    async with AgentRuntime(store=kill_when_answered(store_at(store_address)), grace_s=1.0) as runtime:
        gate = SafetyGate(ALLOW_ALL)
        handle = await runtime.spawn(lead(), "Go.", tools=workspace_tools(), cwd=folder, gate=gate)
        inbox = runtime.trees[handle.id].inbox
        inbox.answer(await question(inbox), True, "it is due", for_run=True)
        await handle.result()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], pathlib.Path(sys.argv[2])))
