"""The client of the Model Context Protocol: the package `mcp`, imported only once an agent has a server."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
from pathlib import Path

from ramet.core.mcp.server_entry import McpServer
from ramet.disk.installation import missing_extra
from ramet.host.mcp.logins.login_store import LoginStore
from ramet.tools.mcp.connection_port import OwnedConnection, SendMessage, ServerRights


class SdkClient:
    """The client (`ramet.tools.mcp.connection_port.McpClient`) of the package `mcp`, with a user's logins, if any."""

    def __init__(self, user_dir: Path | None) -> None:
        self._logins = LoginStore(user_dir) if user_dir is not None else None

    def check(self) -> None:
        """Raise MissingExtra if the package is not installed."""
        if importlib.util.find_spec("mcp") is None:
            raise missing_extra("an agent with MCP servers", "mcp")

    async def open(self, server: McpServer, send: SendMessage, rights: ServerRights) -> OwnedConnection:
        """Return a connection to a server, which nobody owns yet. Raises MissingExtra."""
        self.check()
        # In a thread: the import takes half a second, in which every other run would stand still.
        module = await asyncio.to_thread(importlib.import_module, "ramet.host.mcp.server_session")
        connection: OwnedConnection = module.ServerSession(server, send, rights, self._logins)
        return connection
