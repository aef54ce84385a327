"""The command line on a server: the same words as on its folder, over a socket and over TCP, and its errors."""

from __future__ import annotations

import asyncio
import json
import pathlib
import re
import signal
import subprocess
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from langchain_core.tools import tool

from ramet import Agent, ScriptedModel
from ramet.cli.main import main
from ramet.cli.sources.server import ServerSource
from ramet.models.scripted.dialogue import Call
from ramet.services.client.client import Client
from ramet.services.server.server import Server
from ramet.spawn.handle import Handle
from ramet.tools.decisions import HookDecision
from ramet.tools.workspace import workspace_tools
from tests.support.serve_process import serve
from tests.support.serving import short_folder
from tests.support.waiting import eventually
from tests.trips.kits.terminal import CommandOutput, ramet, running_ramet

JOBS = """
def note(word):
    return word
"""
TOKEN = "a-token-of-my-own-choice"


@tool
async def look() -> str:
    """Look around."""
    return "nothing to see"


def changes_need_a_word(payload: object) -> HookDecision:
    return HookDecision("ask", "it changes a file")


GATE = {"PreToolUse": [{"matcher": "Write", "hooks": [changes_need_a_word]}]}
CHILD = {"prompt": "Look", "name": "eye", "subagent_type": "scout", "description": "have a look"}


