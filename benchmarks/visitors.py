"""Clients of a server in their own process, so that the CPU time of the server is the server's alone.

    python -m benchmarks.visitors requests SOCKET COUNT CONNECTIONS
    python -m benchmarks.visitors readers SOCKET PATH KEY MANY

They connect, say "ready", and print what they saw as JSON; requests wait for a line before. They look at little.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Any, cast

from benchmarks.machine import ROOT

_ASK = b"GET /healthz HTTP/1.1\r\nhost: ramet\r\n\r\n"


class Visitors:
    """Clients that wait for `go`, which returns their results."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def go(self) -> dict[str, Any]:
        """Let the clients begin, and wait for their end."""
        seen, _ = await self._process.communicate(b"\n")
        return cast(dict[str, Any], json.loads(seen))


@asynccontextmanager
async def visitors(*arguments: str) -> AsyncIterator[Visitors]:
    """Start a process of clients, and yield it once they are ready."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.visitors", *arguments, cwd=ROOT, stdin=-1, stdout=-1
    )
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n", "they are there"
        yield Visitors(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def requests(socket: str, count: str, connections: str) -> dict[str, Any]:
    """Make small requests on open connections, one after the other on each."""
    each, took = int(count) // int(connections), list[float]()
    opened = [await asyncio.open_unix_connection(socket) for _ in range(int(connections))]

    async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(each):
            began = perf_counter()
            writer.write(_ASK)
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
            await reader.readexactly(int(length.partition(b":")[2]))
            took.append(perf_counter() - began)

    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    await asyncio.gather(*(ask(*each) for each in opened))
    return {"count": len(took), "p99_ms": sorted(took)[int(len(took) * 0.99)] * 1e3}


async def readers(socket: str, path: str, key: str, many: str) -> dict[str, Any]:
    """Read one stream with many clients, only its beginning and end; `first` is the time when the last one began."""
    request = f"GET {path} HTTP/1.1\r\nhost: ramet\r\nx-api-key: {key}\r\n\r\n".encode()
    opened = []
    for _ in range(int(many)):
        reader, writer = await asyncio.open_unix_connection(socket)
        writer.write(request)
        await reader.readuntil(b"\r\n\r\n")
        opened.append((reader, writer))

    async def read(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> float:  # which closes when it is let go
        tail = await reader.read(1 << 16)
        first = perf_counter()
        while b"event: done" not in tail:
            piece = await reader.read(1 << 16)
            assert piece, "the stream ends with done"
            tail = tail[-32:] + piece
        return first

    reading = asyncio.gather(*(read(*each) for each in opened))
    await asyncio.sleep(0)  # Now each of them reads.
    print("ready", flush=True)
    return {"first": max(await reading)}


if __name__ == "__main__":
    run_clients = requests if sys.argv[1] == "requests" else readers
    print(json.dumps(asyncio.run(run_clients(*sys.argv[2:]))), flush=True)
