"""States of agents in a server: two teams and the program use one agent name. Real HTTP, real sandboxes."""

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
from ramet.models.scripted.dialogue import Call
from ramet.services.agent_types.function.type import FunctionType
from ramet.services.client.client import Client
from ramet.services.contract import SpawnedAgent
from ramet.services.server.server import Server
from ramet.store.state.branch import KIND
from ramet.tools.python import python_tool
from tests.support.scripted_tool_types import ScriptedToolType
from tests.trips.agents import stateful

Backend = Literal["bwrap", "local"]
both = pytest.mark.parametrize("backend", ["bwrap", "local"])

#: Of an agent that the program's architect wrote down.
SOLVER = {
    "name": "solver",
    "task_definitions": {"solve": {"docstring": "Solve.", "signature": {"parameters": {}, "returns": None}}},
}
MAY_SPAWN = Policy(allow_sub_agents=True)
LOOKS = "print(sorted(state.keys()), state.get('secret'))"


def code_that_keeps(word: str) -> str:
    """Return code that commits a word."""
    return f"state.set('secret', {word!r})\nstate.commit({word!r})\nprint('kept')"


class ServerWithTeams(NamedTuple):
    """A server, a client with the operator's key, and requests of its teams."""

    server: Server
    client: Client

    async def spawn(self, team: str, kind: str = "told", info: dict[str, Any] | None = None, **more: Any) -> Any:
        """Spawn an agent with the name `notes` in a new team."""
        created_team = await self.client.create_team({"agents": 4}, name=team)
        default_info = {"tools": ["python"], "spawn": True}
        arguments = {"policy": MAY_SPAWN, "key": created_team.key, **more}
        return await self.client.spawn_agent(team, "notes", kind, info or default_info, **arguments)

    async def say(self, agent: SpawnedAgent, text: str) -> str:
        """Take one turn, and return its text."""
        body = json.dumps({"model": "any", "messages": [{"role": "user", "content": text}]}).encode()
        response = await self.client.say(agent.agent.id, body, format="openai", key=agent.nonce)
        chunks = [json.loads(line) for line in response.replace(b"}{", b"}\n{").splitlines()]
        return "".join(each["choices"][0]["delta"].get("content") or "" for each in chunks if each["choices"])

    async def run(self, agent: SpawnedAgent, code: str) -> str:
        """Return the result of a call of `python`."""
        return await self.say(agent, f"call python {json.dumps({'code': code})}")

    async def run_below(self, agent: SpawnedAgent, code: str) -> str:
        """Return the result of a call of `python` by a child, which the agent spawns from a built-in definition."""
        prompt = f"call python {json.dumps({'code': code})}"
        arguments = {
            "subagent_type": "general-purpose",
            "description": "notes",
            "prompt": prompt,
            "run_in_background": False,
        }
        return await self.say(agent, f"call Agent {json.dumps(arguments)}")

    async def run_of(self, agent: SpawnedAgent) -> str:
        """Return the root of the agent's newest tree."""
        return (await self.client.get_agent(agent.agent.id, key=agent.nonce)).run

    async def states(self) -> list[str]:
        """Return the branches of all states in the server's store."""
        store = await self.server.runtime.open_store()
        return sorted(each.key for each in await store.list(KIND))


@asynccontextmanager
async def serving(folder: pathlib.Path, backend: Backend) -> AsyncIterator[ServerWithTeams]:
    """Start a server in a folder."""
    types: dict[str, Any] = {"told": ScriptedToolType(), "function": FunctionType(["tests.trips.agents.stateful"])}
    async with (
        Server(folder, backend=backend, types=types) as server,
        ramet.connect(server.listen_address) as client,
    ):
        yield ServerWithTeams(server, client)


def _states_of(agent: SpawnedAgent, states: list[str]) -> list[str]:
    return [each for each in states if each.startswith(f"agents@{agent.agent.id}/")]


async def run_in_program(server: ServerWithTeams, code: str, name: str = "notes") -> str:
    """Return the result of a call of `python` by an agent of the program, with the same or another name."""
    model = ramet.ScriptedModel([Call("python", {"code": code}), lambda messages: str(messages[-1].content)])
    agent = Agent(name=name, instructions="Keep notes.", model=model, tools=[python_tool()], policy=Policy())
    handle = await server.server.runtime.spawn(agent.module("math"), "Begin!")
    return str((await handle.result()).value)


