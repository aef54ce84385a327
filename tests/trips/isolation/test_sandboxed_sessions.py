"""Sessions whose child agents work in sandboxes: the same loop runs inside, on both backends."""

from __future__ import annotations

import asyncio
import pathlib
import sys
from typing import Literal

import pytest

from ramet import Agent, AgentRuntime, Limits, Policy, ScriptedModel, Session, Status, workspace_tools
from ramet.concurrency.clock import FakeClock
from ramet.core.errors import InvalidValue, RametError
from ramet.core.events import RunRetried, SandboxStarted, ToolEnded
from ramet.core.replay.replay import TreeReplay
from ramet.isolation.contract import SandboxSpec
from ramet.isolation.local import LocalBackend
from ramet.isolation.zygote.sandbox import ForkedSandbox
from ramet.models.scripted.dialogue import Call, Fail, Say
from tests.trips.kits.sessions import of_kind, run_of, session_events

Backend = Literal["bwrap", "local"]
both = pytest.mark.parametrize("backend", ["bwrap", "local"])


def session(
    folder: pathlib.Path, backend: Backend, script: dict[str, list[Say | Call | str]], limits: Limits
) -> Session:
    """Return a session over `folder` with one agent type, whose model plays `script`."""
    reader = Agent(name="reader", description="Reads files", instructions="Read.")
    return Session(
        ScriptedModel(script=script),
        workspace_tools(),
        agents=[reader],
        cwd=folder,
        backend=backend,
        limits=limits,
        unattended=True,
    )


@both
async def test_a_child_reads_the_folder_from_its_own_sandbox(tmp_path: pathlib.Path, backend: Backend) -> None:
    """The child's tools run in its sandbox and read the session's folder; its report is the tool result."""
    (tmp_path / "api.ts").write_text("timeout: 3000\n")
    script: dict[str, list[Say | Call | str]] = {
        "Why?": [Call("Agent", {"subagent_type": "reader", "prompt": "Look into api.ts"}), "Because of 3000."],
        "Look into api.ts": [Call("Read", {"file_path": "api.ts"}), "It says 3000."],
    }
    async with session(tmp_path, backend, script, Limits()) as guest_session:
        result = await guest_session.ask("Why?")
        events = [event async for event in guest_session.handle("main/1").events()]

    assert result.value == "Because of 3000."
    [sandbox_start] = [event for event in events if isinstance(event, SandboxStarted)]
    assert (sandbox_start.backend, sandbox_start.path) == (backend, "main/1")
    [tool_end] = [event for event in events if isinstance(event, ToolEnded)]
    assert (tool_end.status, "timeout: 3000" in tool_end.preview) == ("ok", True)


class RecordingBackend(LocalBackend):
    """A backend that notes which sandboxes may start programs."""

    def __init__(self, runs: pathlib.Path) -> None:
        super().__init__(runs)
        self.with_programs: list[bool] = []

    async def start(self, spec: SandboxSpec) -> ForkedSandbox:
        self.with_programs.append(spec.has_programs)
        return await super().start(spec)


async def test_a_backend_knows_which_agents_may_start_programs(tmp_path: pathlib.Path) -> None:
    """The tools of an agent decide, whether it uses them or not."""
    with_shell = Agent(name="worker", description="Works", instructions="Work.", tools=["Bash"])
    reader = Agent(name="reader", description="Reads files", instructions="Read.", tools=["Read"])
    script: dict[str, list[Say | Call | str]] = {
        "Go": [
            Call("Agent", {"subagent_type": "worker", "prompt": "one"}),
            Call("Agent", {"subagent_type": "reader", "prompt": "two"}),
            "done",
        ],
        "one": ["worked"],
        "two": ["read"],
    }
    backend = RecordingBackend(tmp_path / "runs")
    model, tools = ScriptedModel(script=script), workspace_tools()
    agents = [with_shell, reader]
    async with Session(model, tools, agents=agents, cwd=tmp_path, backend=backend, unattended=True) as session:
        assert (await session.ask("Go")).value == "done"

    assert backend.with_programs == [True, False]


