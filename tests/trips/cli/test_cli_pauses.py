"""`ramet ask --at-limit pause`, and `ramet resume` with amounts, against a provider that counts requests."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from pathlib import Path

import pytest
from langchain_core.messages import AIMessage, BaseMessage

from ramet.cli.pauses.raising import RaiseAtResume
from ramet.core.events import Event, LimitPaused, LimitsRaised, RunEnded, decode
from ramet.core.limits import Limits
from ramet.core.outcome import Status
from ramet.host.runtime import AgentRuntime
from ramet.models.scripted.dialogue import ReplyStep
from ramet.spawn.run import Run
from tests.support.providers import Call, Provider, Script, provider
from tests.trips.kits.terminal import CommandOutput, environment, ramet, running_ramet, terminal

PAUSES = ("--at-limit", "pause", "--max-calls")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a folder with five files."""
    for number in range(9):
        (tmp_path / f"{number}.txt").write_text(f"part {number}\n")
    return tmp_path


def reading(calls: int) -> Script:
    """Return replies that read one file after the other, and then answer."""

    def reply(messages: list[BaseMessage]) -> ReplyStep:
        done = sum(isinstance(each, AIMessage) for each in messages)
        return Call("Read", {"file_path": f"{done}.txt"}) if done < calls else f"It took {done} steps."

    return reply


def ask(folder: Path, *options: str) -> tuple[str, ...]:
    """Return the words of a command that asks about a folder."""
    return ("ask", "How many?", "--dir", str(folder), *options)


async def resume(folder: Path, *words: str, server: Provider) -> CommandOutput:
    """Resume a tree in a new process, without a terminal."""
    return await ramet("resume", *words, "--dir", str(folder), env=environment(server))


def command_in(text: str) -> list[str]:
    """Return the words of the command that goes on, without `ramet`."""
    found = re.search(r"to go on: ramet (.*)", text)
    assert found is not None, text
    return shlex.split(found[1])


def events(out: str) -> list[Event]:
    """Return the events that `--json` printed."""
    return [decode(line) for line in out.splitlines()]


async def test_without_a_terminal_a_pause_ends_with_status_7_and_the_command_goes_on(project: Path) -> None:
    """Limit 2, raised by 3: five requests; then the answer is on stdout, as if nothing had paused."""
    async with provider(reading(4)) as server:
        paused = await ramet(*ask(project, *PAUSES, "2"), server=server)
        assert server.count == 2
        words = command_in(paused.err)
        resumed = await ramet("resume", words[1], "--calls", "3", "--dir", str(project), env=environment(server))

        assert (paused.status, paused.out) == (7, "")
        assert words[2:] == ["--calls", "2", "--dir", str(project)]
        assert "main at the limit of main: model_calls, 2 of 2 used, 1 asked" in paused.err
        assert (resumed.status, resumed.out) == (0, "It took 4 steps.\n")
        assert server.count == 5


async def test_json_ends_with_a_line_of_status_paused(project: Path) -> None:
    """Every line is an event; the pause is among them, and the last one has the status and the limit."""
    async with provider(reading(4)) as server:
        paused = await ramet(*ask(project, *PAUSES, "2", "--json"), server=server)
        resumed = await resume(project, command_in(paused.err)[1], "--calls", "1", "--json", server=server)

    found = events(paused.out)
    assert (paused.status, resumed.status) == (7, 7)
    (pause,) = [each for each in found if isinstance(each, LimitPaused)]
    assert (pause.resource, pause.scope) == ("model_calls", "main")
    last = found[-1]
    assert isinstance(last, RunEnded)
    assert (last.path, last.result.status, last.seq) == ("main", Status.PAUSED, found[-2].seq)
    assert last.result.error is not None
    assert last.result.error.scope == "main"
    assert last.result.usage_subtree.model_calls == 2
    assert json.loads(resumed.out)["result"]["status"] == "paused"
    assert server.count == 3


