"""Runs by a prefix of their ids, empty lists, and failures that the command line prints once."""

from __future__ import annotations

import asyncio
import json
import pathlib
from typing import NamedTuple

import pytest

import ramet
from ramet import AgentRuntime, Session
from ramet.cli.main import main
from ramet.models.scripted.model import ScriptedModel
from ramet.services.agent_types.llm.type import LlmType
from tests.support.serving import serving

HI = b'{"messages": [{"role": "user", "content": "Hi"}]}'


class CommandResult(NamedTuple):
    """The status and the output of a command."""

    status: int
    out: str
    err: str


class CommandLine:
    """The command line on a folder; each command has an event loop of its own."""

    def __init__(self, folder: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self._capsys = folder, capsys

    async def on(self, *words: str, source_options: tuple[str, ...] = ()) -> CommandResult:
        """Run a command."""
        self._capsys.readouterr()
        status = await asyncio.to_thread(main, [*words, *(source_options or ("--dir", str(self.folder)))])
        return CommandResult(status, *self._capsys.readouterr())


@pytest.fixture
def command_line(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(tmp_path, capsys)


async def test_a_unique_prefix_of_an_id_names_a_run(command_line: CommandLine) -> None:
    """Commands accept a prefix while no other run's id begins with it, also those that change an active run."""
    async with AgentRuntime(command_line.folder) as runtime:
        ids = []
        for answer in ("one", "two"):
            session = await Session(ScriptedModel([answer] * 2), runtime=runtime).start()
            await session.ask("Go.")
            ids.append(session.id)
        first, second = ids
        short = next(first[:end] for end in range(1, len(first) + 1) if not second.startswith(first[:end]))
        for verb in ("show", "logs", "export", "tree"):
            assert (await command_line.on(verb, short)).status == 0, verb
        assert json.loads((await command_line.on("show", short, "--json")).out)["id"] == first
        assert (await command_line.on("send", short, "More?")).out == f"sent to {first}\n"
        assert (await command_line.on("send", short, "More?", "--dedupe", "1h")).out == (
            "Not delivered again: main got the same message as mail-1 less than 3600 s ago.\n"
        )
        assert (await command_line.on("send", short, "Even more?", "--dedupe", "1h")).out == f"sent to {first}\n"
        result = await command_line.on("send", short, "More?", "--dedupe", "0")
        assert (result.status, "above 0" in result.err) == (2, True)
        assert (await command_line.on("stop", short)).out == "stopped main\n"
        between = await command_line.on("show", short[:-1])
        assert between.status == 2
        assert "expected the id of a run, or a prefix of exactly one id" in between.err
        assert all(each in between.err for each in ids)
        assert (await command_line.on("show", "nothing-like-it")).status == 2


async def test_an_empty_list_says_so_on_stderr(command_line: CommandLine) -> None:
    """Stdout stays empty, so that a program reads nothing."""
    async with AgentRuntime(command_line.folder) as runtime:
        await runtime.open_store()
    for words, message in (
        (("ps",), "no active run here"),
        (("ps", "--all"), "no run is recorded here"),
        (("tree",), "no active tree here"),
        (("approvals",), "no call waits for an approval"),
        (("sessions", "list"), "no conversation is recorded here"),
        (("schedule", "list"), "no schedule here"),
    ):
        result = await command_line.on(*words)
        assert (result.status, result.out) == (0, ""), words
        assert message in result.err, words


def test_a_failure_is_printed_once(command_line: CommandLine, capsys: pytest.CaptureFixture[str]) -> None:
    """Stderr has the message of a failed run exactly once."""
    (command_line.folder / "failing_jobs.py").write_text("def bad():\n    raise ValueError('no way')\n")

    status = main(["run", "failing_jobs:bad", "--dir", str(command_line.folder)])

    assert status == 1
    assert capsys.readouterr().err.count("no way") == 1


async def test_ps_of_a_server_shows_the_paths_of_agents(folder: pathlib.Path, command_line: CommandLine) -> None:
    """The root of each tree of a server is called `main`: its agent's path distinguishes the trees."""
    model = ScriptedModel(["Hello."] * 2)
    async with serving(folder, types={"llm": LlmType({"plain": model}, default="plain")}) as echo_server:
        async with ramet.connect(echo_server.server.listen_address) as client:
            created_team = await client.create_team({"agents": 2}, name="red")
            for name in ("ada", "bob"):
                spawned_agent = await client.spawn_agent(created_team.team.id, name, "llm", key=created_team.key)
                await client.say(spawned_agent.agent.id, HI, key=spawned_agent.nonce)
            rows = await client.kernel.runs()
        listings = [await command_line.on("ps", source_options=("--server", echo_server.server.listen_address))]
        listings.append(await command_line.on("ps", source_options=("--dir", str(folder))))
    listings.append(
        await command_line.on("ps", "--all", source_options=("--dir", str(folder)))
    )  # The server has ended; its folder says the same.

    assert [each.agent_path for each in rows] == ["red/ada", "red/bob"]
    for listing in listings:
        assert ["red/ada" in listing.out, "red/bob" in listing.out, " main " in listing.out] == [True, True, False]
