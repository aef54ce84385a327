"""Servers of the Model Context Protocol with a policy of their own: each in a sandbox beside that of its agent.

Such a sandbox has a part of the rights of its agent, and takes a part of its memory and processors, as a child would.
It lasts as long as the process of its agent. Its guest can do nothing but connect that one server.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any

from ramet.concurrency.deadline import run_shielded
from ramet.core.errors import ProtocolError, RametError, SpawnRefused
from ramet.core.mcp.server_entry import McpServer
from ramet.core.policy.policy import Grant
from ramet.isolation.contract import Backend, Sandbox, SandboxSpec
from ramet.isolation.workspace.output import OutputStream
from ramet.spawn.admission import ResourceShare
from ramet.spawn.grants import server_grant, with_definition_mounts
from ramet.spawn.mcp.server_connections import McpConnections
from ramet.spawn.ports import Placement
from ramet.spawn.run import Run
from ramet.spawn.sandbox.channel import GuestChannel, Reply
from ramet.spawn.sandbox.process import RunningSandbox, classify_exit, start_sandbox, wait_result
from ramet.wire.guest_protocol import host_to_guest
from ramet.wire.guest_protocol.guest_to_host import ConnectMcpServer, GuestMessage, Note, PassMcpMessage, Request

_FOLDER = "mcp-servers"  #: in the folder of the run: the workspaces of these sandboxes


@asynccontextmanager
async def own_sandboxes(run: Run, connections: McpConnections, placement: Placement) -> AsyncGenerator[None]:
    """Keep the servers of a run that have a policy running while the context is open; a failure costs their tools."""
    sandboxes = [
        _ServerSandbox(run, each, number, connections, placement)
        for number, each in enumerate(run.agent.mcp_servers)
        if each.policy is not None
    ]
    tasks = [asyncio.create_task(each.run()) for each in sandboxes]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        if tasks:
            await run_shielded(_wait(tasks))


async def _wait(tasks: list[asyncio.Task[None]]) -> None:
    await asyncio.wait(tasks)


class _ServerSandbox:
    """The sandbox of one server. It is the service of the channel, too: the guest is hostile."""

    def __init__(
        self, run: Run, server: McpServer, number: int, connections: McpConnections, placement: Placement
    ) -> None:
        self._run, self._server, self._number = run, server, number
        self._connections, self._placement = connections, placement
        self._channel = GuestChannel(self, run.context.clock)

    async def run(self) -> None:
        """Run the sandbox until it ends, or this is cancelled. No process is left then."""
        try:
            reason = await self._run_to_end()
        except (RametError, OSError) as error:
            reason = str(error)
        await self._connections.end(self._server.name, reason)

    async def _run_to_end(self) -> str:
        run, parent = self._run, self._run.grant
        assert parent is not None, "an agent with servers works in a sandbox"
        grant = server_grant(self._server, parent)
        if run.sandbox.mcp_packages is not None:  # Folders of its packages that the agent's sandbox has, too.
            needed = run.sandbox.mcp_packages.mounts([self._server])
            folders = [each for each in needed if each in run.sandbox.definition_mounts]
            grant = with_definition_mounts(grant, folders, None)[0] or grant
        backend = await self._placement.backend(grant)
        if (await backend.probe()).remote:
            raise SpawnRefused("policy", "a server's own sandbox is on the machine of its kernel only", free=0)
        with _admitted(run, ResourceShare(grant.memory_mb, grant.cpu_cores)), run.context.track_process():
            async with AsyncExitStack() as stack:
                spec = await self._spec(grant, backend, stack)
                sandbox = await start_sandbox(backend.start(spec))
                try:
                    return await self._serve(sandbox)
                finally:
                    await run_shielded(self._end(sandbox))

    async def _spec(self, grant: Grant, backend: Backend, stack: AsyncExitStack) -> SandboxSpec:
        run, folder = self._run, self._run.sandbox.folder
        assert folder is not None, "a run in a sandbox has a folder"
        base = folder.path / _FOLDER
        for each in (base, base / self._server.name):
            each.mkdir(mode=0o700, exist_ok=True)
        proxy = None
        if grant.allowed_endpoints:
            proxy = folder.path / f"mcp-{self._number}.sock"
            await stack.enter_async_context(self._placement.network_access(run.context, grant, proxy, backend))
        return SandboxSpec(
            run=f"{run.info.id}-mcp{self._number}",
            grant=grant,
            workspace=base / self._server.name,
            mount_roots=run.sandbox.mount_roots,
            env=self._placement.env(run.info, grant),
            proxy=proxy,
            has_programs=True,
            tree=run.info.root,
            path=f"{run.info.path}/{self._server.name}",
        )

    async def _serve(self, sandbox: Sandbox) -> str:
        """Let the guest run the server; return why it ended."""
        streams = [OutputStream(os.dup(each)) for each in (sandbox.stdout, sandbox.stderr)]
        try:
            program = self._run.sandbox.mcp_programs.get(self._server.name, self._server)
            await self._channel.open(sandbox.channel)
            await self._channel.send(host_to_guest.StartMcpServer(server=program.as_guest_data()))
            await wait_result(RunningSandbox(sandbox, self._channel))
            return classify_exit(await sandbox.kill(0)).message
        finally:
            for stream in streams:
                stream.close()

    async def _end(self, sandbox: Sandbox) -> None:
        try:
            await sandbox.kill(0)
        finally:
            await self._channel.close()
            await sandbox.clean_up()

    # ---- called by the channel

    async def answer(self, request: Request, body: bytes) -> Reply:
        """Connect the server, or take a message of it. Raises McpServerFailed, and ProtocolError for anything else."""
        match request:
            case ConnectMcpServer():

                async def send(message: bytes) -> None:
                    await self._channel.send(host_to_guest.StreamChunk(id=request.id), message)

                await self._connections.connect(request, send, sandbox=self._server.name)
            case PassMcpMessage():
                await self._connections.receive(request, body, sandbox=self._server.name)
            case _:
                raise ProtocolError(f"{type(request).__name__} from the sandbox of an MCP server")
        return Reply()

    def receive(self, message: GuestMessage, body: bytes) -> Coroutine[Any, Any, None] | None:
        """Drop a note. Raises ProtocolError for any other message."""
        if not isinstance(message, Note):
            raise ProtocolError(f"{type(message).__name__} from the sandbox of an MCP server")
        return None


@contextmanager
def _admitted(run: Run, share: ResourceShare) -> Iterator[None]:
    """Hold a place among the living below the run. Raises SpawnRefused if there is no room."""
    assert run.sandbox.admit_server is not None, "the run was built with its tree's admission"
    with run.sandbox.admit_server(share):
        yield
