"""Ways past the proxy, tried from a network namespace whose only way out is a relay.

Each attack is shown to be real: without the proxy, or with the endpoint listed, the attempt works.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pathlib
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from ramet.host.egress.connection import ProxyLimits
from ramet.host.egress.proxy import Proxy
from tests.support.tls import make_certificate
from tests.support.tunnels import OpenProxy, ProxyHarness, Relay, client, server

PROJECT = pathlib.Path(__file__).parents[2]
NAMES = {"localhost": ["127.0.0.1"], "other.localhost": ["127.0.0.1"], "evil.test": ["127.0.0.1"]}
PRIVATE = ("127.0.0.0/8",)

#: Becomes the command that follows, in a network of its own whose only way out is a relay to the socket named first.
CAGE = """
import fcntl, os, socket, struct, sys
from ramet.guest import proxy_forwarder as relay
with socket.socket() as sock:
    fcntl.ioctl(sock, 0x8914, struct.pack("16sh", b"lo", 0x1 | 0x40))  # SIOCSIFFLAGS: up, running
listener = relay.listen()
parent = os.getpid()
if not os.fork():
    relay.serve(listener, sys.argv[1], parent=parent)
listener.close()
url = f"http://{relay.HOST}:{relay.PORT}"
proxies = {name: url for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")}
os.execve(sys.argv[2], sys.argv[2:], {**os.environ, **proxies})
"""


def skip_without_namespaces() -> None:
    """Skip where an ordinary process gets no network of its own."""
    probe = [shutil.which("unshare") or "false", "-Urn", "true"]
    if subprocess.run(probe, capture_output=True, timeout=180).returncode:
        pytest.skip("user namespaces are off here: there is no cage to try from")


async def run(*command: str, env: dict[str, str] | None = None) -> tuple[int, str]:
    """Return the exit status and the output of a command."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, **(env or {})},
    )
    async with asyncio.timeout(180):
        output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode()


