"""The proxy of one run: accepts on its socket, decides on each request, and bounds its use of the host."""

from __future__ import annotations

import asyncio
import contextlib
import math
import pathlib
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from ramet.host.egress.dial import Dialer, connect
from ramet.host.egress.tunnel import End, Tunnel
from ramet.host.unix_listener import accept
from ramet.wire.http_connect import ESTABLISHED, ConnectRefusal, RequestReader, Target, answer

_RETRY_S = 1.0  #: pause before accepting is tried again if no descriptor is left


class ProxyDecision(NamedTuple):
    """A decision on one request: reported before it is executed, without any data of the request.

    An allowing decision may be followed by a second decision on the same request: its connection failed, or its TLS
    asked for another server. `host` is empty if the request named no readable host.
    """

    is_allowed: bool
    host: str
    port: int
    reason: str
    status: int  #: of HTTP, for the client; 403 for an open tunnel that was cut: the client gets none


@dataclass(frozen=True, kw_only=True)
class ProxyLimits:
    """The use that one run may make of the proxy.

    An excess waits if the wait ends by itself; otherwise it is refused.
    """

    tunnels: int = 64  #: open or being opened
    half_open: int = 16  #: accepted, and neither joined with a server nor refused yet
    header_s: float = 10.0  #: for the whole request, and again for the whole TLS ClientHello
    connect_s: float = 10.0  #: for lookup and connection together
    idle_s: float = 600.0  #: without a byte in either direction
    per_second: float = 100.0  #: connections, as a long-term average
    burst: int = 100  #: connections that may come at once after a pause


class ProxyQuota:
    """The connections of all runs together: each takes up to two of the process's descriptors."""

    def __init__(self, limit: int) -> None:
        self.limit, self.used_count = limit, 0


