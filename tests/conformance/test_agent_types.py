"""Each agent type keeps the promises of `ramet.services.contract` on each backend, through a real server and client.

Each server runs in a process of its own, so that what it leaves can be seen from outside.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest

import ramet
from ramet import Policy
from ramet.core.errors import Gone, InvalidValue, MailRefused, NotYours, SpawnRefused, Unknown
from ramet.services.client.client import Client
from ramet.services.contract import AgentInfo, Chunk
from tests.support.agent_types_server import PYTHON
from tests.support.waiting import eventually

ROOT = pathlib.Path(__file__).parents[2]
SERVER = "tests.support.agent_types_server"
PROGRAM = (ROOT / "tests" / "support" / "agent_types_program.py").read_text()
TYPES = ("llm", "function", "command")
EMPTY = b'{"messages": []}'


class Server:
    """Server in a process of its own."""

    def __init__(self, backend: str, folder: pathlib.Path) -> None:
        self.backend, self.folder = backend, folder
        self.start()

    def start(self) -> None:
        """Start the server, with everything that an earlier one left."""
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", SERVER, str(self.folder), self.backend],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
        assert self.process.stdout is not None
        assert self.process.stdout.readline(), (self.folder / "log").read_text()

    def kill(self) -> None:
        """Kill the server by SIGKILL."""
        self.process.kill()
        self.process.communicate()


class Environment:
    """Kind of isolation for agents, with the server that runs them there."""

    def __init__(self, name: str, server: Server) -> None:
        self.name, self.server = name, server
        self.address = server.folder / ".ramet" / "serve.sock"
        self.policy = None if name == "host" else Policy()

    def spawn_info(self, agent_type: str) -> dict[str, Any]:
        """Return the `spawn_info` of an agent that obeys its prompts."""
        match agent_type:
            case "llm":
                return {"tools": ["Bash"]}
            case "function":
                return {"function": f"{SERVER}:{'obey_here' if self.name == 'host' else 'obey'}"}
        return {"argv": [PYTHON, "-c", PROGRAM]}

    def left_of(self, info: AgentInfo) -> list[pathlib.Path]:
        """Return what is left of an agent on this machine: its folder, working directories and open files."""
        left = list((self.server.folder / ".ramet" / "agents").glob(f"{info.id}*"))
        open_files = pathlib.Path(f"/proc/{self.server.process.pid}/fd").iterdir()
        for link in (*pathlib.Path("/proc").glob("[0-9]*/cwd"), *open_files):
            with contextlib.suppress(OSError):  # Gone since.
                at = link.readlink()
                left += [at] if any(name in str(at) for name in (info.id, info.run) if name) else []
        return left


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, Server]]:
    """Servers by backend, each started when it is first needed."""
    found: dict[str, Server] = {}
    try:
        yield found
    finally:
        for server in found.values():
            server.kill()
            shutil.rmtree(server.folder)


@pytest.fixture(scope="module", params=["local", "host", "bwrap"])
def environment(request: pytest.FixtureRequest, servers: dict[str, Server]) -> Environment:
    backend = "bwrap" if request.param == "bwrap" else "local"
    if backend not in servers:
        servers[backend] = Server(backend, pathlib.Path(tempfile.mkdtemp(prefix="r")))
    return Environment(request.param, servers[backend])


@pytest.fixture
async def client(environment: Environment) -> AsyncIterator[Client]:
    async with ramet.connect(environment.address) as found:
        yield found


class Agent(NamedTuple):
    """Running agent, with the calls to talk with it."""

    client: Client
    info: AgentInfo
    nonce: str
    team: str

    async def chunks(self, text: str, **options: Any) -> list[Chunk]:
        """Return all chunks of a turn."""
        body = json.dumps({"messages": [{"role": "user", "content": text}]}).encode()
        return [each async for each in self.client.turn(self.info.id, body, format="openai", key=self.nonce, **options)]

    async def say(self, text: str) -> str:
        """Return the text of a turn that ends well, without spaces at its ends."""
        chunks = await self.chunks(text)
        assert chunks[-1].kind == "done", chunks[-1].body
        return text_of(chunks)

    async def now(self) -> AgentInfo:
        return await self.client.get_agent(self.info.id, key=self.nonce)


def text_of(chunks: list[Chunk]) -> str:
    """Return the text of an answer in OpenAI's format."""
    deltas = [json.loads(each.body)["choices"][0]["delta"] for each in chunks if each.kind == "chunk"]
    return "".join(filter(None, (each.get("content") for each in deltas))).strip()


