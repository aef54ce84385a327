"""Agents that serve: the host reaches a named port of a run, and no other port."""

from __future__ import annotations

import asyncio
import os
import pathlib
import stat

import pytest

import ramet
from ramet.core.errors import Gone, InvalidValue, Unknown
from ramet.core.events import SandboxStarted
from ramet.host.sandbox.run_ports import PortRefused
from tests.trips.agents import listening as agents
from tests.trips.kits.isolated import BackendName
from tests.trips.kits.ports import backend, get_body, get_body_at_socket, read_to_end, runtime, start_serving

__all__ = ["backend", "runtime"]


async def test_a_named_port_is_reached_by_socket_connection_and_loopback(runtime: ramet.AgentRuntime) -> None:
    """The host chooses the loopback port itself, and keeps it."""
    handle = await start_serving(runtime, agents.greet, {"web": 8000}, 8000, "hello")

    assert await get_body_at_socket(await handle.port("web"), "/one") == "hello /one"
    assert await get_body(*await handle.connect("web"), "/two") == "hello /two"
    port = await handle.loopback_port("web")
    assert port != 8000
    assert await handle.loopback_port("web") == port
    assert await get_body(*await asyncio.open_connection("127.0.0.1", port), "/three") == "hello /three"


async def test_a_socket_is_for_this_user_only(runtime: ramet.AgentRuntime) -> None:
    """The socket lies in the run's own folder, which no other user may enter."""
    handle = await start_serving(runtime, agents.greet, {"web": 8000}, 8000, "hello")

    path = await handle.port("web")

    assert path.parts[-3:] == (handle.id, "ports", "web.sock")
    assert [stat.S_IMODE(each.lstat().st_mode) for each in (path.parent, path)] == [0o700, 0o600]
    assert stat.S_ISSOCK(path.lstat().st_mode)
    assert path.parent.lstat().st_uid == os.geteuid()


async def test_each_name_leads_to_the_port_of_its_own_run(runtime: ramet.AgentRuntime) -> None:
    """Two runs use equal port numbers at once, also below 1024, and take no port of the host."""
    one = await start_serving(runtime, agents.greet_on_both, {"web": 80, "api": 8000}, 80, 8000)
    other = await start_serving(runtime, agents.greet, {"web": 80}, 80, "other")

    assert await get_body_at_socket(await one.port("api")) == "second /"
    assert await get_body_at_socket(await other.port("web")) == "other /"

    async def first() -> str:
        while True:  # Its thread may begin to listen a moment after the other one.
            try:
                return await get_body(*await one.connect("web"))
            except PortRefused:
                await asyncio.sleep(0.01)

    assert await first() == "first /"


async def test_a_port_ends_with_its_run(runtime: ramet.AgentRuntime) -> None:
    """The socket is removed, open connections are cut, and the handle raises Gone once the run has ended."""
    handle = await start_serving(runtime, agents.echo, {"web": 8000}, 8000)
    path = await handle.port("web")
    loopback = await handle.loopback_port("web")
    open_ones = [await handle.connect("web"), await asyncio.open_unix_connection(str(path))]

    await handle.cancel()

    assert not path.parent.exists()
    for reader, writer in open_ones:
        assert await read_to_end(reader) == b""
        writer.close()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", loopback)
    for method in (handle.port, handle.connect, handle.loopback_port):
        with pytest.raises(Gone):
            await method("web")


async def test_an_undeclared_port_is_unknown(runtime: ramet.AgentRuntime) -> None:
    """The error lists the declared names, whatever the guest listens on."""
    handle = await start_serving(runtime, agents.greet, {"web": 8000}, 9000, "hidden")
    plain = await runtime.start_agent(agents.idle)

    for name in ("api", "9000", "../web", ""):
        with pytest.raises(Unknown) as unknown:
            await handle.port(name)
        assert (unknown.value.kind, unknown.value.name, unknown.value.known) == ("port", name, ("web",))
    with pytest.raises(Unknown):
        await plain.connect("web")


