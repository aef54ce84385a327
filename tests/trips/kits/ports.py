"""Agents that serve, started and ready, and clients of them."""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import ramet
from ramet.host.sandbox.handle import AgentHandle
from tests.support.serving import short_folder
from tests.trips.kits.isolated import BackendName, backend

__all__ = ["backend", "runtime"]

WAIT_S = 180.0  #: for anything that must happen; passed in full only by a test that fails


@pytest.fixture
async def runtime(backend: BackendName) -> AsyncIterator[ramet.AgentRuntime]:
    """Yield a running runtime in a folder with a short name, since paths of sockets are short."""
    with short_folder() as folder:
        async with ramet.AgentRuntime(working_dir=folder, backend=backend) as runtime:
            yield runtime


async def start_serving(
    runtime: ramet.AgentRuntime, agent: Callable[..., Any], ports: dict[str, int], *args: Any, **policy: Any
) -> AgentHandle:
    """Start an agent, and wait until it prints that it is ready."""
    ready = asyncio.Event()

    def on_stdout(text: str) -> None:
        if "ready" in text:
            ready.set()

    handle = await runtime.start_agent(agent, ramet.Policy(ports=ports, **policy), args, on_stdout=on_stdout)
    waiting = asyncio.ensure_future(ready.wait())
    end = asyncio.ensure_future(handle.result())
    try:
        async with asyncio.timeout(WAIT_S):
            await asyncio.wait((waiting, end), return_when=asyncio.FIRST_COMPLETED)
        assert ready.is_set(), end.result()
    finally:
        for each in (waiting, end):
            each.cancel()
    return handle


async def get_body(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str = "/") -> str:
    """Return the body of an HTTP answer, and close the connection."""
    try:
        writer.write(f"GET {path} HTTP/1.0\r\n\r\n".encode())
        return (await read_to_end(reader)).rpartition(b"\r\n")[2].decode()
    finally:
        writer.close()


async def read_to_end(reader: asyncio.StreamReader) -> bytes:
    """Return each byte until the end of the connection, also after a reset."""
    async with asyncio.timeout(WAIT_S):
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""


async def get_body_at_socket(socket: pathlib.Path, path: str = "/") -> str:
    """Return the body of an HTTP answer from a Unix socket."""
    return await get_body(*await asyncio.open_unix_connection(str(socket)), path)
