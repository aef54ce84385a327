"""JSON-RPC with a program that reads nothing: no request waits forever."""

from __future__ import annotations

import asyncio
import socket

import pytest

from ramet.concurrency.clock import SystemClock
from ramet.core.errors import TaskFailed
from ramet.guest.external.json_lines import Json, RequestFailed, RpcConnection


class RefusingReceiver:
    """A receiver that refuses every request."""

    async def receive(self, method: str, params: Json) -> None:
        return None

    async def answer(self, method: str, params: Json) -> Json:
        raise RequestFailed(-32601, f"there is no {method}")

    async def flush(self) -> None:
        return None


async def test_a_refusal_that_cannot_be_sent_fails_the_open_requests() -> None:
    """As an answer does that cannot be sent: the program has left too much unread."""
    near, far = socket.socketpair()
    with far:
        connection = RpcConnection(*await asyncio.open_connection(sock=near), RefusingReceiver())
        running = asyncio.ensure_future(connection.run())
        request = asyncio.ensure_future(connection.request("session/prompt", {"text": "x" * 2**24}))
        try:
            far.sendall(b'{"jsonrpc": "2.0", "id": 1, "method": "fs/read"}\n')
            async with asyncio.timeout(60):
                with pytest.raises(TaskFailed, match="unread"):
                    await request
        finally:
            request.cancel()
            await connection.close(running, SystemClock())