@both
async def test_an_agent_s_state_is_isolated_from_agents_of_its_name(folder: pathlib.Path, backend: Backend) -> None:
    """Agents with its name, in another team and in the program, cannot read or write it. A later server finds it."""
    async with serving(folder, backend) as server:
        assert "kept" in await run_in_program(server, code_that_keeps("of the program"))
        first_agent, second_agent = await server.spawn("ours"), await server.spawn("theirs")
        assert "kept" in await server.run(first_agent, code_that_keeps("of ours"))

        assert "[] None" in await server.run(second_agent, LOOKS)
        assert "kept" in await server.run(second_agent, code_that_keeps("of theirs"))
        assert "['secret'] of ours" in await server.run(first_agent, LOOKS)
        assert "['secret'] of the program" in await run_in_program(server, LOOKS)
        messages = "print([each.message for each in state.history()], list(state.branches()))"
        assert "['of ours'] []" in await server.run(first_agent, messages)

    async with serving(folder, backend) as server:
        assert "['secret'] of ours" in await server.run(first_agent, LOOKS)
        assert "['secret'] of theirs" in await server.run(second_agent, LOOKS)
        assert "['secret'] of the program" in await run_in_program(server, LOOKS)


async def test_children_in_two_trees_do_not_share_state(folder: pathlib.Path) -> None:
    """Two teams spawn agents of the same definition, and each child has the notes of its own tree."""
    async with serving(folder, "bwrap") as server:
        first_agent, second_agent = await server.spawn("ours"), await server.spawn("theirs")
        assert "kept" in await server.run_below(first_agent, code_that_keeps("of ours"))

        assert "[] None" in await server.run_below(second_agent, LOOKS)
        assert "['secret'] of ours" in await server.run_below(first_agent, LOOKS)


@pytest.mark.parametrize("in_the_host", [False, True])
async def test_a_function_keeps_its_state_from_turn_to_turn(folder: pathlib.Path, in_the_host: bool) -> None:
    """Each turn has its own tree, and the state belongs to the agent. A later server finds it, too."""
    info = {"function": f"tests.trips.agents.stateful:{stateful.remembers.__name__}"}
    more = {"policy": None} if in_the_host else {}
    async with serving(folder, "bwrap") as server:
        first_agent, second_agent = [await server.spawn(team, "function", info, **more) for team in ("ours", "theirs")]
        assert [await server.say(first_agent, word) for word in ("one", "two")] == ["[]", '["one"]']
        assert await server.say(second_agent, "other") == "[]"

    async with serving(folder, "bwrap") as server:
        assert await server.say(first_agent, "three") == '["one", "two"]'
        assert await server.say(second_agent, "x") == '["other"]'


async def test_an_operator_sees_each_state_by_its_run(folder: pathlib.Path) -> None:
    """The operator reads the state of a run, also after its tree has ended. A team's key cannot."""
    async with serving(folder, "bwrap") as server:
        first_agent, second_agent = await server.spawn("ours"), await server.spawn("theirs")
        for agent, word in ((first_agent, "of ours"), (second_agent, "of theirs")):
            assert "kept" in await server.run(agent, code_that_keeps(word))
        for agent, word in ((first_agent, "of ours"), (second_agent, "of theirs")):
            run = await server.run_of(agent)
            page = await server.client.kernel.state(run)
            assert page.values == {"secret": word}
            assert (page.owner, page.place) == (agent.agent.id, "notes")
            assert (await server.server.runtime.state_at(run, 10_000)).get("notes/secret") == word
            assert [each.message for each in (await server.client.kernel.state_versions(run)).versions] == [word]
            async with ramet.connect(server.server.listen_address, key=agent.nonce) as other:
                with pytest.raises(NotYours):
                    await other.kernel.state(run)


async def test_deleting_an_agent_removes_its_state_branches(folder: pathlib.Path) -> None:
    """The branch of a delegate that was never merged is removed, too. Branches of another agent stay."""
    info = {"function": f"tests.trips.agents.stateful:{stateful.leaves_a_branch.__name__}"}
    async with serving(folder, "bwrap") as server:
        first_agent, second_agent = [await server.spawn(team, "function", info) for team in ("ours", "theirs")]
        assert [await server.say(each, "go") for each in (first_agent, second_agent)] == ["1", "1"]
        before = [_states_of(each, await server.states()) for each in (first_agent, second_agent)]
        assert [len(each) for each in before] == [2, 2], "main, and the delegate's"

        await server.client.kill_agent(first_agent.agent.id, key=first_agent.nonce)

        assert await server.states() == before[1]


