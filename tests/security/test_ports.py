"""Ports of agents give nothing to a hostile guest, to another run, or to a hostile folder."""

from __future__ import annotations

import asyncio
import os
import pathlib
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest

import ramet
from ramet.core.errors import Gone, InvalidValue, SandboxFailed
from ramet.host.egress.connection import ProxyQuota
from ramet.host.sandbox.handle import AgentHandle
from ramet.host.sandbox.run_ports import PortLimits, PortRefused, RunPorts
from ramet.isolation.zygote.sandbox import ForkedSandbox
from tests.support.serving import short_folder
from tests.support.waiting import eventually
from tests.trips.agents import listening as agents
from tests.trips.kits.ports import WAIT_S, backend, get_body_at_socket, read_to_end, runtime, start_serving

__all__ = ["backend", "runtime"]

PORTS = {"web": 8000}
CONNECT_AS = """\
import os, socket, sys
user = int(sys.argv[2])
os.setgroups([]), os.setgid(user), os.setuid(user)
socket.socket(socket.AF_UNIX).connect(sys.argv[1])
"""
ONE_PORT = """\
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
if libc.setns(os.open(f"/proc/{sys.argv[1]}/ns/net", os.O_RDONLY), 0):
    raise OSError(ctypes.get_errno(), "setns")
open("/proc/sys/net/ipv4/ip_local_port_range", "w").write(f"{sys.argv[2]} {sys.argv[2]}")
"""
MUCH = 32 << 20  #: bytes: far more than may be on their way to a client that reads nothing


def open_ports(
    handle: AgentHandle,
    folder: pathlib.Path,
    limits: PortLimits | None = None,
    most: int = 1000,
    quota: ProxyQuota | None = None,
) -> RunPorts:
    """Open the ports of an agent again, in another folder, with limits that a test can reach."""
    sandbox = handle._handle.run.sandbox.current
    assert sandbox is not None
    return RunPorts.open(sandbox, PORTS, folder, limits=limits, quota=quota or ProxyQuota(most))


def user_of(pid: int) -> int:
    """Return the uid that a process runs as."""
    return pathlib.Path(f"/proc/{pid}").stat().st_uid


def is_zombie(pid: int) -> bool:
    """Return whether a process has died and is not reaped yet."""
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def descriptors() -> int:
    """Return the number of descriptors that this process has open."""
    return len(list(pathlib.Path("/proc/self/fd").iterdir()))


async def connect_until_refused(ports: RunPorts) -> None:
    """Connect again and again, until a connection is refused."""
    while True:
        await ports.connect("web")


@pytest.fixture
async def folder() -> AsyncIterator[pathlib.Path]:
    """Make a folder with a short name."""
    with short_folder() as path:
        yield path


async def test_another_run_reaches_neither_the_socket_nor_the_port(runtime: ramet.AgentRuntime) -> None:
    """Another run reaches neither the socket by its path, nor the port by its number."""
    handle = await start_serving(runtime, agents.greet, PORTS, 8000, "hello")
    path = str(await handle.port("web"))

    for policy in (ramet.Policy(), ramet.Policy(ports={"web": 8000})):
        tried = await runtime.run_agent(agents.reach, policy, (path, 8000))
        assert tried.status == "completed"
        assert "reached" not in tried.output.values(), tried.output


async def test_a_run_with_ports_reaches_no_service_by_them(runtime: ramet.AgentRuntime) -> None:
    """A run reaches neither a service of the host on the same port number, nor a socket of ports by its path."""
    with socket.create_server(("127.0.0.1", 0)) as service:
        port = service.getsockname()[1]
        control = agents.reach("", port)
        assert control["loopback"] == "reached"

        tried = await runtime.run_agent(agents.reach, ramet.Policy(ports={"web": port}), ("/run/ramet/x.sock", port))

        assert tried.status == "completed"
        assert "reached" not in tried.output.values(), tried.output


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
async def test_another_user_cannot_connect(runtime: ramet.AgentRuntime) -> None:
    """Neither `nobody` nor the user of sandboxes can connect to the socket of a port."""
    handle = await start_serving(runtime, agents.greet, PORTS, 8000, "hello")
    socket_path = await handle.port("web")
    for above in list(socket_path.parents)[1:5]:  # Only the folder of the sockets is to stand between.
        await asyncio.to_thread(above.chmod, 0o755)
    path, sandbox = str(socket_path), handle._handle.run.sandbox.current
    assert sandbox is not None
    users = {65534, await asyncio.to_thread(user_of, sandbox.pid)} - {0}

    for user in users:
        tried = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", CONNECT_AS, path, str(user)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert "PermissionError" in tried.stderr


