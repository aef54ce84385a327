"""Decisions of the proxy: which targets it allows, at which address, and the events that it reports."""

from __future__ import annotations

import asyncio
import os
import pathlib
import socket
import stat
import threading

import pytest

from ramet.core.errors import InvalidValue
from ramet.host.egress.connection import ProxyDecision, ProxyLimits
from ramet.host.egress.proxy import Proxy
from tests.support.tunnels import ProxyHarness, client, server

LOOPBACK = ("127.0.0.0/8",)


async def test_a_listed_address_is_reached(tmp_path: pathlib.Path) -> None:
    """Bytes pass in both directions and are counted; one event is reported."""
    async with server() as port, ProxyHarness(tmp_path) as proxy_harness:
        run = await proxy_harness.open(f"127.0.0.1:{port}")
        async with client(run.path) as tunnel:
            assert await tunnel.ask(f"127.0.0.1:{port}", first=b"early ") == 200
            await tunnel.send(b"late")
            assert await tunnel.reader.readexactly(10) == b"early late"
            assert run.door.received_bytes == 10
            assert run.door.sent_bytes > 10

    assert run.events == [ProxyDecision(True, "127.0.0.1", port, "", 200)]


async def test_an_unlisted_name_is_refused_without_a_lookup(tmp_path: pathlib.Path) -> None:
    """A lookup alone could carry data out in the name."""
    async with ProxyHarness(tmp_path, names={"listed.test": ["127.0.0.1"]}, private=LOOPBACK) as proxy_harness:
        run = await proxy_harness.open("listed.test:1", "*.wild.test:443")
        targets = ["secret.listed.test:1", "listed.test:2", "wild.test:443", "a.wild.test:80", "127.0.0.1:1", "[::1]:1"]

        assert [await run.ask(target) for target in targets] == [403] * 6

    assert proxy_harness.looked_up == []
    assert [f"{event.host}:{event.port}" for event in run.events] == [*targets[:5], "::1:1"]
    assert not any(event.is_allowed for event in run.events)
    assert "not in the list" in run.events[0].reason


async def test_an_empty_list_allows_nothing(tmp_path: pathlib.Path) -> None:
    """A list of an empty text allows nothing either."""
    async with server() as port, ProxyHarness(tmp_path) as proxy_harness:
        for endpoints in ((), ("",)):
            run = await proxy_harness.open(*endpoints)
            assert await run.ask(f"127.0.0.1:{port}") == 403


@pytest.mark.parametrize(
    ("addresses", "says"),
    [
        (["127.0.0.1"], "127.0.0.1: its address is not public"),
        (["93.184.215.14", "10.0.0.1"], "10.0.0.1: its address is not public"),
        (["::ffff:93.184.215.14"], "its address is not public"),
        (["169.254.169.254"], "its address is not public"),
        (["64:ff9b::7f00:1"], "its address is not public"),
    ],
)
async def test_a_name_that_leads_to_a_private_address_is_refused(
    tmp_path: pathlib.Path, addresses: list[str], says: str
) -> None:
    """One private address among public ones is enough; a wildcard does not allow it either."""
    async with ProxyHarness(tmp_path, names={"a.test": addresses}) as proxy_harness:
        for endpoint in ("a.test:443", "*.test:443", "*"):
            run = await proxy_harness.open(endpoint)
            assert await run.ask("a.test:443") == 403
            assert says in run.events[0].reason


async def test_localhost_is_refused_even_if_it_is_listed(tmp_path: pathlib.Path) -> None:
    """The machine's own resolver answers."""
    events: list[ProxyDecision] = []
    async with server() as port:
        proxy, path = Proxy(), tmp_path / "s"
        run_proxy = await proxy.open(path, (f"localhost:{port}",), owner=None, on_event=events.append)
        async with client(path) as asking:
            assert await asking.ask(f"localhost:{port}") == 403
        await run_proxy.close()

    assert events[0].host == "localhost"


async def test_a_wildcard_allows_no_private_address(tmp_path: pathlib.Path) -> None:
    """A private network that the operator allows counts for listed names only."""
    names = {"a.test": ["127.0.0.1"]}
    async with server() as port, ProxyHarness(tmp_path, names=names, private=LOOPBACK) as proxy_harness:
        star, named_proxy = await proxy_harness.open("*"), await proxy_harness.open("*", f"a.test:{port}")

        assert [await star.ask(f"a.test:{port}"), await star.ask(f"127.0.0.1:{port}")] == [403, 403]
        assert [await named_proxy.ask(f"127.0.0.1:{port}"), await named_proxy.ask(f"a.test:{port}")] == [403, 200]


