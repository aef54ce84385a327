"""The command line on a server: the same words as on its folder, over a socket and over TCP, and what goes wrong."""

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
from ramet.tools.context import HookDecision
from ramet.tools.workspace import workspace_tools
from tests.support.serve_process import serve
from tests.support.serving import short_folder
from tests.support.waiting import eventually
from tests.trips.kits.terminal import Done, ramet, started

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


class Place:
    """A folder with a server at work in it, and the ways to it."""

    def __init__(self, folder: pathlib.Path, server: Server, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.server, self._capsys = folder, server, capsys

    async def lead(self) -> Handle:
        """A tree whose root has had a child, and waits for a word on a call of its own."""
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

    async def run(self, *words: str) -> Done:
        """A command, in a thread of this process: its streams are those of the test."""
        self._capsys.readouterr()
        status = await asyncio.to_thread(main, list(words))
        return Done(status, *self._capsys.readouterr())

    async def on(self, way: str, *words: str) -> Done:
        """A command on the folder, or on the server, once all is on record: who looks from beside sees what is."""
        for opened in list(self.server.runtime.trees.values()):
            if opened.recorder.durable is not None:
                await opened.recorder.durable()
        where = ("--dir", str(self.folder)) if way == "folder" else ("--server", self.server.where)
        verb = 2 if words[0] == "schedule" else 1
        return await self.run(*words[:verb], *where, *words[verb:])


@pytest.fixture
def folder() -> Iterator[pathlib.Path]:
    with short_folder() as path:
        (path / "jobs.py").write_text(JOBS)
        yield path


@pytest.fixture
async def place(
    folder: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Place]:
    monkeypatch.syspath_prepend(str(folder))
    try:
        async with Server(folder, types={}) as server:
            yield Place(folder, server, capsys)
    finally:
        sys.modules.pop("jobs", None)  # Its folder goes now; the next test's is another one.


def comparable(done: Done) -> Done:
    """What is shown but for how long it has gone on, the columns that this moves, and what a refusal says is there."""
    out = re.sub(r" +", " ", re.sub(r"\b\d+(\.\d+)?s\b", "AGE", done.out))
    return Done(done.status, out, done.err.partition(";")[0])


async def test_a_server_is_shown_as_its_folder_is(place: Place) -> None:
    """Every command that looks says the same of both, byte for byte, as text and as JSON, refusals included."""
    over = await place.lead()
    (question,) = _json(await place.on("folder", "approvals", "--json"))
    await place.on("socket", "approve", question["id"])
    assert (await over.result()).status == "completed"
    handle = await place.lead()
    await place.on("folder", "schedule", "add", "jobs:note", '"x"', "--in", "1d", "--name", "later")
    child = next(row["id"] for row in _json(await place.on("folder", "tree", handle.id, "--json")) if row["parent"])

    for words in (
        *("ps", "ps --json", "ps --all", "ps --all --json"),
        *("tree", "tree --json", f"tree {child}", f"tree {child} --json", f"tree {over.id}", f"tree -f {over.id}"),
        *(f"show {handle.id}", f"show {handle.id} --json", f"show {child}", f"show {over.id} --json"),
        *(f"logs {handle.id}", f"logs {child}", f"logs {child} --json", f"logs -f {over.id}", f"logs -f {child}"),
        *(f"export {handle.id}", f"export {over.id} --tree", f"replay {handle.id} --speed 0 --json"),
        *("approvals", "approvals --json", "schedule list", "schedule list --json"),
        *("show nope", "tree nope", "logs -f nope", "export nope", "replay nope", "keep nope"),
        *("send nope x", "stop nope", "approve nope", "schedule pause nope", "schedule rm nope"),
    ):
        here = await place.on("folder", *words.split())
        there = await place.on("socket", *words.split())
        assert comparable(there) == comparable(here), words
        assert here.status == (2 if "nope" in words else 0), words
        assert here.out or here.err.count("\n") == 1, words


@pytest.mark.parametrize("way", ["folder", "socket"])
async def test_runs_are_steered(place: Place, way: str) -> None:
    """A question is found and answered, a run told, kept and stopped; what comes of it is said alike."""
    first, second = await place.lead(), await place.lead()
    note = {"file_path": str(place.folder / "note"), "content": "written"}
    asked = {each["run"]: each for each in _json(await place.on(way, "approvals", "--json"))}
    assert list(asked) == [first.id, second.id]
    question = asked[first.id]
    assert question == {
        "id": question["id"],
        "run": first.id,
        "path": "main",
        "agent": "lead",
        "tool": "Write",
        "question": "it changes a file",
        "args": note,
        "state": "waits",
    }

    sent = await place.on(way, "send", first.id, "Hurry up", "--json")
    repeated = await place.on(way, "send", first.id, "Hurry up", "--dedupe", "1h", "--json")
    kept = await place.on(way, "keep", first.id, "--json")
    answered = await place.on(way, "deny", question["id"], "--reason", "not now", "--json")
    result = await first.result()
    again = await place.on(way, "deny", question["id"])
    stopped = await place.on(way, "stop", second.id)
    nothing = await place.on(way, "approvals")

    assert (sent.status, list(json.loads(sent.out))) == (0, ["mail"])
    assert json.loads(repeated.out)["mail"].startswith("Not delivered again: main got the same message as ")
    assert json.loads(kept.out) == {"tree": first.id, "kept": True}
    assert json.loads(answered.out) == {"approval": question["id"], "allowed": False}
    assert (result.status, (place.folder / "note").exists()) == ("completed", False)
    told = await place.on(way, "logs", first.id)
    assert "message from user: Hurry up" in told.out
    assert "not now" in (await place.on(way, "export", first.id)).out
    assert (again.status, again.err.count("\n")) == (2, 1)
    assert (stopped.status, stopped.out) == (0, "stopped main\n")
    assert (await second.result()).status == "cancelled"
    assert (nothing.out, nothing.err) == ("", "no call waits for an approval\n")


@pytest.mark.parametrize("way", ["folder", "socket"])
async def test_schedules_are_changed(place: Place, way: str) -> None:
    """Added, paused, gone on with, run now, forgotten: alike, and done by the server's scheduler."""
    added = _json(
        await place.on(way, "schedule", "add", "jobs:note", '"x"', "--every", "1d", "--name", "daily", "--json")
    )
    paused = await place.on(way, "schedule", "pause", "daily")
    resumed = _json(await place.on(way, "schedule", "resume", "daily", "--json"))
    triggered = await place.on(way, "schedule", "trigger", "daily")

    async with asyncio.timeout(180):
        while (last := _json(await place.on(way, "schedule", "list", "--json"))[0]["last"]) is None:
            pass
    gone = await place.on(way, "schedule", "rm", "daily")
    late = await place.on(way, "schedule", "add", "jobs:note", '"x"', "--cron", "0 8 * * *", "--tz", "UTC", "--json")
    wrong = await place.on(way, "schedule", "add", "jobs:nothing", "--in", "1h")

    assert (added[0]["id"], added[0]["schedule"]["target"]["reference"]) == ("daily", "jobs:note")
    assert paused.out == "daily: paused, next -\n"
    assert resumed[0]["paused"] is False
    assert triggered.out.startswith("daily: ")
    assert (last["status"], last["text"]) == ("completed", "x")
    assert gone.out == "daily is removed\n"
    assert json.loads(late.out)["schedule"]["timing"] == {"type": "cron", "line": "0 8 * * *", "tz": "UTC"}
    assert (wrong.status, wrong.out, wrong.err.count("\n")) == (2, "", 1)
    assert "jobs:nothing" in wrong.err


async def test_who_follows_sees_it_to_its_end(place: Place) -> None:
    """Every event of the tree, each as it comes, and then it is over."""
    handle = await place.lead()
    following = asyncio.create_task(place.on("socket", "tree", "-f", handle.id, "--json"))
    async with Client(place.server.where) as client:
        (question,) = await client.kernel.approvals()
        await client.kernel.answer(question.id, True)
    await handle.result()

    followed = await following

    assert followed.status == 0
    assert followed.out == (await place.on("folder", "export", handle.id, "--tree")).out


async def test_an_address_and_the_key_of_the_environment(
    folder: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """RAMET_SERVER and RAMET_OPERATOR_TOKEN are enough; a flag goes before it; a wrong key opens nothing."""
    async with Server(folder, types={}, listen=("127.0.0.1", 0), token=TOKEN) as server:
        place = Place(folder, server, capsys)
        handle = await place.lead()
        monkeypatch.setenv("RAMET_SERVER", server.where)
        without = await place.run("ps")
        monkeypatch.setenv("RAMET_OPERATOR_TOKEN", TOKEN)
        there = await place.run("ps", "--json")
        elsewhere = await place.run("ps", "--server", str(folder / "none.sock"))
        here = await place.run("ps", "--dir", str(folder / ".ramet"))
        monkeypatch.setenv("RAMET_OPERATOR_TOKEN", f"not-{TOKEN}")
        wrong = [await place.run(*words.split()) for words in ("ps", f"logs -f {handle.id}", f"stop {handle.id}")]

    assert [row["id"] for row in _json(there)][:1] == [handle.id]
    assert (without.status, without.out) == (1, "")
    for each in (without, *wrong):
        assert "does not accept this key" in each.err
        assert "RAMET_OPERATOR_TOKEN" in each.err
    assert "no server answers at" in elsewhere.err
    assert elsewhere.err.endswith(": No such file or directory; is `ramet serve` running there?\n")
    assert "there is no journal in" in here.err
    for each in (without, elsewhere, here, *wrong):
        assert (each.status, each.out, each.err.count("\n")) == (1, "", 1), each
    assert TOKEN not in "".join(each.err for each in (without, *wrong))


async def test_following_ends_with_a_signal_with_the_server_and_with_the_run(folder: pathlib.Path) -> None:
    """Ctrl-C is no word; a server that is killed is one line; what it left is interrupted, and nobody waits for it."""
    (folder / "jobs.py").write_text("import asyncio\nasync def hold():\n    await asyncio.Event().wait()\n")
    socket = folder / ".ramet" / "serve.sock"
    async with serve(folder) as process, Client(socket) as client:
        await client.kernel.add_schedule(f"{folder}/jobs.py:hold", in_s=0)
        async with asyncio.timeout(180):
            while not (rows := await client.kernel.runs()):
                pass
        logs = ("logs", "-f", rows[0].id, "--server", str(socket))
        async with following(*logs) as left, following(*logs) as kept:
            left.send_signal(signal.SIGINT)
            out, err = await left.communicate()
            assert (out.count(b"runs in a sandbox"), err) == (out.count(b"\n"), b"")
            process.process.kill()
            _, said = await kept.communicate()
    assert left.returncode == 130
    assert (kept.returncode, said.count(b"\n")) == (1, 1), said
    assert said.startswith(b"ramet: no server answers at ")

    (folder / "jobs.py").unlink()  # So that its schedule cannot go on with it.
    async with serve(folder):
        done = await ramet(*logs)
    assert (done.status, done.err) == (0, f"ramet: {rows[0].id} was interrupted: {ServerSource.interrupted_hint}\n")


@asynccontextmanager
async def following(*words: str) -> AsyncIterator[Process]:
    """A command, once it has told of the first event."""
    async with started(*words, stdout=PIPE, stderr=PIPE) as process:
        assert process.stdout is not None
        assert b"started" in await process.stdout.readline()
        yield process


def test_who_looks_at_a_folder_pays_for_no_client(folder: pathlib.Path) -> None:
    """`ramet ps` imports neither an HTTP client nor the services."""
    look = (
        "import sys; from ramet.cli.main import main; main(['ps']); "
        "sys.exit(str([each for each in sys.modules if each.startswith(('httpx', 'ramet.services'))] or 0))"
    )
    (folder / ".ramet").mkdir()
    done = subprocess.run([sys.executable, "-c", look], cwd=folder, capture_output=True, text=True, check=False)

    assert "there is no journal in" in done.stderr
    assert done.stderr.splitlines()[1:] == ["0"]


def _json(done: Done) -> list[dict[str, Any]]:
    """What was printed, a line each."""
    assert done.status == 0, done.err
    return [json.loads(line) for line in done.out.splitlines()]