async def test_a_flood_waits_for_its_client_and_other_runs_go_on(runtime: ramet.AgentRuntime) -> None:
    """A guest cannot send bytes that its client does not read. Other runs are spawned, work and end meanwhile."""
    handle = await start_serving(runtime, agents.flood, PORTS, 8000, MUCH, cpu_cores=64.0)
    path, folder = str(await handle.port("web")), handle._handle.run.sandbox.folder
    assert folder is not None
    floods = [await asyncio.open_unix_connection(path, limit=1), await handle.connect("web")]
    for _, writer in floods:
        writer.transport.pause_reading()  # type: ignore[attr-defined]

    def there(prefix: str) -> int:
        return len(list(folder.workspace.glob(f"{prefix}-*")))

    await eventually(lambda: there("begun") == 2, within_s=WAIT_S)
    for number in range(20):
        assert (await runtime.run_agent(abs, args=(-number,))).output == number

    assert there("done") == 0
    for _, writer in floods:
        writer.transport.resume_reading()  # type: ignore[attr-defined]
    reader, _ = floods[0]
    async with asyncio.timeout(WAIT_S):
        for _ in range(MUCH >> 16):
            await reader.readexactly(1 << 16)
    await eventually(lambda: there("done") >= 1, within_s=WAIT_S)
    for _, writer in floods:
        writer.transport.abort()


async def test_a_client_that_reads_a_flood_does_not_block_other_runs(runtime: ramet.AgentRuntime) -> None:
    """The kernel passes on bytes in pieces, and does other work between two pieces."""
    handle = await start_serving(runtime, agents.flood, PORTS, 8000, 1 << 40)
    reader, writer = await asyncio.open_unix_connection(str(await handle.port("web")))
    taken = 0

    async def take() -> None:
        nonlocal taken
        while data := await reader.read(1 << 20):
            taken += len(data)

    taking = asyncio.ensure_future(take())
    for number in range(3):
        assert (await runtime.run_agent(abs, args=(-number,))).output == number
    taking.cancel()
    writer.transport.abort()

    assert taken > 0


async def test_a_guest_that_hangs_up_leaves_no_descriptor(runtime: ramet.AgentRuntime) -> None:
    """Each client sees the end of its connection, no descriptor stays open, and another agent serves its client."""
    handle = await start_serving(runtime, agents.hang_up, PORTS, 8000)
    path = str(await handle.port("web"))

    async def once() -> None:
        reader, writer = await asyncio.open_unix_connection(path)
        assert await read_to_end(reader) == b""
        writer.close()

    await once()
    before = descriptors()
    for _ in range(5):
        await asyncio.gather(*(once() for _ in range(40)))

    await eventually(lambda: descriptors() <= before, within_s=WAIT_S)
    other = await start_serving(runtime, agents.greet, PORTS, 8000, "hello")
    assert await get_body_at_socket(await other.port("web")) == "hello /"


async def test_a_guest_that_never_answers_loses_its_client_in_time(
    runtime: ramet.AgentRuntime, folder: pathlib.Path
) -> None:
    """The host cuts a connection when no byte has passed for `idle_s`."""
    handle = await start_serving(runtime, agents.keep_silent, PORTS, 8000)
    ports = open_ports(handle, folder / "ports", PortLimits(idle_s=0.2))
    try:
        reader, writer = await asyncio.open_unix_connection(str(ports.path("web")))
        writer.write(b"is anybody there?")
        assert await read_to_end(reader) == b""
        writer.close()
    finally:
        await ports.close()


async def test_a_connection_that_the_guest_does_not_accept_ends_in_time(
    runtime: ramet.AgentRuntime, folder: pathlib.Path
) -> None:
    """The host ends a connection that the guest does not accept within `connect_s`; an own one raises `PortRefused`."""
    handle = await start_serving(runtime, agents.take_nobody, PORTS, 8000)
    ports = open_ports(handle, folder / "ports", PortLimits(connect_s=0.2))
    try:
        with pytest.raises(PortRefused, match=r"accepted no connection within 0\.2 s"):  # Its queue holds one or two.
            await connect_until_refused(ports)
        reader, writer = await asyncio.open_unix_connection(str(ports.path("web")))
        assert await read_to_end(reader) == b""
        writer.close()
    finally:
        await ports.close()