async def test_a_port_without_a_listener_is_refused(runtime: ramet.AgentRuntime) -> None:
    """`connect` raises PortRefused with the name; a connection through the socket is closed."""
    handle = await start_serving(runtime, agents.idle, {"web": 8000})

    with pytest.raises(PortRefused, match=r"'web' .*127\.0\.0\.1:8000") as refusal:
        await handle.connect("web")

    assert refusal.value.port == "web"
    assert isinstance(refusal.value, ConnectionError)
    reader, writer = await asyncio.open_unix_connection(str(await handle.port("web")))
    assert await read_to_end(reader) == b""
    writer.close()


async def test_an_agent_has_ports_and_endpoints_together(runtime: ramet.AgentRuntime) -> None:
    """The egress proxy listens beside the agent's own server."""
    handle = await start_serving(
        runtime, agents.greet, {"web": 8000}, 8000, "both", allowed_endpoints=["api.example.org:443"]
    )

    assert await get_body_at_socket(await handle.port("web")) == "both /"


async def test_a_fresh_sandbox_serves_ports(runtime: ramet.AgentRuntime, backend: BackendName) -> None:
    """The zygote of a fresh sandbox forks no other sandbox, and creates its sockets."""
    if backend == "local":
        pytest.skip("fresh is L2 and more")
    handle = await start_serving(runtime, agents.greet, {"web": 8000}, 8000, "fresh", isolation="fresh")

    assert await get_body_at_socket(await handle.port("web")) == "fresh /"


async def test_the_next_attempt_serves_the_port(runtime: ramet.AgentRuntime) -> None:
    """A caller that waits for the port gets it from the new sandbox."""
    handle = await start_serving(
        runtime, agents.fail_once_then_greet, {"web": 8000}, 8000, retry_count=1, retry_delay_seconds=0.0
    )

    assert await get_body_at_socket(await handle.port("web")) == "again /"


async def test_a_child_gets_no_port_that_its_parent_lacks(runtime: ramet.AgentRuntime) -> None:
    """SpawnRefused names the field, the port and the number."""
    policy = ramet.Policy(ports={"web": 8000}, allow_sub_agents=True)

    async def born(ports: dict[str, int]) -> str:
        return str((await runtime.run_agent(agents.born_with, policy, (ports,))).output)

    assert await born({"web": 8000}) == "completed"
    assert await born({}) == "completed"
    for ports, missing_port in (({"api": 9000}, "api=9000"), ({"web": 9000}, "web=9000")):
        refusal = await born(ports)
        assert refusal.startswith("SpawnRefused: ")
        assert "policy.ports" in refusal
        assert missing_port in refusal


async def test_the_journal_records_the_ports_of_a_run(runtime: ramet.AgentRuntime) -> None:
    """SandboxStarted has the names and the numbers in its policy."""
    handle = await start_serving(runtime, agents.idle, {"web": 8000, "api": 9000})
    await handle.cancel()

    policies = [event.policy async for event in handle.events() if isinstance(event, SandboxStarted)]

    assert [policy["ports"] for policy in policies] == [{"web": 8000, "api": 9000}]


async def test_a_too_long_socket_path_is_refused(backend: BackendName, tmp_path: pathlib.Path) -> None:
    """The error names `loopback_port`; `connect` needs no path and works."""
    deep = tmp_path / ("x" * 60)
    async with ramet.AgentRuntime(working_dir=deep, backend=backend) as runtime:
        handle = await start_serving(runtime, agents.greet, {"web": 8000}, 8000, "deep")

        with pytest.raises(InvalidValue, match=r"107 bytes.*loopback_port"):
            await handle.port("web")

        assert await get_body(*await handle.connect("web")) == "deep /"
        assert (
            await get_body(*await asyncio.open_connection("127.0.0.1", await handle.loopback_port("web"))) == "deep /"
        )