async def test_a_name_is_looked_up_once_per_connection(tmp_path: pathlib.Path) -> None:
    """The connection goes to the checked address: a resolver that changes its answer has no effect."""

    def rebinding(host: str, port: int) -> list[str]:
        answers.append(host)
        return ["127.0.0.1"] if len(answers) == 1 else ["127.0.0.2"]

    answers: list[str] = []
    async with server() as port:
        proxy, path = Proxy(lookup=rebinding, private_networks=["127.0.0.1/32"]), tmp_path / "s"
        await proxy.open(path, (f"a.test:{port}",), owner=None, on_event=lambda event: None)
        async with client(path) as first, client(path) as second:
            assert await first.ask(f"a.test:{port}") == 200
            assert len(answers) == 1
            assert await second.ask(f"a.test:{port}") == 403
        await proxy.close()


async def test_a_silent_address_is_followed_by_the_next(tmp_path: pathlib.Path) -> None:
    """An address of the other family is tried too, however many there are of the first."""
    dead6 = [f"::{number}" for number in range(1, 9)]
    names = {"a.test": ["127.0.0.9", "127.0.0.1"], "b.test": [*dead6, "127.0.0.1"]}
    async with server() as port, ProxyHarness(tmp_path, names=names, private=(*LOOPBACK, "::/96")) as proxy_harness:
        run = await proxy_harness.open(f"a.test:{port}", f"b.test:{port}")

        assert [await run.ask(f"{name}:{port}") for name in names] == [200, 200]


async def test_a_failed_connection_is_reported_after_its_permission(tmp_path: pathlib.Path) -> None:
    """The status is 502 if nothing listens, the name has no address, or the name is unknown."""

    def look_up(host: str, port: int) -> list[str]:
        if host == "empty.test":
            return []
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    events: list[ProxyDecision] = []
    with socket.socket() as unused_socket:
        unused_socket.bind(("127.0.0.1", 0))
        port = unused_socket.getsockname()[1]
        proxy, path = Proxy(lookup=look_up), tmp_path / "s"
        await proxy.open(path, (f"127.0.0.1:{port}", "*"), owner=None, on_event=events.append)
        for target in (f"127.0.0.1:{port}", "unknown.test:1", "empty.test:1"):
            async with client(path) as asking:
                assert await asking.ask(target) == 502
        await proxy.close()

    assert [(event.is_allowed, event.status) for event in events] == [
        (True, 200),
        (False, 502),
        (False, 502),
        (False, 502),
    ]
    assert "Connection refused" in events[1].reason


async def test_a_server_that_does_not_answer_gets_504(tmp_path: pathlib.Path) -> None:
    """The events say that the connection was allowed and then failed."""
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        port = deaf.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):  # Its queue is full: the next one's SYN is not answered.
            async with ProxyHarness(tmp_path, limits=ProxyLimits(connect_s=0.05)) as proxy_harness:
                run = await proxy_harness.open(f"127.0.0.1:{port}")

                assert await run.ask(f"127.0.0.1:{port}") == 504

    assert [event.is_allowed for event in run.events] == [True, False]


async def test_a_stuck_lookup_delays_only_its_own_run(tmp_path: pathlib.Path) -> None:
    """Lookups beyond the threads of asyncio hang, and another run's lookup is answered."""
    release = threading.Event()

    def look_up(host: str, port: int) -> list[str]:
        if host == "stuck.test":
            release.wait()
        return ["127.0.0.1"]

    proxy = Proxy(lookup=look_up, private_networks=LOOPBACK, limits=ProxyLimits(connect_s=0.05))
    try:
        async with server() as port:
            stuck, free = tmp_path / "stuck", tmp_path / "free"
            await proxy.open(stuck, ("*",), owner=None, on_event=lambda event: None)
            proxy._limits = ProxyLimits(connect_s=60)  # A lookup that is answered may take its time.
            await proxy.open(free, (f"a.test:{port}",), owner=None, on_event=lambda event: None)

            async def ask_stuck() -> int:
                async with client(stuck) as asking:
                    return await asking.ask("stuck.test:1")

            assert set(await asyncio.gather(*(ask_stuck() for _ in range(60)))) == {504}
            assert sum(thread.name == "ramet-lookup" for thread in threading.enumerate()) <= 8
            async with client(free) as asking:
                assert await asking.ask(f"a.test:{port}") == 200
    finally:
        release.set()
        await proxy.close()


