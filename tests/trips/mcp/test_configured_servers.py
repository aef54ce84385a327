"""MCP servers in `ramet.yaml`: agents of a server name them, and nothing else starts them."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest
import yaml

import ramet
from ramet.core.errors import InvalidValue, Unknown
from ramet.models.scripted.dialogue import Call
from ramet.services.agent_types.registry import create_default_types
from ramet.services.config.build import servers_of
from ramet.services.config.load import examine, load
from ramet.services.contract import SpawnedAgent
from ramet.services.rules import Rules
from ramet.services.server.server import Server
from tests.support.acceptance import OpenAIAgent
from tests.trips.kits.isolated import BackendName, usual_backend
from tests.trips.kits.mcp import PROGRAMS, server

backend = usual_backend


async def test_agents_of_a_server_name_its_mcp_servers(tmp_path: pathlib.Path, backend: BackendName) -> None:
    """An agent uses those that it names, in its sandbox, after a restart of the server too; others are refused."""
    entry = server("calculator", env={"SHOWN": "as written"})
    del entry["name"]
    file = tmp_path / "ramet.yaml"
    file.write_text(yaml.safe_dump({"mcpServers": {"calc": entry, "other": {"command": "other"}}}))
    servers = servers_of(load(file, {}, {}))
    call = Call("mcp__calc__environment", {"name": "SHOWN"})
    model = ramet.ScriptedModel([call, "Done.", call, "Done again."])
    options: dict[str, Any] = {"backend": backend, "rules": Rules(mounts=(str(PROGRAMS),), tools=("mcp__calc",))}
    policy = ramet.Policy(readonly_mounts=(str(PROGRAMS),), memory_mb=512)

    async def texts(agent: OpenAIAgent) -> list[str]:
        pieces = "".join([piece async for piece in agent.pieces("Go on.")])
        return [pieces, *(each.text for each in model.requests[-1].messages if each.type == "tool")]

    types = create_default_types({"scripted": model}, None, servers)
    async with Server(tmp_path, types=types, **options) as first, ramet.connect(first.listen_address) as client:
        team = await client.create_team({"agents": 2, "memory_mb": 1_000}, name="crew", key=first.operator)

        async def spawn(name: str, **more: Any) -> OpenAIAgent:
            info = {"model": "scripted", "mcp_servers": [name]}
            more = {"transport_format": "openai", "key": team.key, **more}
            return OpenAIAgent(client, await client.spawn_agent(team.team.id, f"user-{name}", "llm", info, **more))

        agent = await spawn("calc", policy=policy)
        [answer, result] = await texts(agent)
        assert (answer, result.startswith("2026-07-28: as written ")) == ("Done.", True)
        with pytest.raises(Unknown, match="other"):
            await spawn("absent")
        with pytest.raises(InvalidValue, match=r"spawn_info\.mcp_servers: 'mcp__other' is not accepted"):
            await spawn("other")
    spawned = SpawnedAgent(agent=agent.spawned, nonce=agent.nonce)
    async with Server(tmp_path, types=types, **options) as second, ramet.connect(second.listen_address) as client:
        [answer, *_, result] = await texts(OpenAIAgent(client, spawned))
        assert (answer, result.startswith("2026-07-28: as written ")) == ("Done again.", True)


@pytest.mark.parametrize(
    ("entry", "field"),
    [
        ("{}", "mcpServers.mine.type"),
        (
            "{url: 'https://a.example/mcp', headers: {Authorization: Bearer sk-secret-part-of-some-length}}",
            "mcpServers.mine.headers.Authorization",
        ),
        ("calc", "mcpServers.mine"),
        ("{command: calc, name: other}", "mcpServers.mine.name"),
        ("{command: calc, shell: true}", "mcpServers.mine.shell"),
        ("{command: calc, args: -v}", "mcpServers.mine.args"),
        ("{command: calc, args: [--key=sk-secret-part-of-some-length]}", "mcpServers.mine.args.0"),
        ("{command: calc, env: {KEY: sk-secret-part-of-some-length}}", "mcpServers.mine.env.KEY"),
        ("{command: calc, timeout_s: long}", "mcpServers.mine.timeout_s"),
    ],
)
def test_a_wrong_mcp_server_is_refused_by_its_dotted_name(tmp_path: pathlib.Path, entry: str, field: str) -> None:
    """The problem names the setting and where it was written, and shows no secret."""
    file = tmp_path / "ramet.yaml"
    file.write_text(f"mcpServers: {{mine: {entry}}}\n")

    (problem,) = examine(file, {}, {}).problems

    assert problem.field == field
    assert "ramet.yaml:1" in str(problem)
    assert "secret-part" not in str(problem)
