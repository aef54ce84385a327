"""The command line on the journal of a working directory, while kernels run, are killed, and are resumed."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import eventually
from tests.trips.kits.terminal import CommandOutput, environment, ramet, running_ramet

JOBS = """
import asyncio, pathlib, sys, time

def add(a, b):
    print("adding")
    return a + b

def sit(folder):
    (pathlib.Path(folder) / "begun").touch()
    while not (pathlib.Path(folder) / "go").exists():
        time.sleep(0.01)

def bad():
    raise ValueError("no\\x1b[31m way")

async def wait(folder):
    folder = pathlib.Path(folder)
    with (folder / "begun").open("a") as file:
        file.write("x")
    while not (folder / "go").exists():
        await asyncio.sleep(0.01)
    return {"waited": True}
"""
KERNEL = """
import asyncio, pathlib, sys
from langchain_core.tools import tool
from ramet import Agent, AgentRuntime, ScriptedModel
from ramet.models.scripted.dialogue import Call
from ramet.tools.context import HookDecision
from ramet.tools.workspace import workspace_tools

def changes_need_a_word(payload):
    return HookDecision("ask", "it changes a file")

@tool
async def hold() -> str:
    "Wait until somebody says go on."
    while not (pathlib.Path(sys.argv[1]) / "go").exists():
        await asyncio.sleep(0.01)
    return "held"

GATE = {"PreToolUse": [{"matcher": "Write", "hooks": [changes_need_a_word]}]}

async def main() -> None:
    note = {"file_path": str(pathlib.Path(sys.argv[1]) / "note"), "content": "written"}
    model = ScriptedModel({"Begin": [Call("hold"), Call("Write", note), "All is done."]})
    async with AgentRuntime(sys.argv[1]) as runtime:
        agent = Agent(name="lead", model=model, hooks=GATE)
        handle = await runtime.spawn(
            agent, "Begin", tools=[hold, *workspace_tools()], cwd=pathlib.Path(sys.argv[1])
        )
        print((await handle.result()).status, flush=True)

asyncio.run(main())
"""

STAYS = """
import asyncio, sys
sys.path.insert(0, sys.argv[1])
from jobs import sit
from ramet import AgentRuntime

async def main() -> None:
    async with AgentRuntime(sys.argv[1], grace_s=0.1) as runtime:
        await (await runtime.spawn(sit, args=(sys.argv[1],))).result()
        await asyncio.Event().wait()

asyncio.run(main())
"""

SILENT = """
import asyncio, sys
from ramet import AgentRuntime, Session

async def main() -> None:
    async with AgentRuntime(sys.argv[1]) as runtime:
        await runtime.open_store()
        async with Session(model="offline", runtime=runtime, cwd=sys.argv[1]):
            await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a folder with functions to run, and a program that runs a model agent."""
    (tmp_path / "jobs.py").write_text(JOBS)
    (tmp_path / "kernel.py").write_text(KERNEL)
    return tmp_path


@asynccontextmanager
async def open_program(project: Path, text: str) -> AsyncIterator[Process]:
    """Start a program on the folder, and kill it afterwards."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", text, str(project), env=environment(None), cwd=project
    )
    try:
        yield process
    finally:
        process.kill()
        await process.wait()


