"""Limits of the proxy for one run, which do not affect other runs."""

from __future__ import annotations

import array
import asyncio
import contextlib
import errno
import pathlib
import socket

import pytest

from ramet.host.egress.connection import ProxyLimits
from tests.support.tunnels import ProxyHarness, client, server
from tests.support.waiting import eventually


def connect(path: pathlib.Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.setblocking(False)
    sock.connect(str(path))
    return sock


def open_descriptors() -> int:
    return sum(1 for _ in pathlib.Path("/proc/self/fd").iterdir())


async def test_tunnels_of_a_run_are_bounded(tmp_path: pathlib.Path) -> None:
    """One more is refused with 503 until another ends; tunnels of other runs do not count."""
    async with server() as port, ProxyHarness(tmp_path, limits=ProxyLimits(tunnels=2)) as proxy_harness:
        target = f"127.0.0.1:{port}"
        run, other = await proxy_harness.open(target), await proxy_harness.open(target)
        async with client(run.path) as first:
            async with client(run.path) as second:
                assert [await first.ask(target), await second.ask(target), await run.ask(target)] == [200, 200, 503]
                assert await other.ask(target) == 200
            async with asyncio.timeout(180):
                while await run.ask(target) != 200:
                    pass

    assert "2 tunnels are open" in run.events[2].reason


async def test_a_tunnel_whose_server_broke_off_does_not_count(tmp_path: pathlib.Path) -> None:
    """The client of the tunnel stays connected."""

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # closing it resets the connection

    async with server(speak) as port, ProxyHarness(tmp_path, limits=ProxyLimits(tunnels=1)) as proxy_harness:
        target = f"127.0.0.1:{port}"
        run = await proxy_harness.open(target)
        async with client(run.path) as holding:
            assert await holding.ask(target) == 200
            async with asyncio.timeout(180):
                while await run.ask(target) != 200:
                    pass


async def test_half_open_requests_of_a_run_are_bounded(tmp_path: pathlib.Path) -> None:
    """The next request of the run is read when another one is decided; other runs are not delayed."""
    async with ProxyHarness(tmp_path, limits=ProxyLimits(half_open=2)) as proxy_harness:
        run, other = await proxy_harness.open(), await proxy_harness.open()
        slow = [connect(run.path) for _ in range(2)]
        try:
            for each in slow:
                each.send(b"CONNECT ")
            async with client(run.path) as waiting:
                waiting.writer.write(b"CONNECT a.test:1 HTTP/1.1\r\n\r\n")
                assert [await other.ask("b.test:1") for _ in range(20)] == [403] * 20
                assert run.events == []
                slow[0].send(b"b.test:1 HTTP/1.1\r\n\r\n")
                assert await waiting.status() == 403
        finally:
            for each in slow:
                each.close()

    assert [event.host for event in run.events] == ["b.test", "a.test"]


async def test_a_request_that_does_not_end_gets_408(tmp_path: pathlib.Path) -> None:
    """The time limit holds even if bytes keep coming."""
    async with ProxyHarness(tmp_path, limits=ProxyLimits(header_s=0.1)) as proxy_harness:
        run = await proxy_harness.open()
        async with client(run.path) as drip:

            async def dripping() -> None:
                drip.writer.write(b"CONNECT a.test:1 HTTP/1.1\r\n")
                while not drip.writer.is_closing():
                    drip.writer.write(b"a")
                    await asyncio.sleep(0.005)

            task = asyncio.ensure_future(dripping())
            assert await drip.status() == 408
            await task

    assert run.events[0].status == 408


async def test_connections_beyond_the_rate_wait(tmp_path: pathlib.Path) -> None:
    """Requests in a loop cost the host little: five connections pass at once, and then one in three hours."""
    async with ProxyHarness(tmp_path, limits=ProxyLimits(per_second=0.000_1, burst=5)) as proxy_harness:
        run, other = await proxy_harness.open(), await proxy_harness.open()
        assert [await run.ask("a.test:1") for _ in range(5)] == [403] * 5
        with connect(run.path) as waiting:
            waiting.send(b"CONNECT a.test:1 HTTP/1.1\r\n\r\n")
            assert await other.ask("b.test:1") == 403
            with pytest.raises(BlockingIOError):
                waiting.recv(1)

    assert len(run.events) == 5


async def test_the_connections_of_every_run_have_a_common_bound(tmp_path: pathlib.Path) -> None:
    """Each further connection is refused at once with 503 and an event."""
    async with server() as port, ProxyHarness(tmp_path, max_connections=2) as proxy_harness:
        target = f"127.0.0.1:{port}"
        run, other = await proxy_harness.open(target), await proxy_harness.open(target)
        async with client(run.path) as first, client(run.path) as second:
            assert [await first.ask(target), await second.ask(target)] == [200, 200]
            async with client(other.path) as third:
                assert await third.status() == 503
        async with asyncio.timeout(180):
            while await other.ask(target) != 200:
                pass

    assert "of all sandboxes" in other.events[0].reason


async def test_descriptors_sent_by_a_client_do_not_accumulate(tmp_path: pathlib.Path) -> None:
    """Linux 6.16 refuses them and otherwise they are closed; a plain socket accepts them."""
    our_end, their_end = socket.socketpair()
    with our_end, their_end, (tmp_path / "file").open("wb") as file:
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [file.fileno()]))]
        assert our_end.sendmsg([b"x"], ancillary) == 1
        async with ProxyHarness(tmp_path) as proxy_harness:
            run = await proxy_harness.open()
            before = open_descriptors()
            with connect(run.path) as sending:
                try:
                    for byte in b"CONNECT":
                        sending.sendmsg([bytes([byte])], ancillary)
                    is_refused = False
                except PermissionError as error:
                    is_refused = error.errno == errno.EPERM
                sending.send(b" a.test:1 HTTP/1.1\r\n\r\n")
                await eventually(lambda: run.events)
                assert open_descriptors() <= before + 2
            assert is_refused or run.events[0].host == "a.test"
            assert is_refused or not kernel_can_refuse()


def kernel_can_refuse() -> bool:
    with socket.socket(socket.AF_UNIX) as sock, contextlib.suppress(OSError):
        return sock.getsockopt(socket.SOL_SOCKET, 83) == 1  # SO_PASSRIGHTS
    return False
