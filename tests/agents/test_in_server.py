"""The real Codex as an agent of a server: its client has a key of the agent, and no more."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

import ramet
from ramet.core.errors import RametError
from ramet.services.server.server import Server
from tests.agents.scripts import TITLES, each, write_call
from tests.support.acceptance import OpenAIAgent
from tests.support.agent_programs import Program, executables
from tests.support.providers import Step, provider
from tests.support.serving import short_folder
from tests.support.waiting import eventually
from tests.trips.kits.forwarding import KEY, host_key, use_server

__all__ = ["host_key"]


@each(("codex-acp",))
@pytest.mark.usefixtures("host_key")
async def test_a_client_talks_with_codex_turn_by_turn(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator answers its question. Its second turn knows the first one, and its limit is that of its agent."""
    monkeypatch.setenv("PATH", os.pathsep.join([*map(str, executables()), os.environ["PATH"]]))
    write: list[Step] = [write_call(program.name, Path("note.txt"), "hello"), "It is written."]
    async with provider({**TITLES, "[write]": write, "[more]": ["I wrote it.", "Again."]}) as model:
        use_server(monkeypatch, model.url)
        with short_folder() as folder:
            async with Server(folder, backend="bwrap") as server, ramet.connect(server.listen_address) as client:
                team = await client.create_team({"agents": 1, "memory_mb": 1000, "model_calls": 3})
                info = {"external": "codex", "model": "openai:gpt-5.5"}
                spawned = await client.spawn_agent(
                    team.team.id,
                    "coder",
                    "external",
                    info,
                    transport_format="openai",
                    limits={"model_calls": 3},
                    key=team.key,
                )
                agent = OpenAIAgent(client, spawned)
                first = asyncio.ensure_future(agent.say("Please [write]."))
                await eventually(lambda: [each for each in server.runtime.trees.values() if each.inbox.pending])
                (question,) = await client.kernel.approvals()
                await client.kernel.answer(question.id, allowed=True)
                assert (await first).endswith("It is written.")
                workspace = server.runtime.sandboxes.folder_of(spawned.agent.run)
                assert workspace is not None
                assert (workspace.workspace / "note.txt").read_text() == "hello"
                assert (await agent.say("Say [more].")).endswith("I wrote it.")
                with pytest.raises(RametError, match="model_calls"):
                    await agent.say("Say [more].")

    assert "note.txt" in str(question)
    assert len(model.generations) == 3
    assert "It is written." in json.dumps(model.generations[-1].body), "the conversation is one"
    assert all(f"Bearer {KEY}" in request.headers.values() for request in model.generations)
