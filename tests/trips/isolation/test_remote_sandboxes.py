"""Runs whose sandboxes are on another machine: they return what any run returns, and are lost only with the machine."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import ramet
from ramet.core.errors import InvalidValue
from ramet.core.outcome import AgentResult
from ramet.isolation.workspace.run_dirs import RunFolders
from ramet.models.scripted.dialogue import Call
from ramet.services.agent_types.bundle_operations import LoadBundle
from ramet.services.agent_types.function.type import FunctionInfo
from ramet.services.contract import PLAIN
from ramet.services.packaging.service import PackagingService
from ramet.services.teams.loaded_bundles import AgentImportDir
from tests.support.machines import MachineBackend
from tests.support.tars import tar
from tests.trips.agents import in_clone
from tests.trips.agents import isolated as agents
from tests.trips.teams.test_agent_types import FUNCTIONS, OURS, agent_spec, begin_turn, open_agent, text_of

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can be another machine")


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[MachineBackend]:
    runs = RunFolders(tmp_path / "work").root
    runs.mkdir(0o700, parents=True)
    backend = MachineBackend(runs)
    try:
        yield backend
    finally:
        await backend.close()


@pytest.fixture
async def runtime(backend: MachineBackend, tmp_path: Path) -> AsyncIterator[ramet.AgentRuntime]:
    async with ramet.AgentRuntime(working_dir=tmp_path / "work", backend=backend) as runtime:
        yield runtime


async def test_a_remote_runs_outputs_reach_the_host(runtime: ramet.AgentRuntime) -> None:
    """The host gets the value, the files, the streams, and the result of a child."""
    result = await runtime.run_agent(agent=agents.leave, args=({"a": "A", "b/c": "C"},), policy=ramet.Policy())
    assert (result.status, result.output) == ("completed", 2)
    assert contents(result) == {"a": "A", "b/c": "C"}

    spoken = await runtime.run_agent(agent=agents.speak, args=(["one", "two"],), policy=ramet.Policy())
    assert (spoken.stdout, spoken.stderr) == ("one\n", "two\n")

    nested = await runtime.run_agent(
        agent=agents.level, args=(3, 100), policy=ramet.Policy(allow_sub_agents=True, memory_mb=256)
    )
    assert nested.output["levels"] == 3


async def test_models_are_refused_where_their_requests_are_not_forwarded(runtime: ramet.AgentRuntime) -> None:
    """The refusal names the field; without models the same agent works."""
    with pytest.raises(InvalidValue) as refusal:
        await runtime.run_agent(agent=agents.speak, args=(["a"],), policy=ramet.Policy(models=["openai:*"]))

    assert (refusal.value.field, refusal.value.value) == ("policy.models", ["openai:*"])
    assert (await runtime.run_agent(agent=agents.speak, args=(["a"],), policy=ramet.Policy())).status == "completed"


async def test_writable_mounts_are_refused_where_folders_are_copies(runtime: ramet.AgentRuntime) -> None:
    """The refusal names the field and the folder."""
    policy = ramet.Policy(writable_mounts=["/srv/project"])

    with pytest.raises(InvalidValue, match="copies") as refusal:
        await runtime.run_agent(agent=agents.speak, args=(["a"],), policy=policy)

    assert (refusal.value.field, refusal.value.value) == ("policy.writable_mounts", ["/srv/project"])


def contents(result: AgentResult) -> dict[str, str]:
    """Return the contents of the artifacts by name."""
    return {each.name: Path(each.path or "").read_text() for each in result.artifacts}


async def test_another_remote_attempt_begins_with_an_empty_workspace(runtime: ramet.AgentRuntime) -> None:
    """The next attempt does not see the files of the previous one."""
    policy = ramet.Policy(retry_count=2, retry_delay_seconds=0)

    result = await runtime.run_agent(agent=agents.attempts, args=("left", 3), policy=policy)

    assert result.output == {"attempt": 3, "found": False}, result.error


async def test_a_run_whose_machine_dies_is_lost(runtime: ramet.AgentRuntime, backend: MachineBackend) -> None:
    napping = asyncio.Event()
    handle = await runtime.spawn(agents.nap, args=(3600,), policy=ramet.Policy(), on_output=lambda *_: napping.set())
    await napping.wait()
    (await backend.process()).kill()

    result = await handle.result()

    assert result.status == "lost"
    assert result.error is not None
    assert "machine" in result.error.message


async def test_a_bundle_loaded_during_a_turn_can_be_imported(runtime: ramet.AgentRuntime, tmp_path: Path) -> None:
    """A bundle that is loaded into an active agent reaches its remote sandbox at once."""
    async with PackagingService(tmp_path / "packaging") as packaging:
        bundle = (await packaging.upload(tar({"kit.py": b"WORD = 'loaded'"}))).id
        loaded_bundles = AgentImportDir("a-1", "", lambda: runtime.sandboxes.folders, packaging, PLAIN, ())
        await loaded_bundles.open()
        info = FunctionInfo(function=f"{FUNCTIONS}:waits_for_a_module")
        start = agent_spec(runtime, tmp_path / "ada", info, policy=ramet.Policy(), loaded_bundles=loaded_bundles)
        async with open_agent(OURS, start) as agent, begin_turn(agent, "kit") as answer:
            text = ""
            async for chunk in answer:
                before, text = text, text + text_of([chunk])
                if before != text == "waiting ":
                    await agent.control(LoadBundle(bundle))
            assert text == "waiting loaded"
        await loaded_bundles.close()


async def test_files_too_large_to_copy_fail_the_run(runtime: ramet.AgentRuntime) -> None:
    """The run fails with a reason, and loses no file silently."""
    policy = ramet.Policy(workspace_size_mb=2)

    result = await runtime.run_agent(agent=write_sparse_files, policy=policy)

    assert result.status == "failed"
    assert result.error is not None
    assert "transferred" in result.error.message


def write_sparse_files() -> str:
    """Write files that are small on disk and large when copied."""
    for name in range(3):
        with Path(f"sparse-{name}").open("wb") as file:
            file.truncate(2**21)
    return "done"


async def test_a_cancelled_remote_run_keeps_its_artifacts(runtime: ramet.AgentRuntime) -> None:
    seen_event = asyncio.Event()
    handle = await runtime.start_agent(
        agent=write_and_wait, policy=ramet.Policy(), on_stdout=lambda _: seen_event.set()
    )
    await seen_event.wait()
    await handle.cancel("enough")

    result = await handle.result()

    assert result.status == "cancelled"
    assert [each.name for each in result.artifacts] == ["left"]


def write_and_wait() -> None:
    """Write a file, print a line, and wait."""
    import time

    Path("left").write_text("left")
    print("written", flush=True)  # noqa: T201
    time.sleep(3600)


def git(folder: Path, *args: str) -> str:
    """Run git in a folder, whoever owns it."""
    options = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "safe.directory=*"]
    return subprocess.run(["git", *options, *args], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
async def test_a_clone_travels_there_and_its_branch_back(runtime: ramet.AgentRuntime, tmp_path: Path) -> None:
    """A file that the run removed there is removed on its branch, and its commits are those that it made."""
    repo = tmp_path / "repo"
    (repo / "sub").mkdir(parents=True)
    (repo / "a.txt").write_text("as it was\n")
    git(repo, "init", "-q", "--initial-branch=main")
    git(repo, "add", ".")
    git(repo, "commit", "-q", "-m", "first")
    agent = ramet.Agent(name="coder", description="Codes.", function=in_clone.remove_and_commit, isolation="worktree")

    result = await runtime.run_agent(agent, ramet.Policy(), ("../a.txt", "x.txt"), cwd=repo / "sub")

    assert result.status == "completed", (result.error, result.stderr)
    assert git(repo, "diff", "--name-status", f"HEAD...{result.branch}").split() == [
        *("D", "a.txt"),
        *("A", "sub/left.txt"),
        *("A", "sub/x.txt"),
    ]
    assert "add x.txt" in git(repo, "log", "--format=%s", result.branch).splitlines()
    assert result.artifacts == ()


async def test_a_clone_that_is_there_is_not_copied_for_a_child(backend: MachineBackend, tmp_path: Path) -> None:
    """While its parent works, its files are on the other machine. The refusal names the field and the backend."""
    (tmp_path / "repo").mkdir()
    git(tmp_path / "repo", "init", "-q")
    git(tmp_path / "repo", "commit", "-q", "--allow-empty", "-m", "first")
    lead = ramet.Agent(name="lead", description="l", policy=ramet.Policy(allow_sub_agents=True, memory_mb=1024))
    inner = Call("Agent", {"prompt": "LEAD-IT", "subagent_type": "lead", "isolation": "worktree"})
    model = ramet.ScriptedModel(script={"Go.": [inner, "ok"], "LEAD-IT": [inner, "led"]})
    async with ramet.AgentRuntime(tmp_path / "work", backend=backend) as runtime:
        session = ramet.Session(model, agents=[lead], cwd=tmp_path / "repo", runtime=runtime, unattended=True)
        async with session:
            await session.ask("Go.")

    assert any("your clone is on another machine" in str(each.messages) for each in model.requests)
