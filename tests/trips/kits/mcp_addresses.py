"""MCP servers at addresses of this machine, in processes of their own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import pathlib
import sys
from collections.abc import AsyncIterator
from typing import Any

import ramet
from tests.trips.kits.mcp import PROGRAMS


class AddressServer:
    """A server that runs."""

    def __init__(self, port: int, record: pathlib.Path) -> None:
        self.endpoint = f"127.0.0.1:{port}"
        self._record = record

    def entry(self, path: str = "mcp", **fields: Any) -> dict[str, Any]:
        """Return the entry of the server at a path."""
        return {"name": path, "type": "http", "url": f"http://{self.endpoint}/{path}", **fields}

    def policy(self, **fields: Any) -> ramet.Policy:
        """Return a policy that lists the address."""
        return ramet.Policy(memory_mb=512, allowed_endpoints=[self.endpoint], **fields)

    def record(self) -> list[list[Any]]:
        """Return what the server has written down."""
        text = self._record.read_text() if self._record.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


@contextlib.asynccontextmanager
async def address_server(program: str, folder: pathlib.Path, *arguments: str) -> AsyncIterator[AddressServer]:
    """Keep one of the programs running."""
    record = folder / f"{program}.jsonl"
    command = (sys.executable, str(PROGRAMS / f"{program}.py"), str(record), *arguments)
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        assert process.stdout is not None
        yield AddressServer(int(await process.stdout.readline()), record)
    finally:
        process.kill()
        await process.wait()
