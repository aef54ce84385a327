"""The own states of agents in a server: of two teams and the program, all of one name. Real HTTP, real sandboxes."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal, NamedTuple

import pytest

import ramet
from ramet import Agent, Policy
from ramet.core.errors import AgentNotResolved, NotYours
from ramet.host.dynamic.authoring import HostAuthoring
from ramet.host.dynamic.registries import STATE
from ramet.models.dialogue import Call
from ramet.services.client.client import Client
from ramet.services.contract import SpawnedAgent
from ramet.services.server import Server
from ramet.services.types.function import FunctionType
from ramet.store.state.versioned import Versioned
from ramet.tools.python import python_tool
from tests.support.told_types import ToldType
from tests.trips import own_state_agents

Backend = Literal["bwrap", "local"]
both = pytest.mark.parametrize("backend", ["bwrap", "local"])

#: Of an agent that the program's architect wrote down.
SOLVER = {
    "name": "solver",
    "task_definitions": {"solve": {"docstring": "Solve.", "signature": {"parameters": {}, "returns": None}}},
}
LOOKS = "print(sorted(state.keys()), state.get('secret'))"


def keeps(word: str) -> str:
    """Code that keeps a word."""
    return f"state.set('secret', {word!r})\nstate.commit({word!r})\nprint('kept')"


class Place(NamedTuple):
    """A server, a client with the operator's key, and what their teams ask."""

    server: Server
    client: Client

    async def spawn(self, team: str, kind: str = "told", info: dict[str, Any] | None = None, **more: Any) -> Any:
        """An agent of the name `notes` in a team of its own."""
        created = await self.client.create_team({"agents": 4}, name=team)
        told = {"tools": ["python"], "spawn": True}
        asked = {"policy": Policy(allow_sub_agents=True), "key": created.key, **more}
        return await self.client.spawn_agent(team, "notes", kind, info or told, **asked)

    async def say(self, agent: SpawnedAgent, text: str) -> str:
        """One turn; its text."""
        body = json.dumps({"model": "any", "messages": [{"role": "user", "content": text}]}).encode()
        said = await self.client.say(agent.agent.id, body, format="openai", key=agent.nonce)
        chunks = [json.loads(line) for line in said.replace(b"}{", b"}\n{").splitlines()]
        return "".join(each["choices"][0]["delta"].get("content") or "" for each in chunks if each["choices"])

    async def run(self, agent: SpawnedAgent, code: str) -> str:
        """The result of a call of `python`."""
        return await self.say(agent, f"call python {json.dumps({'code': code})}")

    async def run_below(self, agent: SpawnedAgent, code: str) -> str:
        """Likewise, of an agent that it starts by the name of a definition, which all have."""
        prompt = f"call python {json.dumps({'code': code})}"
        asked = {
            "subagent_type": "general-purpose",
            "description": "notes",
            "prompt": prompt,
            "run_in_background": False,
        }
        return await self.say(agent, f"call Agent {json.dumps(asked)}")

    async def run_of(self, agent: SpawnedAgent) -> str:
        """The root of its newest tree."""
        return (await self.client.get_agent(agent.agent.id, key=agent.nonce)).run

    async def states(self) -> Versioned:
        """The states of all agents, as they are in the store of the server."""
        return await Versioned.open(await self.server.runtime.open_store(), STATE)

    async def namespaces(self) -> list[str]:
        """Where there is any state at all."""
        return (await self.states()).namespaces(recursive=False)


@asynccontextmanager
async def serving(folder: pathlib.Path, backend: Backend) -> AsyncIterator[Place]:
    """A server over a folder."""
    types: dict[str, Any] = {"told": ToldType(), "function": FunctionType(["tests.trips.own_state_agents"])}
    async with (
        Server(folder, backend=backend, types=types) as server,
        ramet.connect(server.where) as client,
    ):
        yield Place(server, client)


async def of_the_program(place: Place, code: str) -> str:
    """The result of a call of `python`, of an agent of the program that has the same name."""
    model = ramet.ScriptedModel([Call("python", {"code": code}), lambda messages: str(messages[-1].content)])
    agent = Agent(name="notes", instructions="Keep notes.", model=model, tools=[python_tool()], policy=Policy())
    handle = await place.server.runtime.spawn(agent.module("math"), "Begin!")
    return str((await handle.result()).value)


@both
async def test_the_state_of_an_agent_is_of_that_agent_alone(folder: pathlib.Path, backend: Backend) -> None:
    """Neither another team's agent of its name nor the program's reads or writes it; a later server finds it again."""
    async with serving(folder, backend) as place:
        assert "kept" in await of_the_program(place, keeps("of the program"))
        ours, theirs = await place.spawn("ours"), await place.spawn("theirs")
        assert "kept" in await place.run(ours, keeps("of ours"))

        assert "[] None" in await place.run(theirs, LOOKS)
        assert "kept" in await place.run(theirs, keeps("of theirs"))
        assert "['secret'] of ours" in await place.run(ours, LOOKS)
        assert "['secret'] of the program" in await of_the_program(place, LOOKS)
        messages = "print([each.message for each in state.history()], list(state.branches()))"
        assert "['of ours'] []" in await place.run(ours, messages)

    async with serving(folder, backend) as place:
        assert "['secret'] of ours" in await place.run(ours, LOOKS)
        assert "['secret'] of theirs" in await place.run(theirs, LOOKS)
        assert "['secret'] of the program" in await of_the_program(place, LOOKS)