@asynccontextmanager
async def kernel(project: Path) -> AsyncIterator[Process]:
    """Start a program whose model agent is in its first tool call, and kill it afterwards."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(project / "kernel.py"), str(project), stdout=PIPE, env=environment(None)
    )
    try:
        await wait_for_rows(project, lambda rows: process.returncode is not None or any(row["calls"] for row in rows))
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def run_on(project: Path, *args: str) -> CommandOutput:
    """Run a command on the folder."""
    verb = 2 if args[0] == "schedule" else 1
    return await ramet(*args[:verb], "--dir", str(project), *args[verb:])


async def rows(project: Path, *args: str) -> list[dict[str, Any]]:
    """Return the rows of `ramet ps --json`; none before there is a journal."""
    result = await run_on(project, "ps", "--json", *args)
    return [json.loads(line) for line in result.out.splitlines()]


async def wait_for_rows(project: Path, holds: Any) -> list[dict[str, Any]]:
    """Return the rows once the condition holds for them."""
    async with asyncio.timeout(180):
        while not holds(matching := await rows(project)):  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.1)
    return matching


@asynccontextmanager
async def open_waiting_run(project: Path) -> AsyncIterator[Process]:
    """Start `ramet run jobs:wait`, and wait until it is active."""
    args = ("run", "--dir", str(project), "jobs:wait", json.dumps(str(project)))
    async with running_ramet(*args, stdout=PIPE, stderr=PIPE) as process:
        await wait_for_rows(project, lambda rows: any(row["state"] == "running" for row in rows))
        await eventually((project / "begun").exists)
        yield process


async def test_commands_inspect_message_and_stop_a_running_kernels_run(project: Path) -> None:
    """Other processes read the run, send a message to it, and stop it; `logs -f` shows the message and the end."""
    async with kernel(project) as process:
        (row,) = await rows(project)
        assert (row["path"], row["agent"], row["state"]) == ("main", "lead", "running")
        assert [each["tool"] for each in row["calls"]] == ["hold"]
        drawn = await run_on(project, "tree")
        show_result = await run_on(project, "show", row["id"])
        async with running_ramet("logs", "-f", row["id"], "--dir", str(project), stdout=PIPE, stderr=PIPE) as follower:
            send_result = await run_on(project, "send", row["id"], "Hurry up")
            stop_result = await run_on(project, "stop", row["id"])
            stdout, aside = await follower.communicate()
        output, _ = await process.communicate()

    assert "main" in drawn.out
    assert "lead" in drawn.out
    assert "hold" in drawn.out
    assert "open calls hold" in show_result.out
    assert "state      running" in show_result.out
    assert (send_result.status, stop_result.out) == (0, "stopped main\n")
    assert output == b"cancelled\n"
    assert follower.returncode == 0
    assert aside == b""
    assert "message from user: Hurry up" in stdout.decode()
    assert "cancelled: stopped by its user" in stdout.decode()
    assert await rows(project) == []
    assert not (project / ".ramet" / "kernel.sock").exists()


async def test_a_stop_of_ramet_run_ends_its_process(project: Path) -> None:
    """The stop of a synchronous function waits for the end of the `ramet run` process, and has status 0."""
    sitting = ("run", "jobs:sit", json.dumps(str(project)), "--dir", str(project))
    async with running_ramet(*sitting, stdout=PIPE, stderr=PIPE) as process:
        await eventually((project / "begun").exists)
        (row,) = await rows(project)

        stop_result = await run_on(project, "stop", row["id"])

        assert (stop_result.status, stop_result.out, stop_result.err) == (0, "stopped main\n", "")
        assert await process.wait() != 0
    assert (await run_on(project, "stop", row["id"])).status == 1


async def test_a_stop_names_a_synchronous_function_of_another_program(project: Path) -> None:
    """The program and its thread continue: the stop names the call that it could not end, with status 1."""
    async with open_program(project, STAYS):
        await eventually((project / "begun").exists)
        (row,) = await rows(project)

        stop_result = await run_on(project, "stop", row["id"])

        assert (stop_result.status, stop_result.out) == (1, "stopped main\ncould not be ended: main: sit\n")


@pytest.mark.parametrize("verb", ["approve", "deny"])
async def test_approve_and_deny_answer_a_question_by_its_id(project: Path, verb: str) -> None:
    """The run continues with a yes or a no; a second answer after the kernel's end is refused."""
    async with kernel(project) as process:
        (project / "go").touch()
        (row,) = await wait_for_rows(project, lambda rows: any(row["approvals"] for row in rows))
        question = row["approvals"][0]["approval_id"]
        answer = await run_on(project, verb, question)
        output, _ = await process.communicate()

    assert answer.status == 0
    assert output == b"completed\n"
    assert (project / "note").exists() == (verb == "approve")
    second_result = await run_on(project, verb, question)
    assert (second_result.status, second_result.err) == (1, f"ramet: no kernel runs in {project}\n")


async def test_a_killed_run_is_shown_as_interrupted_and_can_be_resumed(project: Path) -> None:
    """The killed run cannot be stopped or removed; `resume` runs it again and prints its value."""
    async with open_waiting_run(project) as process:
        (row,) = await rows(project)
        async with running_ramet("logs", "-f", row["id"], "--dir", str(project), stdout=PIPE, stderr=PIPE) as follower:
            process.kill()
            await process.wait()
            _, aside = await follower.communicate()

    assert "was interrupted: no kernel runs here" in aside.decode()
    assert [(each["id"], each["state"]) for each in await rows(project)] == [(row["id"], "interrupted")]
    assert "interrupted" in (await run_on(project, "tree")).out
    refusal = await run_on(project, "stop", row["id"])
    assert (refusal.status, refusal.err.count("\n")) == (1, 1)
    assert f"ramet resume {row['id']}" in refusal.err
    collection = await run_on(project, "gc", "--older-than", "0")
    assert "0 trees removed" in collection.err

    unknown = await run_on(project, "resume", "nothing-like-it")
    assert (unknown.status, unknown.err.count("\n")) == (2, 1), unknown
    (project / "go").touch()
    result = await run_on(project, "resume", row["id"][:-4])  # the beginning of an id is enough

    assert (result.status, json.loads(result.out)) == (0, {"waited": True})
    assert (project / "begun").read_text() == "xx"
    assert await rows(project) == []
    assert [each["state"] for each in await rows(project, "--all")] == ["completed"]
    second_result = await run_on(project, "resume")
    assert (second_result.status, second_result.out, second_result.err) == (0, "", "nothing to resume here\n")


