"""Sessions with MCP servers at addresses whose transport fails: the session ends, and nobody waits for an answer."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from ramet.core.errors import McpServerFailed
from ramet.core.mcp.server_entry import McpServer
from ramet.host.mcp.server_session import ServerSession
from ramet.tools.mcp.connection_port import McpCaller, ServerQuestion, ServerRights
from tests.support import http

TOOL = {"name": "work", "inputSchema": {"type": "object"}}
INITIALIZED = {
    "protocolVersion": "2025-06-18",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "", "version": ""},
}
#: Longer than any answer takes; passed only by a caller that gets none.
HANG_S = 60.0


class BreakingServer:
    """A server whose calls do not end, and that breaks off while it redirects the message that cancels one."""

    def __init__(self) -> None:
        self.calls = asyncio.Semaphore(0)

    async def handle(self, asked: http.Request, answer: http.Answer) -> None:
        method, number = asked.body.get("method"), asked.body.get("id")
        match method:
            case "initialize":
                await self._answer(answer, number, INITIALIZED)
            case "tools/list":
                await self._answer(answer, number, {"tools": [TOOL]})
            case "tools/call":
                self.calls.release()
                await answer.client_gone()
            case "notifications/cancelled":
                await answer.send_bytes(307, b"half", {"location": "/elsewhere", "content-length": "100"})
                answer.break_off()
            case "notifications/initialized":
                await answer.send_bytes(202, b"", {})
            case _:
                await answer.send_bytes(405 if asked.method == "GET" else 404, b"", {})

    async def _answer(self, answer: http.Answer, number: object, result: dict[str, Any]) -> None:
        await answer.send(200, {"jsonrpc": "2.0", "id": number, "result": result})


async def ask_nobody(question: ServerQuestion) -> None:
    return None


async def send_nothing(message: bytes) -> None:
    raise AssertionError("the host connects")


async def test_a_transport_that_ends_by_itself_ends_the_session() -> None:
    """The open call fails at once, and not after its time; a shared server would be started anew for the next one."""
    server = BreakingServer()
    async with http.serve(server.handle) as address:
        entry = McpServer(name="breaking", url=f"{address}/mcp", timeout_s=2 * HANG_S)
        rights = ServerRights(
            endpoints=(address.removeprefix("http://"),),
            value_of=lambda name: None,
            on_endpoint=lambda *_: None,
            caller=McpCaller(ask_nobody),
            on_refused=lambda method: None,
        )
        session = ServerSession(entry, send_nothing, rights, None)
        running = asyncio.ensure_future(session.run())
        try:
            assert [each.name for each in await session.tools()] == ["work"]
            abandoned, open_call = (asyncio.ensure_future(session.call("work", {}, lambda *_: None)) for _ in range(2))
            for _ in range(2):
                await server.calls.acquire()
            abandoned.cancel()
            async with asyncio.timeout(HANG_S):
                with pytest.raises(McpServerFailed, match="its connection broke off"):
                    await open_call
                with pytest.raises(McpServerFailed, match="its connection broke off"):
                    await running
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError, McpServerFailed):
                await running
