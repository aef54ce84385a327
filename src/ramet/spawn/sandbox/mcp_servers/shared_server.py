"""A server that agents of a tree share, in a sandbox of its own or at an address.

It is started for its first user, and anew by the next call after it has ended. Its place, its memory and what it asks
of the network are those of the root.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

from ramet.concurrency.deadline import run_shielded
from ramet.core.errors import McpServerFailed, RametError
from ramet.core.events import EndpointAsked, Notice
from ramet.core.mcp.server_entry import McpServer
from ramet.core.policy.policy import Grant
from ramet.spawn.admission import ResourceShare
from ramet.spawn.masking import masked_text
from ramet.spawn.mcp.server_grants import naming_server
from ramet.spawn.ports import Placement
from ramet.spawn.registry import RunRegistry
from ramet.spawn.run import Run
from ramet.spawn.sandbox.mcp_servers.sandboxed_server import (
    SandboxedServer,
    ServerPlace,
    local_backend,
    with_package_mounts,
)
from ramet.spawn.sandbox.mcp_servers.server_freeze import ServerFreeze
from ramet.tools.context import current_call
from ramet.tools.mcp.connection_port import McpCaller, OwnedConnection, ServerRights
from ramet.wire.guest_protocol.guest_to_host import ConnectMcpServer, PassMcpMessage

#: Starts of one server, and the seconds in which there may be so many: any agent can make it end.
MAX_STARTS, STARTS_S = 5, 600.0
#: Seconds until the sandbox of a server connects it; its program could stop the guest that is to do so.
CONNECT_S: Final = 60.0
_MAX_NOTICE: Final = 1_000
_MAX_REFUSED: Final = 8  #: methods of one server that are reported
#: The reason that its agents read: what the server wrote about its end may be about the calls of others.
_ENDED: Final = "it ended; a notice of the first agent of the tree says how"
_TREE_ENDED: Final = "its tree has ended"


class SharedServer:
    """A server, and its process or its connection while there is one."""

    def __init__(
        self, register: RunRegistry, first: Run, entry: McpServer, grant: Grant | None, placement: Placement
    ) -> None:
        """`first` is its first user; `grant` is None for a server at an address."""
        assert register.root is not None, "a tree with runs has a root"
        self.register, self.root, self.first = register, register.root, first
        self.entry, self.grant, self.placement = entry, grant, placement
        self._starts: deque[float] = deque(maxlen=MAX_STARTS)
        self._attempt: _Attempt | None = None
        self._open_requests = 0
        self._refused: set[str] = set()
        self._was_called = self._is_closed = False

    @property
    def session(self) -> OwnedConnection | None:
        """The session, once it has begun."""
        return self._attempt.session if self._attempt is not None else None

    def start(self) -> None:
        """Start the server, unless it runs, or has ended too often. Does not wait."""
        if self._is_closed or (self._attempt is not None and not self._attempt.has_ended):
            return
        now = self.root.context.clock.monotonic()
        if len(self._starts) < MAX_STARTS or now - self._starts[0] >= STARTS_S:
            self._starts.append(now)
            self._attempt = _Attempt(self, self._attempt)

    async def wait_session(self) -> OwnedConnection:
        """Start the server if it does not run, and wait for the session with it. Raises McpServerFailed."""
        self.start()
        if self._is_closed or self._attempt is None:
            raise McpServerFailed(self.entry.name, _TREE_ENDED)
        if self._attempt.has_ended:
            raise McpServerFailed(self.entry.name, f"it ended {MAX_STARTS} times within {STARTS_S:g} s")
        return await self._attempt.wait_session()

    @contextmanager
    def open_request(self, *, is_start: bool = False) -> Iterator[None]:
        """Count a request as open: the server is not frozen meanwhile. At a start it has nothing of an agent yet."""
        self._was_called = self._was_called or not is_start
        self._open_requests += 1
        self.update()
        try:
            yield
        finally:
            self._open_requests -= 1
            self.update()

    def drop(self, caller: McpCaller) -> None:
        """Cancel what the server asks a caller that has ended."""
        if (session := self.session) is not None:
            session.drop(caller)

    def update(self) -> None:
        """Freeze the server while the whole tree is paused and no request is open; else thaw it. Does not wait."""
        if self._attempt is not None and self._attempt.freeze is not None:
            self._attempt.freeze.update()

    def is_freeze_wanted(self) -> bool:
        """Return whether the whole tree is paused, and no request is open."""
        is_paused = self.register.is_paused or (self.root.is_living and self.root.pauses.reason is not None)
        return is_paused and not self._open_requests

    def reported_reason(self, reason: str) -> str:
        """Return why the server ended, for all its agents; the root records what they may not see of each other."""
        if not self._was_called or self._is_closed:
            return reason
        text = str(McpServerFailed(self.entry.name, reason))
        self.report(masked_text(self.first, text, _MAX_NOTICE))
        return _ENDED

    def report(self, text: str) -> None:
        """Add a notice to the record of the root."""
        self.root.context.emit(Notice, text=masked_text(self.root, text, _MAX_NOTICE))

    def rights(self) -> ServerRights:
        """Return the rights of the session."""
        run, grant = self.first, self.first.grant
        assert grant is not None, "an agent with servers works in a sandbox"

        def on_endpoint(host: str, port: int, is_allowed: bool, reason: str) -> None:
            self.root.context.emit(EndpointAsked, host=host, port=port, allowed=is_allowed, reason=reason)

        return ServerRights(
            endpoints=(self.entry.endpoint,) if self.entry.url else (),
            value_of={**grant.secrets, **run.sandbox.variables()}.get,
            on_endpoint=on_endpoint,
            caller=None,
            on_refused=self.on_refused,
        )

    def on_refused(self, method: str) -> None:
        """Report a method that the server asked for and may not use, once; "" is none."""
        if method and method not in self._refused and len(self._refused) < _MAX_REFUSED:
            self._refused.add(method)
            self.report(f"the MCP server {self.entry.name!r} asked for {method[:100]!r}, and was refused")

    async def close(self) -> None:
        """End the server, and wait until no process of it is left."""
        self._is_closed = True
        if self._attempt is not None:
            await self._attempt.close()


class _Attempt:
    """A life of the server, from a start to the end of its process. It owns the session (`ServerSessions`)."""

    def __init__(self, server: SharedServer, previous: _Attempt | None) -> None:
        self._server, self._previous = server, previous
        self.session: OwnedConnection | None = None
        self.freeze: ServerFreeze | None = None
        self._connected: asyncio.Future[OwnedConnection] = asyncio.get_running_loop().create_future()
        self._connected.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._failure: McpServerFailed | None = None
        context = contextvars.copy_context()
        context.run(current_call.set, None)  # It serves other calls than the one that starts it.
        self._task = asyncio.create_task(self._run(), name=f"mcp {server.entry.name}", context=context)

    @property
    def has_ended(self) -> bool:
        """True once no session can be had of it; its process may still be ending."""
        return self._failure is not None

    async def wait_session(self) -> OwnedConnection:
        """Wait for the session. Raises McpServerFailed."""
        try:
            async with asyncio.timeout(CONNECT_S):
                return await asyncio.shield(self._connected)
        except TimeoutError:
            self._fail(f"it did not connect within {CONNECT_S:g} s")
            return await asyncio.shield(self._connected)

    async def close(self) -> None:
        """End it, and wait until no process of it is left."""
        self._fail(_TREE_ENDED)
        self._task.cancel()
        await asyncio.wait((self._task,))

    async def _run(self) -> None:
        reason = _TREE_ENDED
        try:
            if self._previous is not None:  # Its place and its folder are free then, whatever its program does.
                previous, self._previous = self._previous, None
                await run_shielded(previous.close())
            reason = await (self._run_program() if self._server.grant is not None else self._run_address())
        except McpServerFailed as failure:
            reason = failure.reason
        except (RametError, OSError) as error:
            reason = str(error)
        finally:
            self._fail(reason)

    async def _run_address(self) -> str:
        async def send(_: bytes) -> None:
            raise McpServerFailed(self._server.entry.name, "its connection has not begun")

        await self._own_session(send)
        return "its connection was closed"

    async def _run_program(self) -> str:
        server, root, first = self._server, self._server.root, self._server.first
        assert server.grant is not None, "a program has a grant"
        grant = with_package_mounts(first, server.entry, server.grant)
        with naming_server(server.entry):
            backend = await local_backend(server.placement, grant)
        program = first.sandbox.mcp_programs.get(server.entry.name, server.entry)
        sandboxed = SandboxedServer(program, grant, self, root.context.clock)
        self.freeze = ServerFreeze(sandboxed, server.is_freeze_wanted)
        share = ResourceShare(grant.memory_mb, grant.cpu_cores)
        async with self._admitted(share), server.placement.server_folder() as folder:
            place = ServerPlace(
                id=folder.name,  # Not of a run: the server is to learn of none.
                path=f"{root.info.path}/{server.entry.name}",
                tree=root.info.root,
                workspace=folder,
                proxy=folder.with_suffix(".sock"),
                mount_roots=first.sandbox.mount_roots,
                env=server.placement.env(root.info, grant),
                context=root.context,
            )
            return await sandboxed.run(place, server.placement, backend)

    @asynccontextmanager
    async def _admitted(self, share: ResourceShare) -> AsyncGenerator[None]:
        """Hold a place among the living below the root. Raises SpawnRefused if there is no room."""
        with self._server.register.admission.holding(self._server.root, share):
            yield

    async def connect(self, request: ConnectMcpServer, send: Callable[[bytes], Awaitable[None]]) -> None:
        """Own the session until the server ends. Raises McpServerFailed."""
        if self.session is not None or request.server != self._server.entry.name:
            raise McpServerFailed(self._server.entry.name, "its sandbox asked for another connection")
        await self._own_session(send)

    async def _own_session(self, send: Callable[[bytes], Awaitable[None]]) -> None:
        server, client = self._server, self._server.first.sandbox.mcp_client
        if client is None:
            raise McpServerFailed(server.entry.name, "this tree has no client for it")
        session = await client.open(server.entry, send, server.rights())
        if self._failure is not None or self.session is not None:
            session.end("it ended before its connection began")
        else:
            self.session = session
            self._connected.set_result(session)
        try:
            await session.run()
        except McpServerFailed as failure:
            self._fail(failure.reason)
            raise

    async def receive(self, request: PassMcpMessage, body: bytes) -> None:
        """Take a message of the server, or its end. Raises McpServerFailed."""
        if request.end:
            return self._fail(request.end)
        session = await self.wait_session()
        self._server.on_refused(await session.receive(body))

    def _fail(self, reason: str) -> None:
        """End the session, so that open calls fail. Idempotent."""
        if self._failure is not None:
            return
        self._failure = McpServerFailed(self._server.entry.name, self._server.reported_reason(reason))
        if self.session is not None:
            self.session.end(self._failure.reason)
        if not self._connected.done():
            self._connected.set_exception(self._failure)