@asynccontextmanager
async def running_agent(client: Client, environment: Environment, agent_type: str, **more: Any) -> AsyncIterator[Agent]:
    """Spawn an agent in a team of its own. After its end, nothing is left of it and its team's resources are free."""
    team = await client.create_team({"agents": 1})
    asked = {"spawn_info": environment.spawn_info(agent_type), "policy": environment.policy, **more}
    made = await client.spawn_agent(team.team.id, "ada", agent_type, key=team.key, **asked)
    agent = Agent(client, made.agent, made.nonce, team.team.id)
    try:
        yield agent
    finally:
        last = await agent.now()
        await client.kill_agent(made.agent.id, key=made.nonce)
        await eventually(lambda: not environment.left_of(last))
        await wait_until_team_is_free(client, team.team.id)
        await client.delete_team(team.team.id)


async def wait_until_team_is_free(client: Client, team: str) -> None:
    """Wait until no agent holds resources of a team."""
    async with asyncio.timeout(180):
        while (await client.get_team(team)).held != {"agents": 0}:  # noqa: ASYNC110 - it happens in another process
            await asyncio.sleep(0.01)


each_agent_type = pytest.mark.parametrize("agent_type", TYPES)


@each_agent_type
async def test_a_conversation_is_streamed_and_remembered(
    client: Client, environment: Environment, agent_type: str
) -> None:
    """An answer comes in chunks and ends with `done`. The next turn knows it, and both are in the history."""
    async with running_agent(client, environment, agent_type) as agent:
        first = await agent.chunks("one two")
        assert [each.number for each in first] == list(range(1, len(first) + 1))
        assert len(first) > 3
        assert (first[-1].kind, text_of(first)) == ("done", "one two")
        assert await agent.say("three") == "one two | three"
        body = json.dumps({"max_tokens": 9, "messages": [{"role": "user", "content": "four"}]}).encode()
        other = [each async for each in client.turn(agent.info.id, body, format="anthropic", key=agent.nonce)]
        assert b"message_stop" in other[-2].body
        info, history = await agent.now(), await client.history(agent.info.id, key=agent.nonce)
    assert (info.state, info.turns, info.agent_type) == ("idle", 3, agent_type)
    assert (info.isolation == "none") == (environment.name == "host")
    assert [(each["role"], each["content"].strip()) for each in history] == [
        ("user", "one two"),
        ("assistant", "one two"),
        ("user", "three"),
        ("assistant", "one two | three"),
        ("user", "four"),
        ("assistant", "one two | three | four"),
    ]


@each_agent_type
async def test_a_failed_turn_ends_with_an_error(client: Client, environment: Environment, agent_type: str) -> None:
    """A failed turn or a wrong body ends with an `error` chunk, and the agent answers the next turn."""
    async with running_agent(client, environment, agent_type) as agent:
        failed = await agent.chunks("fail")
        assert (failed[-1].kind, json.loads(failed[-1].body)["type"]) == ("error", "urn:ramet:problem:task-failed")
        assert "it was told to" in json.loads(failed[-1].body)["detail"]
        none = [each async for each in client.turn(agent.info.id, EMPTY, format="openai", key=agent.nonce)]
        assert json.loads(none[-1].body)["field"] == "messages", "only the type has read it"
        with pytest.raises(InvalidValue, match="format"):
            await client.say(agent.info.id, b"x", format="klingon", key=agent.nonce)
        assert await agent.say("two") == "fail | two"


