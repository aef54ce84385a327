"""The installed packages of servers of the Model Context Protocol, as a tree asks for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from ramet.core.mcp.server_entry import McpServer


class McpPackages(Protocol):
    """The packages that were installed for the commands `npx` and `uvx`."""

    def mounts(self, servers: Sequence[McpServer]) -> tuple[str, ...]:
        """Return the folders that a sandbox needs for these servers.

        Raises InvalidValue for a package that is not installed: nothing is fetched when a server starts.
        """

    async def programs(self, servers: Sequence[McpServer]) -> Mapping[str, McpServer]:
        """Return the servers whose package is installed, by name, as entries that start the installed program.

        Raises InvalidValue for a package that is not installed, or whose files are not those that were installed.
        """