class ServedFolder:
    """A folder with a running server, and ways to reach both."""

    def __init__(self, folder: pathlib.Path, server: Server, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.server, self._capsys = folder, server, capsys

    async def lead(self) -> Handle:
        """Return a tree whose root has had a child, and waits for an approval of its own call."""
        note = {"file_path": str(self.folder / "note"), "content": "written"}
        model = ScriptedModel(
            {"Begin": [Call("Agent", CHILD), Call("Write", note), "All is done."], "Look": [Call("look"), "I looked."]}
        )
        agent = Agent(name="lead", model=model, hooks=GATE)
        scout = Agent(name="scout", description="looks", model=model)
        handle = await self.server.runtime.spawn(
            agent, "Begin", tools=[look, *workspace_tools()], agents={"scout": scout}, cwd=self.folder
        )
        (inbox,) = [each.inbox for id, each in self.server.runtime.trees.items() if str(id) == handle.id]
        await eventually(lambda: inbox.pending)
        return handle

    async def run(self, *words: str) -> CommandOutput:
        """Run a command in a thread of this process, with the streams of the test."""
        self._capsys.readouterr()
        status = await asyncio.to_thread(main, list(words))
        return CommandOutput(status, *self._capsys.readouterr())

    async def on(self, source: str, *words: str) -> CommandOutput:
        """Run a command on the folder or the server, once every event is durable and so visible to other processes."""
        for tree in list(self.server.runtime.trees.values()):
            if tree.recorder.durable is not None:
                await tree.recorder.durable()
        source_options = ("--dir", str(self.folder)) if source == "folder" else ("--server", self.server.listen_address)
        verb = 2 if words[0] == "schedule" else 1
        return await self.run(*words[:verb], *source_options, *words[verb:])


@pytest.fixture
def folder() -> Iterator[pathlib.Path]:
    with short_folder() as path:
        (path / "jobs.py").write_text(JOBS)
        yield path


@pytest.fixture
async def served_folder(
    folder: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[ServedFolder]:
    monkeypatch.syspath_prepend(str(folder))
    try:
        async with Server(folder, types={}) as server:
            yield ServedFolder(folder, server, capsys)
    finally:
        sys.modules.pop("jobs", None)  # Its folder goes now; the next test's is another one.


def normalized_output(result: CommandOutput) -> CommandOutput:
    """Return the output without ages, widths of columns, and lists of what exists."""
    out = re.sub(r" +", " ", re.sub(r"\b\d+(\.\d+)?s\b", "AGE", result.out))
    return CommandOutput(result.status, out, result.err.partition(";")[0])


async def test_commands_show_a_server_as_they_show_its_folder(served_folder: ServedFolder) -> None:
    """Each reading command prints equal text and equal JSON for both, refusals included, except ages and widths."""
    first = await served_folder.lead()
    (question,) = _json(await served_folder.on("folder", "approvals", "--json"))
    await served_folder.on("socket", "approve", question["id"])
    assert (await first.result()).status == "completed"
    handle = await served_folder.lead()
    await served_folder.on("folder", "schedule", "add", "jobs:note", '"x"', "--in", "1d", "--name", "later")
    child = next(
        row["id"] for row in _json(await served_folder.on("folder", "tree", handle.id, "--json")) if row["parent"]
    )

    for words in (
        *("ps", "ps --json", "ps --all", "ps --all --json"),
        *("tree", "tree --json", f"tree {child}", f"tree {child} --json", f"tree {first.id}", f"tree -f {first.id}"),
        *(f"show {handle.id}", f"show {handle.id} --json", f"show {child}", f"show {first.id} --json"),
        *(f"logs {handle.id}", f"logs {child}", f"logs {child} --json", f"logs -f {first.id}", f"logs -f {child}"),
        *(f"export {handle.id}", f"export {first.id} --tree", f"replay {handle.id} --speed 0 --json"),
        *("approvals", "approvals --json", "schedule list", "schedule list --json"),
        *("show nope", "tree nope", "logs -f nope", "export nope", "replay nope", "keep nope"),
        *("send nope x", "stop nope", "approve nope", "schedule pause nope", "schedule rm nope"),
    ):
        from_folder = await served_folder.on("folder", *words.split())
        from_socket = await served_folder.on("socket", *words.split())
        assert normalized_output(from_socket) == normalized_output(from_folder), words
        assert from_folder.status == (2 if "nope" in words else 0), words
        assert from_folder.out or from_folder.err.count("\n") == 1, words


@pytest.mark.parametrize("source", ["folder", "socket"])
async def test_runs_are_controlled_alike_through_folder_and_server(served_folder: ServedFolder, source: str) -> None:
    """Approvals, messages, keep, deny and stop give equal output on both ways."""
    first, second = await served_folder.lead(), await served_folder.lead()
    note = {"file_path": str(served_folder.folder / "note"), "content": "written"}
    approvals = {each["run"]: each for each in _json(await served_folder.on(source, "approvals", "--json"))}
    assert list(approvals) == [first.id, second.id]
    question = approvals[first.id]
    assert question == {
        "id": question["id"],
        "run": first.id,
        "path": "main",
        "agent": "lead",
        "tool": "Write",
        "question": "it changes a file",
        "args": note,
        "state": "waits",
        "kind": "question",
        "limit": None,
        "usage": question["usage"],
        "for_run": "Write with any arguments",
    }
    assert question["usage"]["model_calls"] >= 1

    send_result = await served_folder.on(source, "send", first.id, "Hurry up", "--json")
    repeated_send = await served_folder.on(source, "send", first.id, "Hurry up", "--dedupe", "1h", "--json")
    retention = await served_folder.on(source, "keep", first.id, "--json")
    denial = await served_folder.on(source, "deny", question["id"], "--reason", "not now", "--json")
    result = await first.result()
    second_result = await served_folder.on(source, "deny", question["id"])
    stop_result = await served_folder.on(source, "stop", second.id)
    nothing = await served_folder.on(source, "approvals")

    assert (send_result.status, list(json.loads(send_result.out))) == (0, ["mail"])
    assert json.loads(repeated_send.out)["mail"].startswith("Not delivered again: main got the same message as ")
    assert json.loads(retention.out) == {"tree": first.id, "kept": True}
    assert json.loads(denial.out) == {"approval": question["id"], "allowed": False}
    assert (result.status, (served_folder.folder / "note").exists()) == ("completed", False)
    logs = await served_folder.on(source, "logs", first.id)
    assert "message from user: Hurry up" in logs.out
    assert "not now" in (await served_folder.on(source, "export", first.id)).out
    assert (second_result.status, second_result.err.count("\n")) == (2, 1)
    assert (stop_result.status, stop_result.out) == (0, "stopped main\n")
    assert (await second.result()).status == "cancelled"
    assert (nothing.out, nothing.err) == ("", "no call waits for an approval\n")

    third = await served_folder.lead()
    (other,) = _json(await served_folder.on(source, "approvals", "--json"))
    allowed = await served_folder.on(source, "approve", other["id"], "--for-run")
    assert allowed.out == f"{other['id']} is allowed, and so are later calls like it of this run\n"
    assert (await third.result()).status == "completed"


@pytest.mark.parametrize("source", ["folder", "socket"])
async def test_schedules_are_changed_alike_through_folder_and_server(served_folder: ServedFolder, source: str) -> None:
    """The server's scheduler adds, pauses, resumes, triggers and removes a schedule on both ways."""
    addition = _json(
        await served_folder.on(
            source, "schedule", "add", "jobs:note", '"x"', "--every", "1d", "--name", "daily", "--json"
        )
    )
    paused = await served_folder.on(source, "schedule", "pause", "daily")
    resume_result = _json(await served_folder.on(source, "schedule", "resume", "daily", "--json"))
    triggered = await served_folder.on(source, "schedule", "trigger", "daily")

    async with asyncio.timeout(180):
        while (last := _json(await served_folder.on(source, "schedule", "list", "--json"))[0]["last"]) is None:
            pass
    removal = await served_folder.on(source, "schedule", "rm", "daily")
    late = await served_folder.on(
        source, "schedule", "add", "jobs:note", '"x"', "--cron", "0 8 * * *", "--tz", "UTC", "--json"
    )
    wrong = await served_folder.on(source, "schedule", "add", "jobs:nothing", "--in", "1h")

    assert (addition[0]["id"], addition[0]["schedule"]["target"]["reference"]) == ("daily", "jobs:note")
    assert paused.out == "daily: paused, next -\n"
    assert resume_result[0]["paused"] is False
    assert triggered.out.startswith("daily: ")
    assert (last["status"], last["text"]) == ("completed", "x")
    assert removal.out == "daily is removed\n"
    assert json.loads(late.out)["schedule"]["timing"] == {"type": "cron", "line": "0 8 * * *", "tz": "UTC"}
    assert (wrong.status, wrong.out, wrong.err.count("\n")) == (2, "", 1)
    assert "jobs:nothing" in wrong.err


async def test_a_follower_sees_every_event_to_the_end(served_folder: ServedFolder) -> None:
    """`tree -f --json` on the server prints the events that `export --tree` has, and ends with the tree."""
    handle = await served_folder.lead()
    following = asyncio.create_task(served_folder.on("socket", "tree", "-f", handle.id, "--json"))
    async with Client(served_folder.server.listen_address) as client:
        (question,) = await client.kernel.approvals()
        await client.kernel.answer(question.id, True)
    await handle.result()

    follow_result = await following

    assert follow_result.status == 0
    assert follow_result.out == (await served_folder.on("folder", "export", handle.id, "--tree")).out


async def test_the_environment_gives_the_address_and_the_key(
    folder: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """RAMET_SERVER and RAMET_OPERATOR_TOKEN suffice; a flag takes precedence; a wrong key gives one line."""
    async with Server(folder, types={}, listen=("127.0.0.1", 0), token=TOKEN) as server:
        served_folder = ServedFolder(folder, server, capsys)
        handle = await served_folder.lead()
        monkeypatch.setenv("RAMET_SERVER", server.listen_address)
        without = await served_folder.run("ps")
        monkeypatch.setenv("RAMET_OPERATOR_TOKEN", TOKEN)
        listing = await served_folder.run("ps", "--json")
        missing_server = await served_folder.run("ps", "--server", str(folder / "none.sock"))
        missing_journal = await served_folder.run("ps", "--dir", str(folder / ".ramet"))
        monkeypatch.setenv("RAMET_OPERATOR_TOKEN", f"not-{TOKEN}")
        wrong = [
            await served_folder.run(*words.split()) for words in ("ps", f"logs -f {handle.id}", f"stop {handle.id}")
        ]

    assert [row["id"] for row in _json(listing)][:1] == [handle.id]
    assert (without.status, without.out) == (1, "")
    for each in (without, *wrong):
        assert "does not accept this key" in each.err
        assert "RAMET_OPERATOR_TOKEN" in each.err
    assert "no server answers at" in missing_server.err
    assert missing_server.err.endswith(": No such file or directory; is `ramet serve` running there?\n")
    assert "there is no journal in" in missing_journal.err
    assert missing_journal.err.endswith("; --dir names another folder\n")
    for each in (without, missing_server, missing_journal, *wrong):
        assert (each.status, each.out, each.err.count("\n")) == (1, "", 1), each
    assert TOKEN not in "".join(each.err for each in (without, *wrong))


async def test_a_follower_ends_with_a_signal_with_the_server_or_with_the_run(folder: pathlib.Path) -> None:
    """Ctrl-C ends it silently; the kill of its server gives one line; an interrupted run ends it at once."""
    (folder / "jobs.py").write_text("import asyncio\nasync def hold():\n    await asyncio.Event().wait()\n")
    socket = folder / ".ramet" / "serve.sock"
    async with serve(folder) as process, Client(socket) as client:
        await client.kernel.add_schedule(f"{folder}/jobs.py:hold", in_s=0)
        async with asyncio.timeout(180):
            while not (rows := await client.kernel.runs()):
                pass
        logs = ("logs", "-f", rows[0].id, "--server", str(socket))
        async with open_follower(*logs) as first, open_follower(*logs) as second:
            first.send_signal(signal.SIGINT)
            out, err = await first.communicate()
            assert (out.count(b"runs in a sandbox"), err) == (out.count(b"\n"), b"")
            process.process.kill()
            _, output = await second.communicate()
    assert first.returncode == 130
    assert (second.returncode, output.count(b"\n")) == (1, 1), output
    assert output.startswith(b"ramet: no server answers at ")

    (folder / "jobs.py").unlink()  # So that its schedule cannot go on with it.
    async with serve(folder):
        result = await ramet(*logs)
    assert (result.status, result.err) == (0, f"ramet: {rows[0].id} was interrupted: {ServerSource.interrupted_hint}\n")


@asynccontextmanager
async def open_follower(*words: str) -> AsyncIterator[Process]:
    """Start a command, and wait until it has printed the first event."""
    async with running_ramet(*words, stdout=PIPE, stderr=PIPE) as process:
        assert process.stdout is not None
        assert b"started" in await process.stdout.readline()
        yield process


def test_commands_on_a_folder_import_no_http_client(folder: pathlib.Path) -> None:
    """`ramet ps` imports neither an HTTP client nor the services."""
    look = (
        "import sys; from ramet.cli.main import main; main(['ps']); "
        "sys.exit(str([each for each in sys.modules if each.startswith(('httpx', 'ramet.services'))] or 0))"
    )
    (folder / ".ramet").mkdir()
    process_result = subprocess.run(
        [sys.executable, "-c", look], cwd=folder, capture_output=True, text=True, check=False
    )

    assert "there is no journal in" in process_result.stderr
    assert process_result.stderr.splitlines()[1:] == ["0"]


def _json(result: CommandOutput) -> list[dict[str, Any]]:
    """Return the printed JSON, one object a line."""
    assert result.status == 0, result.err
    return [json.loads(line) for line in result.out.splitlines()]