async def test_agents_that_a_client_starts_below_share_none_either(folder: pathlib.Path) -> None:
    """Both teams start agents of the same definition; each has the notes of its own tree."""
    async with serving(folder, "bwrap") as place:
        ours, theirs = await place.spawn("ours"), await place.spawn("theirs")
        assert "kept" in await place.run_below(ours, keeps("of ours"))

        assert "[] None" in await place.run_below(theirs, LOOKS)
        assert "['secret'] of ours" in await place.run_below(ours, LOOKS)


@pytest.mark.parametrize("in_the_host", [False, True])
async def test_functions_keep_theirs_from_turn_to_turn(folder: pathlib.Path, in_the_host: bool) -> None:
    """Each turn is a tree of its own, and a later server begins others: the state is the agent's."""
    info = {"function": f"tests.trips.own_state_agents:{own_state_agents.remembers.__name__}"}
    more = {"policy": None} if in_the_host else {}
    async with serving(folder, "bwrap") as place:
        ours, theirs = [await place.spawn(team, "function", info, **more) for team in ("ours", "theirs")]
        assert [await place.say(ours, word) for word in ("one", "two")] == ["[]", '["one"]']
        assert await place.say(theirs, "other") == "[]"

    async with serving(folder, "bwrap") as place:
        assert await place.say(ours, "three") == '["one", "two"]'
        assert await place.say(theirs, "x") == '["other"]'


async def test_an_operator_sees_each_state_by_its_run(folder: pathlib.Path) -> None:
    """The views show the state of a run where it is, also once its tree is over; a team's key does not."""
    async with serving(folder, "bwrap") as place:
        ours, theirs = await place.spawn("ours"), await place.spawn("theirs")
        for agent, word in ((ours, "of ours"), (theirs, "of theirs")):
            assert "kept" in await place.run(agent, keeps(word))
        for agent, word in ((ours, "of ours"), (theirs, "of theirs")):
            run = await place.run_of(agent)
            page = await place.client.kernel.state(run)
            assert page.values == {"secret": word}
            assert page.place == f"@{agent.agent.id}/notes"
            assert [each.message for each in (await place.client.kernel.state_versions(run)).versions] == [word]
            async with ramet.connect(place.server.where, key=agent.nonce) as other:
                with pytest.raises(NotYours):
                    await other.kernel.state(run)


async def test_branches_of_a_state_go_with_its_agent(folder: pathlib.Path) -> None:
    """Those of delegates whose work nobody took in, and no other agent's."""
    info = {"function": f"tests.trips.own_state_agents:{own_state_agents.leaves_a_branch.__name__}"}
    async with serving(folder, "bwrap") as place:
        ours, theirs = [await place.spawn(team, "function", info) for team in ("ours", "theirs")]
        assert [await place.say(each, "go") for each in (ours, theirs)] == ["1", "1"]
        state = await place.states()
        assert [len(await state.branches(f"@{each.agent.id}/")) for each in (ours, theirs)] == [1, 1]

        await place.client.kill_agent(ours.agent.id, key=ours.nonce)

        assert [len(await state.branches(f"@{each.agent.id}/")) for each in (ours, theirs)] == [0, 1]


async def test_a_state_goes_with_its_agent_and_a_new_one_of_the_name_finds_none(folder: pathlib.Path) -> None:
    """Nobody else's goes along."""
    async with serving(folder, "bwrap") as place:
        assert "kept" in await of_the_program(place, keeps("of the program"))
        ours, theirs = await place.spawn("ours"), await place.spawn("theirs")
        for agent in (ours, theirs):
            assert "kept" in await place.run(agent, keeps("a word"))
        assert await place.namespaces() == sorted([f"@{ours.agent.id}", f"@{theirs.agent.id}", "notes"])

        await place.client.kill_agent(ours.agent.id, key=ours.nonce)

        assert await place.namespaces() == sorted([f"@{theirs.agent.id}", "notes"])
        again = await place.client.spawn_agent(
            "ours", "notes", "told", {"tools": ["python"]}, policy=Policy(allow_sub_agents=True)
        )
        assert "[] None" in await place.run(again, LOOKS)


async def test_a_client_that_copies_a_definition_cannot_ask_the_agents_that_the_original_made(
    folder: pathlib.Path,
) -> None:
    """Word for word it is the same agent, but for who wrote it."""
    async with serving(folder, "bwrap") as place:
        runtime = place.server.runtime
        original = Agent(name="notes", instructions="Keep notes.", limits=ramet.Limits(seconds=3600.0))
        original.cls(Agent)
        made = await runtime.dynamic.create(original, SOLVER)
        agent = await place.spawn("ours", info={"system_prompt": "Keep notes.", "tools": ["python"]})
        run, authoring = runtime.get(await place.run_of(agent)).run, HostAuthoring(runtime.dynamic)

        for handle in (str(made.ref), "solver"):
            with pytest.raises(AgentNotResolved, match="can see"):
                await authoring.asked(run, handle, "solve", {})

        run.request = dataclasses.replace(run.request, state_owner="")
        assert (await authoring.asked(run, str(made.ref), "solve", {})).description == "solve"