async def test_resume_does_not_wait_for_a_session_without_messages(project: Path) -> None:
    """A session without a prompt has no work to resume, so `resume` ends."""
    (project / "silent.py").write_text(SILENT)
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(project / "silent.py"), str(project), env=environment(None)
    )
    try:
        await wait_for_rows(project, lambda rows: process.returncode is not None or len(rows) == 1)
    finally:
        process.kill()
        await process.wait()

    async with asyncio.timeout(180):
        result = await run_on(project, "resume")

    assert (result.status, result.out.strip()) == (0, "")


async def test_resume_skips_a_tree_that_needs_a_model_object(project: Path) -> None:
    """One line names the tree, which stays interrupted; `resume` completes the other tree."""
    async with kernel(project) as process:
        process.kill()
        await process.wait()
        (missing,) = await rows(project)
    async with open_waiting_run(project) as process:
        process.kill()
        await process.wait()
    (project / "go").touch()

    result = await run_on(project, "resume", "--quiet")

    assert (result.status, json.loads(result.out)) == (1, {"waited": True})
    assert result.err.startswith(f"ramet: {missing['id']}: the journal names ")
    assert result.err.count("\n") == 1
    assert [(each["id"], each["state"]) for each in await rows(project)] == [(missing["id"], "interrupted")]


async def test_resume_beside_a_running_kernel_names_the_owner_of_the_journal(project: Path) -> None:
    """`resume` prints one line with the pid of the kernel, and changes nothing."""
    async with open_waiting_run(project) as process:
        result = await run_on(project, "resume")
        assert (result.status, result.out) == (1, "")
        assert result.err.endswith(f"belongs to another kernel (pid {process.pid})\n")
        assert result.err.count("\n") == 1


async def test_run_prints_the_value_of_a_function(project: Path) -> None:
    """Stdout has the value alone, whatever the function prints; the exit status is that of the published table."""
    result = await run_on(project, "run", "jobs:add", "1", "2")
    failure = await run_on(project, "run", "jobs:bad", "--quiet")
    data = await run_on(project, "run", "jobs:add", '"a"', '"b"', "--json", "--quiet")
    late = await run_on(project, "run", "jobs:wait", json.dumps(str(project)), "--timeout", "0.1", "--quiet")
    script = await run_on(project, "run", f"{project}/jobs.py:add", "2", "3", "--quiet")

    assert (result.status, result.out) == (0, "3\n")
    assert "adding" in result.err
    assert "main: completed" in result.err
    assert (failure.status, failure.out) == (1, "")
    assert "failed: no way" in failure.err
    assert "\x1b" not in failure.err
    assert json.loads(data.out)["result"]["value"] == "ab"
    assert late.status == 124
    assert (script.status, script.out) == (0, "5\n")


async def test_run_with_a_policy_uses_a_sandbox(project: Path) -> None:
    """The policy is JSON or a file; stdout has the value alone, without prints of the sandbox."""
    (project / "policy.json").write_text('{"timeout_seconds": 30}')

    plain = await run_on(project, "run", "jobs:add", "1", "2", "--policy", "{}", "--backend", "local")
    file = await run_on(
        project, "run", "jobs:add", "1", "2", "--policy", f"{project}/policy.json", "--backend", "local"
    )

    assert (plain.status, plain.out, file.status, file.out) == (0, "3\n", 0, "3\n")
    assert "adding" in plain.err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("run", "nothing"), "MODULE:FUNCTION: 'nothing' is not accepted"),
        (("run", "jobs:nothing"), "(AttributeError: module 'jobs' has no attribute 'nothing')"),
        (("run", "nowhere:add"), "(ModuleNotFoundError: No module named 'nowhere')"),
        (("run", "jobs:add", "x"), "ARG 1: 'x' is not accepted; expected JSON"),
        (("run", "jobs:add", "--policy", "{"), "policy: "),
        (("run", "jobs:add", "--policy", '{"no": 1}'), "policy.no: 'no' is not accepted"),
        (("run", "jobs:add", "--policy", "/nowhere"), "--policy: '/nowhere' is not accepted"),
        (("schedule", "add", "jobs:add", "--cron", "0 8 * * *"), "--tz: None is not accepted"),
        (("schedule", "add", "jobs:nothing", "--in", "1h"), "MODULE:FUNCTION: 'jobs:nothing' is not accepted"),
    ],
)
async def test_invalid_arguments_get_one_line_and_status_2(project: Path, args: tuple[str, ...], message: str) -> None:
    """The line says what would be accepted, and nothing runs."""
    result = await run_on(project, *args)

    assert (result.status, result.out, result.err.count("\n")) == (2, "", 1)
    assert message in result.err


