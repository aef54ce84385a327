"""Programs of other makers as agents of a server: a client names one, and never chooses what it is."""

from __future__ import annotations

import asyncio
import json
import pathlib
import re
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest

import ramet
from ramet import External, Policy
from ramet.cli.main import main
from ramet.core.errors import InvalidValue, RametError, SpawnRefused, TaskFailed, Unknown
from ramet.services.agent_types.registry import create_default_types
from ramet.services.client.client import Client
from ramet.services.contract import CreatedTeam
from ramet.services.rules import Rules
from ramet.services.server.server import Server
from tests.support.acceptance import OpenAIAgent
from tests.support.acceptance import Server as ServeProcess
from tests.support.providers import provider
from tests.support.serving import short_folder
from tests.support.waiting import eventually
from tests.trips.kits.external import script, scripted
from tests.trips.kits.forwarding import host_key, use_server
from tests.trips.kits.isolated import BackendName, usual_backend

__all__ = ["host_key", "usual_backend"]

MODEL = "anthropic:claude-sonnet-5-5"
MEMORY_MB = 128


class Served(NamedTuple):
    """A client that has a team."""

    client: Client
    team: CreatedTeam

    async def spawn(self, name: str, info: dict[str, Any], **more: Any) -> OpenAIAgent:
        more["transport_format"] = "openai"
        spawned = await self.client.spawn_agent(
            self.team.team.id, name, "external", info, key=self.team.key, limits={"model_calls": 3}, **more
        )
        return OpenAIAgent(self.client, spawned)

    async def held(self) -> dict[str, float]:
        """Return what the living agents of the team hold."""
        return (await self.client.get_team(self.team.team.id, key=self.team.key)).held


def program() -> External:
    """Return the operator's program."""
    external = scripted(models=[MODEL]).external
    assert isinstance(external, External)
    return external


@asynccontextmanager
async def serve(folder: pathlib.Path, backend: BackendName) -> AsyncIterator[tuple[Server, Client]]:
    """Serve a folder whose operator has one program, `coder`."""
    options: dict[str, Any] = {"types": create_default_types(programs={"coder": program()}), "backend": backend}
    rules = Rules(models=(MODEL,))
    async with Server(folder, rules=rules, **options) as server, ramet.connect(server.listen_address) as client:
        yield server, client


async def new_team(server: Server, client: Client) -> CreatedTeam:
    resources = {"agents": 2, "memory_mb": 1000, "model_calls": 10}
    return await client.create_team(resources, name="crew", key=server.operator)


def session_of(folder: pathlib.Path) -> pathlib.Path:
    """Return the session file of the only program that has worked in a folder's sandboxes."""
    (session,) = folder.glob("**/.home/session-*")
    return session


async def interrupt_once_begun(agent: OpenAIAgent, list_runs: Callable[[], str]) -> None:
    """Interrupt a turn in the middle, and look at what its program runs by itself. Raises the error of the turn."""
    steps = [["sub_agent", "x1", "a look around", "running"], ["say", "begun"], ["hang"]]
    async for piece in agent.pieces(script(*steps)):
        assert piece == "begun"
        [own] = (await agent.client.kernel.run(agent.spawned.run)).reported_agents
        assert (own.id, own.title, own.state) == ("x1", "a look around", "running")
        listed = await asyncio.to_thread(list_runs)
        assert re.search(r"^-  +crew/ada/x1 +a look around +running ", listed, re.MULTILINE), listed
        await agent.client.interrupt(agent.id, key=agent.nonce)