async def test_quiet_prints_why_and_the_command(project: Path) -> None:
    """Two lines say what is paused and how to go on, after the outcome."""
    async with provider(reading(4)) as server:
        paused = await ramet(*ask(project, *PAUSES, "0", "--quiet"), server=server)

    assert (paused.status, paused.out, server.count) == (7, "", 0)
    lines = paused.err.splitlines()
    assert lines[0].startswith("■ paused: budget of main: model_calls asked 1, left 0")
    assert [line.partition(":")[0] for line in lines[1:]] == ["paused", "to go on"]
    assert command_in(paused.err)[2:4] == ["--calls", "1"]


async def test_a_resume_raises_once_for_each_pause(project: Path) -> None:
    """A command that was killed after its raise adds nothing when it is repeated; at the next pause it counts again."""
    async with provider(reading(9)) as server:
        paused = await ramet(*ask(project, *PAUSES, "2"), server=server)
        words = ("resume", command_in(paused.err)[1], "--calls", "3", "--dir", str(project))
        server.hold = asyncio.Event()
        async with running_ramet(*words, env=environment(server), stderr=asyncio.subprocess.DEVNULL) as process:
            await server.arrived(3)
            process.kill()
            await process.wait()
        server.hold = None
        again = await ramet(*words, env=environment(server))
        assert (again.status, server.count) == (7, 5)
        third = await ramet(*words, env=environment(server))

    assert "nothing was added" in again.err
    assert (third.status, server.count) == (7, 8)
    recorded = await ramet("logs", words[1], "--json", "--dir", str(project))
    raises = [each for each in events(recorded.out) if isinstance(each, LimitsRaised)]
    assert [each.add for each in raises] == [{"model_calls": 3}] * 2


async def test_the_same_raise_that_is_not_enough_counts_once(project: Path) -> None:
    """The pause is the same one: another amount adds more."""
    async with provider(reading(1)) as server:
        paused = await ramet(*ask(project, "--at-limit", "pause", "--max-tokens", "100"), server=server)
        id = command_in(paused.err)[1]
        first = await resume(project, id, "--tokens", "50", server=server)
        again = await resume(project, id, "--tokens", "50", server=server)
        assert (paused.status, first.status, again.status, server.count) == (7, 7, 7, 0)
        enough = await resume(project, id, "--tokens", "1000000", server=server)

    assert "0 of 150 used" in first.err
    assert "tokens+50 was added before, and is not enough" in again.err
    assert "0 of 150 used" in again.err
    assert (enough.status, enough.out) == (0, "It took 1 steps.\n")


async def test_a_raise_that_cannot_be_leaves_the_tree_paused(project: Path) -> None:
    """The line names what is wrong; nothing was raised, and nothing was asked."""
    cases = {
        "--calls 3": "ID",
        "RUN --usd 1 --calls 3": "add.usd",
        "RUN --calls -1": "--calls",
        "RUN --calls 9007199254740992": "2^53",
        "nope --calls 3": "nope",
    }
    async with provider(reading(4)) as server:
        paused = await ramet(*ask(project, *PAUSES, "2"), server=server)
        id = command_in(paused.err)[1]
        for words, named in cases.items():
            refused = await resume(project, *words.replace("RUN", id).split(), server=server)
            assert (refused.status, refused.out, server.count) == (2, "", 2)
            assert named in refused.err.splitlines()[-1]
        resumed = await resume(project, id, "--calls", "3", server=server)

    assert (resumed.status, server.count) == (0, 5)


async def test_a_person_raises_the_limit_at_the_terminal(project: Path) -> None:
    """Limit 2, raised by 3: five requests. What is no amount is asked again. `--yes` is for approvals alone."""
    async with provider(reading(4)) as server, terminal(*ask(project, *PAUSES, "2", "--yes"), server=server) as screen:
        await screen.shows("Raise it by how much? [2, or end, later]")
        assert "model_calls: 2 of 2 used, the next request needs 1" in screen.text
        for times, typed in enumerate(("no", "-1", "0", "1.5"), 2):
            screen.type(typed + "\n")
            await screen.shows("Raise it by how much?", times)
        assert server.count == 2
        screen.type("3\n")
        assert await screen.end() == 0

        assert server.count == 5
        assert "It took 4 steps." in screen.text