async def test_a_client_that_left_frees_its_connection(runtime: ramet.AgentRuntime, folder: pathlib.Path) -> None:
    """A guest that never closes or reads holds no connection of a client that has left."""
    handle = await start_serving(runtime, agents.keep_silent, PORTS, 8000)
    quota = ProxyQuota(1000)
    for size in (1, 4 << 20):
        ports = open_ports(handle, folder / "ports", PortLimits(connections=2, drain_s=0.2), quota=quota)
        try:
            path = str(ports.path("web"))
            for _ in range(3):  # The third one waits for one of the first two.
                _, writer = await asyncio.open_unix_connection(path)
                writer.write(bytes(size))
                await eventually(lambda: quota.used_count > 0, within_s=WAIT_S)
                writer.transport.abort()
            await eventually(lambda: quota.used_count == 0, within_s=WAIT_S)
        finally:
            await ports.close()


async def test_a_client_that_ends_only_its_side_is_answered(runtime: ramet.AgentRuntime, folder: pathlib.Path) -> None:
    """A client that has sent an end of file still gets its answer."""
    handle = await start_serving(runtime, agents.answer_at_the_end, PORTS, 8000)
    ports = open_ports(handle, folder / "ports", PortLimits(drain_s=0.0))
    port = await ports.loopback_port("web")
    try:
        path = str(ports.path("web"))
        for opening in (asyncio.open_unix_connection(path), asyncio.open_connection("127.0.0.1", port)):
            reader, writer = await opening
            writer.write(b"question")
            writer.write_eof()
            assert await read_to_end(reader) == b"8 bytes"
            writer.close()
    finally:
        await ports.close()


async def test_a_connection_to_itself_is_refused(runtime: ramet.AgentRuntime, folder: pathlib.Path) -> None:
    """A connection is refused where the guest leaves TCP no source port except the port itself."""
    handle = await start_serving(runtime, agents.idle, {"web": 40000})
    sandbox = handle._handle.run.sandbox.current
    assert sandbox is not None
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", ONE_PORT, str(sandbox.pid), "40000"], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip(f"its network cannot be entered: {done.stderr.decode()[-200:]}")

    for _ in range(3):
        with pytest.raises(PortRefused, match="nothing listens"):
            await handle.connect("web")


async def test_a_connection_to_a_dead_agent_raises_gone(runtime: ramet.AgentRuntime) -> None:
    """A connection to an agent that died raises `Gone`, also before the agent's zygote reports the death."""
    handle = await start_serving(runtime, agents.echo, PORTS, 8000)
    sandbox = handle._handle.run.sandbox.current
    assert isinstance(sandbox, ForkedSandbox)
    zygote = sandbox._zygote.pid
    os.kill(zygote, signal.SIGSTOP)
    try:
        os.kill(sandbox.pid, signal.SIGKILL)
        await eventually(lambda: is_zombie(sandbox.pid), within_s=WAIT_S)
        connecting = asyncio.ensure_future(handle.connect("web"))
        await eventually(lambda: bool(sandbox._zygote._sockets), within_s=WAIT_S)
    finally:
        os.kill(zygote, signal.SIGCONT)

    async with asyncio.timeout(WAIT_S):
        with pytest.raises(Gone):
            await connecting


async def test_a_host_without_a_free_descriptor_refuses_and_recovers(runtime: ramet.AgentRuntime) -> None:
    """A connection without a free descriptor raises an error that names descriptors. The next connection works."""
    handle = await start_serving(runtime, agents.echo, PORTS, 8000)
    sandbox = handle._handle.run.sandbox.current
    assert sandbox is not None
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, before[1]))
    try:
        async with asyncio.timeout(WAIT_S):
            with pytest.raises(SandboxFailed, match="descriptor"):
                await sandbox.dial(8000)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)

    (await sandbox.dial(8000)).close()


def test_connections_of_all_runs_take_at_most_an_eighth_of_the_descriptors(runtime: ramet.AgentRuntime) -> None:
    """Each connection takes up to two, so that three quarters stay for the rest of the process."""
    assert runtime.sandboxes.port_quota.limit == resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 8


async def test_a_run_with_ports_has_no_syn_cookies(runtime: ramet.AgentRuntime) -> None:
    """SYN cookies are off. With them a connection that a full queue drops would look open to the host."""
    handle = await runtime.start_agent(agents.setting, ramet.Policy(ports=PORTS), ("tcp_syncookies",))

    assert (await handle.result()).output == "0"