async def test_a_conversation_with_a_program_goes_on_from_turn_to_turn_and_after_a_kill_of_the_server(
    usual_backend: BackendName, capsys: pytest.CaptureFixture[str]
) -> None:
    """A turn is a prompt of the one session of the program, also after an interrupt.

    A turn that was under way when the server was killed goes on at the next start: the program is prompted again.
    """

    def list_runs() -> str:
        main(["ps", "--server", str(folder / ".ramet" / "serve.sock")])
        return capsys.readouterr().out

    settings = json.dumps({"coder": program().as_data()})
    with short_folder() as folder:
        process = ServeProcess(folder, usual_backend, RAMET_EXTERNAL=settings)
        try:
            async with ramet.connect(folder / ".ramet" / "serve.sock") as client:
                team = await client.create_team(
                    name="crew", resources={"agents": 1, "memory_mb": 500, "model_calls": 10}
                )
                served = Served(client, team)
                agent = await served.spawn(
                    "ada", {"external": "coder", "show_tools": True, "instructions": "Be brief."}
                )
                assert agent.spawned.isolation != "none"
                assert (await served.held())["memory_mb"] == MEMORY_MB, "the team reserves what the program needs"
                call: list[list[Any]] = [["call", "1", "Read", {"path": "a"}], ["end", "1", "completed"]]
                said = await agent.say(script(["remember", "sorrel "], *call, ["say", "Yes."]))
                assert sorted(said.split("\n\n")) == ["Yes.", '[Read {"path": "a"}]']
                with pytest.raises(RametError, match="interrupted"):
                    await interrupt_once_begun(agent, list_runs)
                [own] = (await client.kernel.run(agent.spawned.run)).reported_agents
                assert own.state == "cancelled"
                working = asyncio.ensure_future(agent.say(script(["remember", "moss "], ["wait", "go"], ["recall"])))
                await eventually(lambda: session_of(folder).read_text() == "sorrel moss ")
                process.end(signal.SIGKILL)
                (session_of(folder).parents[1] / "go").touch()
                process.start()
                with pytest.raises(RametError):
                    await working  # On a store of one server's own nobody can follow it any more.
                said = await agent.say(script(["recall"]))
                assert said == "sorrel moss moss "
                messages = await client.history(agent.id, key=agent.nonce)
                assert [each["content"] for each in messages if each["role"] == "assistant"] == ["Yes.", said, said]
                await client.kill_agent(agent.id, key=agent.nonce)
                assert set((await served.held()).values()) <= {0}
        finally:
            process.end(signal.SIGKILL)


@pytest.mark.usefixtures("host_key")
async def test_the_limits_of_an_agent_bind_the_requests_of_its_program(
    usual_backend: BackendName, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Limits bind the agents that the program starts, too: those are the programs of the server, by their names."""
    start = script(["model", "hello"], ["say", " from below"])
    with short_folder() as folder:
        async with provider(["one", "two", "three", "four"]) as model, serve(folder, usual_backend) as (server, client):
            use_server(monkeypatch, model.url)
            served = Served(client, await new_team(server, client))
            policy = Policy(allow_sub_agents=True, memory_mb=256, pids=64)
            agent = await served.spawn("ada", {"external": "coder"}, policy=policy)
            assert await agent.say(script(["model", "hello"])) == "one"
            spawn = ["tool", "spawn_agent", {"agent": "coder", "prompt": start, "name": "below"}]
            said = await agent.say(script(spawn, ["tool", "result", {"id": "below", "wait_s": 30}]))
            assert "two from below" in said
            with pytest.raises(TaskFailed) as failure:
                await agent.say(script(["model", "hello"], ["model", "hello"]))

        assert failure.value.status == "budget_exhausted"
        assert model.count == 3


async def test_a_client_neither_chooses_a_command_nor_gets_more_than_the_operator_gives(
    usual_backend: BackendName,
) -> None:
    """Whatever is asked for is refused by the name of its field, and the team holds nothing."""
    secret = "/etc/shadow"
    refused: list[tuple[dict[str, Any], Policy | None, type[RametError], str]] = [
        ({"external": {"command": ["/bin/sh"]}}, None, InvalidValue, "spawn_info.external"),
        ({"external": "coder", "command": ["/bin/sh"]}, None, InvalidValue, "command"),
        ({"external": "coder", "mounts": [secret]}, None, InvalidValue, "mounts"),
        ({"external": "coder", "permission_mode": "allow"}, None, InvalidValue, "permission_mode"),
        ({"external": "/bin/sh"}, None, Unknown, "coder"),
        ({"external": "coder", "model": "openai:gpt-5.5"}, None, InvalidValue, "spawn_info.model"),
        ({"external": "coder"}, Policy(models=("openai:gpt-5.5",)), SpawnRefused, "policy.models"),
        ({"external": "coder"}, Policy(memory_mb=64), SpawnRefused, "policy.memory_mb"),
        ({"external": "coder"}, Policy(readonly_mounts=(secret,)), SpawnRefused, "policy.readonly_mounts"),
    ]
    with short_folder() as folder:
        async with serve(folder, usual_backend) as (server, client):
            served = Served(client, await new_team(server, client))
            for info, policy, error, word in refused:
                with pytest.raises(error, match=word):
                    await served.spawn("ada", info, policy=policy)
            assert set((await served.held()).values()) <= {0}
