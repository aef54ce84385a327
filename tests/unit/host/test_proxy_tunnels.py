"""Tunnels of the proxy: ends, slow sides, and TLS to another server."""

from __future__ import annotations

import asyncio
import pathlib
import socket
import ssl
from collections.abc import AsyncIterator

import pytest

from ramet.host.egress.connection import ProxyLimits
from tests.support.tls import client_hello, make_certificate
from tests.support.tunnels import Client, OpenProxy, ProxyHarness, client, echo, server
from tests.support.waiting import eventually

LOCAL = {"localhost": ["127.0.0.1"], "other.localhost": ["127.0.0.1"]}
PRIVATE = ("127.0.0.0/8",)


@pytest.fixture
async def proxy_harness(tmp_path: pathlib.Path) -> AsyncIterator[ProxyHarness]:
    """A proxy for which local names lead to the loopback address."""
    async with ProxyHarness(tmp_path, names=LOCAL, private=PRIVATE) as proxy_harness:
        yield proxy_harness


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A certificate for localhost and other.localhost."""
    return make_certificate(tmp_path_factory.mktemp("certificate"))


def tls_server(certificate: pathlib.Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


async def test_a_client_that_ended_its_side_still_gets_the_answer(proxy_harness: ProxyHarness) -> None:
    """The end of file passes, and the other direction stays open."""

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"you said " + await reader.read())

    async with server(speak) as port:
        run = await proxy_harness.open(f"127.0.0.1:{port}")
        async with client(run.path) as tunnel:
            assert await tunnel.ask(f"127.0.0.1:{port}", first=b"all ") == 200
            await tunnel.send(b"of it")
            tunnel.writer.write_eof()
            assert await tunnel.rest() == b"you said all of it"


async def test_a_client_may_end_together_with_its_request(proxy_harness: ProxyHarness) -> None:
    """The end comes before the tunnel exists."""
    async with server() as port:
        run = await proxy_harness.open(f"127.0.0.1:{port}")
        async with client(run.path) as tunnel:
            tunnel.writer.write(f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\nhello".encode())
            tunnel.writer.write_eof()
            assert (await tunnel.rest()).endswith(b"\r\n\r\nhello")


async def test_a_server_that_ended_its_side_still_gets_data(proxy_harness: ProxyHarness) -> None:
    """The client's direction stays open."""
    numbers: list[bytes] = []

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write_eof()
        numbers.append(await reader.read())

    async with server(speak) as port:
        run = await proxy_harness.open(f"127.0.0.1:{port}")
        async with client(run.path) as tunnel:
            assert await tunnel.ask(f"127.0.0.1:{port}") == 200
            assert await tunnel.rest() == b""
            await tunnel.send(b"late")
            tunnel.writer.write_eof()
            await eventually(lambda: numbers)

    assert numbers == [b"late"]


async def test_a_server_may_speak_first(proxy_harness: ProxyHarness) -> None:
    """The proxy does not wait for the client's first bytes."""

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 ready\r\n")
        await reader.read()

    async with server(speak) as port:
        run = await proxy_harness.open(f"127.0.0.1:{port}")
        async with client(run.path) as tunnel:
            assert await tunnel.ask(f"127.0.0.1:{port}") == 200
            assert await tunnel.reader.readline() == b"220 ready\r\n"


async def test_data_sent_before_a_reset_arrives(proxy_harness: ProxyHarness) -> None:
    """The reset ends the tunnel after that data."""

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"so far")
        await writer.drain()
        await reader.read(1)
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # closing it resets the connection

    async with server(speak) as port:
        run = await proxy_harness.open(f"127.0.0.1:{port}")
        async with client(run.path) as tunnel:
            assert await tunnel.ask(f"127.0.0.1:{port}", first=b"1") == 200
            assert await tunnel.reader.readexactly(6) == b"so far"
            await tunnel.send(b"2")
            assert await tunnel.rest() == b""


