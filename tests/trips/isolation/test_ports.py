"""Agents that serve: the host reaches a named port of theirs, and nothing else does."""

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
from tests.trips.kits.isolated import Name
from tests.trips.kits.ports import asked, asked_at, backend, rest, runtime, serving

__all__ = ["backend", "runtime"]


async def test_a_named_port_is_reached_by_socket_by_connection_and_by_loopback(runtime: ramet.AgentRuntime) -> None:
    """Three ways, one server, and no port of the host that anybody chose."""
    handle = await serving(runtime, agents.greet, {"web": 8000}, 8000, "hello")

    assert await asked_at(await handle.port("web"), "/one") == "hello /one"
    assert await asked(*await handle.connect("web"), "/two") == "hello /two"
    port = await handle.loopback_port("web")
    assert port != 8000
    assert await handle.loopback_port("web") == port
    assert await asked(*await asyncio.open_connection("127.0.0.1", port), "/three") == "hello /three"


async def test_a_socket_is_for_this_user_only(runtime: ramet.AgentRuntime) -> None:
    """It lies in the run's own folder, in one that nobody else may enter."""
    handle = await serving(runtime, agents.greet, {"web": 8000}, 8000, "hello")

    path = await handle.port("web")

    assert path.parts[-3:] == (handle.id, "ports", "web.sock")
    assert [stat.S_IMODE(each.lstat().st_mode) for each in (path.parent, path)] == [0o700, 0o600]
    assert stat.S_ISSOCK(path.lstat().st_mode)
    assert path.parent.lstat().st_uid == os.geteuid()


async def test_each_name_leads_to_its_own_port_of_its_own_run(runtime: ramet.AgentRuntime) -> None:
    """Two runs have the same numbers at once: nothing of the host's is taken by either. A low one is served, too."""
    one = await serving(runtime, agents.greet_on_both, {"web": 80, "api": 8000}, 80, 8000)
    other = await serving(runtime, agents.greet, {"web": 80}, 80, "other")

    assert await asked_at(await one.port("api")) == "second /"
    assert await asked_at(await other.port("web")) == "other /"

    async def first() -> str:
        while True:  # Its thread may begin to listen a moment after the other one.
            try:
                return await asked(*await one.connect("web"))
            except PortRefused:
                await asyncio.sleep(0.01)

    assert await first() == "first /"


async def test_a_port_ends_with_its_run(runtime: ramet.AgentRuntime) -> None:
    """When the end is told its socket has gone, what was open is cut, and the handle says so."""
    handle = await serving(runtime, agents.echo, {"web": 8000}, 8000)
    path = await handle.port("web")
    loopback = await handle.loopback_port("web")
    open_ones = [await handle.connect("web"), await asyncio.open_unix_connection(str(path))]

    await handle.cancel()

    assert not path.parent.exists()
    for reader, writer in open_ones:
        assert await rest(reader) == b""
        writer.close()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", loopback)
    for way in (handle.port, handle.connect, handle.loopback_port):
        with pytest.raises(Gone):
            await way("web")


async def test_a_port_that_is_not_declared_is_unknown(runtime: ramet.AgentRuntime) -> None:
    """Whatever the guest listens on: the error says which names there are."""
    handle = await serving(runtime, agents.greet, {"web": 8000}, 9000, "hidden")
    plain = await runtime.start_agent(agents.idle)

    for name in ("api", "9000", "../web", ""):
        with pytest.raises(Unknown) as unknown:
            await handle.port(name)
        assert (unknown.value.kind, unknown.value.name, unknown.value.known) == ("port", name, ("web",))
    with pytest.raises(Unknown):
        await plain.connect("web")


async def test_where_nobody_listens_it_is_said(runtime: ramet.AgentRuntime) -> None:
    """A connection of ours is refused by name, one through the socket is closed; later, both work."""
    handle = await serving(runtime, agents.idle, {"web": 8000})

    with pytest.raises(PortRefused, match=r"'web' .*127\.0\.0\.1:8000") as refused:
        await handle.connect("web")

    assert refused.value.port == "web"
    assert isinstance(refused.value, ConnectionError)
    reader, writer = await asyncio.open_unix_connection(str(await handle.port("web")))
    assert await rest(reader) == b""
    writer.close()


async def test_ports_and_endpoints_are_had_together(runtime: ramet.AgentRuntime) -> None:
    """The way to the proxy listens beside the agent's own server."""
    handle = await serving(
        runtime, agents.greet, {"web": 8000}, 8000, "both", allowed_endpoints=["api.example.org:443"]
    )

    assert await asked_at(await handle.port("web")) == "both /"


async def test_a_sandbox_from_nothing_serves_too(runtime: ramet.AgentRuntime, backend: Name) -> None:
    """Its zygote forks nobody else, and makes sockets as long as it lives."""
    if backend == "local":
        pytest.skip("fresh is L2 and more")
    handle = await serving(runtime, agents.greet, {"web": 8000}, 8000, "fresh", isolation="fresh")

    assert await asked_at(await handle.port("web")) == "fresh /"


async def test_the_next_attempt_serves_in_place_of_the_one_before(runtime: ramet.AgentRuntime) -> None:
    """Whoever waits for a port meanwhile gets it from the sandbox that lives."""
    handle = await serving(
        runtime, agents.fail_once_then_greet, {"web": 8000}, 8000, retry_count=1, retry_delay_seconds=0.0
    )

    assert await asked_at(await handle.port("web")) == "again /"


async def test_a_child_serves_on_no_port_that_its_parent_lacks(runtime: ramet.AgentRuntime) -> None:
    """Refused by the name of the field, with the name and the number."""
    policy = ramet.Policy(ports={"web": 8000}, allow_sub_agents=True)

    async def born(ports: dict[str, int]) -> str:
        return str((await runtime.run_agent(agents.born_with, policy, (ports,))).output)

    assert await born({"web": 8000}) == "completed"
    assert await born({}) == "completed"
    for ports, lacking in (({"api": 9000}, "api=9000"), ({"web": 9000}, "web=9000")):
        refusal = await born(ports)
        assert refusal.startswith("SpawnRefused: ")
        assert "policy.ports" in refusal
        assert lacking in refusal


async def test_the_record_says_which_ports_a_run_has(runtime: ramet.AgentRuntime) -> None:
    """By name and number, among all that its policy gives."""
    handle = await serving(runtime, agents.idle, {"web": 8000, "api": 9000})
    await handle.cancel()

    policies = [event.policy async for event in handle.events() if isinstance(event, SandboxStarted)]

    assert [policy["ports"] for policy in policies] == [{"web": 8000, "api": 9000}]


async def test_a_path_that_no_program_can_connect_to_is_refused(backend: Name, tmp_path: pathlib.Path) -> None:
    """With what to do instead; a connection of ours needs no path."""
    deep = tmp_path / ("x" * 60)
    async with ramet.AgentRuntime(working_dir=deep, backend=backend) as runtime:
        handle = await serving(runtime, agents.greet, {"web": 8000}, 8000, "deep")

        with pytest.raises(InvalidValue, match=r"107 bytes.*loopback_port"):
            await handle.port("web")

        assert await asked(*await handle.connect("web")) == "deep /"
        assert await asked(*await asyncio.open_connection("127.0.0.1", await handle.loopback_port("web"))) == "deep /"