async def test_connections_of_a_run_are_bounded(runtime: ramet.AgentRuntime, folder: pathlib.Path) -> None:
    """A client above the limit waits until another connection ends. An own connection above the limit is refused."""
    handle = await start_serving(runtime, agents.echo, PORTS, 8000)
    ports = open_ports(handle, folder / "ports", PortLimits(connections=2))
    try:
        path = str(ports.path("web"))
        clients = [await asyncio.open_unix_connection(path) for _ in range(3)]
        for _, writer in clients:
            writer.write(b"x")
        async with asyncio.timeout(WAIT_S):
            for reader, _ in clients[:2]:
                assert await reader.readexactly(1) == b"x"
        waits = asyncio.ensure_future(clients[2][0].readexactly(1))
        clients[0][1].write(b"y")
        assert await clients[0][0].readexactly(1) == b"y"
        assert not waits.done()
        clients[0][1].close()
        async with asyncio.timeout(WAIT_S):
            assert await waits == b"x"

        mine = [await ports.connect("web") for _ in range(2)]
        with pytest.raises(PortRefused, match="2 connections"):
            await ports.connect("web")
        mine[0][1].close()
        mine.append(await ports.connect("web"))
    finally:
        await ports.close()
    for reader, writer in (*clients[1:], *mine[1:]):
        assert await read_to_end(reader) == b""
        writer.close()


async def test_connections_of_all_runs_are_bounded(runtime: ramet.AgentRuntime, folder: pathlib.Path) -> None:
    """The host closes a connection at once where the process has no room for one more."""
    handle = await start_serving(runtime, agents.echo, PORTS, 8000)
    ports = open_ports(handle, folder / "ports", most=0)
    try:
        reader, writer = await asyncio.open_unix_connection(str(ports.path("web")))
        assert await read_to_end(reader) == b""
        writer.close()
    finally:
        await ports.close()


@pytest.mark.parametrize("planted", ["link", "link to a socket", "link to nothing", "file", "folder"])
async def test_a_file_in_place_of_a_socket_is_neither_used_nor_removed(
    runtime: ramet.AgentRuntime, folder: pathlib.Path, planted: str
) -> None:
    """The error names the port and the path. The file, folder or link, and a link's target, stay as they are."""
    handle = await start_serving(runtime, agents.greet, PORTS, 8000, "hello")
    (folder / "ports").mkdir()
    path, target = folder / "ports" / "web.sock", folder / "target"
    with socket.socket(socket.AF_UNIX) as other:
        if planted == "link to a socket":
            other.bind(str(target))
        elif planted == "link":
            target.write_text("mine")
        if planted == "file":
            path.write_text("mine")
        elif planted == "folder":
            path.mkdir()
        else:
            path.symlink_to(target)
        before = path.lstat()

        with pytest.raises(InvalidValue, match=r"remove the existing file") as refused:
            open_ports(handle, folder / "ports")

        assert (refused.value.field, refused.value.value) == ("ports.web", str(path))
        assert path.lstat() == before
        assert target.exists() == (planted in ("link", "link to a socket"))


async def test_a_link_in_place_of_the_folder_is_not_followed(runtime: ramet.AgentRuntime, folder: pathlib.Path) -> None:
    """The host makes no file in the target of a link, and does not change the target's mode."""
    handle = await start_serving(runtime, agents.greet, PORTS, 8000, "hello")
    (folder / "elsewhere").mkdir(mode=0o755)
    (folder / "ports").symlink_to(folder / "elsewhere")

    with pytest.raises(SandboxFailed):
        open_ports(handle, folder / "ports")

    assert list((folder / "elsewhere").iterdir()) == []
    assert (folder / "elsewhere").stat().st_mode & 0o777 == 0o755


async def test_a_file_that_replaced_a_socket_is_not_removed(runtime: ramet.AgentRuntime, folder: pathlib.Path) -> None:
    """Close removes only a socket. Open replaces a dead kernel's socket, and makes the folder private."""
    handle = await start_serving(runtime, agents.greet, PORTS, 8000, "hello")
    (folder / "ports").mkdir(mode=0o777)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(folder / "ports" / "web.sock"))
    ports = open_ports(handle, folder / "ports")
    assert (folder / "ports").stat().st_mode & 0o777 == 0o700
    assert await get_body_at_socket(ports.path("web")) == "hello /"
    ports.path("web").unlink()
    (folder / "ports" / "web.sock").write_text("mine")

    await ports.close()

    assert (folder / "ports" / "web.sock").read_text() == "mine"