@each_agent_type
async def test_an_interrupt_ends_the_turn_and_not_the_agent(
    client: Client, environment: Environment, agent_type: str
) -> None:
    """An interrupted prompt stays in the history.

    A reader who leaves with `on_leave=interrupt` interrupts the turn, too.
    """
    async with running_agent(client, environment, agent_type) as agent:
        for leave in (False, True):
            body = json.dumps({"messages": [{"role": "user", "content": "hang"}]}).encode()
            output: list[Chunk] = []
            on_leave: Any = "interrupt" if leave else "go_on"
            async with contextlib.aclosing(
                client.turn(agent.info.id, body, format="openai", on_leave=on_leave, key=agent.nonce)
            ) as chunks:
                async for chunk in chunks:
                    output.append(chunk)
                    if chunk.kind == "chunk" and text_of([chunk]) == "begun":
                        if leave:
                            break
                        await client.interrupt(agent.info.id, key=agent.nonce)
            if not leave:
                assert json.loads(output[-1].body)["type"] == "urn:ramet:problem:aborted"
        assert await agent.say("two") == "hang | hang | two"
        history = await client.history(agent.info.id, key=agent.nonce)
        assert [each["content"] for each in history if each["role"] == "user"] == ["hang", "hang", "two"]


@each_agent_type
async def test_mail_unknown_operations_and_wrong_keys_are_checked(
    client: Client, environment: Environment, agent_type: str
) -> None:
    """Mail is accepted or refused by the type, an unknown operation is named, and a wrong key gives no access."""
    async with running_agent(client, environment, agent_type) as agent:
        id, nonce = agent.info.id, agent.nonce
        if agent_type == "function":
            with pytest.raises(MailRefused):
                await client.mail(id, "hello", key=nonce)
        else:
            await client.mail(id, "hello", key=nonce)
        with pytest.raises(Unknown, match="teleport"):
            await client.control(id, {"@type": "teleport"}, key=nonce)
        for wrong in (f"{nonce[:-4]}none", (await client.create_team({"agents": 1})).key):
            for refused in (
                client.say(id, b"x", key=wrong),
                client.interrupt(id, key=wrong),
                client.control(id, {"@type": "teleport"}, key=wrong),
                client.mail(id, "x", key=wrong),
                client.history(id, key=wrong),
                client.kill_agent(id, key=wrong),
            ):
                with pytest.raises(NotYours):
                    await refused
        assert (await agent.now()).turns == 0


@each_agent_type
async def test_ten_megabytes_of_log_do_not_stall_a_turn(
    client: Client, environment: Environment, agent_type: str
) -> None:
    """Log output is read as it comes, and none of it is in an answer."""
    async with running_agent(client, environment, agent_type) as agent:
        assert await agent.say("log") == "log"
        assert await agent.say("two") == "log | two"


@each_agent_type
async def test_a_killed_process_fails_its_turn(client: Client, environment: Environment, agent_type: str) -> None:
    """A turn fails as crashed when its process is killed.

    A command agent fails with it; others take the next turn in a new process.
    """
    if environment.name == "host" and agent_type != "command":
        pytest.skip("it has no process but the server's")
    async with running_agent(client, environment, agent_type) as agent:
        last = (await agent.chunks("die"))[-1]
        assert (last.kind, json.loads(last.body)["outcome"]) == ("error", "crashed")
        if agent_type == "command":
            info = await agent.now()
            assert info.state == "failed"
            assert info.error is not None
            assert "SIGKILL" in info.error.message
            with pytest.raises(Gone, match="SIGKILL"):
                await agent.say("two")
            await wait_until_team_is_free(client, agent.team)
        else:
            assert await agent.say("two") == "die | two"


@each_agent_type
async def test_an_agent_killed_in_a_turn_leaves_nothing(
    client: Client, environment: Environment, agent_type: str
) -> None:
    """Killing an agent in a turn leaves no process, open file or folder, as `running_agent` checks."""
    async with running_agent(client, environment, agent_type) as agent:
        body = json.dumps({"messages": [{"role": "user", "content": "hang"}]}).encode()
        async for chunk in client.turn(agent.info.id, body, format="openai", key=agent.nonce):
            if chunk.kind == "chunk" and text_of([chunk]) == "begun":
                break
        assert (await agent.now()).state == "working"


