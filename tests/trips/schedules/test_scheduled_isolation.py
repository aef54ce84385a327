"""Scheduled work is isolated by default, as `run_agent` is; the operator's program may opt out by an argument."""

from __future__ import annotations

import asyncio
import os
import pathlib
import sys
from typing import Any

import pytest

from ramet import Agent, AgentRuntime, AgentScheduler, Policy
from ramet.agent.composition.chain import chain
from ramet.core.errors import InvalidValue
from ramet.core.schedules.ticks import TickResult
from tests.support.serve_process import ROOT
from tests.support.serving import serving

SECRET = "planted on the host"


def read_file(path: str) -> str:
    """Return what a file holds, or why it cannot be read."""
    try:
        return pathlib.Path(path).read_text()
    except OSError as problem:
        return type(problem).__name__


def read_environment(name: str) -> str:
    """Return a variable of this process's environment."""
    return os.environ.get(name, "not there")


READS = chain(read_file, name="reads")


@pytest.fixture
def host_file(tmp_path: pathlib.Path) -> str:
    """A file of the host that no policy gives to an agent."""
    file = tmp_path / "planted"
    file.write_text(SECRET)
    return str(file)


async def wait_for_end(scheduler: AgentScheduler, id: str) -> TickResult:
    """Wait for the end of the newest tick of a schedule."""
    while not (results := await scheduler.results(id)) or results[-1].ended is None:  # noqa: ASYNC110 - it is asked
        await asyncio.sleep(0.01)
    return results[-1]


async def run_once(tmp_path: pathlib.Path, agent: Any, **options: Any) -> TickResult:
    """Schedule an agent for now, and return how its tick ended."""
    async with AgentRuntime(tmp_path / "kernel") as runtime, AgentScheduler(runtime) as scheduler:
        view = await scheduler.schedule_agent_in(0, agent, **options)
        return await wait_for_end(scheduler, view.id)


async def test_a_scheduled_function_cannot_read_a_file_of_the_host(tmp_path: pathlib.Path, host_file: str) -> None:
    """A scheduled function without a policy gets the default one. `in_process=True` is the control."""
    isolated = await run_once(tmp_path, read_file, args=[host_file])
    in_process = await run_once(tmp_path, read_file, args=[host_file], in_process=True)

    assert (isolated.status, isolated.text) == ("completed", "FileNotFoundError")
    assert in_process.text == SECRET


async def test_a_scheduled_function_does_not_have_the_hosts_environment(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key in a variable of the server does not reach the function."""
    monkeypatch.setenv("PLANTED_KEY", SECRET)

    assert (await run_once(tmp_path, read_environment, args=["PLANTED_KEY"])).text == "not there"


async def test_in_process_together_with_a_policy_is_refused(tmp_path: pathlib.Path) -> None:
    """The two arguments contradict each other."""
    async with AgentRuntime(tmp_path) as runtime, AgentScheduler(runtime) as scheduler:
        with pytest.raises(InvalidValue, match="in_process"):
            await scheduler.schedule_agent_in(60, read_file, args=["x"], policy=Policy(), in_process=True)


async def test_a_step_of_a_scheduled_composition_cannot_read_a_file_of_the_host(
    tmp_path: pathlib.Path, host_file: str
) -> None:
    """The steps of a composition are as isolated as a function is."""
    assert (await run_once(tmp_path, f"{__name__}:READS", args=[host_file])).text == "FileNotFoundError"


async def test_a_scheduled_model_with_tools_works_in_a_sandbox(tmp_path: pathlib.Path) -> None:
    """A definition that names a tool of the workspace has a workspace of its own, and not the kernel's folder."""
    async with AgentRuntime(tmp_path) as runtime, AgentScheduler(runtime) as scheduler:
        reader = Agent(name="reader", model="offline", tools=("Read", "Glob", "Grep"))
        tools = await scheduler.schedule_agent_in(0, reader, prompt="What is here?")
        talks = await scheduler.schedule_agent_in(0, Agent(name="talks", model="offline", tools=()), prompt="Hello.")
        runs = [(await wait_for_end(scheduler, each.id)).run for each in (tools, talks)]
        assert runtime.journal is not None
        type_sets = [
            {each.type for each in await runtime.journal.store.read(run=run, limit=1000)} for run in runs if run
        ]

    assert "sandbox_started" in type_sets[0]
    assert "sandbox_started" not in type_sets[1]


async def test_a_function_scheduled_from_the_command_line_is_isolated(tmp_path: pathlib.Path, host_file: str) -> None:
    """The command is `ramet schedule add`. With `--in-process`, the function reads the file."""
    script = tmp_path / "work.py"
    script.write_text(f"import pathlib\n\ndef read():\n    return pathlib.Path({host_file!r}).read_text()\n")
    folder = tmp_path / "kernel"

    async def add(*options: str) -> None:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "ramet", "schedule", "add", f"{script}:read"),
            *("--in", "0", "--dir", str(folder), *options),
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        _, output = await process.communicate()
        assert process.returncode == 0, output.decode()

    async with AgentRuntime(folder) as runtime, AgentScheduler(runtime) as scheduler:
        await add("--name", "isolated")
        await add("--name", "opened", "--in-process")
        isolated, inprocess_result = await wait_for_end(scheduler, "isolated"), await wait_for_end(scheduler, "opened")

    assert isolated.status == "failed"
    assert SECRET not in isolated.text
    assert inprocess_result.text == SECRET


async def test_a_schedule_added_over_http_is_isolated(tmp_path: pathlib.Path, host_file: str) -> None:
    """The server refuses `in_process`, unless a rule of the operator lets agents work in the host."""
    async with serving(tmp_path / "kernel") as echo_server:
        body = {"agent": f"{__name__}:read_file", "args": [host_file], "in_s": 0, "name": "reads"}
        response = await echo_server.ask(
            "POST", "/v1/schedules", echo_server.server.operator, json={**body, "in_process": True}
        )
        addition = await echo_server.ask("POST", "/v1/schedules", echo_server.server.operator, json=body)
        assert addition.status_code == 201, addition.text

        async def results() -> list[dict[str, Any]]:
            response = await echo_server.ask("GET", "/v1/schedules/reads/results", echo_server.server.operator)
            return [each for each in response.json()["results"] if each.get("ended")]

        while not (entries := await results()):  # noqa: ASYNC110 - a server is asked
            await asyncio.sleep(0.01)

    assert (response.status_code, response.json()["field"]) == (422, "in_process")
    assert entries[0]["text"] == "FileNotFoundError"