async def test_a_new_agent_does_not_inherit_the_state_of_a_deleted_one(folder: pathlib.Path) -> None:
    """The states of the other team and of the program stay."""
    async with serving(folder, "bwrap") as server:
        assert "kept" in await run_in_program(server, code_that_keeps("of the program"))
        first_agent, second_agent = await server.spawn("ours"), await server.spawn("theirs")
        for agent in (first_agent, second_agent):
            assert "kept" in await server.run(agent, code_that_keeps("a word"))
        own_states, others = [_states_of(each, await server.states()) for each in (first_agent, second_agent)]
        assert await server.states() == sorted(["agents/main", *own_states, *others])

        await server.client.kill_agent(first_agent.agent.id, key=first_agent.nonce)

        assert await server.states() == sorted(["agents/main", *others])
        repeated_spawn = await server.client.spawn_agent(
            "ours", "notes", "told", {"tools": ["python"]}, policy=MAY_SPAWN
        )
        assert "[] None" in await server.run(repeated_spawn, LOOKS)


WALKS = """
seen, commit = [], state.commit()
while commit is not None:
    seen.append([commit.message, commit.author])
    commit = state.checkout(commit.parents[0]) if commit.parents else None
state.checkout()
print(seen)
"""


async def test_an_agent_cannot_read_commits_or_branches_of_others(folder: pathlib.Path) -> None:
    """Walking the history and merging an unknown branch reveal nothing. This holds inside the program, too."""
    info = {"function": f"tests.trips.agents.stateful:{stateful.leaves_a_branch.__name__}"}
    async with serving(folder, "bwrap") as server:
        first_agent, second_agent = await server.spawn("ours"), await server.spawn("theirs")
        assert "kept" in await run_in_program(server, code_that_keeps("a word of the program"))
        assert await server.say(await server.spawn("functions", "function", info), "go") == "1"
        assert "kept" in await server.run(first_agent, code_that_keeps("a word of ours"))
        assert "kept" in await server.run(second_agent, code_that_keeps("a word of theirs"))

        walked = await server.run(second_agent, WALKS)
        assert walked.count("a word of") == 1
        assert "a word of theirs" in walked
        no_branch = "try:\n    state.merge('nope')\nexcept Exception as error:\n    print(error)"
        handle = await server.server.runtime.spawn(stateful.leaves_a_branch, args=("go",), policy=MAY_SPAWN)
        assert (await handle.result()).value == "1"
        for text in (await server.run(second_agent, no_branch), await run_in_program(server, no_branch, name="other")):
            assert "nope" in text
            assert "main" not in text
            assert "run-" not in text

        walked = await run_in_program(server, WALKS, name="other")
        assert "a word of" not in walked
        assert "run-" not in walked


@pytest.mark.parametrize("bounds", [{}, {"seconds": 3600.0}])
async def test_an_agent_of_a_client_cannot_ask_agents_of_the_program(
    folder: pathlib.Path, bounds: dict[str, float]
) -> None:
    """An equal definition changes nothing, and a fork does not either."""
    async with serving(folder, "bwrap") as server:
        runtime = server.server.runtime
        original = Agent(name="notes", instructions="Keep notes.", limits=ramet.Limits(seconds=bounds.get("seconds")))
        original.cls(Agent)
        new_agent = await runtime.dynamic.create(original, SOLVER)
        specialist = Agent(name="specialist")

        @specialist.task
        def work() -> str:  # type: ignore[empty-body]
            """Work."""

        agent = await server.spawn("ours", info={"system_prompt": "Keep notes.", "tools": ["python"], "spawn": True})
        run, authoring = runtime.get(await server.run_of(agent)).run, HostAuthoring(runtime.dynamic)
        assert run.context.tree is not None
        forked_run = await run.context.tree.spawn(run.context, ramet.SpawnRequest(prompt="system", mode="fork"))
        fork = runtime.get(forked_run.id).run

        for each in (run, fork):
            for handle, task in ((str(new_agent.ref), "solve"), ("solver", "solve"), ("specialist", "work")):
                with pytest.raises(AgentNotResolved, match="cannot be asked in a tree that a client started"):
                    await authoring.spawn_request(each, handle, task, {})

        run.request = dataclasses.replace(run.request, state_owner="")
        assert (await authoring.spawn_request(run, "specialist", "work", {})).description == "work"
        same = fork if not bounds else run
        assert (await authoring.spawn_request(same, str(new_agent.ref), "solve", {})).description == "solve"
