"""The prompts of MCP servers, for a program or a person: the servers run in the sandbox of an agent that only waits."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

from ramet.agent.definition import Agent
from ramet.core.errors import RametError
from ramet.core.events import ModelAsked, Notice
from ramet.core.mcp.server_entry import McpServer
from ramet.core.policy.policy import Policy
from ramet.host.runtime import AgentRuntime
from ramet.models.scripted.dialogue import Hang
from ramet.models.scripted.model import ScriptedModel
from ramet.tools.mcp.connection_port import ServerPrompts


@asynccontextmanager
async def started_servers(
    runtime: AgentRuntime, servers: Sequence[McpServer | Mapping[str, Any]], policy: Policy
) -> AsyncGenerator[ServerPrompts]:
    """Keep servers running in a sandbox with this policy while the context is open, and give access to their prompts.

    Raises RametError if the sandbox could not be started. A server that failed raises McpServerFailed when it is asked.
    """
    agent = Agent(name="prompts", model=ScriptedModel([Hang()]), mcp=servers, tools=(), policy=policy)
    handle = await runtime.spawn(agent, "Wait.")
    try:
        notices: list[str] = []
        prompts: ServerPrompts | None = None
        async with aclosing(handle.events()) as events:
            async for event in events:
                if isinstance(event, ModelAsked):
                    prompts = handle.run.sandbox.server_prompts
                    break
                notices += [event.text] if isinstance(event, Notice) else []
        if prompts is None:
            error = (await handle.result()).error
            raise RametError(error.message if error is not None else "; ".join(notices))
        yield prompts
    finally:
        await handle.cancel()
