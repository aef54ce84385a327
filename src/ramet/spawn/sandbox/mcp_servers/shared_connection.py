"""The connection of one agent to a server that other agents use, too."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from ramet.core.errors import McpServerFailed
from ramet.spawn.run import Run
from ramet.spawn.sandbox.mcp_servers.shared_server import SharedServer
from ramet.tools.context import CurrentCall, current_call
from ramet.tools.mcp.answer_form import Value
from ramet.tools.mcp.connection_port import (
    Feature,
    ListedPrompt,
    ListedResource,
    ListedTool,
    McpCaller,
    McpResult,
    OnProgress,
    OwnedConnection,
    ServerQuestion,
)

#: Calls of one agent that a shared server has at the same time; further ones wait, and those of others do not.
MAX_OPEN_CALLS: Final = 8


class SharedConnection:
    """A connection (`ramet.tools.mcp.connection_port.McpConnection`) that lasts as long as the process of its agent."""

    def __init__(self, run: Run, server: SharedServer, caller: McpCaller) -> None:
        self._run, self._server, self._caller = run, server, McpCaller(self._ask)
        self._ask_agent = caller.ask
        self._call: CurrentCall | None = None  #: of the newest call
        self._places = asyncio.Semaphore(MAX_OPEN_CALLS)
        self._end_reason = ""
        server.start()  # While the agent waits for its other servers.

    def end(self, reason: str) -> None:
        """Leave the server, which goes on for others. Idempotent."""
        self._end_reason = self._end_reason or reason
        self._server.drop(self._caller)

    async def tools(self) -> tuple[ListedTool, ...]:
        """Wait for the tools of the server. Raises McpServerFailed."""
        with self._server.open_request(is_start=True):
            return await (await self._session()).tools()

    async def call(self, tool: str, arguments: Mapping[str, Any], on_progress: OnProgress) -> McpResult:
        """Call a tool of the server, once no pause covers the agent. Raises McpServerFailed."""
        self._call = current_call.get(None)
        async with self._places:
            await self._run.context.wait_unpaused()
            with self._server.open_request():
                session = await self._session()
                return await session.call(tool, arguments, on_progress, self._caller)

    def offers(self, feature: Feature) -> bool:
        """Return whether the server said that it has this. False before its tools are known."""
        session = self._server.session
        return session is not None and session.offers(feature)

    async def resources(self) -> tuple[ListedResource, ...]:
        """Return the resources of the server, and templates, once no pause covers the agent. Raises McpServerFailed."""
        async with self._places:
            await self._run.context.wait_unpaused()
            with self._server.open_request():
                return await (await self._session()).resources()

    async def read_resource(self, uri: str) -> McpResult:
        """Return the text of a resource, once no pause covers the agent. Raises McpServerFailed."""
        async with self._places:
            await self._run.context.wait_unpaused()
            with self._server.open_request():
                return await (await self._session()).read_resource(uri)

    async def prompts(self) -> tuple[ListedPrompt, ...]:
        """Return the prompts of the server. Raises McpServerFailed."""
        with self._server.open_request():
            return await (await self._session()).prompts()

    async def prompt(self, name: str, arguments: Mapping[str, str]) -> McpResult:
        """Return the text of a prompt with its arguments. Raises McpServerFailed."""
        with self._server.open_request():
            return await (await self._session()).prompt(name, arguments)

    async def _ask(self, question: ServerQuestion) -> dict[str, Value] | None:
        """Ask a person as the agent itself, whichever task brings the question."""
        current_call.set(self._call)
        return await self._ask_agent(question)

    async def _session(self) -> OwnedConnection:
        """Return the session with the server, which is started anew if it has ended. Raises McpServerFailed."""
        if self._end_reason:
            raise McpServerFailed(self._server.entry.name, self._end_reason)
        return await self._server.wait_session()