@both
async def test_the_journal_of_a_retried_turn_has_the_last_attempt(tmp_path: pathlib.Path, backend: Backend) -> None:
    """A replay has the model's conversation, and no message of the failed attempt."""
    (tmp_path / "note").write_text("a note")
    script: dict[str, list[Say | Call | Fail | str]] = {
        "Go": [Call("Agent", {"subagent_type": "reader", "prompt": "read"}), "done"],
        "read": [Call("Read", {"file_path": str(tmp_path / "note")}), Fail("no such model"), "It is a note."],
    }
    reader = Agent(name="reader", description="Reads files", instructions="Read.", tools=["Read"])
    policy = Policy(readonly_mounts=(str(tmp_path),), retry_count=1, retry_delay_seconds=0.0)
    async with Session(
        ScriptedModel(script=script), workspace_tools(), agents=[reader], cwd=tmp_path, backend=backend, policy=policy,
        unattended=True,
    ) as session:  # fmt: skip
        assert (await session.ask("Go")).value == "done"
        run = run_of(session, "main/1")
        replayed_run = TreeReplay().apply_all(session_events(session)).runs[run.info.id]

    assert [each.attempt for each in of_kind(session_events(session), RunRetried)] == [1]
    assert [each.kind for each in replayed_run.conversation] == [each.type for each in run.context.history]
    assert [each.kind for each in replayed_run.conversation] == ["human", "ai", "tool", "ai"]


