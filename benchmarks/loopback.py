"""A minimal server for the real ChatOpenAI client: it counts requests, and delegates on request."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator
from typing import Any

LATENCY_S = 0.02  #: of every reply, so that all children have asked before one is answered


class Loopback:
    """A server that answers a prompt `delegate N` with N calls of the Agent tool, and everything else with "done"."""

    def __init__(self) -> None:
        self.url = ""
        self.requests = 0  #: HTTP requests that arrived, whatever became of them
        self._connections: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def serve(self) -> AsyncGenerator[Loopback]:
        """Listen on a free port of this machine; all connections are closed on leaving."""
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0, backlog=4096, limit=2**24)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            for task in self._connections:
                task.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)
            await server.wait_closed()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
                length = int(head.partition("content-length: ")[2].partition("\r\n")[0] or 0)
                body = json.loads(await reader.readexactly(length))
                self.requests += 1
                await asyncio.sleep(LATENCY_S)
                writer.write(_answer(body))
                await writer.drain()
        writer.close()


def _answer(body: dict[str, Any]) -> bytes:
    """Return the whole reply as one HTTP answer, as a stream of events if the request asks for one."""
    newest = body["messages"][-1]
    words = str(newest.get("content")).split()
    calls = []
    if newest["role"] == "user" and words[:1] == ["delegate"]:
        arguments = json.dumps({"prompt": "say", "subagent_type": "worker"})
        calls = [
            {
                "index": each,
                "id": f"call-{each}",
                "type": "function",
                "function": {"name": "Agent", "arguments": arguments},
            }
            for each in range(int(words[1]))
        ]
    message = {"role": "assistant", "content": None if calls else "done"} | ({"tool_calls": calls} if calls else {})
    finish = "tool_calls" if calls else "stop"
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    envelope = {"id": "loopback", "created": 0, "model": body.get("model")}
    if not body.get("stream"):
        choice = {"index": 0, "message": message, "finish_reason": finish}
        whole = {**envelope, "object": "chat.completion", "choices": [choice], "usage": usage}
        return _http("application/json", json.dumps(whole).encode())
    parts: list[dict[str, Any]] = [
        {"choices": [{"index": 0, "delta": message, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]},
        {"choices": [], "usage": usage},
    ]
    lines = [json.dumps({**envelope, "object": "chat.completion.chunk", **part}) for part in parts]
    return _http("text/event-stream", "".join(f"data: {line}\n\n" for line in [*lines, "[DONE]"]).encode())


def _http(kind: str, body: bytes) -> bytes:
    return f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
