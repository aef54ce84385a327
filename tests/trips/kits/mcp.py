"""Sessions with an agent that has MCP servers in its sandbox."""

from __future__ import annotations

import pathlib
import sys
from typing import Any, NamedTuple

from langchain_core.tools import BaseTool

import ramet
from ramet.core.events import Notice, ToolEnded
from ramet.core.outcome import Result
from ramet.models.scripted.dialogue import Call
from tests.trips.kits.isolated import BackendName

PROGRAMS = pathlib.Path(__file__).parents[2] / "support" / "mcp_programs"
POLICY = ramet.Policy(readonly_mounts=(str(PROGRAMS),), memory_mb=512)


def server(program: str, *arguments: str, name: str = "calc", **fields: Any) -> dict[str, Any]:
    """Return the entry of a server that is one of the programs."""
    return {"name": name, "command": sys.executable, "args": [str(PROGRAMS / f"{program}.py"), *arguments], **fields}


class Talk(NamedTuple):
    """The record of an agent with servers."""

    result: Result
    outputs: list[str]  #: status and text of each call
    notices: list[str]
    answers: list[str]  #: the calls' results, as its model read them
    tools: tuple[BaseTool, ...]  #: that its model saw


def agent(*servers: dict[str, Any], **fields: Any) -> ramet.Agent:
    """Return an agent with servers and a sandbox."""
    settings: dict[str, Any] = {"description": "Uses servers", "policy": POLICY, "tools": None, **fields}
    return ramet.Agent(name="user", instructions="Use them.", mcp=servers, **settings)


async def talk(
    folder: pathlib.Path, backend: BackendName, user: ramet.Agent, *calls: Call | list[Call], **options: Any
) -> Talk:
    """Let a session start the agent, whose model makes these calls, and return what came of it."""
    script: dict[str, Any] = {
        "Begin!": [Call("Agent", {"subagent_type": "user", "prompt": "Play."}), "Done."],
        "Play.": [*calls, "I am done."],
    }
    model = ramet.ScriptedModel(script=script)
    options = {"unattended": True, **options}
    async with ramet.Session(model, agents=[user], cwd=folder, backend=backend, **options) as session:
        await session.ask("Begin!")
        handle = session.handle("main/1")
        events = [each async for each in handle.events()]
        result = await handle.result()
        context = handle.run.context
    outputs = [f"{each.status}: {each.preview}" for each in events if isinstance(each, ToolEnded)]
    notices = [each.text for each in events if isinstance(each, Notice)]
    return Talk(result, outputs, notices, [each.text for each in context.history if each.type == "tool"], context.tools)