async def test_the_tools_of_a_child_read_its_mounts(
    tmp_path: pathlib.Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A mount outside the project is read by its absolute path, not written, and nothing beside it is read."""
    mount, other = tmp_path_factory.mktemp("mount"), tmp_path_factory.mktemp("other")
    for folder in (mount, other):
        (folder / "note").write_text("a note\n")
    script: dict[str, list[Say | Call | list[Call] | str]] = {
        "Go": [Call("Agent", {"subagent_type": "reader", "prompt": "Look around!"}), "done"],
        "Look around!": [
            Call("Read", {"file_path": str(mount / "note")}),
            Call("Grep", {"pattern": "note", "path": str(mount)}),
            Call("Write", {"file_path": str(mount / "new"), "content": "x"}),
            Call("Read", {"file_path": str(other / "note")}),
            "It is a note.",
        ],
    }
    reader = Agent(
        name="reader", description="Reads", instructions="Read.", policy=Policy(readonly_mounts=(str(mount),))
    )
    async with Session(
        ScriptedModel(script=script), workspace_tools(), agents=[reader], cwd=tmp_path, backend="local", unattended=True
    ) as session:
        await session.ask("Go")
        answers = [each.text for each in run_of(session, "main/1").context.history if each.type == "tool"]

    assert "a note" in answers[0]
    assert "note" in answers[1]
    assert all("leads outside the workspace" in each for each in answers[2:]), answers


@both
async def test_a_child_cannot_change_the_folder(tmp_path: pathlib.Path, backend: Backend) -> None:
    """A hostile command writes only into the agent's own folder, whatever it was allowed to run."""
    (tmp_path / "kept.txt").write_text("as it was")
    attack = f"echo gone > {tmp_path}/kept.txt; echo left > {tmp_path}/new.txt; ls /root /home; echo tried"
    script: dict[str, list[Say | Call | str]] = {
        "Go": [Call("Agent", {"subagent_type": "reader", "prompt": "attack"}), "done"],
        "attack": [Call("Bash", {"command": attack}), "I tried."],
    }
    async with session(tmp_path, backend, script, Limits()) as guest_session:
        assert (await guest_session.ask("Go")).value == "done"
        tool_ends = [event async for event in guest_session.handle("main/1").events() if isinstance(event, ToolEnded)]

    assert "tried" in tool_ends[0].preview, "the command ran"
    assert (tmp_path / "kept.txt").read_text() == "as it was"
    assert not (tmp_path / "new.txt").exists()


@both
async def test_a_child_changes_a_folder_that_its_policy_lets_it_write_to(
    tmp_path: pathlib.Path, backend: Backend
) -> None:
    """Commands and file tools begin in the session's folder, and change it."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "kept.txt").write_text("as it was")
    script: dict[str, list[Say | Call | Fail | str]] = {
        "Go": [Call("Agent", {"subagent_type": "writer", "prompt": "write"}), "done"],
        "write": [
            Call("Write", {"file_path": str(project / "new.txt"), "content": "made"}),
            Call("Bash", {"command": "echo changed > kept.txt"}),
            "Written.",
        ],
    }
    writer = Agent(name="writer", description="Writes files", instructions="Write.")
    async with Session(
        ScriptedModel(script=script), workspace_tools(), agents=[writer], cwd=project, backend=backend,
        policy=Policy(writable_mounts=(str(project),)), unattended=True,
    ) as guest_session:  # fmt: skip
        assert (await guest_session.ask("Go")).value == "done"

    assert {each.name: each.read_text() for each in project.glob("*.txt")} == {
        "kept.txt": "changed\n",
        "new.txt": "made",
    }


@both
async def test_a_budget_holds_for_requests_from_sandboxes(tmp_path: pathlib.Path, backend: Backend) -> None:
    """A limit of five calls for the tree ends a child in a sandbox that wants more."""
    greedy: list[Say | Call | str] = [Call("Glob", {"pattern": "*"}) for _ in range(20)]
    script: dict[str, list[Say | Call | str]] = {
        "Go": [Call("Agent", {"subagent_type": "reader", "prompt": "on and on"}), "enough"],
        "on and on": greedy,
    }
    async with session(tmp_path, backend, script, Limits(model_calls=5)) as guest_session:
        result = await guest_session.ask("Go")
        assert guest_session.usage.model_calls == 5
    assert result.status is Status.BUDGET_EXHAUSTED


@both
async def test_grandchildren_have_sandboxes_of_their_own(tmp_path: pathlib.Path, backend: Backend) -> None:
    """An agent type two levels down works in its own sandbox, and reports upwards."""
    script: dict[str, list[Say | Call | str]] = {
        "Go": [Call("Agent", {"subagent_type": "reader", "prompt": "delegate", "name": "one"}), "all done"],
        "delegate": [Call("Agent", {"subagent_type": "reader", "prompt": "the rest", "name": "two"}), "delegated"],
        "the rest": ["rest done"],
    }
    async with session(tmp_path, backend, script, Limits()) as guest_session:
        assert (await guest_session.ask("Go")).value == "all done"
        handles = [guest_session.handle(run.id) for run in guest_session.runs() if run.depth]
        events = [event for each in handles async for event in each.events()]
    paths = [event.path for event in events if isinstance(event, SandboxStarted)]
    assert paths == ["main/one", "main/one/two"]


async def test_a_session_with_a_runtime_refuses_a_backend() -> None:
    """The two arguments could contradict each other."""
    with pytest.raises(InvalidValue, match="backend"):
        Session(ScriptedModel([]), runtime=AgentRuntime(), backend="local")


def test_the_sync_methods_run_agents_without_an_event_loop(tmp_path: pathlib.Path) -> None:
    """The methods use a loop of their own, and `stop_sync` ends it."""
    runtime = AgentRuntime(tmp_path, backend="local")
    try:
        assert runtime.run_agent_sync(len, Policy(), args=("four",)).output == 4
        assert runtime.start_sync().get_status()["state"] == "running"
    finally:
        runtime.stop_sync()
    assert runtime.get_status()["state"] == "stopped"


async def test_the_sync_methods_refuse_inside_an_event_loop() -> None:
    """RametError names what to await instead."""
    runtime = AgentRuntime(backend="local")
    for call in (runtime.start_sync, runtime.stop_sync, lambda: runtime.run_agent_sync(len, args=("x",))):
        with pytest.raises(RametError, match="await"):
            call()
    await asyncio.sleep(0)


def raise_aborted() -> None:
    """Raise Aborted, although no one stopped the run."""
    from ramet.core.errors import Aborted

    raise Aborted("by nobody")


async def test_an_agent_that_raises_aborted_has_failed(tmp_path: pathlib.Path) -> None:
    """A run is cancelled only if the host stopped it."""
    async with AgentRuntime(tmp_path, backend="local") as runtime:
        result = await runtime.run_agent(raise_aborted, Policy())
    assert (result.status, result.exit_code) == (Status.FAILED, 1)


async def test_a_model_agent_without_a_folder_uses_its_workspace(tmp_path: pathlib.Path) -> None:
    """The agent begins in its workspace, and its files there are artifacts."""
    agent = Agent(name="writer", model=ScriptedModel([Call("Bash", {"command": "echo hi > left.txt"}), "done"]))
    async with AgentRuntime(tmp_path, backend="local") as runtime:
        handle = await runtime.spawn(agent, "go", tools=workspace_tools(), policy=Policy())
        result = await handle.result()
    assert [each.name for each in result.files] == ["left.txt"], result


@both
async def test_a_childs_many_files_and_long_output_fit_one_message(tmp_path: pathlib.Path, backend: Backend) -> None:
    """The parent gets the status and the first 200 artifacts of a child with 300 files and awkward output."""
    async with AgentRuntime(tmp_path, backend=backend) as runtime:
        result = await runtime.run_agent(parent_of_a_messy_child, Policy(allow_sub_agents=True))
    assert result.output == ["completed", 200], result


def parent_of_a_messy_child() -> list[object]:
    """Return how the child ended, and the number of its artifacts."""
    from ramet.sub_agent_client import spawn_sub_agent

    result = spawn_sub_agent(messy)
    return [str(result.status), len(result.artifacts)]


def messy() -> None:
    """Write files with awkward names, and print characters that JSON must escape."""
    for number in range(300):
        pathlib.Path('"' * 200 + str(number)).write_text("x")
    sys.stdout.write("\x01" * 60_000)


async def test_the_prompt_names_the_folder_that_the_sandbox_has(tmp_path: pathlib.Path) -> None:
    """A model that is told of a folder which its sandbox does not have would look for files there."""
    project = tmp_path / "project"
    for each in (project, tmp_path / "data"):
        each.mkdir()
    prompts = []
    async with AgentRuntime(tmp_path / "home", backend="local") as runtime:
        for mounts in ([], [str(tmp_path / "data")], [str(project)]):
            model = ScriptedModel(["Done."])
            policy = Policy(readonly_mounts=mounts)
            async with Session(model, workspace_tools(), runtime=runtime, cwd=project, root_policy=policy) as session:
                await session.ask("Go.")
            prompts.append(str(model.requests[0].messages[0].text))

    own = "You work in a folder of your own, which is empty at first. Paths are relative to it; "
    assert f"{own}nothing outside can be reached." in prompts[0]
    assert f"{own}outside it you reach only what is mounted." in prompts[1]
    assert str(project) not in "".join(prompts[:2])
    assert f"You work in the folder {project}." in prompts[2]


async def test_a_sandboxed_roots_time_limit_restarts_with_each_turn(tmp_path: pathlib.Path) -> None:
    """A turn an hour later still has time for a child: the limit is a turn's, not a session's."""
    script: dict[str, list[Say | Call | str]] = {
        "First": ["Yes."],
        "Second": [Call("Agent", {"subagent_type": "reader", "prompt": "Read"}), "It was read."],
        "Read": ["read"],
    }
    clock = FakeClock()
    async with AgentRuntime(tmp_path, backend="local", clock=clock) as runtime:
        session = Session(
            ScriptedModel(script=script),
            agents=[Agent(name="reader", description="Reads files", instructions="Read.")],
            runtime=runtime,
            root_policy=Policy(allow_sub_agents=True, timeout_seconds=600),
        )
        assert (await session.ask("First")).value == "Yes."
        await clock.advance(3600)
        assert (await session.ask("Second")).value == "It was read."
        children = [run.state for run in session.runs() if run.depth]
    assert children == ["completed"]
