"""The MCP servers that agents of one tree share: found by their whole entry, and ended with the tree.

Agents share a server if their entries are equal in every field, references filled in, and give it the same rights. A
server is never shared between trees.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Final

from ramet.concurrency.deadline import run_shielded
from ramet.core.errors import InvalidValue, SpawnRefused
from ramet.core.lifecycle import State
from ramet.core.mcp.entry_references import fill_references
from ramet.core.mcp.server_entry import McpServer
from ramet.core.policy.policy import Grant
from ramet.spawn.mcp.server_grants import server_grant
from ramet.spawn.ports import Placement
from ramet.spawn.registry import RunRegistry
from ramet.spawn.run import Run
from ramet.spawn.sandbox.mcp_servers.shared_connection import SharedConnection
from ramet.spawn.sandbox.mcp_servers.shared_server import SharedServer
from ramet.tools.mcp.connection_port import McpCaller

#: Shared servers of one tree. They outlive their agents, and one at an address takes no place among the living.
MAX_SERVERS: Final = 100


class TreeServers:
    """The shared servers of one tree."""

    def __init__(self, register: RunRegistry) -> None:
        self._register = register
        self._servers: dict[Any, SharedServer] = {}

    def join(self, run: Run, entry: McpServer, caller: McpCaller) -> SharedConnection:
        """Return a connection of a run to the server of this entry, which is started for its first user.

        Raises SpawnRefused for a server with more rights than the run, and for one too many.
        """
        placement = self._register.services.placement
        assert run.grant is not None, "an agent with servers works in a sandbox"
        assert placement is not None, "a run with a grant has a placement"
        grant = server_grant(entry, run.grant) if entry.policy is not None else None
        key = _key(run, entry, grant, placement)
        if (server := self._servers.get(key)) is None:
            if len(self._servers) >= MAX_SERVERS:
                raise SpawnRefused("mcp", f"a tree has at most {MAX_SERVERS} shared servers", free=0)
            if not self._servers:
                self._register.on_state.append(self.update)
            server = self._servers[key] = SharedServer(self._register, run, entry, grant, placement)
        return SharedConnection(run, server, caller)

    def update(self) -> None:
        """Freeze or thaw the servers, as the state of the tree needs. Does not wait."""
        for each in self._servers.values():
            each.update()

    def end_with(self, run: Run) -> bool:
        """Return whether there are servers that end with this run: nothing else of the tree goes on without it."""
        if not self._servers:
            return False
        others = (each for each in self._register.living() if each is not run)
        return not any(_goes_on(each, run) for each in others)

    async def close(self) -> None:
        """End all servers, and wait until no process of them is left. A later user starts them anew."""
        servers = dict(self._servers)
        try:
            await run_shielded(asyncio.gather(*(each.close() for each in servers.values())))
        finally:
            for key, server in servers.items():
                if self._servers.get(key) is server:
                    del self._servers[key]
            if not self._servers:
                with contextlib.suppress(ValueError):
                    self._register.on_state.remove(self.update)


def _goes_on(other: Run, ending: Run) -> bool:
    """Return whether a living run does not end together with another one."""
    return other.detached or not (other.state is State.STOPPING or other.is_below(ending))


def _key(run: Run, entry: McpServer, grant: Grant | None, placement: Placement) -> Any:
    """Return what equal servers have in common: secrets and variables by value, so it stays in memory."""
    assert run.grant is not None, "an agent with servers works in a sandbox"
    whole = grant if grant is not None else run.grant
    values = {**whole.secrets, **placement.env(run.info, whole)}
    values.pop("TRACEPARENT", None)  # Of the run.

    fields = _filled(entry.as_data(), lambda text: _fill(text, values.get))
    if grant is None:
        return repr(fields), None, ()
    roots = sorted(run.sandbox.mount_roots.items()) if grant.mounts.paths else ()
    rights = {name: getattr(grant, name) for name in grant.__struct_fields__}
    return repr(fields), repr(rights), tuple(roots)


def _filled(value: Any, fill: Callable[[str], str]) -> Any:
    """Return plain data with each of its texts filled, and the keys of mappings in order."""
    match value:
        case str():
            return fill(value)
        case dict():
            return {key: _filled(each, fill) for key, each in sorted(value.items())}
        case list() | tuple():
            return [_filled(each, fill) for each in value]
    return value


def _fill(text: str, value_of: Callable[[str], str | None]) -> str:
    try:
        return fill_references("mcp", text, value_of)
    except InvalidValue:  # The server will say so when it starts.
        return text
