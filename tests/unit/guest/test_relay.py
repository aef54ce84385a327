"""The relay inside a sandbox: it passes bytes and ends, buffers little, and ends with its parent."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
import socket
from collections.abc import AsyncIterator

import pytest

from ramet.guest.proxy_forwarder import MAX_CONNECTIONS, listen
from tests.support.tunnels import Client, Relay, Speak, echo
from tests.support.waiting import alive, eventually

MIB = 2**20


@contextlib.asynccontextmanager
async def serve_host(path: pathlib.Path, speak: Speak = echo) -> AsyncIterator[list[int]]:
    """Serve a Unix socket as the host; yield a list with one element per open connection."""
    open_: list[int] = []
    tasks: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        open_.append(1)
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            await speak(reader, writer)
        writer.close()
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            await writer.wait_closed()
        open_.pop()
        tasks.discard(task)

    listening = await asyncio.start_unix_server(connected, path)
    try:
        yield open_
    finally:
        listening.close()
        for task in tuple(tasks):
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await listening.wait_closed()


async def read_all(reader: asyncio.StreamReader) -> int:
    total = 0
    while piece := await reader.read(MIB):
        total += len(piece)
    return total


async def test_bytes_and_their_ends_pass_in_both_directions(tmp_path: pathlib.Path) -> None:
    """More data than any buffer holds passes on several connections at once."""
    size = 8 * MIB

    async def converse(client: Client) -> int:
        async def pour() -> None:
            for _ in range(size // MIB):
                await client.send(bytes(MIB))
            client.writer.write_eof()

        return (await asyncio.gather(read_all(client.reader), pour()))[0]

    async with serve_host(tmp_path / "s"), Relay(tmp_path / "s") as relay:
        async with relay.client() as one, relay.client() as two:
            assert list(await asyncio.gather(converse(one), converse(two))) == [size, size]


async def test_a_client_that_ended_its_side_still_gets_its_answer(tmp_path: pathlib.Path) -> None:
    """A client whose host has ended may still send."""
    numbers: list[bytes] = []

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await reader.readexactly(5) == b"first":
            writer.write(b"you said " + await reader.read())
        else:
            writer.write_eof()
            numbers.append(await reader.read())

    async with serve_host(tmp_path / "s", speak), Relay(tmp_path / "s") as relay:
        async with relay.client() as client:
            await client.send(b"first" + b"all of it")
            client.writer.write_eof()
            assert await client.rest() == b"you said all of it"
        async with relay.client() as client:
            await client.send(b"other")
            assert await client.rest() == b""
            await client.send(b"late")
            client.writer.write_eof()
            await eventually(lambda: numbers)

    assert numbers == [b"late"]


@pytest.mark.parametrize("slow", ["host", "client"])
async def test_a_slow_side_holds_up_the_other_side(tmp_path: pathlib.Path, slow: str) -> None:
    """The relay's memory stays small, and another connection continues."""
    go, first = asyncio.Event(), True

    async def pour(writer: asyncio.StreamWriter) -> None:
        while not go.is_set():
            writer.write(bytes(MIB))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.2):
                    await writer.drain()
                    continue
            go.set()

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal first
        if not first:
            return await echo(reader, writer)
        first = False
        if slow == "client":
            await pour(writer)
        else:
            await go.wait()

    async with serve_host(tmp_path / "s", speak), Relay(tmp_path / "s") as relay:
        async with relay.client() as stuck, relay.client() as other:
            if slow == "host":
                await pour(stuck.writer)
            else:
                await go.wait()
            await other.send(b"hello")
            assert await other.reader.readexactly(5) == b"hello"
            assert private_kib(relay.pid) < 8 * 1024
            await eventually(lambda: is_asleep(relay.pid))
            stuck.writer.transport.abort()


def is_asleep(pid: int) -> bool:
    """Return whether the process sleeps; a busy loop is never seen asleep."""
    stat = pathlib.Path(f"/proc/{pid}/stat")
    return {stat.read_text().rpartition(")")[2].split()[0] for _ in range(50)} == {"S"}


def private_kib(pid: int) -> int:
    """Return the process's private memory in KiB."""
    lines = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))


