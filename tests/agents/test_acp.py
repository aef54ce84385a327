"""Each program speaks the Agent Client Protocol against a scripted model server."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from tests.agents.scripts import SPEAKS_ACP, TITLES, each, mcp_tool, turns, write_call
from tests.support import mcp_tree
from tests.support.acp_client import AcpAgent, Decision, acp_agent
from tests.support.agent_programs import Program
from tests.support.providers import Call, Hang, Provider, Script, Step, provider

REPLY = "The file is written."


def started(
    program: Program, server: Provider, home: Path, folder: Path, decide: Decision = lambda _: "reject_once"
) -> AbstractAsyncContextManager[AcpAgent]:
    """Start a program that asks this model server."""
    assert program.acp is not None
    env = program.prepare(home, server.url)
    return acp_agent([*program.command, *program.acp], env, folder, decide=decide)


@asynccontextmanager
async def asked(**prompts: list[Step]) -> AsyncIterator[Provider]:
    """Serve the steps of each prompt that has the word before them, as `[word]`."""
    script: Script = {**TITLES, **{f"[{word}]": steps for word, steps in prompts.items()}}
    async with provider(script) as server:
        yield server


@each(SPEAKS_ACP)
async def test_a_tool_runs_when_the_client_allows_it(program: Program, agent_home: Path, folder: Path) -> None:
    """A question has the path of the file in it; once allowed, the file is there and the turn goes on."""
    note = folder / "note.txt"
    async with (
        asked(write=[write_call(program.name, note, "hello"), REPLY]) as server,
        started(program, server, agent_home, folder, lambda _: "allow_once") as agent,
    ):
        session = await agent.new_session(folder)

        ended = await agent.prompt(session, "Please [write].")

        assert note.read_text() == "hello"
        assert agent.questions
        assert all("note.txt" in str(question["toolCall"]) for question in agent.questions)
        assert (ended["stopReason"], agent.text.endswith(REPLY)) == ("end_turn", True)
        assert len(turns(server.requests)) == 2


@each(SPEAKS_ACP)
async def test_a_tool_does_not_run_when_the_client_rejects_it(program: Program, agent_home: Path, folder: Path) -> None:
    """A rejected call leaves no file. Some programs end the turn then, others ask their model again."""
    note = folder / "note.txt"
    async with (
        asked(write=[write_call(program.name, note, "hello"), "As you like."]) as server,
        started(program, server, agent_home, folder) as agent,
    ):
        session = await agent.new_session(folder)

        ended = await agent.prompt(session, "Please [write].")

        assert agent.questions
        assert not note.exists()
        assert ended["stopReason"] in ("end_turn", "cancelled")
        assert len(turns(server.requests)) <= 2


@each(SPEAKS_ACP)
async def test_tools_of_an_mcp_server_are_offered_and_run(program: Program, agent_home: Path, folder: Path) -> None:
    """A server that the client names for a session is started, and the first request says so: Codex by its name."""
    tool = mcp_tool(program.name, "tree", "spawn")
    server_of_tools = {"name": "tree", "command": sys.executable, "args": [mcp_tree.__file__], "env": []}
    async with (
        asked(spawn=[Call(tool, {"task": "a review"}), "It is spawned."]) as server,
        started(program, server, agent_home, folder, lambda _: "allow_once") as agent,
    ):
        session = await agent.new_session(folder, [server_of_tools])

        await agent.prompt(session, "Please [spawn].")

        first, second = turns(server.requests)
        assert "tree" in str(first.body["tools"])
        assert "spawned for a review" in str(second.body)
        assert agent.text.endswith("It is spawned.")


@each(SPEAKS_ACP)
async def test_a_cancelled_turn_leaves_its_request(program: Program, agent_home: Path, folder: Path) -> None:
    """In the middle of a reply a cancellation ends the turn and the request for it."""
    async with (
        asked(recite=[Hang(12, text="A long reply without an end.")]) as server,
        started(program, server, agent_home, folder) as agent,
    ):
        session = await agent.new_session(folder)

        async with asyncio.TaskGroup() as group:
            turn = group.create_task(agent.prompt(session, "Please [recite]."))
            await agent.until(lambda: "A long" in agent.text)
            await agent.cancel(session)
        await server.client_left.wait()
        ended = turn.result()

        assert ended["stopReason"] == "cancelled"
        assert len(turns(server.requests)) == 1


def age_sessions(home: Path) -> None:
    """Give the files of sessions the names that they would have from another minute.

    Loading a session, Gemini CLI 0.61 begins a file named by the minute and the session. In the minute in which the
    session began that is its own file, and the conversation in it is gone.
    """
    for path in home.glob(".gemini/tmp/*/chats/session-*.jsonl"):
        path.rename(path.with_name(f"session-2026-01-01T00-00-{path.stem[-8:]}.jsonl"))


@each(SPEAKS_ACP)
async def test_a_session_goes_on_in_another_process(program: Program, agent_home: Path, folder: Path) -> None:
    """After SIGKILL a new process loads the session, and its model sees what was said."""
    async with asked(note=["It is noted."], recall=["The word was sorrel."]) as server:
        async with started(program, server, agent_home, folder) as agent:
            session = await agent.new_session(folder)
            await agent.prompt(session, "Please [note] the word sorrel.")
            os.killpg(agent.process.pid, signal.SIGKILL)
            await agent.process.wait()
        if program.name == "gemini-cli":
            age_sessions(agent_home)

        async with started(program, server, agent_home, folder) as agent:
            assert agent.capabilities["loadSession"] is True
            await agent.load_session(session, folder)
            begun = len(agent.updates)
            await agent.prompt(session, "Please [recall] the word.")

            assert "sorrel" in str(turns(server.requests)[-1].body)
            assert "It is noted." in str(turns(server.requests)[-1].body)
            assert begun  # the program tells the conversation again
            assert agent.text.endswith("The word was sorrel.")