async def run_in_cage(path: pathlib.Path, *command: str, env: dict[str, str] | None = None) -> tuple[int, str]:
    """Run a command in the cage whose way out is the proxy at `path`. Return its exit status and output."""
    return await run("unshare", "-Urn", sys.executable, "-c", CAGE, str(path), *command, env=env)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Make a certificate for localhost and other.localhost."""
    return make_certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture
async def web(certificate: pathlib.Path) -> AsyncIterator[int]:
    """Start a web server that answers for any name, and return its port."""

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    async with server(speak, tls=context) as port:
        yield port


@pytest.fixture
async def house(tmp_path: pathlib.Path) -> AsyncIterator[ProxyHarness]:
    """Make a proxy."""
    async with ProxyHarness(tmp_path, names=NAMES, private=PRIVATE) as house:
        yield house


CLIENTS = {
    "curl": ["/usr/bin/env", "curl", "-sS", "{url}"],
    "urllib": [
        "-c",
        "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=180).read().decode())",
        "{url}",
    ],
    "httpx": ["-c", "import sys, httpx; print(httpx.get(sys.argv[1], timeout=180).text)", "{url}"],
    "requests": ["-c", "import sys, requests; print(requests.get(sys.argv[1], timeout=180).text)", "{url}"],
}
CLIENTS = {name: argv if argv[0] != "-c" else [sys.executable, *argv] for name, argv in CLIENTS.items()}


@pytest.mark.parametrize("name", CLIENTS)
async def test_common_clients_reach_only_a_listed_endpoint(
    house: ProxyHarness, web: int, certificate: pathlib.Path, name: str
) -> None:
    """Clients need only variables of the environment. Around the proxy they reach no server."""
    skip_without_namespaces()
    if name == "curl" and shutil.which("curl") is None:
        pytest.skip("no curl here")
    url = f"https://localhost:{web}/"
    argv = [part.format(url=url) for part in CLIENTS[name]]
    trust = {key: str(certificate) for key in ("SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE")}
    listed, empty = await house.open(f"localhost:{web}"), await house.open()

    assert (await run(*argv, env=trust))[1].strip() == "hello"
    assert (await run_in_cage(listed.path, *argv, env=trust))[1].strip() == "hello"
    code, output = await run_in_cage(empty.path, *argv, env=trust)
    assert code != 0
    assert "403" in output
    assert [event.status for event in empty.events] == [403]
    no_proxy = {**trust, "NO_PROXY": "*", "no_proxy": "*"}
    assert (await run(*argv, env=no_proxy))[1].strip() == "hello"
    code, output = await run_in_cage(listed.path, *argv, env=no_proxy)
    assert (code != 0, "hello" in output) == (True, False)


async def test_tls_for_a_name_that_is_not_listed_is_cut(
    house: ProxyHarness, web: int, certificate: pathlib.Path
) -> None:
    """Attack 68: the proxy cuts TLS for another name. The server answers for both names without the proxy."""
    skip_without_namespaces()
    if shutil.which("curl") is None:
        pytest.skip("no curl here")
    opened = await house.open(f"localhost:{web}")

    def curl(name: str) -> list[str]:
        over = ["--connect-to", f"{name}:443:localhost:{web}", "--cacert", str(certificate)]
        return ["/usr/bin/env", "curl", "-sS", *over, f"https://{name}/"]

    assert (await run(*curl("other.localhost")))[1] == "hello"
    assert (await run_in_cage(opened.path, *curl("localhost")))[1] == "hello"
    code, output = await run_in_cage(opened.path, *curl("other.localhost"))
    assert (code != 0, "hello" in output) == (True, False)
    assert opened.events[-1].reason == "TLS asks for another server: other.localhost"


def requests(port: int) -> dict[bytes, int]:
    """Return requests of attacks 63 and 64, and plain ones, with the status that each gets."""

    def connect(target: str) -> bytes:
        return f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode()

    return {
        connect(f"localhost:{port}"): 200,
        connect(f"LOCALHOST.:{port}"): 200,
        connect(f"localhost:{port + 1 if port < 65535 else 1}"): 403,
        connect(f"evil.test:{port}"): 403,
        connect(f"127.0.0.1:{port}"): 403,
        connect(f"[::1]:{port}"): 403,
        connect(f"xn--localhst-s0a:{port}"): 403,
        connect(f"localhost.evil.test:{port}"): 403,
        connect(f"localhost@evil.test:{port}"): 400,
        connect(f"evil.test:x@localhost:{port}"): 400,
        connect(f"l%6fcalhost:{port}"): 400,
        connect(f"localhost%00.evil.test:{port}"): 400,
        connect(f"localhost\0.evil.test:{port}"): 400,
        connect(f"localhost {port}"): 400,
        connect(f"localhost\t:{port}"): 400,
        connect(f"localhost\r\nX: y:{port}"): 400,
        connect(f"[localhost]:{port}"): 400,
        connect(f"2130706433:{port}"): 400,
        connect(f"0177.0.0.1:{port}"): 400,
        connect(f"0x7f.1:{port}"): 400,
        connect(f"[::ffff:127.0.0.1%25lo]:{port}"): 400,
        b"\x05\x01\x00": 400,
        b"\x04\x01" + port.to_bytes(2, "big") + b"\x7f\0\0\1\0": 400,
        f"GET http://localhost:{port}/ HTTP/1.1\r\nHost: localhost\r\n\r\n".encode(): 405,
        connect(f"evil.test:{port}").replace(b"evil.test:", b"localhost:", 1).replace(b"Host:", b"Host : "): 400,
        f"CONNECT localhost:{port} HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".encode(): 400,
        b"CONNECT a:1 HTTP/1.1\r\n" + b"A: b\r\n" * 65 + b"\r\n": 431,
    }


async def test_hostile_requests_get_the_same_answer_directly_and_relayed(house: ProxyHarness, web: int) -> None:
    """Attacks 63, 64 and 67: a hostile request through the relay gets the status and event of a direct one."""
    opened = await house.open(f"localhost:{web}")
    async with Relay(opened.path) as relay:
        for request, status in requests(web).items():
            before = len(opened.events)
            async with client(opened.path) as direct:
                direct.writer.write(request)
                assert (request, await direct.status()) == (request, status)
            async with relay.client() as relayed:
                relayed.writer.write(request)
                assert (request, await relayed.status()) == (request, status)
            first, second = opened.events[before:]
            assert first == second
            assert first.is_allowed == (status == 200)


async def test_a_star_gives_no_way_to_private_addresses(tmp_path: pathlib.Path, web: int) -> None:
    """Attacks 55 and 56, through the proxy: `*` reaches no private, metadata or own address, by number or by name."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        with contextlib.suppress(OSError):  # a machine without a network has no such address
            probe.connect(("192.0.2.254", 9))
        own = probe.getsockname()[0]
    private = ["127.0.0.1", "127.8.8.8", own, "0.0.0.0", "169.254.169.254", "10.0.0.1", "224.0.0.1"]
    private6 = ["::1", "::", "::ffff:127.0.0.1", "fe80::1", "fd00:ec2::254", "64:ff9b::7f00:1", "2002:7f00:1::"]
    names = {f"n{at}.test": [address] for at, address in enumerate([*private, *private6])}
    async with ProxyHarness(tmp_path, names=names) as house, server() as port:
        opened, listed = await house.open("*"), await house.open(f"127.0.0.1:{port}")

        assert await listed.ask(f"127.0.0.1:{port}") == 200
        for target in [*private, *(f"[{address}]" for address in private6), *names]:
            assert (target, await opened.ask(f"{target}:{port}")) == (target, 403)