class RunProxy:
    """The socket of one run, and the tunnels that lead out of its sandbox."""

    def __init__(
        self,
        listener: socket.socket,
        dialer: Dialer,
        *,
        path: pathlib.Path,
        limits: ProxyLimits,
        quota: ProxyQuota,
        on_event: Callable[[ProxyDecision], None],
        on_closed: Callable[[], object],
    ) -> None:
        self._path = path
        self._listener, self._dialer, self._limits, self._quota = listener, dialer, limits, quota
        self._on_event, self._on_closed = on_event, on_closed
        self._half_open = asyncio.Semaphore(limits.half_open)
        self._is_closing = False
        self._open_tunnels = 0
        self._tunnels: set[Tunnel] = set()
        self._sent_bytes = self._received_bytes = 0
        self._connections: set[asyncio.Task[None]] = set()
        self._accepting = asyncio.get_running_loop().create_task(self._accept())

    @property
    def sent_bytes(self) -> int:
        """The bytes that came out of the sandbox in requests and open tunnels."""
        return self._sent_bytes + sum(tunnel.sent_bytes for tunnel in self._tunnels)

    @property
    def received_bytes(self) -> int:
        """The bytes that servers sent."""
        return self._received_bytes + sum(tunnel.received_bytes for tunnel in self._tunnels)

    async def close(self) -> None:
        """Cut every tunnel and remove the socket; idempotent. A running lookup may outlast this, in its thread."""
        if not self._is_closing:
            self._is_closing = True  # Once: another proxy may be opened at this path later.
            self._path.unlink(missing_ok=True)
            self._on_closed()
        tasks = {self._accepting, *self._connections}
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        self._listener.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        interval_s = 1 / self._limits.per_second
        due = -math.inf  #: when the next connection would come, if they came at an even rate
        while True:
            await self._half_open.acquire()
            try:
                sock = await accept(self._listener)
            except OSError:  # No descriptor is left, of the process or of the machine.
                self._half_open.release()
                await asyncio.sleep(_RETRY_S)
                continue
            self._quota.used_count += 1
            task = loop.create_task(self._serve(sock))
            self._connections.add(task)
            task.add_done_callback(lambda done, sock=sock: self._on_served(done, sock))  # type: ignore[misc]
            due = max(due, loop.time() - (self._limits.burst - 1) * interval_s) + interval_s
            await asyncio.sleep(max(0.0, due - loop.time()))

    def _on_served(self, task: asyncio.Task[None], sock: socket.socket) -> None:
        self._quota.used_count -= 1
        self._connections.discard(task)
        sock.close()  # Still open only if the task was cancelled before it began.

    async def _serve(self, sock: socket.socket) -> None:
        async with contextlib.AsyncExitStack() as stack:
            half_open = stack.enter_context(contextlib.ExitStack())
            half_open.callback(self._half_open.release)
            reader = RequestReader()
            client = await stack.enter_async_context(End.on(sock))
            target = await self._request(client, reader)
            if not isinstance(target, Target):
                return await self._refuse(client, None, target)
            if self._open_tunnels >= self._limits.tunnels:
                return await self._refuse(client, target, ConnectRefusal(503, f"{self._open_tunnels} tunnels are open"))
            self._open_tunnels += 1
            stack.callback(self._release_tunnel)
            server_socket = await self._connect(target)
            if isinstance(server_socket, ConnectRefusal):
                return await self._refuse(client, target, server_socket)
            server = await stack.enter_async_context(End.on(server_socket))
            half_open.close()
            client.transport.write(ESTABLISHED)
            await self._run(client, server, target, reader.leftover)

    def _release_tunnel(self) -> None:
        self._open_tunnels -= 1

    async def _request(self, client: End, reader: RequestReader) -> Target | ConnectRefusal | None:
        """Return the request of the client; None if the client has disconnected without one."""
        if self._quota.used_count > self._quota.limit:
            return ConnectRefusal(503, f"{self._quota.limit} connections of all sandboxes are open")
        request: asyncio.Future[Target | ConnectRefusal | None] = asyncio.get_running_loop().create_future()

        def take(data: bytes) -> None:
            if (target := reader.feed(data)) is not None and not request.done():
                client.stop()
                request.set_result(target)

        def at_end() -> None:
            if not request.done():
                request.set_result(None)

        client.on_data, client.on_eof = take, at_end
        client.start()
        try:
            async with asyncio.timeout(self._limits.header_s):
                return await request
        except TimeoutError:
            return ConnectRefusal(408, f"the request was not complete after {self._limits.header_s:g} s")

    async def _connect(self, target: Target) -> socket.socket | ConnectRefusal:
        """Return a connection to the target, if it is allowed.

        The decision is reported before the connection is tried.
        """
        end = asyncio.get_running_loop().time() + self._limits.connect_s
        try:
            async with asyncio.timeout_at(end):
                addresses = await self._dialer.find(target)
        except TimeoutError:
            return ConnectRefusal(504, f"{target.host} was not looked up in {self._limits.connect_s:g} s")
        if isinstance(addresses, ConnectRefusal):
            return addresses
        self._on_event(ProxyDecision(True, target.host, target.port, "", 200))
        return await connect(addresses, target.port, end=end)

    async def _refuse(self, client: End, target: Target | None, refusal: ConnectRefusal | None) -> None:
        if refusal is None:
            return
        self._report_refusal(target, refusal)
        client.transport.write(answer(refusal))
        client.transport.close()
        await asyncio.wait({client.close_future}, timeout=self._limits.header_s)

    def _report_refusal(self, target: Target | None, refusal: ConnectRefusal) -> None:
        host, port = (target.host, target.port) if target else ("", 0)
        self._on_event(ProxyDecision(False, host, port, refusal.reason, refusal.status))

    async def _run(self, client: End, server: End, target: Target, first: bytes) -> None:
        tunnel = Tunnel(
            client,
            server,
            host=target.host,
            hello_s=self._limits.header_s,
            on_refused=lambda reason: self._report_refusal(target, ConnectRefusal(403, reason)),
        )
        self._tunnels.add(tunnel)
        try:
            await tunnel.run(first=first, idle_s=self._limits.idle_s)
        finally:
            self._tunnels.discard(tunnel)
            self._sent_bytes += tunnel.sent_bytes
            self._received_bytes += tunnel.received_bytes
