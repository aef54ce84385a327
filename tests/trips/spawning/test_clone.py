"""A run in a sandbox works in a clone of its own; its work is one branch of the user's repository, however it ends."""

from __future__ import annotations

import asyncio
import json
import pathlib
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from ramet import Agent, Limits, Policy, Session, Status, workspace_tools
from ramet.core.events import FolderLost, Notice, RunEnded, TurnEnded
from ramet.host.runtime import AgentRuntime
from ramet.isolation.git.git import NoWorktree
from ramet.models.scripted.dialogue import Call
from ramet.models.scripted.model import ScriptedModel
from ramet.store.memory import MemoryStore
from tests.support.cut_journals import cut_behind
from tests.support.store_addresses import run_program_until_killed
from tests.support.waiting import eventually
from tests.trips.agents import in_clone
from tests.trips.kits.external import script, scripted
from tests.trips.kits.isolated import backend, runtime
from tests.trips.kits.sessions import answers, of_kind, session_events, write_files
from tests.trips.programs.clone_agent import runtime_of

__all__ = ["backend", "runtime"]

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
PROGRAM = pathlib.Path(__file__).parents[1] / "programs" / "clone_agent.py"
WRITE = Call("Write", {"file_path": "new.txt", "content": "mine\n"})


def git(folder: pathlib.Path, *args: str) -> str:
    """Run git in a folder without a user's settings."""
    names = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "safe.directory=*"]
    return subprocess.run(["git", *names, *args], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repo(tmp_path: pathlib.Path) -> pathlib.Path:
    """Create a repository with one commit, and a change that is not committed."""
    folder = write_files(tmp_path / "repo", {"a.txt": "as it was\n", "sub/b.txt": "below\n"})
    git(folder, "init", "-q", "--initial-branch=main")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
    (folder / "a.txt").write_text("not committed\n")
    return folder


def coder(function: Callable[..., Any], **fields: Any) -> Agent:
    """Return a function agent that works in a clone."""
    return Agent(name="coder", description="Codes.", function=function, isolation="worktree", **fields)


def branches(repo: pathlib.Path) -> list[str]:
    """Return the branches of ramet."""
    return git(repo, "branch", "--list", "--format=%(refname:short)", "ramet/*").split()


def files_of(repo: pathlib.Path, branch: str) -> list[str]:
    """Return what a branch adds to the repository's HEAD."""
    return git(repo, "diff", "--name-only", f"HEAD...{branch}").split()


async def test_the_work_of_a_function_is_a_branch(runtime: AgentRuntime, repo: pathlib.Path) -> None:
    """The function works in its own folder of the clone. The user's files, index and HEAD are as before."""
    result = await runtime.run_agent(coder(in_clone.commit), Policy(), ("sub.txt",), cwd=repo / "sub")

    assert result.status == "completed", (result.error, result.stderr)
    assert result.output.endswith("/workspace/repository/sub")
    assert [result.branch] == branches(repo)
    assert files_of(repo, result.branch) == ["sub/left.txt", "sub/sub.txt"]
    log = git(repo, "log", "--format=%s", f"main..{result.branch}").splitlines()
    assert log == [f"Work of {result.branch.removeprefix('ramet/')} that was not committed", "add sub.txt"]
    assert git(repo, "status", "--porcelain") == "M a.txt"
    assert git(repo, "symbolic-ref", "--short", "HEAD") == "main"
    assert result.artifacts == ()


async def test_files_beside_the_clone_are_artifacts(runtime: AgentRuntime, repo: pathlib.Path) -> None:
    """Nothing of the clone is copied a second time."""
    result = await runtime.run_agent(coder(in_clone.leave_beside), Policy(), ("x.txt",), cwd=repo)

    assert [each.name for each in result.artifacts] == ["report.txt"], (result.error, result.stderr)
    assert branches(repo) == [result.branch]


@pytest.mark.parametrize(
    ("function", "status"), [(in_clone.commit_and_fail, "failed"), (in_clone.commit_and_crash, "crashed")]
)
async def test_a_run_that_fails_leaves_its_branch(
    runtime: AgentRuntime, repo: pathlib.Path, function: Callable[..., Any], status: str
) -> None:
    """The work until then is not lost."""
    result = await runtime.run_agent(coder(function), Policy(), ("x.txt",), cwd=repo)

    assert (result.status, [result.branch]) == (status, branches(repo))
    assert files_of(repo, result.branch) == ["left.txt", "x.txt"]


@pytest.mark.parametrize("end", ["cancel", "time"])
async def test_a_run_that_is_stopped_leaves_its_branch(runtime: AgentRuntime, repo: pathlib.Path, end: str) -> None:
    """When the stop has returned, the branch is there."""
    printed = asyncio.Event()
    handle = await runtime.start_agent(
        coder(in_clone.commit_and_wait, limits=Limits(seconds=4 if end == "time" else None)),
        Policy(),
        ("x.txt",),
        cwd=repo,
        on_stdout=lambda text: printed.set() if "committed" in text else None,
    )
    await printed.wait()
    if end == "cancel":
        receipt = await handle.cancel()
        assert receipt.left == ()

    result = await handle.result()

    assert result.status == ("cancelled" if end == "cancel" else "timeout")
    assert ([result.branch], files_of(repo, result.branch)) == (branches(repo), ["left.txt", "x.txt"])


async def test_each_attempt_has_a_new_clone(runtime: AgentRuntime, repo: pathlib.Path) -> None:
    """A policy that repeats a failed run gives each attempt the files of HEAD; the last attempt leaves the branch."""
    policy = Policy(retry_count=1, retry_delay_seconds=0.0)

    result = await runtime.run_agent(coder(in_clone.fail_with_names), policy, ("x.txt",), cwd=repo)

    assert result.error is not None
    assert result.error.message == ".git a.txt sub"
    assert git(repo, "log", "--format=%s", f"main..{result.branch}").count("\n") == 1


async def test_a_run_that_changes_nothing_leaves_nothing(runtime: AgentRuntime, repo: pathlib.Path) -> None:
    """No branch, no artifact."""
    result = await runtime.run_agent(coder(in_clone.git), Policy(), ("status", "--short"), cwd=repo)

    assert (result.output, result.branch, branches(repo)) == ("", "", []), (result.error, result.stderr)


async def test_a_program_of_another_maker_works_in_a_clone(tmp_path: pathlib.Path, repo: pathlib.Path) -> None:
    """Its files are on the branch, and its home is not."""
    agent = scripted(isolation="worktree", files={".config/x.json": "{}"})
    async with AgentRuntime(tmp_path / "work", backend="bwrap") as runtime:
        result = await runtime.run_agent(
            agent, prompt=script(["write", "note.txt", "hello"], ["remember", "x"], ["say", "Written."]), cwd=repo
        )

    assert (result.status, result.output) == (Status.COMPLETED, "Written."), (result.error, result.stderr)
    assert (files_of(repo, result.branch), result.artifacts) == (["note.txt"], ())


async def test_permission_rules_count_in_the_clone(tmp_path: pathlib.Path, repo: pathlib.Path) -> None:
    """A rule for a file of the project is one for that file of the clone, whose path a program says as a whole."""
    write_files(repo, {".claude/settings.json": json.dumps({"permissions": {"deny": ["Read(./sub/**)"]}})})
    agent, run = scripted(isolation="worktree"), "run-0123456789abcdef"
    top = tmp_path / "work" / ".ramet" / "runs" / run / "workspace" / "repository"
    steps = [["ask", name, "Read", {"file_path": str(top / name)}] for name in ("sub/b.txt", "a.txt")]
    async with AgentRuntime(tmp_path / "work", backend="bwrap") as runtime:
        handle = await runtime.spawn(agent, script(*steps), cwd=repo, run=run)
        inbox, asked = runtime.trees[handle.id].inbox, list[str]()
        result_task = asyncio.ensure_future(handle.result())
        while not result_task.done():
            for question in inbox.pending:
                asked.append(question.args["file_path"])
                inbox.answer(question.id, True)
            await asyncio.wait([result_task], timeout=0.02)

    assert result_task.result().status is Status.COMPLETED, result_task.result()
    assert asked == [str(top / "a.txt")]


async def test_the_root_of_a_session_leaves_its_branch_when_it_is_closed(
    tmp_path: pathlib.Path, repo: pathlib.Path
) -> None:
    """Between its turns it keeps its clone; a turn makes no branch."""
    async with AgentRuntime(tmp_path / "work", backend="bwrap") as runtime:
        session = Session(agent=scripted(isolation="worktree"), cwd=repo, runtime=runtime)
        async with session:
            await session.ask(script(["write", "one.txt", "1"], ["say", "One."]))
            await session.ask(script(["write", "two.txt", "2"], ["say", "Two."]))
            assert branches(repo) == []
        result = session.handle(session.id).run.result

    assert result is not None
    assert files_of(repo, result.branch) == ["one.txt", "two.txt"]


async def test_a_run_without_a_repository_is_refused(runtime: AgentRuntime, tmp_path: pathlib.Path) -> None:
    """Nothing is started, and the error says what to do."""
    with pytest.raises(NoWorktree, match="commit once"):
        await runtime.run_agent(coder(in_clone.commit), Policy(), ("x.txt",), cwd=tmp_path)


def session_of(repo: pathlib.Path, model: ScriptedModel, backend: Any, *agents: Agent, **options: Any) -> Session:
    """Return a session in a repository, whose children work in sandboxes."""
    return Session(model, workspace_tools(), agents=agents, cwd=repo, backend=backend, unattended=True, **options)


async def test_the_report_of_a_child_names_its_branch(repo: pathlib.Path, backend: Any) -> None:
    """A conversation in a sandbox writes into its clone; its parent reads the branch, and how much changed."""
    spawn = Call("Agent", {"prompt": "WRITE-IT", "subagent_type": "writer", "isolation": "worktree"})
    model = ScriptedModel({"WRITE-IT": [WRITE, "written"], "": [spawn, "ok"]})
    async with session_of(repo, model, backend, Agent(name="writer", description="w")) as session:
        await session.ask("Go.")
        (end,) = of_kind(session_events(session), RunEnded)
        (report,) = answers(session.messages).values()
        system = str(model.requests[1].messages[0].text)

    [branch] = branches(repo)
    summary = f"1 file changed, 1 insertion(+): git diff HEAD...{branch}"
    assert (end.result.branch, end.result.artifacts) == (branch, (branch, summary))
    assert report == f"written\n\nIt left changes in: {branch}, {summary}"
    assert files_of(repo, branch) == ["new.txt"]
    assert "/workspace/repository." in system
    assert not (repo / "new.txt").exists()


async def test_a_child_that_is_woken_leaves_a_second_branch(repo: pathlib.Path, backend: Any) -> None:
    """It continues in its clone; the branch of its first end is unchanged."""
    more = Call("Write", {"file_path": "more.txt", "content": "more\n"})
    spawn = Call("Agent", {"prompt": "WRITE-IT", "name": "w", "subagent_type": "writer", "isolation": "worktree"})
    send = Call("SendMessage", {"to": "w", "message": "GO-ON"})
    model = ScriptedModel({"WRITE-IT": [WRITE, "written", more, "more"], "": [spawn, send, "ok", "noted"]})
    async with session_of(repo, model, backend, Agent(name="writer", description="w")) as session:
        await session.ask("Go.")
        await eventually(lambda: len(of_kind(session_events(session), RunEnded)) == 2)

    first, second = branches(repo)
    assert second == f"{first}-2"
    assert (files_of(repo, first), files_of(repo, second)) == (["new.txt"], ["more.txt", "new.txt"])


async def test_a_sandboxed_child_gets_a_clone_of_its_parent_s_clone(repo: pathlib.Path, backend: Any) -> None:
    """The parent reads the branch in its own clone; only the parent's work reaches the user's repository."""
    lead = Agent(name="lead", description="l", policy=Policy(allow_sub_agents=True, memory_mb=1024, cpu_cores=4))
    inner = Call("Agent", {"prompt": "WRITE-IT", "subagent_type": "writer", "isolation": "worktree"})
    merge = "git merge -q --ff-only $(git branch --list --format='%(refname)' 'ramet/writer*')"
    bash = Call("Bash", {"command": merge})
    spawn = Call("Agent", {"prompt": "LEAD-IT", "subagent_type": "lead", "isolation": "worktree"})
    model = ScriptedModel({"WRITE-IT": [WRITE, "written"], "LEAD-IT": [inner, bash, "led"], "": [spawn, "ok"]})
    writer = Agent(name="writer", description="w", policy=Policy(memory_mb=256))
    async with session_of(repo, model, backend, lead, writer) as session:
        await session.ask("Go.")
        inner_end, lead_end = of_kind(session_events(session), RunEnded)

    assert (inner_end.path.count("/"), lead_end.path.count("/")) == (2, 1)
    assert inner_end.result.branch.startswith("ramet/writer-"), inner_end.result
    assert branches(repo) == [lead_end.result.branch]
    report = f"It left changes in: {inner_end.result.branch}, 1 file changed"
    assert any(report in str(each.messages) for each in model.requests)
    assert files_of(repo, lead_end.result.branch) == ["new.txt"]


async def test_a_sandboxed_parent_without_a_clone_has_nothing_to_copy(repo: pathlib.Path, backend: Any) -> None:
    """The refusal names the field and the reason, and the parent goes on."""
    lead = Agent(name="lead", description="l", policy=Policy(allow_sub_agents=True, memory_mb=1024, cpu_cores=4))
    inner = Call("Agent", {"prompt": "WRITE-IT", "subagent_type": "lead", "isolation": "worktree"})
    spawn = Call("Agent", {"prompt": "LEAD-IT", "subagent_type": "lead"})
    model = ScriptedModel({"LEAD-IT": [inner, "led"], "": [spawn, "ok"]})
    async with session_of(repo, model, backend, lead) as session:
        await session.ask("Go.")
        (end,) = of_kind(session_events(session), RunEnded)

    assert end.result.value == "led"
    refusal = "in no clone of a repository that it could copy"
    assert any(refusal in str(each.messages) for each in model.requests)
    assert branches(repo) == []


async def test_work_that_cannot_be_fetched_stays_and_is_named(tmp_path: pathlib.Path, repo: pathlib.Path) -> None:
    """The result names the folder, a notice the reason, and retention leaves the folder alone."""
    async with AgentRuntime(tmp_path / "work", backend="local") as runtime:
        handle = await runtime.spawn(coder(in_clone.hide_repository), policy=Policy(), cwd=repo)
        recorder = runtime.trees[handle.id].recorder
        result = await handle.result()
        notices = [each.text for each in recorder.recent_events if isinstance(each, Notice)]
        folder = runtime.sandboxes.folder_of(handle.id)

    assert folder is not None
    assert result.artifacts == (str(folder.workspace / "repository"),)
    assert result.branch == ""
    assert "its work is on no branch" in notices[0]
    assert folder.read_info().keep


async def test_a_notice_of_what_was_left_out_is_plain_text(tmp_path: pathlib.Path, repo: pathlib.Path) -> None:
    """Names of a guest are bounded, and have no control characters."""
    async with AgentRuntime(tmp_path / "work", backend="local") as runtime:
        handle = await runtime.spawn(coder(in_clone.leave_odd_names), policy=Policy(), cwd=repo)
        recorder = runtime.trees[handle.id].recorder
        result = await handle.result()
        notices = [each.text for each in recorder.recent_events if isinstance(each, Notice)]

    assert notices == [f"on the branch {result.branch} is everything but the repositories inside it: inner??[31m"]


@pytest.mark.parametrize("last", [TurnEnded, Notice])
async def test_a_kill_behind_the_branch_makes_no_second_one(
    tmp_path: pathlib.Path, repo: pathlib.Path, last: type[Any]
) -> None:
    """The kernel was killed after the branch was written, and before the end of its run was on record."""
    store, model = (
        MemoryStore(),
        ScriptedModel({"": [WRITE, Call("Bash", {"command": "mkdir x; git init -q x"}), "ok"]}),
    )
    agent = Agent(name="writer", description="w", model=model, isolation="worktree")
    async with AgentRuntime(tmp_path / "work", store=store, backend="bwrap") as runtime:
        handle = await runtime.spawn(agent, "go", tools=workspace_tools(), policy=Policy(), cwd=repo)
        first = await handle.result()
    [branch] = branches(repo)
    assert first.branch == branch

    cut_store = await cut_behind(store, lambda event: isinstance(event, last))
    async with AgentRuntime(tmp_path / "work", store=cut_store, backend="bwrap") as runtime:
        [resumed] = await runtime.resume(llm=ScriptedModel(["again"]), tools=workspace_tools())
        result = await resumed.result()

    assert (result.value, result.artifacts) == ("ok", first.artifacts)
    assert branches(repo) == [branch]


async def test_a_function_goes_on_in_its_clone_after_a_kill(
    store_address: str, tmp_path: pathlib.Path, repo: pathlib.Path, backend: str
) -> None:
    """The next kernel calls the function again; it finds the commit and the file of the first call."""
    await run_program_until_killed(PROGRAM, store_address, tmp_path, backend, repo, "repeatable")
    assert branches(repo) == []
    async with runtime_of(store_address, tmp_path, backend) as runtime:
        (handle,) = await runtime.resume()
        result = await handle.result()

    assert result.value == ["part 2", "part 1", "first"], (result.error, result.stderr)
    assert branches(repo) == [result.branch]
    assert files_of(repo, result.branch) == ["1.txt", "2.txt", "unfinished.txt"]


async def test_a_function_that_may_not_be_repeated_leaves_its_branch(
    store_address: str, tmp_path: pathlib.Path, repo: pathlib.Path, backend: str
) -> None:
    """The run is lost with its kernel, and its work is not."""
    await run_program_until_killed(PROGRAM, store_address, tmp_path, backend, repo, "once")
    async with runtime_of(store_address, tmp_path, backend) as runtime:
        (handle,) = await runtime.resume()
        result = await handle.result()

    assert (result.status, branches(repo)) == (Status.LOST, [result.branch])
    assert files_of(repo, result.branch) == ["1.txt", "unfinished.txt"]


async def test_a_lost_clone_is_made_again(
    store_address: str, tmp_path: pathlib.Path, repo: pathlib.Path, backend: str
) -> None:
    """The folder of the run was removed while no kernel had it; the loss is recorded."""
    await run_program_until_killed(PROGRAM, store_address, tmp_path, backend, repo, "repeatable")
    shutil.rmtree(next((tmp_path / ".ramet" / "runs").glob("run-*")))
    async with runtime_of(store_address, tmp_path, backend) as runtime:
        (handle,) = await runtime.resume()
        folder = runtime.sandboxes.folder_of(handle.id)
        assert folder is not None
        await eventually(lambda: folder.stdout.exists() and "committed" in folder.stdout.read_text())
        recent_events = runtime.trees[handle.id].recorder.recent_events
        has_loss = any(isinstance(each, FolderLost) for each in recent_events)
        await handle.cancel()
        result = await handle.result()

    assert has_loss
    assert branches(repo) == [result.branch]
    assert files_of(repo, result.branch) == ["1.txt", "unfinished.txt"]
