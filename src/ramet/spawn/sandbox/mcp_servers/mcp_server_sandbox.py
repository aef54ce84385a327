"""Servers of the Model Context Protocol that do not run in the sandbox of their agent.

A server with a policy of its own is in a sandbox beside that of its agent. Such a sandbox has a part of the rights of
its agent, and takes a part of its memory and processors, as a child would. It lasts as long as the process of its
agent. A server that agents share lasts as long as their tree: see `TreeServers`.
"""

from __future__ import annotations

import asyncio
import logging
import pathlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial

from ramet.concurrency.deadline import run_shielded
from ramet.core.errors import RametError
from ramet.core.mcp.server_entry import McpServer
from ramet.spawn.admission import ResourceShare
from ramet.spawn.mcp.server_connections import McpConnections
from ramet.spawn.mcp.server_grants import naming_server, server_grant
from ramet.spawn.ports import Placement
from ramet.spawn.run import Run
from ramet.spawn.sandbox.mcp_servers.sandboxed_server import (
    SandboxedServer,
    ServerPlace,
    local_backend,
    with_package_mounts,
)
from ramet.wire.guest_protocol.guest_to_host import ConnectMcpServer, PassMcpMessage

_log = logging.getLogger("ramet.sandbox")
_FOLDER = "mcp-servers"  #: in the folder of the run: the workspaces of these sandboxes


@asynccontextmanager
async def own_sandboxes(run: Run, connections: McpConnections, placement: Placement) -> AsyncGenerator[None]:
    """Give a run its servers that are not in its sandbox while the context is open; a failure costs their tools.

    Servers of its own run for that time. It joins those that agents of its tree share.
    """
    sandboxes = [
        _OwnSandbox(run, each, number, connections, placement)
        for number, each in enumerate(run.agent.mcp_servers)
        if each.policy is not None and not each.shared
    ]
    tasks = [asyncio.create_task(each.run()) for each in sandboxes]
    try:
        with _joined(run, connections):
            yield
    finally:
        for task in tasks:
            task.cancel()
        if tasks:
            await run_shielded(_wait(tasks))


@contextmanager
def _joined(run: Run, connections: McpConnections) -> Iterator[None]:
    """Let a run use the shared servers of its agent."""
    shared = [each for each in run.agent.mcp_servers if each.shared]
    assert run.sandbox.join_server is not None, "the run was built with the servers of its tree"
    for each in shared:
        connections.join(each.name, partial(run.sandbox.join_server, each))
    try:
        yield
    finally:
        for each in shared:
            connections.leave(each.name)


async def _wait(tasks: list[asyncio.Task[None]]) -> None:
    await asyncio.wait(tasks)


class _OwnSandbox:
    """The sandbox of one server of one agent."""

    def __init__(
        self, run: Run, server: McpServer, number: int, connections: McpConnections, placement: Placement
    ) -> None:
        self._run, self._server, self._number = run, server, number
        self._connections, self._placement = connections, placement

    async def run(self) -> None:
        """Run the sandbox until it ends, or this is cancelled. No process is left then."""
        try:
            reason = await self._run_to_end()
        except (RametError, OSError) as error:
            reason = str(error)
        except Exception as error:  # A defect. Without the end of the server, its agent would wait for it.
            _log.exception("the sandbox of an MCP server has failed")
            reason = f"{type(error).__name__}: {error}"
        await self._connections.end(self._server.name, reason)

    async def _run_to_end(self) -> str:
        run, server = self._run, self._server
        assert run.grant is not None, "an agent with servers works in a sandbox"
        grant = with_package_mounts(run, server, server_grant(server, run.grant))
        with naming_server(server):
            backend = await local_backend(self._placement, grant)
        program = run.sandbox.mcp_programs.get(server.name, server)
        sandboxed = SandboxedServer(program, grant, self, run.context.clock)
        with _admitted(run, ResourceShare(grant.memory_mb, grant.cpu_cores)):
            place = ServerPlace(
                id=f"{run.info.id}-mcp{self._number}",
                path=f"{run.info.path}/{server.name}",
                tree=run.info.root,
                workspace=self._workspace(),
                proxy=self._folder / f"mcp-{self._number}.sock",
                mount_roots=run.sandbox.mount_roots,
                env=self._placement.env(run.info, grant),
                context=run.context,
            )
            return await sandboxed.run(place, self._placement, backend)

    @property
    def _folder(self) -> pathlib.Path:
        assert self._run.sandbox.folder is not None, "a run in a sandbox has a folder"
        return self._run.sandbox.folder.path

    def _workspace(self) -> pathlib.Path:
        base = self._folder / _FOLDER
        for each in (base, base / self._server.name):
            each.mkdir(mode=0o700, exist_ok=True)
        return base / self._server.name

    async def connect(self, request: ConnectMcpServer, send: Callable[[bytes], Awaitable[None]]) -> None:
        """Own the session until the server ends. Raises McpServerFailed, ProtocolError."""
        await self._connections.connect(request, send, sandbox=self._server.name)

    async def receive(self, request: PassMcpMessage, body: bytes) -> None:
        """Take a message of the server, or its end. Raises McpServerFailed, ProtocolError."""
        await self._connections.receive(request, body, sandbox=self._server.name)


@contextmanager
def _admitted(run: Run, share: ResourceShare) -> Iterator[None]:
    """Hold a place among the living below the run. Raises SpawnRefused if there is no room."""
    assert run.sandbox.admit_server is not None, "the run was built with its tree's admission"
    with run.sandbox.admit_server(share):
        yield
