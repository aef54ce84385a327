"""The host's side of MCP servers: the search for their tools, and the guests that may connect them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ramet.core.errors import McpServerFailed, ProtocolError, SpawnRefused
from ramet.core.mcp.server_entry import McpServer, as_server
from ramet.core.policy.policy import Grant
from ramet.spawn.mcp import server_connections
from ramet.spawn.mcp.server_connections import McpConnections
from ramet.spawn.mcp.tool_search import OfferedTool, SearchArguments, ToolCatalogue, is_deferred
from ramet.spawn.sandbox.mcp_servers import mcp_server_sandbox
from ramet.spawn.sandbox.mcp_servers.tree_servers import MAX_SERVERS, TreeServers
from ramet.tools.mcp.connection_port import ListedTool
from ramet.wire.guest_protocol.guest_to_host import ConnectMcpServer, PassMcpMessage

INSIDE = McpServer(name="inside", command="inside")


def offered(*tools: tuple[str, str]) -> list[OfferedTool]:
    schema = {"type": "object", "properties": {"latitude": {"type": "number"}}}
    return [OfferedTool(INSIDE.tool_name(name), INSIDE, ListedTool(name, text, schema)) for name, text in tools]


CATALOGUE = ToolCatalogue(
    offered(
        ("get_forecast", "Returns tomorrow's weather."),
        ("weather_now", "Returns the temperature."),
        ("send_mail", "Sends a text."),
        ("forecast_sales", "Estimates (a+)+$ revenue."),
    )
)


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("weather", ["weather_now", "get_forecast"]),
        ("+forecast weather", ["get_forecast", "forecast_sales"]),
        ("select:mcp__inside__send_mail, mcp__inside__absent,mcp__inside__send_mail", ["send_mail"]),
        ("MCP__INSIDE__SEND_MAIL", ["send_mail"]),
        ("latitude", ["get_forecast", "weather_now", "send_mail", "forecast_sales"]),
        ("(a+)+$", ["forecast_sales"]),
        ("+", []),
        ("nothing", []),
    ],
)
def test_a_search_finds_tools_by_name_and_words(query: str, found: list[str]) -> None:
    """The best match is first; a query is no pattern."""
    names = [each.listed.name for each in CATALOGUE.find(SearchArguments(query=query))]
    assert names == found


def test_tools_are_searched_for_when_there_are_many_or_they_are_large() -> None:
    """The setting of an agent decides instead, if it has one; without tools there is nothing to find."""
    few, many = offered(("a", "")), offered(*((f"tool{number}", "") for number in range(41)))
    large = offered(("a", "x" * 70_000))
    assert [is_deferred("auto", each) for each in (few, many, large, [])] == [False, True, True, False]
    assert [is_deferred(True, each) for each in (few, [])] == [True, False]
    assert not is_deferred(False, many)


async def test_a_guest_connects_only_the_servers_of_its_own_sandbox() -> None:
    """The agent's guest takes no place of a server beside it, and that server's guest none of another."""
    own = as_server({"name": "own", "command": "own", "policy": {"memory_mb": 64}})
    run: Any = SimpleNamespace(agent=SimpleNamespace(mcp_servers=(INSIDE, own)), sandbox=SimpleNamespace())
    connections = McpConnections(run)

    async def send(_: bytes) -> None:
        raise AssertionError("nothing is sent")

    for name, sandbox in (("own", ""), ("inside", "own"), ("absent", "own")):
        with pytest.raises(ProtocolError, match="an MCP server that this run does not have"):
            await connections.connect(ConnectMcpServer(id=1, server=name), send, sandbox=sandbox)
        with pytest.raises(ProtocolError, match="an MCP server that this run does not have"):
            await connections.receive(PassMcpMessage(id=2, server=name), b"{}", sandbox=sandbox)


def test_a_tree_has_a_limited_number_of_shared_servers() -> None:
    """Shared servers outlive their agents, which could start ever more of them."""
    register, run, caller = SimpleNamespace(), SimpleNamespace(grant=Grant(), info=None), SimpleNamespace()
    register.services = SimpleNamespace(placement=SimpleNamespace(env=lambda *_: {}))
    servers = TreeServers(cast("Any", register))
    servers._servers = dict.fromkeys(range(MAX_SERVERS))  # type: ignore[assignment]  # only their number is read
    entry = as_server({"name": "own", "url": "https://mcp.example.com", "shared": "tree"})
    with pytest.raises(SpawnRefused, match="at most 100 shared servers"):
        servers.join(cast("Any", run), entry, cast("Any", caller))


async def test_a_defect_of_a_servers_sandbox_ends_the_server(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The caller that waits for a connection gets the reason, which is also in the log."""
    own = as_server({"name": "own", "command": "own", "policy": {"memory_mb": 64}})
    notices = list[str]()
    context = SimpleNamespace(abort=SimpleNamespace(aborted=False), emit=lambda kind, text: notices.append(text))
    sandbox = SimpleNamespace(join_server=None)
    run: Any = SimpleNamespace(agent=SimpleNamespace(mcp_servers=(own,)), sandbox=sandbox, context=context)
    sandbox.join_server = lambda *_: None
    connections = McpConnections(run)

    async def fail(self: object) -> str:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(mcp_server_sandbox._OwnSandbox, "_run_to_end", fail)
    monkeypatch.setattr(server_connections, "masked_text", lambda run, text, *_: text)
    async with mcp_server_sandbox.own_sandboxes(run, connections, cast("Any", None)):
        async with asyncio.timeout(60):
            with pytest.raises(McpServerFailed, match="ZeroDivisionError: a defect"):
                await connections.list_prompts("own")

    assert notices == ["the MCP server 'own' failed: ZeroDivisionError: a defect"]
    assert "the sandbox of an MCP server has failed" in caplog.text