async def test_a_client_that_leaves_ends_its_connection(proxy_harness: ProxyHarness) -> None:
    """The server sees the end."""
    has_ended = asyncio.Event()

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        has_ended.set()

    async with server(speak) as port:
        run = await proxy_harness.open(f"127.0.0.1:{port}")
        async with client(run.path) as tunnel:
            assert await tunnel.ask(f"127.0.0.1:{port}") == 200
        await has_ended.wait()


@pytest.mark.parametrize("slow", ["server", "client"])
async def test_a_slow_side_holds_up_the_other_side(proxy_harness: ProxyHarness, slow: str) -> None:
    """The proxy buffers little; all data arrives once the slow side reads."""
    size, go = 64 * 2**20, asyncio.Event()
    byte_count = 0

    async def swallow(reader: asyncio.StreamReader) -> int:
        total = 0
        while piece := await reader.read(2**20):
            total += len(piece)
        return total

    async def pour(writer: asyncio.StreamWriter) -> None:
        for _ in range(size // 2**20):
            writer.write(bytes(2**20))
            await writer.drain()
        writer.write_eof()

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal byte_count
        if slow == "client":
            return await pour(writer)
        await go.wait()
        byte_count = await swallow(reader)

    async with server(speak) as port:
        run = await proxy_harness.open(f"127.0.0.1:{port}")
        async with client(run.path) as tunnel:
            assert await tunnel.ask(f"127.0.0.1:{port}") == 200
            pouring = asyncio.ensure_future(pour(tunnel.writer)) if slow == "server" else None
            moved = await count_until_stall(run)
            assert 0 < moved < size / 2
            go.set()
            if pouring is not None:
                await pouring
                assert await tunnel.rest() == b""
            else:
                tunnel.writer.write_eof()
                byte_count = await swallow(tunnel.reader)

    assert byte_count == size


async def count_until_stall(run: OpenProxy) -> int:
    """Return the number of bytes passed once nothing moves for many turns of the event loop."""
    moved, still = 0, 0
    while still < 200 or moved == 0:
        await asyncio.sleep(0.001)
        now = run.door.sent_bytes + run.door.received_bytes
        moved, still = now, still + 1 if now == moved else 0
    return moved


async def test_an_idle_tunnel_is_cut(tmp_path: pathlib.Path) -> None:
    """The limit is `idle_s`."""
    async with server() as port, ProxyHarness(tmp_path, limits=ProxyLimits(idle_s=0.05)) as proxy_harness:
        run = await proxy_harness.open(f"127.0.0.1:{port}")
        async with client(run.path) as tunnel:
            assert await tunnel.ask(f"127.0.0.1:{port}") == 200
            assert await tunnel.rest() == b""


async def test_a_tunnel_is_idle_from_its_last_bytes_on(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tunnel that lives longer than `idle_s` is not cut while bytes move."""
    loop = asyncio.get_running_loop()
    real_time, passed_s = loop.time, 0.0
    monkeypatch.setattr(loop, "time", lambda: real_time() + passed_s)
    async with server() as port, ProxyHarness(tmp_path, limits=ProxyLimits(idle_s=1_000)) as proxy_harness:
        run = await proxy_harness.open(f"127.0.0.1:{port}")
        async with client(run.path) as tunnel:
            assert await tunnel.ask(f"127.0.0.1:{port}") == 200
            for _ in range(3):
                passed_s += 600
                await asyncio.sleep(0)
                tunnel.writer.write(b"ping")
                assert await tunnel.reader.readexactly(4) == b"ping"

            passed_s += 1_001
            assert await tunnel.rest() == b""


async def handshake(tunnel: Client, certificate: pathlib.Path, name: str, says: bytes) -> bytes:
    """Speak TLS to `name` through a tunnel; return the answer."""
    context = ssl.create_default_context(cafile=certificate)
    loop = asyncio.get_running_loop()
    protocol = tunnel.writer.transport.get_protocol()
    wrapped = await loop.start_tls(tunnel.writer.transport, protocol, context, server_hostname=name)
    assert wrapped is not None
    wrapped.write(says)
    try:
        return await tunnel.reader.readexactly(len(says))
    finally:
        wrapped.close()


async def test_tls_to_the_listed_server_passes(proxy_harness: ProxyHarness, certificate: pathlib.Path) -> None:
    """The client checks the server's certificate end to end."""
    async with server(tls=tls_server(certificate)) as port:
        run = await proxy_harness.open(f"localhost:{port}")
        async with client(run.path) as tunnel:
            assert await tunnel.ask(f"LocalHost.:{port}") == 200
            assert await handshake(tunnel, certificate, "localhost", b"secret") == b"secret"

    assert [event.is_allowed for event in run.events] == [True]


async def test_tls_to_an_address_passes_without_a_name(proxy_harness: ProxyHarness, certificate: pathlib.Path) -> None:
    """Clients send no server name for an address."""
    async with server(tls=tls_server(certificate)) as port:
        run = await proxy_harness.open(f"127.0.0.1:{port}")
        async with client(run.path) as tunnel:
            assert await tunnel.ask(f"127.0.0.1:{port}") == 200
            assert await handshake(tunnel, certificate, "127.0.0.1", b"secret") == b"secret"


async def test_tls_to_another_server_is_cut(proxy_harness: ProxyHarness, certificate: pathlib.Path) -> None:
    """No byte reaches the server, though its certificate covers both names; the event names the other server."""
    numbers: list[bytes] = []

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        numbers.append(await reader.read())

    async with server(speak) as port:
        run = await proxy_harness.open(f"localhost:{port}")
        async with client(run.path) as tunnel:
            assert await tunnel.ask(f"localhost:{port}", first=client_hello("other.localhost")) == 200
            assert await tunnel.rest() == b""
        await eventually(lambda: numbers)

    assert numbers == [b""]
    assert [(event.is_allowed, event.host, event.status) for event in run.events] == [
        (True, "localhost", 200),
        (False, "localhost", 403),
    ]
    assert run.events[1].reason == "TLS asks for another server: other.localhost"


@pytest.mark.parametrize(("name", "passes"), [("localhost", True), ("other.localhost", False)])
async def test_a_tls_hello_in_pieces_is_judged_as_a_whole(proxy_harness: ProxyHarness, name: str, passes: bool) -> None:
    """An allowed hello reaches the server unchanged."""
    hello = client_hello(name)
    async with server() as port:
        run = await proxy_harness.open(f"localhost:{port}")
        async with client(run.path) as tunnel:
            assert await tunnel.ask(f"localhost:{port}", first=hello[:3]) == 200
            before = run.door.sent_bytes
            await tunnel.send(hello[3:100])
            await eventually(lambda: run.door.sent_bytes == before + 97)
            assert run.door.received_bytes == 0
            await tunnel.send(hello[100:])
            if passes:
                assert await tunnel.reader.readexactly(len(hello)) == hello
            else:
                assert await tunnel.rest() == b""


@pytest.mark.parametrize("mode", ["never whole", "cut off", "unreadable"])
async def test_an_unreadable_tls_hello_is_cut(tmp_path: pathlib.Path, mode: str) -> None:
    """A second event follows the event that allowed the tunnel."""
    limits = ProxyLimits(header_s=0.2 if mode == "never whole" else 60.0)
    async with (
        server(echo) as port,
        ProxyHarness(tmp_path, names=LOCAL, private=PRIVATE, limits=limits) as proxy_harness,
    ):
        run = await proxy_harness.open(f"localhost:{port}")
        async with client(run.path) as tunnel:
            first = b"\x15\x03\x01\x00\x02\x01\x5a" if mode == "unreadable" else client_hello("localhost")[:50]
            assert await tunnel.ask(f"localhost:{port}", first=first) == 200
            if mode == "cut off":
                tunnel.writer.write_eof()
            assert await tunnel.rest() == b""

    assert [event.is_allowed for event in run.events] == [True, False]
    assert "TLS" in run.events[1].reason
