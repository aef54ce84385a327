"""A sandbox with one MCP server and no agent. Its guest can do nothing but connect that one server."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Protocol

from ramet.concurrency.clock import Clock
from ramet.concurrency.deadline import run_shielded
from ramet.core.errors import ProtocolError, SpawnRefused
from ramet.core.ids import RunId
from ramet.core.mcp.server_entry import McpServer
from ramet.core.policy.policy import Grant
from ramet.isolation.contract import Backend, Sandbox, SandboxSpec
from ramet.isolation.workspace.output import OutputStream
from ramet.spawn.grants import with_definition_mounts
from ramet.spawn.ports import Placement
from ramet.spawn.run import Run
from ramet.spawn.sandbox.channel import GuestChannel, Reply
from ramet.spawn.sandbox.process import RunningSandbox, classify_exit, start_sandbox, wait_result
from ramet.tools.context import ToolUseContext
from ramet.wire.guest_protocol import host_to_guest
from ramet.wire.guest_protocol.guest_to_host import ConnectMcpServer, GuestMessage, Note, PassMcpMessage, Request


class ServerSessions(Protocol):
    """The owner of the session with the server, which takes the requests of the guest."""

    async def connect(self, request: ConnectMcpServer, send: Callable[[bytes], Awaitable[None]]) -> None:
        """Own the session until the server ends. Raises McpServerFailed, ProtocolError."""

    async def receive(self, request: PassMcpMessage, body: bytes) -> None:
        """Take a message of the server, or its end. Raises McpServerFailed, ProtocolError."""


@dataclass(frozen=True, kw_only=True)
class ServerPlace:
    """The place of a sandbox with a server: its identity, its folder and its variables."""

    id: str  #: globally unique
    path: str
    tree: RunId
    workspace: pathlib.Path
    proxy: pathlib.Path  #: the socket that leads to its endpoints, if it has any
    mount_roots: Mapping[str, str]
    env: Mapping[str, str]
    context: ToolUseContext  #: of the run that records what it asks of the network, and whose stop waits for its end


class SandboxedServer:
    """A server in a sandbox. It is the service of the channel, too: the guest is hostile."""

    def __init__(self, program: McpServer, grant: Grant, sessions: ServerSessions, clock: Clock) -> None:
        self._program, self._grant, self._sessions = program, grant, sessions
        self.channel = GuestChannel(self, clock)
        self.sandbox: Sandbox | None = None  #: while its process lives

    async def run(self, place: ServerPlace, placement: Placement, backend: Backend) -> str:
        """Run the server until it ends, and return why, or until this is cancelled. No process is left then."""
        with place.context.track_process():
            async with AsyncExitStack() as stack:
                proxy = None
                if self._grant.allowed_endpoints:
                    proxy = place.proxy
                    network = placement.network_access(place.context, self._grant, proxy, backend)
                    await stack.enter_async_context(network)
                spec = SandboxSpec(
                    run=place.id,
                    grant=self._grant,
                    workspace=place.workspace,
                    mount_roots=place.mount_roots,
                    env=place.env,
                    proxy=proxy,
                    has_programs=True,
                    tree=place.tree,
                    path=place.path,
                )
                self.sandbox = await start_sandbox(spec, backend.start(spec))
                try:
                    return await self._serve(self.sandbox)
                finally:
                    await run_shielded(self._end(self.sandbox))

    async def _serve(self, sandbox: Sandbox) -> str:
        """Let the guest run the server; return why it ended."""
        streams = [OutputStream(os.dup(each)) for each in (sandbox.stdout, sandbox.stderr)]
        try:
            await self.channel.open(sandbox.channel)
            await self.channel.send(host_to_guest.StartMcpServer(server=self._program.as_guest_data()))
            await wait_result(RunningSandbox(sandbox, self.channel))
            return classify_exit(await sandbox.kill(0)).message
        finally:
            for stream in streams:
                stream.close()

    async def _end(self, sandbox: Sandbox) -> None:
        self.sandbox = None
        try:
            await sandbox.kill(0)
        finally:
            await self.channel.close()
            await sandbox.clean_up()

    # ---- called by the channel

    async def answer(self, request: Request, body: bytes) -> Reply:
        """Connect the server, or take a message of it. Raises McpServerFailed, and ProtocolError for anything else."""
        match request:
            case ConnectMcpServer():

                async def send(message: bytes) -> None:
                    await self.channel.send(host_to_guest.StreamChunk(id=request.id), message)

                await self._sessions.connect(request, send)
            case PassMcpMessage():
                await self._sessions.receive(request, body)
            case _:
                raise ProtocolError(f"{type(request).__name__} from the sandbox of an MCP server")
        return Reply()

    def receive(self, message: GuestMessage, body: bytes) -> Coroutine[Any, Any, None] | None:
        """Drop a note. Raises ProtocolError for any other message."""
        if not isinstance(message, Note):
            raise ProtocolError(f"{type(message).__name__} from the sandbox of an MCP server")
        return None


def with_package_mounts(run: Run, server: McpServer, grant: Grant) -> Grant:
    """Return the grant of a server with the folders of its packages that the sandbox of its agent has, too."""
    if run.sandbox.mcp_packages is None:
        return grant
    needed = run.sandbox.mcp_packages.mounts([server])
    folders = [each for each in needed if each in run.sandbox.definition_mounts]
    return with_definition_mounts(grant, folders, None)[0] or grant


async def local_backend(placement: Placement, grant: Grant) -> Backend:
    """Return the backend for a server. Raises SpawnRefused if it is on another machine."""
    backend = await placement.backend(grant)
    if (await backend.probe()).remote:
        raise SpawnRefused("policy", "a server's own sandbox is on the machine of its kernel only", free=0)
    return backend
