"""The real programs as agents of a tree: in a sandbox, under its budget, with their questions in its inbox."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

import ramet
from ramet.core.events import ApprovalAsked, ModelAsked, ToolEnded, ToolStarted
from ramet.core.outcome import Status
from tests.agents.scripts import SPEAKS_ACP, TITLES, each, turns, write_call
from tests.support.agent_programs import Program, executables
from tests.support.providers import Hang, Provider, Script, Step, provider
from tests.support.waiting import eventually
from tests.trips.kits.forwarding import KEY, host_key, use_server

__all__ = ["host_key"]

ROOT = Path(__file__).parents[2]
REPLY = "It is done."
#: What each program is called in a definition, and a model that it can ask.
AGENTS = {
    "claude-agent-acp": ("claude-code", "anthropic:claude-sonnet-5-5"),
    "claude-code": ("claude-code", "anthropic:claude-sonnet-5-5"),
    "codex-acp": ("codex", "openai:gpt-5.5"),
    "codex": ("codex", "openai:gpt-5.5"),
    "gemini-cli": ("gemini", "google_genai:gemini-2.5-pro"),
    "opencode": ("opencode", "anthropic:claude-sonnet-5-5"),  # to one of OpenAI it offers no `write`
}

pytestmark = pytest.mark.usefixtures("host_key")


@pytest.fixture(autouse=True)
def installed_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the pinned programs into PATH, as a user has them."""
    monkeypatch.setenv("PATH", os.pathsep.join([*map(str, executables()), os.environ["PATH"]]))


def agent_of(program: Program, **external: Any) -> ramet.Agent:
    """Return the program as an agent."""
    preset, model = AGENTS[program.name]
    if program.acp is None:  # Its adapter is in PATH as well, and would be found first.
        external = {"command": program.command, "protocol": "stream-json", **external}
    return ramet.Agent(name="coder", external=ramet.External(preset=preset, **external), model=model)


@asynccontextmanager
async def asked(monkeypatch: pytest.MonkeyPatch, **prompts: list[Step]) -> AsyncIterator[Provider]:
    """Serve the steps of each prompt that has the word before them, as `[word]`; the host forwards there."""
    script: Script = {**TITLES, **{f"[{word}]": steps for word, steps in prompts.items()}}
    async with provider(script) as server:
        use_server(monkeypatch, server.url)
        yield server


