"""HTTP connections of uvicorn, limited in time and number: incomplete requests and stalled readers are disconnected.

At the maximum number of connections, a new one replaces the connection that has waited longest for its next request. So
a client that only holds connections cannot exclude others.
"""

from __future__ import annotations

import asyncio
import json
import resource
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ramet.disk.installation import missing_extra
from ramet.services.http.sockets import Listener

if TYPE_CHECKING:
    from starlette.types import ASGIApp
    from uvicorn import Config
    from uvicorn.server import ServerState

ANSWERED = "ramet.answered"  #: the key in the `state` of a scope: a callback for when the answer is complete
_PIPELINED = 100  #: requests that may wait behind the active one
_MAX_OVERHEAD = 1024 * 1024  #: bytes without body content: the framing of chunks, and data after the last one
_TITLES = {
    400: "Bad Request",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """The limits for one connection, and for all of them."""

    connections: int = 10_000  #: at the same time; at most half of this process's file descriptors
    head_s: float = 10.0  #: the time for the head of a request, from its first byte or from connecting
    head_bytes: int = 64 * 1024
    idle_s: float = 60.0  #: the time between two requests
    stall_s: float = 30.0  #: the time in which a reader must take a part of the waiting data
    end_s: float = 5.0  #: the time for active requests when the server stops
    body_bytes: int = 64 * 1024 * 1024  #: of all bodies being read; at least two of the largest
    team_body_bytes: int = 16 * 1024 * 1024  #: of all bodies of one team; at least one of the largest


class HttpServer:
    """An HTTP server that answers on a listener with an ASGI application, from `start` to `stop`."""

    def __init__(self, app: ASGIApp, listener: Listener, bounds: Bounds | None = None) -> None:
        """Configure the server. Raises MissingExtra."""
        try:
            from uvicorn import Config
            from uvicorn.server import ServerState
        except ImportError:
            raise missing_extra("serving over HTTP", "server") from None
        self.listener, self._bounds = listener, _limit_connections(bounds or Bounds())
        self._config = Config(
            app,
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            date_header=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=int(self._bounds.idle_s),
            h11_max_incomplete_event_size=self._bounds.head_bytes,
        )
        self._config.load()
        self._state = ServerState()
        self._server: asyncio.Server | None = None
        self._connections: dict[_Connection, None] = {}  #: the one with the oldest last request first

    async def start(self) -> None:
        loop, socket = asyncio.get_running_loop(), self.listener.socket
        create = loop.create_unix_server if socket.family.name == "AF_UNIX" else loop.create_server
        self._server = await create(self._connection, sock=socket)

    def end(self) -> None:
        """Stop accepting connections, and close each one after its active request is answered. Idempotent."""
        if self._server is not None:
            self._server.close()
        for each in tuple(self._connections):
            each.end()

    async def stop(self, within_s: float | None = None) -> bool:
        """Wait for active requests, and cut the rest; return whether all ended by themselves. Idempotent.

        They have `within_s` seconds; None means the time of the bounds.
        """
        self.end()
        is_done = True
        deadline = asyncio.get_running_loop().time() + (self._bounds.end_s if within_s is None else within_s)
        try:
            async with asyncio.timeout_at(deadline):
                while self._connections:
                    await asyncio.wait([each.loss for each in self._connections])
        except TimeoutError:
            is_done = all(each.is_between() for each in self._connections)
            for each in tuple(self._connections):
                each.cut()
        if tasks := set(self._state.tasks):
            left_s = max(deadline - asyncio.get_running_loop().time(), self._bounds.end_s)
            _, remaining = await asyncio.wait(tasks, timeout=left_s)
            is_done = is_done and not remaining
            for task in remaining:
                task.cancel()
        return is_done

    def _connection(self) -> _Connection:
        return _Connection(self._config, self._state, self._bounds, self._connections)


class _Connection(asyncio.Protocol):
    """A connection that passes all data to uvicorn's own protocol, and enforces the time limits."""

    def __init__(
        self, config: Config, state: ServerState, bounds: Bounds, connections: dict[_Connection, None]
    ) -> None:
        self._http: Any = config.http_protocol_class(
            config=config, server_state=state, app_state={ANSWERED: self._on_answered}
        )  # type: ignore[call-arg]
        self._bounds, self._connections = bounds, connections
        self._loop = asyncio.get_running_loop()
        self.loss: asyncio.Future[None] = self._loop.create_future()
        self._transport: asyncio.Transport
        self._head_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._head = 0  #: bytes of a request head that is not complete
        self._overhead = 0
        self._is_answered = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        if len(self._connections) >= self._bounds.connections and not _make_room(self._connections):
            transport.set_protocol(asyncio.Protocol())
            detail = f"{self._bounds.connections} connections are open, which is the limit"
            transport.write(_refusal(503, detail))
            transport.close()
            return
        self._transport = transport
        transport.set_write_buffer_limits(high=0)  # So that the stall timer covers all data that is not taken.
        self._connections[self] = None
        self._http.send_400_response = lambda why: self._refuse(400, why)  # in the form of all other refusals
        self._http.connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.pop(self, None)
        for timer in (self._head_timer, self._stall_timer):
            if timer is not None:
                timer.cancel()
        self._http.connection_lost(exc)
        self.loss.set_result(None)

    def data_received(self, data: bytes) -> None:
        cycle = self._http.cycle
        received = len(cycle.body) if cycle is not None else 0
        self._http.data_received(data)
        if not self.is_between():
            has_progress = cycle is not self._http.cycle or len(cycle.body) > received
            self._overhead = 0 if has_progress else self._overhead + len(data)
            if self._overhead > _MAX_OVERHEAD or len(self._http.pipeline) > _PIPELINED:
                self.cut()
            self._head = 0
            if self._connections.pop(self, 0) is None:
                self._connections[self] = None  # It becomes the newest, unless it is being cut.
            if self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None
        elif not self._transport.is_closing():
            self._head += len(data)
            if self._head > self._bounds.head_bytes:
                self._refuse(431, f"the head of a request is at most {self._bounds.head_bytes} bytes")
            elif self._head_timer is None:
                self._await_head()

    def eof_received(self) -> bool | None:
        self._http.eof_received()
        return None

    def pause_writing(self) -> None:
        self._http.pause_writing()
        self._stall_timer = self._loop.call_later(self._bounds.stall_s, self.cut)

    def resume_writing(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        self._http.resume_writing()

    def end(self) -> None:
        """Close the connection after the active request is answered, or at once if there is none."""
        if self.is_between():
            self._transport.close()
        else:
            self._http.shutdown()

    def cut(self) -> None:
        """Close the connection at once; unread data is lost."""
        self._transport.abort()

    def is_between(self) -> bool:
        """Return whether no request is being answered."""
        cycle = self._http.cycle
        return cycle is None or cycle.response_complete

    def gives_way(self) -> bool:
        """Return whether the connection may be cut: no client waits for an answer on it.

        Either no request is active, or only the rest of a body is being discarded.
        """
        return self._is_answered or self.is_between()

    def _on_answered(self) -> None:
        self._is_answered = True

    def _await_head(self) -> None:
        self._head_timer = self._loop.call_later(self._bounds.head_s, self._on_head_timeout)

    def _on_head_timeout(self) -> None:
        if self._head:
            self._refuse(408, f"the head of a request was not complete after {self._bounds.head_s:g} s")
        else:
            self._transport.close()

    def _refuse(self, status: int, detail: str) -> None:
        cycle = self._http.cycle
        can_respond = cycle is None or cycle.response_complete or not cycle.response_started
        if can_respond and not self._http.pipeline:  # Never in the middle of an answer.
            self._transport.write(_refusal(status, detail))
        self._transport.close()


def _limit_connections(bounds: Bounds) -> Bounds:
    """Limit the connections to half of the process's file descriptors; the rest is for agents, files and other uses."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return replace(bounds, connections=min(bounds.connections, descriptors // 2))


def _make_room(connections: dict[_Connection, None]) -> bool:
    """Cut the connection that has been idle for the longest time; return False if all are being answered."""
    for each in connections:
        if each.gives_way():
            del connections[each]
            each.cut()
            return True
    return False


def _refusal(status: int, detail: str) -> bytes:
    """Return a complete answer, for a request that does not reach the application."""
    body = json.dumps({"type": "about:blank", "title": _TITLES[status], "status": status, "detail": detail}).encode()
    head = (
        f"HTTP/1.1 {status} {_TITLES[status]}\r\ncontent-type: application/problem+json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body
