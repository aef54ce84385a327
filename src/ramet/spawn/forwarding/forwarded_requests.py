"""The forwarded model requests of one sandbox: who may make them, how many, and how their replies flow.

The guest is hostile. Its requests are counted, and so are the bytes of their bodies. A reply is sent as far as its
window allows, which the guest opens again by what it has read: a program that does not read stops its provider, and
nothing gathers here or in the channel.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from ramet.core.errors import BudgetExceeded, Denied, ProtocolError
from ramet.spawn.run import Run
from ramet.tools.forwarding import ForwardedRequest, ForwardRights, RequestForwarding
from ramet.wire.guest_protocol.guest_to_host import ForwardRequest, ResetStream, WindowUpdate
from ramet.wire.guest_protocol.host_to_guest import HostMessage, ResponseHead, StreamChunk
from ramet.wire.guest_protocol.reply_window import CHUNK_BYTES, WINDOW_BYTES

#: Requests of one sandbox at the same time, and the bytes of their bodies together.
MAX_REQUESTS: Final = 8
MAX_BODY_BYTES: Final = 32 * 1024 * 1024
#: Bytes of the names and values of a request's headers.
MAX_HEADER_BYTES: Final = 64 * 1024

Send = Callable[[HostMessage, bytes], Awaitable[None]]


def forward_rights(run: Run) -> ForwardRights | None:
    """Return the right of a run to have model requests forwarded; None if it has none."""
    models = run.grant.models if run.grant is not None else ()
    return ForwardRights(models=models) if models else None


class ForwardedRequests:
    """The forwarded requests of one sandbox."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._forwarding: RequestForwarding | None = None
        self._replies: dict[int, _Reply] = {}
        self._body_bytes = 0

    async def forward(self, request: ForwardRequest, body: bytes, send: Send) -> None:
        """Forward a request. Raises Denied for a run that may not, and ModelFailed for a reply that broke off."""
        forwarding = self._open()
        forwarded = ForwardedRequest(request.wire, request.method, request.path, request.query, request.headers, body)
        if sum(len(name) + len(value) for name, value in request.headers.items()) > MAX_HEADER_BYTES:
            raise ProtocolError(f"headers of more than {MAX_HEADER_BYTES} bytes")
        reply = _Reply(request.id, send, self._run)
        if len(self._replies) >= MAX_REQUESTS or self._body_bytes + len(body) > MAX_BODY_BYTES:
            reason = f"at most {MAX_REQUESTS} requests, and {MAX_BODY_BYTES} bytes of them, are forwarded at once"
            return await forwarding.refuse(forwarded, reply, reason)
        self._replies[request.id] = reply
        self._body_bytes += len(body)
        try:
            await forwarding.forward(forwarded, reply)
        finally:
            del self._replies[request.id]
            self._body_bytes -= len(body)

    @property
    def refusal(self) -> BudgetExceeded | None:
        """The refusal of the newest request for a generation, if a limit refused it."""
        return self._forwarding.refusal if self._forwarding is not None else None

    def update_window(self, message: WindowUpdate) -> None:
        """Allow more bytes of a reply. Raises ProtocolError for more than a window."""
        if (reply := self._replies.get(message.request)) is not None:
            reply.update_window(message.size)

    def reset(self, message: ResetStream) -> None:
        """End a request whose program has left."""
        if (reply := self._replies.get(message.request)) is not None:
            reply.cancel()

    def _open(self) -> RequestForwarding:
        if self._forwarding is None:
            rights, open_forwarding = forward_rights(self._run), self._run.sandbox.forwarding
            if rights is None or open_forwarding is None:
                raise Denied("a model request", "policy.models of this agent is empty")
            self._forwarding = open_forwarding(self._run.context, rights)
        return self._forwarding


class _Reply:
    """The way of one reply back (`ramet.tools.forwarding.ReplyStream`)."""

    def __init__(self, id: int, send: Send, run: Run) -> None:
        self._id, self._send, self._run = id, send, run
        self._window = WINDOW_BYTES
        self._has_room = asyncio.Event()
        self._task = asyncio.current_task()
        self.is_started = False

    async def start(self, status: int, headers: Sequence[tuple[str, str]]) -> None:
        self.is_started = True
        await self._send(ResponseHead(id=self._id, status=status, headers=tuple(headers)), b"")

    async def write(self, data: bytes) -> None:
        self._run.activity.on_chunk()
        at = 0
        while at < len(data):
            while not self._window:
                self._has_room.clear()
                await self._has_room.wait()
            piece = data[at : at + min(self._window, CHUNK_BYTES)]
            self._window -= len(piece)
            at += len(piece)
            await self._send(StreamChunk(id=self._id), piece)

    def update_window(self, size: int) -> None:
        if self._window + size > WINDOW_BYTES:
            raise ProtocolError(f"a window of more than {WINDOW_BYTES} bytes")
        self._window += size
        self._has_room.set()

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