def of_kind(events: list[Any], kind: type[Any]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


async def answer_all(runtime: ramet.AgentRuntime, handle: Any, allowed: bool) -> None:
    """Answer each question of a tree until it ends."""
    inbox = runtime.trees[handle.id].inbox
    while True:
        for entry in inbox.pending:
            inbox.answer(entry.id, allowed)
        await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def answering(runtime: ramet.AgentRuntime, handle: Any, *, allowed: bool) -> AsyncIterator[None]:
    answers = asyncio.ensure_future(answer_all(runtime, handle, allowed))
    try:
        yield
    finally:
        answers.cancel()


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[ramet.AgentRuntime]:
    async with ramet.AgentRuntime(tmp_path / "kernel", backend="bwrap") as runtime:
        yield runtime


def workspace_of(runtime: ramet.AgentRuntime, run: str) -> Path:
    folder = runtime.sandboxes.folder_of(run)
    assert folder is not None
    return folder.workspace


@each(SPEAKS_ACP)
async def test_it_writes_a_file_once_a_person_has_allowed_it(
    program: Program, runtime: ramet.AgentRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The question has the name of the file; the file is an artifact; each request was forwarded and charged."""
    async with asked(monkeypatch, write=[write_call(program.name, Path("note.txt"), "hello"), REPLY]) as server:
        handle = await runtime.start_agent(
            agent_of(program), prompt="Please [write].", limits=ramet.Limits(usd=5, seconds=300)
        )
        async with answering(runtime, handle, allowed=True):
            result = await handle.result()
        events = [event async for event in handle.events()]

    assert result.status is Status.COMPLETED, (result.error, result.stderr)
    assert result.output.endswith(REPLY)
    assert [each.name for each in result.artifacts] == ["note.txt"]
    questions = of_kind(events, ApprovalAsked)
    assert questions
    assert all("note.txt" in str((question.args, question.tool, question.question)) for question in questions)
    sent = server.generations
    assert len(of_kind(events, ModelAsked)) == result.usage.model_calls == len(sent)
    assert all(KEY in request.headers.values() or f"Bearer {KEY}" in request.headers.values() for request in sent)
    assert len(of_kind(events, ToolStarted)) == len(of_kind(events, ToolEnded)) == result.usage.tool_calls >= 1
    assert result.usage.usd > 0


@each(SPEAKS_ACP)
async def test_it_writes_nothing_that_a_person_denies_or_that_is_outside(
    program: Program, runtime: ramet.AgentRuntime, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A denied call leaves no file. A path outside of the sandbox is not there, even with every permission."""
    outside = tmp_path / "outside.txt"
    inside: list[Step] = [write_call(program.name, Path("note.txt"), "hello"), "As you like.", "Well."]
    out: list[Step] = [write_call(program.name, outside, "hello"), "I could not.", "Well."]
    async with asked(monkeypatch, write=inside, out=out):
        handle = await runtime.start_agent(agent_of(program), prompt="Please [write].")
        async with answering(runtime, handle, allowed=False):
            denied = await handle.result()
        allowed = await runtime.run_agent(agent_of(program, permission_mode="allow"), prompt="Please write [out].")

    assert denied.artifacts == ()
    assert not outside.exists()
    assert allowed.status in (Status.COMPLETED, Status.FAILED)


@each(SPEAKS_ACP)
async def test_a_limit_of_n_is_n_requests_of_a_model(
    program: Program, runtime: ramet.AgentRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A provider gets exactly as many, and the run ends at its limit soon after. What was written unasked is there."""
    steps: list[Step] = [write_call(program.name, Path(f"note-{number}.txt"), "x") for number in range(6)]
    async with asked(monkeypatch, write=[*steps, REPLY]) as server:
        agent = agent_of(program, permission_mode="allow")
        result = await runtime.run_agent(agent, prompt="Please [write].", limits=ramet.Limits(model_calls=3))

    assert result.status is Status.BUDGET_EXHAUSTED, (result.error, result.stderr)
    assert len(server.generations) == result.usage.model_calls == 3
    assert "note-0.txt" in [each.name for each in result.artifacts]


def memory_of(pid: int) -> Iterator[bytes]:
    """Yield the environment of a process and its writable memory, until the process ends."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        yield Path(f"/proc/{pid}/environ").read_bytes()
        yield from _writable_memory(pid)


def _writable_memory(pid: int) -> Iterator[bytes]:
    maps = Path(f"/proc/{pid}/maps").read_text()
    with Path(f"/proc/{pid}/mem").open("rb", 0) as memory:
        for start, end in re.findall(r"^([0-9a-f]+)-([0-9a-f]+) rw", maps, re.M):
            with contextlib.suppress(OSError, ValueError, OverflowError):
                memory.seek(int(start, 16))
                yield memory.read(min(int(end, 16) - int(start, 16), 256 * 1024 * 1024))


@each(SPEAKS_ACP)
async def test_no_key_of_the_host_is_inside_and_a_stop_in_the_middle_leaves_no_process(
    program: Program, runtime: ramet.AgentRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a reply streams, the memory of each of its processes is read, and its files. Then it is stopped."""
    async with asked(monkeypatch, recite=[Hang(12, text="A long reply without an end.")]) as server:
        handle = await runtime.start_agent(agent_of(program), prompt="Please [recite].")
        run = runtime.get(handle.id).run
        await eventually(lambda: "A long" in "".join(run.activity.streamed_text))
        assert run.sandbox.current is not None
        first = psutil.Process(run.sandbox.current.pid)
        processes = [first, *first.children(recursive=True)]
        holders = [each.name() for each in processes for part in memory_of(each.pid) if KEY.encode() in part]
        readable = [path for path in workspace_of(runtime, handle.id).rglob("*") if path.is_file()]
        files = [path for path in readable if KEY.encode() in path.read_bytes()]
        await handle.cancel()
        result = await handle.result()
        await server.client_left.wait()

    assert len(processes) >= 2, "the driver and the program"
    assert (holders, files) == ([], [])
    assert result.status is Status.CANCELLED
    await eventually(lambda: not any(each.is_running() for each in processes))


@each(SPEAKS_ACP)
async def test_its_question_is_answered_after_the_kill_of_its_kernel(
    program: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Another kernel starts it again, with its session. Its model hears what was said, and asks for the same call."""
    call = write_call(program.name, Path("note.txt"), "hello")
    async with asked(monkeypatch, write=[call, call, REPLY]) as server:
        await _run_until_asked(program, tmp_path)
        before = len(turns(server.requests))
        async with ramet.AgentRuntime(tmp_path, backend="bwrap") as runtime:
            (handle,) = await runtime.resume()
            (entry,) = runtime.trees[handle.id].inbox.pending
            assert entry.id == (tmp_path / "question").read_text()
            async with answering(runtime, handle, allowed=True):
                result = await handle.result()

    assert result.status is Status.COMPLETED, (result.error, result.stderr)
    assert [each.name for each in result.files] == ["note.txt"]
    assert result.value.endswith(REPLY)
    assert before == 1
    assert "Please [write]." in str(turns(server.requests)[-1].body)


async def _run_until_asked(program: Program, folder: Path) -> None:
    arguments = (AGENTS[program.name][0], AGENTS[program.name][1], str(folder))
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    killed = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.agents.killed_kernel", *arguments, env=env
    )
    assert await killed.wait() == -signal.SIGKILL
