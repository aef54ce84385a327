"""A folder of an older ramet opens: its trees continue, its state is read, its images and agents serve."""

from __future__ import annotations

import json
import pathlib
import sys
import tarfile
from collections.abc import Iterator

import pytest

import ramet
from ramet import AgentRuntime, Policy, ScriptedModel, Session
from ramet.services.agent_types.function.type import FunctionType
from ramet.services.server.server import Server
from tests.support import recorded
from tests.support.serving import short_folder

RECORDS = pathlib.Path(__file__).with_name("records")


@pytest.fixture
def older_folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """Return the folder that the older ramet left."""
    with tarfile.open(RECORDS / "93a443c.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="its functions were packed by Python 3.11")
async def test_functions_and_compositions_continue(older_folder: pathlib.Path) -> None:
    """The function has its arguments and its checkpoint, the composition the result of its first step."""
    async with AgentRuntime(older_folder, backend="local") as runtime:
        handles = await runtime.resume(llm=ScriptedModel([]))
        results = {each.run.agent.name: await each.result() for each in handles if not each.run.persistent}

    assert {name: (result.status, result.value) for name, result in results.items()} == {
        "work": ("completed", {"reached": {"at": 4}, "number": 4, "pids": 17}),
        "chain": ("completed", "BEGUN!"),
    }


async def test_a_conversation_continues(older_folder: pathlib.Path) -> None:
    """The conversation still has its earlier messages."""
    model = ScriptedModel(["Blue, you said."])
    async with (
        AgentRuntime(older_folder, backend="local") as runtime,
        await Session.resume(recorded.SESSION, llm=model, runtime=runtime) as session,
    ):
        result = await session.ask("Which colour?")
        texts = [str(each.content) for each in session.messages]

    assert result.text == "Blue, you said."
    assert texts == ["My colour is blue.", "Noted: blue.", "Which colour?", "Blue, you said."]


async def test_state_is_read(older_folder: pathlib.Path) -> None:
    """The state has its value and its history."""
    async with AgentRuntime(older_folder, backend="local") as runtime:
        state = await runtime.state("shared")
        history = await state.history()

        assert state.get("plan") == ["made", 1]
        assert [each.message for each in history] == ["a plan"]


@pytest.fixture
def older_server() -> Iterator[pathlib.Path]:
    """Yield the folder that the older server left."""
    with short_folder() as folder, tarfile.open(RECORDS / "93a443c-image.tar.gz") as archive:
        archive.extractall(folder, filter="data")
        yield folder


async def test_an_image_and_its_agent_serve(older_server: pathlib.Path) -> None:
    """The agent answers under its id and nonce; a new agent is spawned from the image with the team's key."""
    names = json.loads((older_server / "names.json").read_text())
    prompt = b'{"messages": [{"role": "user", "content": "again"}]}'
    async with (
        Server(older_server, backend="local", types={"function": FunctionType()}) as server,
        ramet.connect(server.listen_address) as client,
    ):
        images = [each.id for each in await client.list_images(key=server.operator)]
        older = await client.say(names["agent"], prompt, key=names["nonce"])
        info, image = {"function": "greeter:greet"}, names["image"]
        spawned = await client.spawn_agent(
            names["team"], "another", "function", info, image=image, policy=Policy(), key=names["key"]
        )
        newer = await client.say(spawned.agent.id, prompt, key=spawned.nonce)

    assert images == [names["image"]]
    assert b"hello again" in older
    assert b"hello again" in newer