async def test_a_connection_that_cannot_be_recorded_is_not_made(tmp_path: pathlib.Path) -> None:
    """A failing journal ends the connection before the target is reached."""
    ports_reached: list[int] = []

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ports_reached.append(1)

    def fail(event: ProxyDecision) -> None:
        raise RuntimeError("the journal is full")

    exceptions: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: exceptions.append(context.get("exception")))
    async with server(speak) as port:
        proxy, path = Proxy(), tmp_path / "s"
        await proxy.open(path, (f"127.0.0.1:{port}",), owner=None, on_event=fail)
        async with client(path) as asking:
            asking.writer.write(f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\n".encode())
            assert await asking.rest() == b""
        await proxy.close()

    assert ports_reached == []


async def test_a_plain_http_request_is_refused_with_405(tmp_path: pathlib.Path) -> None:
    """The answer says to use CONNECT; the event names no host."""
    async with ProxyHarness(tmp_path) as proxy_harness:
        run = await proxy_harness.open("example.org:80")
        async with client(run.path) as asking:
            await asking.send(b"GET http://example.org/ HTTP/1.1\r\nHost: example.org\r\n\r\n")
            answer = await asking.rest()

    assert answer.startswith(b"HTTP/1.1 405 ")
    assert b"use CONNECT" in answer
    assert [(event.is_allowed, event.host, event.status) for event in run.events] == [(False, "", 405)]


async def test_a_client_that_leaves_before_its_request_makes_no_event(tmp_path: pathlib.Path) -> None:
    """Nothing was decided."""
    async with ProxyHarness(tmp_path) as proxy_harness:
        run = await proxy_harness.open("*")
        async with client(run.path) as asking:
            await asking.send(b"CONNECT exam")
            asking.writer.write_eof()
            assert await asking.rest() == b""

    assert run.events == []


async def test_only_the_owner_can_open_the_socket(tmp_path: pathlib.Path) -> None:
    """The mode is 0600 under any umask, and the owner is set where the process may do so."""
    old = os.umask(0)
    try:
        proxy = Proxy()
        owner = (60700, 60700) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
        await proxy.open(tmp_path / "s", (), owner=owner, on_event=lambda event: None)
    finally:
        os.umask(old)
    status = (tmp_path / "s").stat()
    await proxy.close()

    assert stat.S_IMODE(status.st_mode) == 0o600
    assert (status.st_uid, status.st_gid) == owner


async def test_a_closed_door_can_be_opened_again(tmp_path: pathlib.Path) -> None:
    """Tunnels are cut and the file is removed; a second close does not affect the new door."""
    async with server() as port:
        proxy, path = Proxy(), tmp_path / "s"
        endpoints = (f"127.0.0.1:{port}",)
        first = await proxy.open(path, endpoints, owner=None, on_event=lambda event: None)
        with pytest.raises(InvalidValue, match="at which no proxy is open"):
            await proxy.open(path, (), owner=None, on_event=lambda event: None)
        async with client(path) as tunnel:
            assert await tunnel.ask(f"127.0.0.1:{port}") == 200
            await first.close()
            assert await tunnel.rest() == b""
        assert not path.exists()
        await proxy.open(path, endpoints, owner=None, on_event=lambda event: None)
        await first.close()
        async with client(path) as tunnel:
            assert await tunnel.ask(f"127.0.0.1:{port}") == 200
        await proxy.close()
        await proxy.close()
    assert not path.exists()


async def test_a_socket_left_by_a_dead_kernel_is_replaced(tmp_path: pathlib.Path) -> None:
    """A file that is not a socket is not replaced."""
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "s"))
    (tmp_path / "file").write_text("mine")
    proxy = Proxy()

    await proxy.open(tmp_path / "s", (), owner=None, on_event=lambda event: None)
    with pytest.raises(OSError, match="in use"):
        await proxy.open(tmp_path / "file", (), owner=None, on_event=lambda event: None)
    await proxy.close()

    assert (tmp_path / "file").read_text() == "mine"


async def test_a_path_may_be_longer_than_the_address_of_a_socket(tmp_path: pathlib.Path) -> None:
    """Paths below a working directory may be that long."""
    deep = tmp_path / ("a" * 100) / ("b" * 100)
    deep.mkdir(parents=True)
    proxy = Proxy()

    await proxy.open(deep / "proxy.sock", (), owner=None, on_event=lambda event: None)

    (tmp_path / "short").symlink_to(deep)  # What binds it into a sandbox gives it a short path, too.
    async with client(tmp_path / "short" / "proxy.sock") as asking:
        assert await asking.ask("example.org:443") == 403
    await proxy.close()
    assert not (deep / "proxy.sock").exists()


def test_an_invalid_private_network_is_refused() -> None:
    """The error names the setting and the accepted form."""
    with pytest.raises(InvalidValue, match="private_networks"):
        Proxy(private_networks=["10.1.0.1/16"])