async def test_an_empty_line_raises_by_the_same_limit_again_and_end_ends(project: Path) -> None:
    """Two requests more; at the next pause the question ends like one whose limit ends it."""
    async with provider(reading(9)) as server, terminal(*ask(project, *PAUSES, "2"), server=server) as screen:
        await screen.shows("Raise it by how much? [2, or end, later]")
        screen.type("\n")
        await screen.shows("4 of 4 used")
        await screen.shows("Raise it by how much? [4, or end, later]")
        screen.type("end\n")
        assert await screen.end() == 4

        assert server.count == 4
        assert "out of budget" in screen.text
    assert "nothing to resume" in (await ramet("resume", "--dir", str(project))).err


async def test_a_paused_question_is_left_for_later(project: Path) -> None:
    """Ctrl-D does the same as the word."""
    async with provider(reading(4)) as server:
        for number, typed in enumerate(("later\n", "\x04")):
            folder = project / str(number)
            folder.mkdir()
            async with terminal(*ask(folder, *PAUSES, "0"), server=server) as screen:
                await screen.shows("Raise it by how much?")
                screen.type(typed)
                assert await screen.end() == 7
                assert command_in(screen.text.replace("\r\n", "\n"))[0] == "resume"
        assert server.count == 0


async def test_ctrl_c_ends_a_paused_question(project: Path) -> None:
    """Nothing is left to resume."""
    async with provider(reading(4)) as server, terminal(*ask(project, *PAUSES, "2"), server=server) as screen:
        await screen.shows("Raise it by how much?")
        screen.type("\x03")
        assert await screen.end() == 130
    resumed = await ramet("resume", "--dir", str(project))
    assert (resumed.status, "nothing to resume" in resumed.err) == (0, True)


async def test_a_question_that_is_killed_while_it_asks_is_resumed(project: Path) -> None:
    """The answer comes from another process, after exactly the raised number of requests."""
    async with provider(reading(4)) as server:
        async with terminal(*ask(project, *PAUSES, "2"), server=server) as screen:
            await screen.shows("Raise it by how much?")
            screen.process.kill()
            await screen.process.wait()
        (row,) = (json.loads((await ramet("ps", "--json", "--dir", str(project))).out.splitlines()[0]),)
        shown = await ramet("approvals", "--dir", str(project))
        resumed = await resume(project, row["id"], "--calls", "3", server=server)

        assert f"ramet resume {row['id']} --calls " in shown.out
        assert (resumed.status, resumed.out, server.count) == (0, "It took 4 steps.\n", 5)


async def test_a_raise_in_another_terminal_withdraws_the_question(project: Path) -> None:
    """`ramet raise` reaches the process that asks; the work goes on without an answer."""
    async with provider(reading(4)) as server, terminal(*ask(project, *PAUSES, "2"), server=server) as screen:
        await screen.shows("Raise it by how much?")
        row = json.loads((await ramet("ps", "--json", "--dir", str(project))).out.splitlines()[0])
        raised = await ramet("raise", row["id"], "--calls", "3", "--dir", str(project))
        assert raised.status == 0
        assert await screen.end() == 0
        assert "(no longer asked)" in screen.text
        assert server.count == 5


async def test_a_journal_in_use_is_one_line_without_a_terminal_and_a_note_at_one(project: Path) -> None:
    """A pause that no other process could resume is not begun silently."""
    async with provider(reading(1)) as server, terminal(*ask(project, *PAUSES, "1"), server=server) as screen:
        await screen.shows("Raise it by how much?")
        refused = await ramet(*ask(project, *PAUSES, "1"), server=server)
        assert (refused.status, refused.out, server.count) == (1, "", 1)
        assert "belongs to another kernel (pid " in refused.err.splitlines()[-1]
        async with terminal(*ask(project, *PAUSES, "1"), server=server, columns=200) as other:
            await other.shows("a pause ends with this process")
            await other.shows("Raise it by how much? [1, or end]")
            other.type("1\n")
            assert await other.end() == 0
        screen.type("\x03")
        assert await screen.end() == 130