#: A host with a public address of its own and a neighbour with another, in namespaces; prints what the proxy answers.
PUBLIC = """
import asyncio, json, os, pathlib, socket, subprocess, sys
from tests.support.tunnels import ProxyHarness

def ip(*words):
    subprocess.run(["ip", *words], check=True)

async def echo(reader, writer):
    writer.close()

async def main():
    ip("link", "set", "lo", "up")
    neighbour = subprocess.Popen(["unshare", "-n", sys.executable, "-c", '''
import socket, subprocess, sys
print(flush=True)
sys.stdin.readline()
for words in (["link", "set", "v1", "up"], ["addr", "add", "11.0.0.2/24", "dev", "v1"]):
    subprocess.run(["ip", *words], check=True)
with socket.create_server(("11.0.0.2", 80)):
    print(flush=True)
    sys.stdin.read()
'''], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    neighbour.stdout.readline()
    ip("link", "add", "v0", "type", "veth", "peer", "name", "v1", "netns", str(neighbour.pid))
    ip("link", "set", "v0", "up")
    ip("addr", "add", "11.0.0.1/24", "dev", "v0")
    ip("addr", "add", "11.0.0.3/24", "dev", "v0")
    neighbour.stdin.write(b"go\\n")
    neighbour.stdin.flush()
    neighbour.stdout.readline()
    found, names = {}, {"a.test": ["11.0.0.2"], "b.test": ["11.0.0.2", "11.0.0.3"]}
    async with ProxyHarness(pathlib.Path(sys.argv[1]), names=names) as house:
        own = await asyncio.start_server(echo, "0.0.0.0", 80)
        star, listed = await house.open("*"), await house.open("11.0.0.3:80")
        for target in ("11.0.0.2:80", "a.test:80", "11.0.0.1:80", "11.0.0.3:80", "b.test:80"):
            found[target] = await star.ask(target)
        found["listed"] = await listed.ask("11.0.0.3:80")
        own.close()
    neighbour.communicate()
    print(json.dumps(found))

asyncio.run(main())
"""


async def test_a_star_reaches_a_public_address_except_the_hosts_own(tmp_path: pathlib.Path) -> None:
    """The proxy refuses the host's own public addresses for `*`, as it refuses 127.0.0.1. A listed one is reached."""
    skip_without_namespaces()
    if shutil.which("ip") is None:
        pytest.skip("no iproute2 here, which makes the two networks")
    env = {"PYTHONPATH": os.pathsep.join([str(PROJECT), *filter(None, sys.path)])}
    code, output = await run("unshare", "-Urn", sys.executable, "-c", PUBLIC, str(tmp_path), env=env)

    assert code == 0, output
    assert json.loads(output.splitlines()[-1]) == {
        "11.0.0.2:80": 200,
        "a.test:80": 200,
        "11.0.0.1:80": 403,
        "11.0.0.3:80": 403,
        "b.test:80": 403,
        "listed": 200,
    }