async def test_a_body_passes_byte_for_byte(client: Client, environment: Environment) -> None:
    """A body in a format that only the agent knows passes unchanged.

    Its one format is the default, and others are refused.
    """
    body = bytes(range(256)) * 40 + b"\n\ndata: x\r\n"
    raw = {"spawn_info": {**environment.spawn_info("command"), "formats": ["raw"]}}
    async with running_agent(client, environment, "command", **raw) as agent:
        assert agent.info.transport_format == "raw"
        assert await client.say(agent.info.id, body, key=agent.nonce) == body
        with pytest.raises(InvalidValue, match="format"):
            await agent.say("in a format that it did not name")


async def test_a_refused_spawn_holds_nothing(client: Client, environment: Environment) -> None:
    """A wrong type, field, format, program, function or tool raises a typed error.

    No agent and no held resource is left.
    """
    team = await client.create_team({"agents": 1})
    missing: dict[str, Any] = {"argv": ["no/such/program"]}
    wrong: list[tuple[type[Exception], str, str, dict[str, Any], str]] = [
        (Unknown, "teleport", "teleport", {}, ""),
        *((InvalidValue, "colour", each, {"colour": "red"}, "") for each in TYPES),
        *((InvalidValue, "transport_format", each, environment.spawn_info(each), "klingon") for each in TYPES),
        (InvalidValue, "spawn_info.argv", "command", missing, ""),
        (SpawnRefused, "did not become ready", "command", {"argv": [PYTHON, "-c", "exit(3)"]}, ""),
        (InvalidValue, "spawn_info.function", "function", {"function": "no.where:to_be_found"}, ""),
        (Unknown, "Teleport", "llm", {"tools": ["Teleport"]}, ""),
    ]
    for error, named, agent_type, info, format in wrong:
        asked = client.spawn_agent(
            team.team.id, "ada", agent_type, info, policy=environment.policy, transport_format=format, key=team.key
        )
        with pytest.raises(error, match=named):
            await asked
        assert (await client.get_team(team.team.id)).held == {"agents": 0}
    assert await client.list_agents(team.team.id) == []
    assert not list((environment.server.folder / ".ramet" / "agents").iterdir())
    await client.delete_team(team.team.id)


@pytest.mark.leaves("the server that it restarts is used by later tests")
async def test_agents_outlive_a_server_that_is_killed(environment: Environment) -> None:
    """Agents of every type answer after a restart under the same id and key, with their history.

    Nothing of them is left after their end.
    """
    if environment.name == "host":
        pytest.skip(
            "the server is that of the environment local, where agents of the host are among those that outlive it"
        )
    agents = []
    environments = (
        [environment] if environment.name == "bwrap" else [environment, Environment("host", environment.server)]
    )
    async with ramet.connect(environment.address) as client:
        team = await client.create_team({"agents": len(TYPES) * len(environments)}, name="crew")
        for each in environments:
            for kind in TYPES:
                info, name = each.spawn_info(kind), f"{kind}-{each.name}"
                made = await client.spawn_agent("crew", name, kind, info, policy=each.policy, key=team.key)
                agent = Agent(client, made.agent, made.nonce, "crew")
                await agent.say("one")
                agents.append((await agent.now(), made.nonce))
        environment.server.kill()
    environment.server.start()
    async with ramet.connect(environment.address) as client:
        for first, nonce in agents:
            agent = Agent(client, first, nonce, "crew")
            assert (await agent.now()).state == "idle"
            assert await agent.say("two") == "one | two"
            last = await agent.now()
            await client.kill_agent(last.id, key=nonce)
            await eventually(lambda first=first, last=last: not environment.left_of(first) + environment.left_of(last))  # type: ignore[misc]  # bound now
        await client.delete_team("crew", key=team.key)
