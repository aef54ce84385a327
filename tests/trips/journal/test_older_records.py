"""A journal of an older ramet opens: its functions, compositions and conversations continue, its state is read."""

from __future__ import annotations

import pathlib
import sys
import tarfile

import pytest

from ramet import AgentRuntime, ScriptedModel, Session
from tests.support import recorded

RECORDS = pathlib.Path(__file__).with_name("records") / "93a443c.tar.gz"


@pytest.fixture
def older_folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """Return the folder that the older ramet left."""
    with tarfile.open(RECORDS) as archive:
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
        said = [str(each.content) for each in session.messages]

    assert result.text == "Blue, you said."
    assert said == ["My colour is blue.", "Noted: blue.", "Which colour?", "Blue, you said."]


async def test_state_is_read(older_folder: pathlib.Path) -> None:
    """The state has its value and its history."""
    async with AgentRuntime(older_folder, backend="local") as runtime:
        state = await runtime.state("shared")
        history = await state.history()

        assert state.get("plan") == ["made", 1]
        assert [each.message for each in history] == ["a plan"]
