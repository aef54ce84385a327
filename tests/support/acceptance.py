"""A server process for the acceptance suite, agents that tests talk with over HTTP, and the processes of agents."""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
import secrets
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import psutil
import pytest

from ramet import Policy
from ramet.core.errors import RametError
from ramet.core.safety import SafetyPolicy
from ramet.host.safety.policies import SafetyPolicies
from ramet.services.client.client import Client
from ramet.services.client.errors import error_of
from ramet.services.contract import AgentInfo, CreatedTeam, SpawnedAgent
from ramet.store.sqlite.store import SqliteStore
from ramet.testing.conformance.isolation.harness import cgroups
from tests.support.serve_process import ROOT
from tests.support.tars import tar
from tests.support.waiting import eventually

POLICY = Policy(memory_mb=256, network="disabled")


class Server:
    """`ramet serve` in a folder, which can be killed and started again."""

    def __init__(self, folder: pathlib.Path, backend: str, **env: str) -> None:
        self.folder, self.backend, self._env = folder, backend, env
        self.start()

    def start(self) -> None:
        """Start the process, and wait until it says that it listens."""
        path = os.pathsep.join([str(self.folder / "plugin"), str(ROOT)])
        command = [sys.executable, "-m", "ramet", "serve", "--dir", str(self.folder), "--backend", self.backend]
        with (self.folder / "stderr").open("a") as errors:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, env={**os.environ, "PYTHONPATH": path, **self._env}
            )
        assert self.process.stdout is not None
        assert b"ramet serves" in self.process.stdout.readline(), (self.folder / "stderr").read_text()

    def end(self, number: signal.Signals) -> int:
        """End the process by a signal; return its exit status."""
        if self.process.returncode is None:
            self.process.send_signal(number)
            self.process.communicate()
        return self.process.returncode

    @property
    def agents(self) -> list[str]:
        """Return the names of the folders of agents."""
        return [each.name for each in (self.folder / ".ramet" / "agents").glob("*")]


def put_rules(folder: pathlib.Path, rules: SafetyPolicy) -> None:
    """Put a policy `house` into the journal of a server that has not started yet."""
    asyncio.run(_put_rules(folder / ".ramet" / "journal.db", rules))


async def _put_rules(file: pathlib.Path, rules: SafetyPolicy) -> None:
    file.parent.mkdir(mode=0o700)
    store = SqliteStore(file)
    await store.open()
    await SafetyPolicies(store).put("house", rules, expected=0)
    await store.close()


async def spawn(
    client: Client, team: CreatedTeam, name: str, agent_type: str, info: Any = None, **more: Any
) -> OpenAIAgent:
    """Spawn an agent in a sandbox."""
    more.setdefault("policy", POLICY)
    if agent_type != "raw":
        more["transport_format"] = "openai"
    return OpenAIAgent(client, await client.spawn_agent(team.team.id, name, agent_type, info, key=team.key, **more))


class OpenAIAgent:
    """An agent whose owner talks with it in the format of OpenAI's clients."""

    def __init__(self, client: Client, spawned: SpawnedAgent) -> None:
        self.client, self.id, self.nonce, self.spawned = client, spawned.agent.id, spawned.nonce, spawned.agent

    async def pieces(self, text: str) -> AsyncIterator[str]:
        """Take a turn, and yield its answer piece by piece."""
        async with aclosing(self.client.turn(self.id, body(text), key=self.nonce)) as chunks:
            async for chunk in chunks:
                if chunk.kind == "error":
                    raise error_of(chunk.body, 0)
                if piece := content(chunk.body):
                    yield piece

    async def say(self, text: str) -> str:
        """Take a turn, and return its answer. Raises the error of the turn."""
        return "".join([piece async for piece in self.pieces(text)])

    async def info(self) -> AgentInfo:
        """Return the present state of the agent."""
        return await self.client.get_agent(self.id, key=self.nonce)


def body(text: str) -> bytes:
    """Return a message in OpenAI's format."""
    return json.dumps({"messages": [{"role": "user", "content": text}]}).encode()


def content(chunk: bytes) -> str:
    """Return the text of a chunk."""
    return str(json.loads(chunk)["choices"][0]["delta"].get("content") or "") if chunk else ""


def sleeping_process(mark: str) -> psutil.Process | None:
    """Return the process on this machine that sleeps for so many seconds, or None."""
    found = [each for each in psutil.process_iter(["cmdline"]) if each.info["cmdline"] == ["sleep", mark]]
    return found[0] if found else None


def main_process_of(mark: str) -> psutil.Process:
    """Return the main process of the agent whose descendant sleeps for so many seconds."""
    process = sleeping_process(mark)
    assert process is not None
    return next(each for each in process.parents() if "python" in each.name())


@asynccontextmanager
async def make_agent_wait(agent: OpenAIAgent) -> AsyncIterator[str]:
    """Make an agent wait for a command; yield the mark of the command. The block must make the turn fail."""
    mark = unused_seconds()
    turn = asyncio.create_task(agent.say(f"$ sleep {mark}"))
    await eventually(lambda: turn.done() or sleeping_process(mark))
    if turn.done():  # Before there was anything to wait for: it says why.
        pytest.fail(f"the agent was not at work: {turn.result()}")
    yield mark
    with pytest.raises(RametError):
        await turn


def groups_of(mark: str) -> list[pathlib.Path]:
    """Return the control groups of the team of the agent that has that process; an empty list if there are none."""
    process = sleeping_process(mark)
    assert process is not None
    groups = {each.parent for each in cgroups(process.pid)}
    return [each for each in groups if each.name.startswith("together-")]


def unused_seconds() -> str:
    """Return a number of seconds for which no other process sleeps."""
    return f"5{secrets.randbelow(10**9):09d}"


async def image_of(client: Client, **files: bytes) -> str:
    """Make an image with these modules, and return its id."""
    bundle = await client.upload_bundle(tar({f"{name}.py": content for name, content in files.items()}))
    job = await client.create_image([bundle.id])
    async with asyncio.timeout(180):
        while job.state in ("queued", "running"):
            job = await client.job(job.id)
    assert job.error is None
    return job.image
