"""The examples of the package run as a user runs them: as processes, without a key or a network."""

from __future__ import annotations

import asyncio
import os
import pathlib
import shutil
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import pytest
from langchain_core.messages import BaseMessage, HumanMessage

from ramet.examples.running import MODELS, real_model
from ramet.models.scripted.dialogue import Call, Script
from tests.chaos.kernels import inheriting_orphans
from tests.support.providers import Provider, provider
from tests.support.serving import short_folder

BOUND_S = 180.0  #: passed only by a test that fails
EVERY = ("simple_agent", "team_scenario")


class ExampleOutput(NamedTuple):
    """The status and the output of a process."""

    status: int
    out: str
    err: str


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> str:
    """Return the backend of the parameter, or skip if it does not work here."""
    if request.param == "bwrap" and shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    return str(request.param)


@pytest.fixture
def folder() -> Iterator[pathlib.Path]:
    """Yield the folder where an example and its temporary files are; it must be empty at the end."""
    with short_folder() as path:
        yield path
        assert list(path.iterdir()) == []


@asynccontextmanager
async def running_example(folder: pathlib.Path, example: str, *options: str, **env: str) -> AsyncIterator[Process]:
    """Start an example as a process; a process that it leaves fails the test."""
    # As of a user who has set nothing.
    plain = {key: value for key, value in os.environ.items() if key != "LLM_API_KEY" and not key.startswith("RAMET_")}
    with inheriting_orphans() as orphans:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", f"ramet.examples.{example}", *options,
            cwd=folder, env={**plain, "TMPDIR": str(folder), **env}, stdout=PIPE, stderr=PIPE,
        )  # fmt: skip
        orphans.expect(process.pid)
        try:
            async with asyncio.timeout(BOUND_S):
                yield process
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
        await orphans.wait_ended()


async def run_example(folder: pathlib.Path, example: str, *options: str, **env: str) -> ExampleOutput:
    """Run an example to its end."""
    async with running_example(folder, example, *options, **env) as process:
        out, err = await process.communicate()
    assert process.returncode is not None
    return ExampleOutput(process.returncode, out.decode(), err.decode())


# ---- without a key


@pytest.mark.parametrize("backend", ["bwrap", "local"], indirect=True)
async def test_the_simple_agent_answers_from_its_sandbox(backend: str, folder: pathlib.Path) -> None:
    """AC-S3-1: the answer rests on the files of the image, the turn is done, and the team is deleted."""
    result = await run_example(folder, "simple_agent", "--backend", backend)

    assert (result.status, result.err) == (0, "")
    first, agent, _, question, *answer = result.out.splitlines()
    level = "L2" if backend == "bwrap" else "L1"
    assert first == "model: offline (no key is set): it answers by rules"
    assert agent in [f"agent: lighthouse/keeper, idle, isolation {each}" for each in (level, "L0")]
    assert question == "Why is the lamp dark at night?"
    assert any("`lamp.motor.timeout_ms` = 400 (lamp.yaml:4: `timeout_ms: 400 " in line for line in answer)
    assert answer[-2:] == [f"done: 1 turn, idle, isolation {agent[-2:]}", "left: 0 agents, 0 teams"]


@pytest.mark.parametrize("backend", ["bwrap", "local"], indirect=True)
async def test_the_team_scenario_prints_every_agents_lines(backend: str, folder: pathlib.Path) -> None:
    """AC-S3-2: four places, three agents with one bundle; each agent's lines are shown, and the team is deleted."""
    result = await run_example(folder, "team_scenario", "--backend", backend)

    assert (result.status, result.err) == (0, "")
    lines = result.out.splitlines()
    assert lines[0] == "model: none (no key is set): functions of the image do the work"
    assert lines[1].startswith("team: counters, 4 agents reserved; image ")
    agents = sorted(line.partition(",")[0] for line in lines if line.startswith("agent: "))
    assert agents == [f"agent: counters/{name}" for name in ("architect", "worker-1", "worker-2")]
    assert lines.count("architect > ---") == 1
    assert {"worker-1 > the 6", "worker-2 > the 4"} <= set(lines)
    assert lines[-7:] == [
        "architect > 48 words, 35 different; the most frequent:",
        "architect > the 10",
        "architect > is 4",
        "architect > and 2",
        "",
        "deleted: counters, with its 3 agents",
        "left: 0 agents, 0 teams",
    ]


@pytest.mark.parametrize("mode", ["SIGINT", "SIGTERM", "SIGHUP"])
async def test_an_interrupted_team_leaves_nothing(mode: str, folder: pathlib.Path) -> None:
    """A signal at an agent's first line ends each process silently, with status 130."""
    async with running_example(folder, "team_scenario", "--backend", "local") as process:
        assert process.stdout is not None
        while not (await process.stdout.readline()).startswith(b"architect >"):
            pass
        process.send_signal(signal.Signals[mode])
        _, err = await process.communicate()

    assert (process.returncode, err) == (130, b"")


#: An example that waits for good, and gets a signal while it does.
WAITING = """
import asyncio, os, signal, sys
from ramet.examples.running import main
async def wait(config):
    os.kill(os.getpid(), signal.{number})
    try:
        await asyncio.sleep(10)
    finally:
        print("cleaned up")
sys.exit(main("wait", "Wait.", wait))
"""