@pytest.mark.parametrize(("option", "is_written"), [("--no-approvals", False), ("--yes", True)])
async def test_a_resumed_question_asks_before_changes_as_before(project: Path, option: str, is_written: bool) -> None:
    """Without a person a change is denied; `--yes` of the question still counts."""
    write = Call("Write", {"file_path": "new.txt", "content": "new"})
    async with provider([Call("Read", {"file_path": "1.txt"}), write, "Done."]) as server:
        paused = await ramet(*ask(project, *PAUSES, "1", option), server=server)
        resumed = await resume(project, command_in(paused.err)[1], "--calls", "2", server=server)

    assert (resumed.status, resumed.out) == (0, "Done.\n")
    assert (project / "new.txt").exists() is is_written


async def test_a_question_that_was_left_is_answered_at_the_terminal(project: Path) -> None:
    """`ramet resume` at a terminal asks for approvals and about limits, as `ramet ask` does."""
    write = Call("Write", {"file_path": "new.txt", "content": "new"})
    async with provider([Call("Read", {"file_path": "1.txt"}), write, "Done."]) as server:
        async with terminal(*ask(project, *PAUSES, "1"), server=server) as screen:
            await screen.shows("Raise it by how much?")
            screen.type("later\n")
            assert await screen.end() == 7
        async with terminal("resume", "--dir", str(project), server=server) as screen:
            await screen.shows("Raise it by how much? [1, or end, later]")
            screen.type("\n")
            await screen.shows("Allow it? [y/N]")
            screen.type("y\n")
            await screen.shows("Raise it by how much? [2, or end, later]")
            screen.type("later\n")
            assert await screen.end() == 7
        assert (project / "new.txt").exists()
        assert server.count == 2


CHILDREN = [Call("Agent", {"prompt": f"LOOK {n}", "description": "look", "subagent_type": "explore"}) for n in range(3)]


@pytest.mark.parametrize("backend", ["local", "bwrap"])
async def test_children_in_sandboxes_pause_and_go_on_in_another_process(project: Path, backend: str) -> None:
    """Limit 2, raised by 3: the root and its three children make exactly five requests."""
    async with provider({"LOOK": "found", "How": [CHILDREN, "All found."]}) as server:
        paused = await ramet(*ask(project, *PAUSES, "2", "--backend", backend), server=server)
        assert (paused.status, server.count) == (7, 2)
        assert "main/" in paused.err
        resumed = await resume(project, command_in(paused.err)[1], "--calls", "3", server=server)

    assert (resumed.status, resumed.out, server.count) == (0, "All found.\n", 5)


async def test_children_that_are_paused_end_with_their_question(project: Path) -> None:
    """`end` refuses what waits in sandboxes after a kill, and what comes after: nothing more is asked."""
    async with provider({"LOOK": "found", "How": [CHILDREN, "All found."]}) as server:
        words = ask(project, *PAUSES, "2", "--backend", "local")
        async with terminal(*words, server=server) as screen:
            await screen.shows("Raise it by how much?")
            screen.process.kill()
            await screen.process.wait()
        async with terminal("resume", "--dir", str(project), server=server) as screen:
            await screen.shows("Raise it by how much?")
            screen.type("end\n")
            assert await screen.end() == 4
        assert server.count == 2


async def test_a_raise_that_was_recorded_before_a_kill_is_not_repeated(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process ended after the raise, and before the tree worked: the repeated command only goes on."""

    class Cut(Exception):
        pass

    async with provider(reading(4)) as server:
        paused = await ramet(*ask(project, *PAUSES, "2"), server=server)
        id = command_in(paused.err)[1]
        raising = RaiseAtResume(id, Limits(model_calls=3))

        def prepare(root: Run) -> None:
            raising(root)
            raise Cut

        monkeypatch.setenv("OPENAI_API_KEY", "test")
        async with AgentRuntime(project) as runtime:
            with pytest.raises(Cut):
                await runtime.resume(only=id, prepare=prepare)
        again = await resume(project, id, "--calls", "3", server=server)

    assert (raising.note, "nothing was added" in again.err) == ("", True)
    assert (again.status, again.out, server.count) == (0, "It took 4 steps.\n", 5)
    recorded = await ramet("logs", id, "--json", "--dir", str(project))
    assert len([each for each in events(recorded.out) if isinstance(each, LimitsRaised)]) == 1