@pytest.fixture
def flood(house: ProxyHarness) -> Iterator[Any]:
    """Return a function that opens as many half-open requests to a proxy as the proxy takes."""
    with contextlib.ExitStack() as open_:

        def open_many(opened: OpenProxy, count: int) -> int:
            taken = 0
            for _ in range(count):
                sock = open_.enter_context(socket.socket(socket.AF_UNIX))
                sock.setblocking(False)
                with contextlib.suppress(BlockingIOError):  # The queue of the kernel is full.
                    sock.connect(str(opened.path))
                    sock.send(b"CONNECT ")
                    taken += 1
            return taken

        yield open_many


async def test_a_thousand_half_open_requests_slow_only_their_own_run(house: ProxyHarness, web: int, flood: Any) -> None:
    """Attack 69: the proxy accepts fewer than 200 of 2,000 half-open requests. Another run's requests are answered."""
    target = f"localhost:{web}"
    attacker, other = await house.open(target), await house.open(target)
    assert await attacker.ask(target) == 200

    taken = flood(attacker, 1000)
    answers = [await other.ask(target) for _ in range(50)]
    taken += flood(attacker, 1000)

    assert answers == [200] * 50
    assert 16 <= taken < 200
    assert len(attacker.events) == 1


async def test_slow_requests_end_at_the_deadline_of_a_header(tmp_path: pathlib.Path, web: int) -> None:
    """Attack 69: the proxy ends a slow request with 408, so that the attacker's own proxy answers again."""
    target = f"localhost:{web}"
    limits = ProxyLimits(header_s=0.1, burst=1000)
    async with ProxyHarness(tmp_path, names=NAMES, private=PRIVATE, limits=limits) as house:
        opened = await house.open(target)
        with contextlib.ExitStack() as slow:
            for _ in range(40):
                sock = slow.enter_context(socket.socket(socket.AF_UNIX))
                sock.connect(str(opened.path))
                sock.send(b"CONNECT ")
            assert await opened.ask(target) == 200

    assert [event.status for event in opened.events].count(408) >= 24


async def test_one_run_gets_at_most_64_tunnels(tmp_path: pathlib.Path) -> None:
    """A run gets 64 of 1,000 tunnels and a refusal for each other one. Another run still gets a tunnel."""
    limits = ProxyLimits(burst=10_000)
    async with server() as port, ProxyHarness(tmp_path, limits=limits) as house:
        target = f"127.0.0.1:{port}"
        attacker, other = await house.open(target), await house.open(target)
        async with contextlib.AsyncExitStack() as open_:
            answers = []
            for _ in range(1000):
                asking = await open_.enter_async_context(client(attacker.path))
                answers.append(await asking.ask(target))
            assert await other.ask(target) == 200

    assert answers == [200] * 64 + [503] * 936


async def test_no_header_gives_a_run_the_rights_of_another(house: ProxyHarness, web: int) -> None:
    """Attack 70: the proxy knows a run by its socket, and does not read headers about the run."""
    target = f"localhost:{web}"
    rich, poor = await house.open(target), await house.open("evil.test:1")
    fields = [
        "Proxy-Authorization: Basic cmljaDpyaWNo",
        f"X-Run: {rich.path}",
        "Forwarded: for=rich",
        f"Host: {target}",
    ]
    request = f"CONNECT {target} HTTP/1.1\r\n" + "".join(f"{field}\r\n" for field in fields) + "\r\n"
    for opened, status in ((rich, 200), (poor, 403)):
        async with client(opened.path) as asking:
            asking.writer.write(request.encode())
            assert await asking.status() == status


@pytest.fixture
def open_folder() -> Iterator[pathlib.Path]:
    """Make a folder through which every user may pass."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder)
        path.chmod(0o711)
        yield path


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two other users")
async def test_another_user_cannot_open_the_socket(open_folder: pathlib.Path) -> None:
    """Attack 70, on the host's side of the mount: a process of another uid cannot connect to the proxy's socket."""
    connect = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"
    path, proxy, found = open_folder / "s", Proxy(), {}
    await proxy.open(path, (), owner=(60_700, 60_700), on_event=lambda event: None)
    for uid in (60_700, 60_701):
        become = ["setpriv", "--reuid", str(uid), "--regid", str(uid), "--clear-groups"]
        found[uid] = await run(*become, "/usr/bin/env", "python3", "-I", "-c", connect, str(path))
    await proxy.close()

    assert found[60_700][0] == 0, found
    assert "PermissionError" in found[60_701][1]