async def test_ended_trees_are_exported_replayed_and_removed(project: Path) -> None:
    """`export` and `replay` show the journal; `gc` removes a tree with its transcript, except those of `--keep`."""
    for number in range(2):
        await run_on(project, "run", "jobs:add", str(number), "0", "--quiet")
    first, second = await rows(project, "--all")

    exported = await run_on(project, "export", first["id"], "--tree")
    logs = await run_on(project, "logs", first["id"])
    second_result = await run_on(project, "replay", first["id"], "--speed", "0")
    events = [json.loads(line) for line in exported.out.splitlines()]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert events[-1]["type"] == "run_ended"
    assert second_result.out == logs.out
    assert "main: completed" in logs.out

    assert "0 trees would be removed" in (await run_on(project, "gc", "--dry-run")).err
    dry = await run_on(project, "gc", "--dry-run", "--older-than", "0", "--json")
    assert [json.loads(line)["root"] for line in dry.out.splitlines()] == [first["id"], second["id"]]
    collection = await run_on(project, "gc", "--older-than", "0", "--keep", second["id"], "--json")
    assert [json.loads(line)["root"] for line in collection.out.splitlines()] == [first["id"]]
    assert [row["id"] for row in await rows(project, "--all")] == [second["id"]]
    remaining_roots = [
        json.loads((each / "main.jsonl").read_text().splitlines()[0])["root"] for each in transcripts(project)
    ]
    assert remaining_roots == [second["id"]]
    unknown = await run_on(project, "gc", "--keep", "run-0")
    assert (unknown.status, unknown.out) == (2, "")


def transcripts(project: Path) -> list[Path]:
    """Return the folders of transcripts."""
    return [each for each in (project / ".ramet" / "transcripts").iterdir() if each.is_dir()]


async def test_schedules_are_recorded_without_firing(project: Path) -> None:
    """A due schedule waits for a kernel with a scheduler."""
    addition = await run_on(project, "schedule", "add", "jobs:add", "1", "2", "--in", "0", "--name", "soon")
    await run_on(
        project, "schedule", "add", "jobs:add", "1", "2", "--cron", "0 8 * * *", "--tz", "UTC", "--name", "daily"
    )
    paused = await run_on(project, "schedule", "pause", "daily")
    listing = await run_on(project, "schedule", "list", "--json")
    await run_on(project, "schedule", "rm", "soon")
    removal = await run_on(project, "schedule", "rm", "soon")

    assert addition.status == paused.status == 0
    views = {view["id"]: view for view in map(json.loads, listing.out.splitlines())}
    assert (views["daily"]["paused"], views["soon"]["last"], views["soon"]["running"]) == (True, None, 0)
    assert (removal.status, removal.err) == (2, "ramet: unknown schedule 'soon'; known: daily\n")
    assert await rows(project, "--all") == []


async def test_a_new_kernel_does_not_show_a_killed_kernels_run_as_running(project: Path) -> None:
    """The new run is running and the old one interrupted; the new kernel replaces the control socket."""
    async with open_waiting_run(project) as process:
        process.send_signal(signal.SIGKILL)
        await process.wait()
    assert (project / ".ramet" / "kernel.sock").is_socket()

    async with open_waiting_run(project):
        (old, new) = await rows(project)
        assert (old["state"], new["state"]) == ("interrupted", "running")
        assert (project / ".ramet" / "kernel.sock").stat().st_mode & 0o777 == 0o600


async def test_ctrl_c_ends_logs_and_cancels_a_run(project: Path) -> None:
    """`logs -f` ends silently; `run` ends its tree first, which is recorded as cancelled."""
    async with open_waiting_run(project) as process:
        (row,) = await rows(project)
        async with running_ramet("logs", "-f", row["id"], "--dir", str(project), stdout=PIPE, stderr=PIPE) as follower:
            assert follower.stdout is not None
            assert b"started" in await follower.stdout.readline()
            follower.send_signal(signal.SIGINT)
            _, aside = await follower.communicate()
        process.send_signal(signal.SIGINT)
        out, err = await process.communicate()

    assert (follower.returncode, aside) == (130, b"")
    assert (process.returncode, out) == (130, b"")
    assert b"Traceback" not in err
    assert [row["state"] for row in await rows(project, "--all")] == ["cancelled"]


async def test_a_suspended_kernels_runs_are_shown_from_the_journal(project: Path) -> None:
    """`ps` and `logs` read the journal of a suspended kernel, and do not wait long for it."""
    async with open_waiting_run(project) as process:
        process.send_signal(signal.SIGSTOP)
        (row,) = await rows(project)
        logs = await run_on(project, "logs", row["id"])
        process.send_signal(signal.SIGCONT)

    assert row["state"] == "running"
    assert "main: started wait" in logs.out
