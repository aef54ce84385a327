"""The freezing of a shared server while its whole tree is paused."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from ramet.core.errors import Gone
from ramet.isolation.contract import FreezableSandbox
from ramet.spawn.sandbox.mcp_servers.sandboxed_server import SandboxedServer

_log = logging.getLogger("ramet.sandbox")


class ServerFreeze:
    """Keeps the process of one server frozen for as long as that is wanted."""

    def __init__(self, server: SandboxedServer, is_wanted: Callable[[], bool]) -> None:
        self._server, self._is_wanted = server, is_wanted
        self._task: asyncio.Task[None] | None = None
        self.is_frozen = False

    def update(self) -> None:
        """Freeze or thaw the process, as is wanted now. Does not wait."""
        can_freeze = isinstance(self._server.sandbox, FreezableSandbox)
        if can_freeze and self._task is None and self._is_wanted() is not self.is_frozen:
            self._task = self._server.channel.run_concurrently(self._apply())

    async def _apply(self) -> None:
        try:
            while (is_wanted := self._is_wanted()) is not self.is_frozen:
                sandbox = self._server.sandbox
                if not isinstance(sandbox, FreezableSandbox):
                    return  # It has ended meanwhile.
                if not is_wanted:
                    self._set_frozen(False)
                    await sandbox.thaw()
                elif await sandbox.freeze():
                    self._set_frozen(True)
                else:
                    return
        except Gone:
            pass
        except Exception as problem:  # A server that works on is better than one that ends.
            _log.warning("an MCP server could not be frozen or thawed: %s", problem)
        finally:
            self._task = None

    def _set_frozen(self, is_frozen: bool) -> None:
        self.is_frozen = is_frozen
        self._server.channel.set_frozen(is_frozen)
