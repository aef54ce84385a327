"""An MCP server at an address of this machine, by the library of the protocol; it writes down what it is asked.

`python address_server.py RECORD [CERTIFICATE]` prints its port. A line of the record is a JSON list.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import pathlib
import socket
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import uvicorn
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp_types import ElicitRequest, ElicitRequestFormParams, InputRequiredResult, ListRootsRequest

RECORD = pathlib.Path(sys.argv[1])
server = MCPServer("address")


def record(*facts: Any) -> None:
    with RECORD.open("a") as file:
        file.write(json.dumps(facts) + "\n")


@contextlib.asynccontextmanager
async def recorded(tool: str) -> AsyncGenerator[None]:
    """Record the begin of a call, and its end."""
    record("begin", tool)
    try:
        yield
    except asyncio.CancelledError:
        record("cancelled", tool)
        raise
    record("end", tool)


@server.tool()
def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


@server.tool()
def version(context: Context) -> str:
    """Return the version of the protocol."""
    return str(context.protocol_version)


@server.tool()
async def hang() -> str:
    """Wait until it is cancelled."""
    async with recorded("hang"):
        await asyncio.Event().wait()
    return "never"


@server.tool()
async def greet(context: Context) -> InputRequiredResult | str:
    """Ask for a name, and return the answer."""
    if context.input_responses is None:
        schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
        question = ElicitRequest(params=ElicitRequestFormParams(message="Your name?", requested_schema=schema))
        return InputRequiredResult(input_requests={"name": question}, request_state="asked")
    return f"{context.request_state}: {context.input_responses['name'].model_dump_json(exclude_none=True)}"


@server.tool()
async def sample(context: Context) -> InputRequiredResult:
    """Ask for what no server gets."""
    return InputRequiredResult(input_requests={"roots": ListRootsRequest()})


def main() -> None:
    app = server.streamable_http_app()

    async def outer(scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]) -> None:
        if scope["type"] == "http":
            headers = {name.decode(): value.decode() for name, value in scope["headers"]}
            shown = {name: headers.get(name) for name in ("authorization", "x-kind", "accept-encoding")}
            record(scope["method"], scope["path"], shown)
        await app(scope, receive, send)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        sys.stdout.write(f"{listener.getsockname()[1]}\n")
        sys.stdout.flush()
        certificate = sys.argv[2] if len(sys.argv) > 2 else None
        config = uvicorn.Config(outer, log_level="critical", timeout_graceful_shutdown=0, ssl_certfile=certificate)
        asyncio.run(uvicorn.Server(config).serve(sockets=[listener]))


if __name__ == "__main__":
    main()