@pytest.mark.parametrize("number", ["SIGTERM", "SIGHUP"])
async def test_a_background_example_ends_on_a_signal(number: str, folder: pathlib.Path) -> None:
    """A shell lets a background command ignore Ctrl-C; other signals still end it in order."""
    background = ["sh", "-c", 'trap "" INT; exec "$@"', "sh"]
    process = await asyncio.create_subprocess_exec(
        *background, sys.executable, "-c", WAITING.format(number=number), cwd=folder, stdout=PIPE, stderr=PIPE
    )
    out, err = await process.communicate()

    assert (process.returncode, out, err) == (130, b"cleaned up\n", b"")


# ---- how they are told what to do


async def test_an_example_uses_a_settings_file_and_log_level(folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """The file gives the backend; RAMET_LOG_LEVEL takes precedence over the file's level."""
    file = tmp_path / "ramet.yaml"
    file.write_text("backend: local\nlog_level: error\n")

    result = await run_example(folder, "team_scenario", "--config", str(file), RAMET_LOG_LEVEL="DEBUG")

    assert result.status == 0
    assert "isolation L2" not in result.out
    assert " INFO ramet.serve: serving " in result.err
    assert result.out.splitlines()[-1] == "left: 0 agents, 0 teams"


@pytest.mark.parametrize("example", EVERY)
async def test_a_wrong_option_gets_one_line(example: str, folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """An unknown backend and an unknown key of the settings file give status 2, and nothing starts."""
    file = tmp_path / "ramet.yaml"
    file.write_text("backand: local\n")
    for option, value, message in (("--backend", "docker", "bwrap, local"), ("--config", str(file), "backand")):
        result = await run_example(folder, example, option, value)
        assert (result.status, result.out, result.err.count("\n")) == (2, "", 1)
        assert result.err.startswith(f"{example}: ")
        assert message in result.err


# ---- with a key


@asynccontextmanager
async def provider_with_key(script: Script) -> AsyncIterator[tuple[Provider, dict[str, str]]]:
    """Yield a provider that plays a script, and the environment with a key for it."""
    async with provider(script) as server:
        yield server, {"OPENAI_BASE_URL": f"{server.url}/v1", "LLM_API_KEY": "test"}


@pytest.mark.parametrize(
    ("keys", "model"),
    [
        ({}, ""),
        ({"OPENAI_API_KEY": " "}, ""),
        ({"OPENAI_API_KEY": "sk-1"}, "openai:"),
        ({"ANTHROPIC_API_KEY": "sk-ant-1"}, "anthropic:"),
        ({"LLM_API_KEY": "sk-ant-1", "OPENAI_API_KEY": "sk-1"}, "anthropic:"),
        ({"LLM_API_KEY": "sk-1", "ANTHROPIC_API_KEY": "sk-ant-1"}, "openai:"),
    ],
    ids=lambda arguments: " ".join(arguments) or "none" if isinstance(arguments, dict) else None,
)
def test_a_key_selects_its_providers_model(keys: dict[str, str], model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`LLM_API_KEY` takes precedence over the others, and is then set for the provider's client."""
    for name in ("LLM_API_KEY", *MODELS):
        monkeypatch.setenv(name, keys.get(name, ""))

    model_name = real_model()

    assert model_name.startswith(model)
    assert bool(model_name) == bool(model)
    if "LLM_API_KEY" in keys:
        variable = f"{model.removesuffix(':').upper()}_API_KEY"
        assert os.environ[variable] == keys["LLM_API_KEY"]


async def test_an_example_with_a_key_uses_a_real_model(folder: pathlib.Path) -> None:
    """The output names the model, which has the example's tools and reads its image."""
    async with provider_with_key([Call("Read", {"file_path": "lamp.yaml"}), "It waits 400 ms only."]) as (server, env):
        result = await run_example(folder, "simple_agent", "--backend", "local", **env)

    assert (result.status, result.err) == (0, "")
    assert result.out.startswith("model: openai:gpt-5.4\n")
    assert "\nIt waits 400 ms only.\n" in result.out
    assert {each["function"]["name"] for each in server.bodies[0]["tools"]} == {"Glob", "Grep", "Read"}
    assert "timeout_ms: 400" in server.bodies[1]["messages"][-1]["content"]


async def test_a_team_of_models_counts_with_the_bundle(folder: pathlib.Path) -> None:
    """Each member's Python imports the bundle in its sandbox, and has its skill; the sum is equal."""
    script: Script = {
        "Split this text": [python("print('\\n---\\n'.join(textkit.split_text(given)))"), repeat_output],
        "Count the words": [python("print(textkit.format_counts(textkit.count(given)))"), repeat_output],
        "Put these counts": [python("print(sum(textkit.merge_counts([given]).values()), 'words')"), repeat_output],
    }
    async with provider_with_key(script) as (server, env):
        result = await run_example(folder, "team_scenario", "--backend", "local", **env)

    assert (result.status, result.err) == (0, "")
    assert "architect > 48 words" in result.out.splitlines()
    assert all("word-count: " in str(each["messages"][0]["content"]) for each in server.bodies)


def python(line: str) -> Callable[[list[BaseMessage]], Call]:
    """Return a function that calls `python` for the text of the latest task."""

    def call(messages: list[BaseMessage]) -> Call:
        prompt = next(str(each.text) for each in reversed(messages) if isinstance(each, HumanMessage))
        text = prompt.partition("\n\n")[2]
        return Call("python", {"code": f"import textkit\ngiven = {text!r}\n{line}"})

    return call


def repeat_output(messages: list[BaseMessage]) -> str:
    """Answer with the output of the call."""
    return str(messages[-1].text)
