"""Children and commands that take long: their caller gets a handle, and they work on in the background."""

from __future__ import annotations

import asyncio
import pathlib
import signal
import sys
from typing import Any

import pytest
from langchain_core.messages import BaseMessage
from pydantic import PrivateAttr

import ramet
from ramet.core.events import Notice
from ramet.core.outcome import Status
from ramet.models.scripted.dialogue import Call, ResolvedStep, Script, Step
from ramet.models.scripted.model import ScriptedModel
from ramet.tools.agents.agents import spawning_tools
from tests.support.waiting import eventually
from tests.trips.kits.isolated import BackendName, marked_processes, usual_backend
from tests.trips.kits.sessions import of_kind, session_events

backend = usual_backend


class GatedModel(ScriptedModel):
    """A scripted model whose reply "Found." waits until the test opens its gate."""

    _gate: asyncio.Event = PrivateAttr(default_factory=asyncio.Event)

    def __init__(self, script: Script) -> None:
        super().__init__(script)

    async def _delay(self, resolved_step: ResolvedStep) -> None:
        if resolved_step.step == "Found.":
            await self._gate.wait()

    def open(self) -> None:
        self._gate.set()


def long_child() -> list[Any]:
    """Return the steps of a parent that waits a moment for its child, and ends its turn then."""
    call = {"prompt": "Search.", "subagent_type": "general-purpose", "name": "searcher", "background_after_s": 0.1}
    return [Call("Agent", call), "I go on.", "It was found."]


def answers(messages: list[BaseMessage]) -> list[str]:
    return [str(each.text) for each in messages if each.type == "tool"]


@pytest.mark.parametrize("is_sandboxed", [False, True], ids=["host", "sandbox"])
async def test_a_child_that_takes_long_goes_on_in_the_background(
    tmp_path: pathlib.Path, backend: BackendName, is_sandboxed: bool
) -> None:
    """The result of the call says so, with the handle; the end of the child comes as a notice, once."""
    model = GatedModel({"Search.": ["Found."], "": long_child()})
    options: dict[str, Any] = {}
    if is_sandboxed:
        options = {"backend": backend, "root_policy": ramet.Policy(allow_sub_agents=True, memory_mb=512)}
    async with ramet.Session(model, cwd=tmp_path, **options) as session:
        result = await session.ask("Begin!")
        child = session.handle("searcher")
        assert (result.value, child.background, child.run.is_living) == ("I go on.", True, True)
        assert answers(session.messages)[0].startswith(
            f"Moved to the background after 0.1 s: task_id={child.id} name=searcher. It works on."
        )
        model.open()
        await eventually(lambda: session.result is not None and session.result.value == "It was found.")
        notices = [str(each.text) for each in session.messages if "<task-notification" in str(each.text)]
        assert len(notices) == 1
        assert "Found." in notices[0]


KILLED = """
import asyncio, sys
import ramet
from tests.trips.mail.test_moves_to_background import GatedModel, long_child

async def main():
    async with ramet.AgentRuntime(sys.argv[1]) as runtime:
        model = GatedModel({"Search.": ["Found."], "": long_child()})
        async with ramet.Session(model, runtime=runtime, session_id="long") as session:
            await session.ask("Begin!")
            print("moved", flush=True)
            await asyncio.sleep(600)

asyncio.run(main())
"""


async def test_a_moved_child_is_still_in_the_background_after_a_kill(tmp_path: pathlib.Path) -> None:
    """Another kernel continues it, and its end wakes the parent, which no longer waits."""
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(script), str(tmp_path), stdout=asyncio.subprocess.PIPE,
        env={"PYTHONPATH": str(pathlib.Path(__file__).parents[3])},
    )  # fmt: skip
    assert process.stdout is not None
    assert await process.stdout.readline() == b"moved\n"
    process.send_signal(signal.SIGKILL)
    await process.wait()

    model = GatedModel({"Search.": ["Found."], "": long_child()})
    async with (
        ramet.AgentRuntime(tmp_path) as runtime,
        await ramet.Session.resume("long", model, runtime=runtime) as session,
    ):
        assert session.handle("searcher").background
        model.open()
        await eventually(lambda: session.result is not None and session.result.value == "It was found.")
        assert len([each for each in session.messages if "<task-notification" in str(each.text)]) == 1


@pytest.mark.parametrize("is_sandboxed", [False, True], ids=["host", "sandbox"])
async def test_a_command_that_takes_long_goes_on_in_the_background(
    tmp_path: pathlib.Path, backend: BackendName, is_sandboxed: bool
) -> None:
    """The output is read while the command runs, and only grows; at the end of the turn no process of it is left."""
    mark = f"left-{is_sandboxed}-{tmp_path.name}"
    counting = "echo one; until [ -e go ]; do sleep 0.05; done; echo two"

    def read(messages: list[BaseMessage]) -> Call:
        path = next(text for text in answers(messages) if "appended to" in text).partition("appended to ")[2]
        return Call("Read", {"file_path": path.partition(", which Read")[0]})

    steps: list[Step] = [
        Call("Bash", {"command": counting, "timeout": 1_000, "at_timeout": "background"}),
        read,
        Call("TaskOutput", {"task_id": "bash-1", "block": False}),
        Call("Bash", {"command": "touch go"}),
        Call("TaskOutput", {"task_id": "bash-1", "timeout": 60}),
        read,
        Call("Bash", {"command": "echo quick", "timeout": 60_000, "at_timeout": "background"}),
        Call("Bash", {"command": f"exec -a '# {mark}' sleep 600", "run_in_background": True}),
        Call("Bash", {"command": "sleep 600", "run_in_background": True}),
        Call("TaskStop", {"task_id": "bash-3"}),
        "Done.",
    ]
    model = ScriptedModel(steps)
    options: dict[str, Any] = {}
    if is_sandboxed:
        options = {"backend": backend, "root_policy": ramet.Policy(memory_mb=512)}
    tools = [*ramet.workspace_tools(), *spawning_tools()]
    async with ramet.Session(model, tools, spawn=False, cwd=tmp_path, **options) as session:
        result = await session.ask("Begin!")
        notices = [each.text for each in of_kind(session_events(session), Notice)]
        moved, first, running, _, ended, second, quick, started, _, stopped = answers(session.messages)

    assert (result.status, result.value) == (Status.COMPLETED, "Done.")
    assert moved.startswith("one\n[moved to the background after 1 s: task_id=bash-1. Its output is appended to ")
    assert first == "     1\tone"
    assert running.startswith("status: running\none\n[output: ")
    assert ended.startswith("status: exit code 0\none\ntwo\n[output: ")
    assert second.splitlines() == [*first.splitlines(), "     2\ttwo", "     3\t", "     4\t[exit code 0]"]
    assert quick == "quick\n[exit code 0]"
    assert started.startswith("[started in the background: task_id=bash-2. ")
    assert stopped == "Stopped: bash-3."
    assert notices == ["the command bash-2 was stopped: its turn ended"]
    assert marked_processes(mark) == []