async def test_connections_beyond_the_cap_wait(tmp_path: pathlib.Path) -> None:
    """The connection is served once another one has ended."""
    async with serve_host(tmp_path / "s") as connections, Relay(tmp_path / "s") as relay:
        async with contextlib.AsyncExitStack() as open_:
            for _ in range(MAX_CONNECTIONS - 1):
                client = await open_.enter_async_context(relay.client())
                await client.send(b"x")
                assert await client.reader.readexactly(1) == b"x"
            async with relay.client() as last:
                await last.send(b"x")
                assert await last.reader.readexactly(1) == b"x"
                waiting = await open_.enter_async_context(relay.client())
                await waiting.send(b"y")
                await client.send(b"x")
                assert await client.reader.readexactly(1) == b"x"
                assert len(connections) == MAX_CONNECTIONS
            assert await waiting.reader.readexactly(1) == b"y"
        await eventually(lambda: not connections)


async def test_a_client_gets_503_without_a_proxy(tmp_path: pathlib.Path) -> None:
    """The relay stays, and serves once there is a proxy."""
    async with Relay(tmp_path / "s") as relay:
        async with relay.client() as client:
            assert (await client.rest()).startswith(b"HTTP/1.1 503 ")
        async with serve_host(tmp_path / "s"), relay.client() as client:
            await client.send(b"hello")
            assert await client.reader.readexactly(5) == b"hello"


async def test_the_hosts_last_data_arrives_though_it_stopped_reading(tmp_path: pathlib.Path) -> None:
    """A refusal is sent while the client still sends."""

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)
        writer.write(b"no")

    async with serve_host(tmp_path / "s", speak), Relay(tmp_path / "s") as relay:
        for _ in range(20):
            async with relay.client() as client:
                client.writer.write(bytes(200_000))
                assert await client.reader.readexactly(2) == b"no"


async def test_a_long_last_answer_arrives_whole(tmp_path: pathlib.Path) -> None:
    """The client reads it late, after the host closed with data of the client unread."""

    has_begun = asyncio.Event()

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)
        writer.write(bytes(MIB))
        has_begun.set()

    async with serve_host(tmp_path / "s", speak) as connections, Relay(tmp_path / "s") as relay:
        async with relay.client() as client:
            client.writer.write(bytes(4 * MIB))
            await has_begun.wait()
            with contextlib.suppress(TimeoutError):  # Until then it reads no more than a little ahead.
                async with asyncio.timeout(2):
                    await eventually(lambda: not connections)
            await eventually(lambda: is_asleep(relay.pid))
            assert len(await client.rest()) == MIB


async def test_a_client_that_breaks_off_ends_its_connection(tmp_path: pathlib.Path) -> None:
    """The host sees the end, and other clients continue."""
    async with serve_host(tmp_path / "s") as connections, Relay(tmp_path / "s") as relay:
        async with relay.client() as other:
            async with relay.client() as client:
                await client.send(b"x")
                await client.reader.readexactly(1)
                sock = client.writer.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                client.writer.transport.abort()
                await eventually(lambda: len(connections) == 1)
            await other.send(b"x")
            assert await other.reader.readexactly(1) == b"x"


@pytest.mark.parametrize("has_pidfd", [True, False])
async def test_the_relay_ends_with_its_parent(tmp_path: pathlib.Path, has_pidfd: bool) -> None:
    """The connections of the relay end, too, even on a kernel without process descriptors."""
    relaying = Relay(tmp_path / "s", has_pidfd=has_pidfd)
    async with serve_host(tmp_path / "s"), relaying as relay, relay.client() as client:
        await client.send(b"x")
        assert await client.reader.readexactly(1) == b"x"
        await relay.end_parent()
        assert await client.rest() == b""
        await eventually(lambda: not alive(relay.pid))


async def test_the_relay_holds_no_descriptor_of_its_parent(tmp_path: pathlib.Path) -> None:
    """An open channel would hide the end of the sandbox's main process."""
    async with serve_host(tmp_path / "s"), Relay(tmp_path / "s") as relay:
        async with relay.client() as client:
            await client.send(b"x")
            await client.reader.readexactly(1)

        assert "/dev/null" in open_files(relay.process.pid)
        assert "/dev/null" not in open_files(relay.pid)


def open_files(pid: int) -> set[str]:
    """Return the targets of a process's descriptors, except the three standard ones."""
    folder = pathlib.Path(f"/proc/{pid}/fd")
    return {str(link.readlink()) for link in folder.iterdir() if int(link.name) > 2}


def test_a_port_in_use_raises_an_error() -> None:
    """The error comes before anything is forked."""
    with listen(0) as listener, pytest.raises(OSError, match="in use"):
        listen(listener.getsockname()[1])
