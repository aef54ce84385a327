"""AC-S1-15: a child in a worktree edits its own copy of the repository. Its changes stay until they are merged."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest
from langchain_core.messages import ToolMessage

from ramet.agent.definition import Agent
from ramet.core.errors import Gone, MailRefused
from ramet.core.events import RunEnded, RunSpawned, TurnEnded
from ramet.core.outcome import Status
from ramet.core.replay.replay import TreeReplay
from ramet.host.runtime import AgentRuntime
from ramet.host.sandbox.run_diff import diff_of
from ramet.host.session import Session
from ramet.host.trees.project import Project
from ramet.models.scripted.dialogue import Script
from ramet.models.scripted.model import Call, Fail, ScriptedModel
from ramet.store.memory import MemoryStore
from ramet.tools.workspace import workspace_tools
from tests.support.cut_journals import cut_behind
from tests.support.waiting import eventually
from tests.trips.kits.sessions import (
    Gate,
    answers,
    background_call,
    fork_call,
    is_tree_idle,
    of_kind,
    open_tree_of,
    run_of,
    session_events,
    specialist_call,
    write_files,
)


def git(folder: Path, *args: str) -> str:
    """Run git in a folder without a user's settings."""
    names = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main"]
    return subprocess.run(["git", *names, *args], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    folder = write_files(tmp_path / "repo", {"a.txt": "as it was\n", "sub/b.txt": "below\n"})
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
    return folder


def worktrees(repo: Path) -> list[str]:
    """Return every worktree except the main one, and every branch of ramet."""
    paths = [line for line in git(repo, "worktree", "list", "--porcelain").splitlines() if line.startswith("worktree ")]
    return paths[1:] + git(repo, "branch", "--list", "--format=%(refname)", "ramet/*").split()


EDIT = Call("Write", {"file_path": "new.txt", "content": "mine\n"})


async def test_a_child_edits_its_own_worktree(repo: Path) -> None:
    """AC-S1-15: the parent's folder does not change.

    The parent's report and the result have the path of the worktree.
    """
    model = ScriptedModel(
        {"EDIT-IT": [EDIT, "edited"], "": [specialist_call("EDIT-IT", "editor", isolation="worktree"), "ok"]}
    )
    async with Session(model, workspace_tools(), cwd=repo) as session:
        await session.ask("Go.")
        (end,) = of_kind(session_events(session), RunEnded)
        (report,) = answers(session.messages).values()

    (path,) = end.result.artifacts
    assert (Path(path) / "new.txt").read_text() == "mine\n"
    assert (Path(path) / "a.txt").read_text() == "as it was\n"
    assert not (repo / "new.txt").exists()
    assert git(repo, "status", "--porcelain") == ""
    assert report == f"edited\n\nIt left changes in: {path}"


async def test_the_diff_of_a_child_in_a_worktree(repo: Path) -> None:
    """The diff is that of the kept worktree, then of its branch; without both it is gone."""
    model = ScriptedModel(
        {"EDIT-IT": [EDIT, "edited"], "": [specialist_call("EDIT-IT", "editor", isolation="worktree"), "ok"]}
    )
    async with Session(model, workspace_tools(), cwd=repo) as session:
        await session.ask("Go.")
        replay = TreeReplay()
        for each in session_events(session):
            replay.apply(each)
    (child,) = (each for each in replay.runs.values() if each.spawn_event.parent)
    place = child.spawn_event.birth["worktree"]

    kept = await diff_of(replay, child.id, repo)
    assert [(each.path, each.change, each.lines_added) for each in kept.files] == [("new.txt", "added", 1)]
    git(Path(place["path"]), "add", "new.txt")
    git(Path(place["path"]), "commit", "-q", "-m", "new")
    git(repo, "worktree", "remove", "--force", place["path"])
    assert (await diff_of(replay, child.id, repo)) == kept
    git(repo, "branch", "-q", "-D", place["branch"])
    with pytest.raises(Gone, match="no longer there"):
        await diff_of(replay, child.id, repo)


async def test_a_worktree_without_changes_is_removed(repo: Path) -> None:
    """AC-S1-15: a child that changed nothing leaves no folder, no branch and no artifact."""
    read_call = Call("Read", {"file_path": "a.txt"})
    model = ScriptedModel(
        {"LOOK-UP": [read_call, "looked"], "": [specialist_call("LOOK-UP", "looker", isolation="worktree"), "ok"]}
    )
    async with Session(model, workspace_tools(), cwd=repo) as session:
        await session.ask("Go.")
        (end,) = of_kind(session_events(session), RunEnded)
        looker_history = run_of(session, "looker").context.history

    assert "as it was" in str(answers(looker_history))
    assert end.result.artifacts == ()
    assert worktrees(repo) == []


async def test_a_fresh_child_s_prompt_names_its_worktree(repo: Path) -> None:
    """The child's system prompt does not name its parent's folder."""
    model = ScriptedModel(
        {"LOOK-UP": ["looked"], "": [specialist_call("LOOK-UP", "looker", isolation="worktree"), "ok"]}
    )
    async with Session(model, workspace_tools(), cwd=repo) as session:
        await session.ask("Go.")
        cwd = run_of(session, "looker").context.cwd

    system = str(model.requests[1].messages[0].text)
    assert cwd.is_relative_to(repo / ".ramet" / "worktrees")
    assert f"You work in the folder {cwd}." in system
    assert f"You work in the folder {repo}." not in system


async def test_a_child_works_in_its_parent_s_folder_of_the_worktree(repo: Path) -> None:
    """A session in `repo/sub` has a child in `sub` of its worktree, which it cannot leave."""
    reads = [Call("Read", {"file_path": "b.txt"}), Call("Read", {"file_path": "../a.txt"})]
    model = ScriptedModel(
        {"LOOK-UP": [reads, "looked"], "": [specialist_call("LOOK-UP", "looker", isolation="worktree"), "ok"]}
    )
    async with Session(model, workspace_tools(), cwd=repo / "sub") as session:
        await session.ask("Go.")
        run = run_of(session, "looker")
        inside_result, outside = [message for message in run.context.history if isinstance(message, ToolMessage)]

    assert "below" in inside_result.text
    assert outside.status == "error"
    assert run.context.cwd.name == "sub"


async def test_each_child_has_its_own_worktree(repo: Path) -> None:
    """Two children edit one file concurrently without a conflict. A definition or a fork may ask for a worktree."""
    worker = Agent(name="worker", description="Works.", instructions="You are a worker.", isolation="worktree")
    script: Script = {
        "You are a worker": [EDIT, "worked"],
        "COPY-OF": [Call("Write", {"file_path": "new.txt", "content": "the fork's\n"}), "copied"],
        "": [
            [Call("Agent", {"prompt": "go", "subagent_type": "worker"}), fork_call("COPY-OF", isolation="worktree")],
            "ok",
        ],
    }
    async with Session(ScriptedModel(script), workspace_tools(), cwd=repo, agents=[worker]) as session:
        await session.ask("Go.")
        ends = of_kind(session_events(session), RunEnded)

        forked_run = next(
            run for run in session._open_tree.tree.register.runs.values() if run.agent.name == "main" and run.parent
        )

    texts = [(Path(end.result.artifacts[0]) / "new.txt").read_text() for end in ends]
    assert sorted(texts) == ["mine\n", "the fork's\n"]
    assert str(forked_run.context.cwd) in str(forked_run.context.history)  # It is told so in its brief.
    assert not (repo / "new.txt").exists()


@pytest.mark.parametrize("is_changed", [True, False])
async def test_a_cancelled_child_leaves_only_a_changed_worktree(repo: Path, is_changed: bool) -> None:
    """A changed worktree stays and is reported. A worktree without changes is removed."""
    gate = Gate()
    steps = [EDIT, Call("gate")] if is_changed else [Call("gate")]
    model = ScriptedModel(
        {"EDIT-IT": steps, "": [background_call("EDIT-IT", "editor", isolation="worktree"), "ok", "ok"]}
    )
    async with Session(model, [*workspace_tools(), gate.tool], cwd=repo) as session:
        await session.ask("Go.")
        await gate.entered.wait()

        await session.handle("editor").cancel()

        result = await session.handle("editor").result()
    assert result.status is Status.CANCELLED
    assert len(result.artifacts) == is_changed
    assert len(worktrees(repo)) == 2 * is_changed


async def test_a_child_cancelled_while_idle_leaves_no_worktree(repo: Path) -> None:
    """The child's turn was over, and it only waited for a child of its own."""
    gate = Gate()
    model = ScriptedModel(
        {
            "BELOW-IT": [Call("gate"), "ok"],
            "REST-NOW": [background_call("BELOW-IT", "lower"), "resting"],
            "": [background_call("REST-NOW", "rester", isolation="worktree"), "ok", "ok"],
        }
    )
    async with Session(model, [gate.tool], cwd=repo) as session:
        await session.ask("Go.")
        await gate.entered.wait()
        await eventually(lambda: session.handle("rester").view().state == "idle")

        await session.handle("rester").cancel()

        assert worktrees(repo) == []


async def test_closing_a_session_removes_unchanged_worktrees(repo: Path) -> None:
    """Closing ends children in worktrees like any others."""
    gate = Gate()
    model = ScriptedModel(
        {"EDIT-IT": [Call("gate")], "": [background_call("EDIT-IT", "editor", isolation="worktree"), "ok"]}
    )
    async with Session(model, [gate.tool], cwd=repo) as session:
        await session.ask("Go.")
        await gate.entered.wait()

    assert worktrees(repo) == []


async def test_a_failed_child_leaves_its_changed_worktree(repo: Path) -> None:
    """A provider's failure does not lose the edits: the worktree stays and is reported with the failure."""
    model = ScriptedModel(
        {"EDIT-IT": [EDIT, Fail("down")], "": [specialist_call("EDIT-IT", "editor", isolation="worktree"), "ok"]}
    )
    async with Session(model, workspace_tools(), cwd=repo) as session:
        await session.ask("Go.")
        (end,) = of_kind(session_events(session), RunEnded)
        (report,) = answers(session.messages).values()

    (path,) = end.result.artifacts
    assert (Path(path) / "new.txt").exists()
    assert "did not finish: failed" in report
    assert path in report


@pytest.mark.parametrize("kind", ["no repository", "no commit"])
async def test_a_spawn_without_a_commit_to_copy_is_refused(tmp_path: Path, kind: str) -> None:
    """A folder without a repository or without a commit is refused with the remedy, and nothing is left."""
    if kind == "no commit":
        git(tmp_path, "init", "-q")
    model = ScriptedModel([specialist_call("EDIT-IT", isolation="worktree"), "ok"])
    async with Session(model, cwd=tmp_path) as session:
        result = await session.ask("Go.")
        spawns = of_kind(session_events(session), RunSpawned)
        (tool_result,) = answers(session.messages).values()
        slot_count = session._open_tree.tree.register.admission.slot_count

    assert (result.value, len(spawns), slot_count) == ("ok", 1, 1)
    assert "commit once" in tool_result


async def test_a_spawn_cancelled_while_git_works_leaves_nothing(repo: Path) -> None:
    """The interrupt comes between worktree and spawn: no run, no worktree and no reservation stays."""
    model = ScriptedModel([specialist_call("EDIT-IT", "editor", isolation="worktree"), "again"])
    async with Session(model, cwd=repo, runtime=AgentRuntime(grace_s=30)) as session:
        turn = asyncio.create_task(session.ask("Go."))
        await eventually(lambda: session._open_tree.tree.register.admission.slot_count == 2)

        await session.interrupt()

        assert (await turn).status is Status.CANCELLED
        assert worktrees(repo) == []
        assert session._open_tree.tree.register.admission.slot_count == 1
        assert len(of_kind(session_events(session), RunSpawned)) == 1
        assert (await session.ask("Again.")).value == "again"


async def test_mail_to_a_finished_child_without_its_worktree_is_refused(repo: Path) -> None:
    """The child could not continue in its folder. The sender reads that, and the child stays finished."""
    model = ScriptedModel(
        {
            "LOOK-UP": ["looked"],
            "": [
                specialist_call("LOOK-UP", "looker", isolation="worktree"),
                Call("SendMessage", {"to": "looker", "message": "more"}),
                "ok",
            ],
        }
    )
    async with Session(model, cwd=repo) as session:
        await session.ask("Go.")

        assert "no longer exists" in list(answers(session.messages).values())[1]
        assert session.handle("looker").view().state == "completed"


async def test_mail_to_a_child_whose_worktree_is_being_removed_is_refused(repo: Path) -> None:
    """The child has answered and git is at work, so the mail would be lost."""
    gate = Gate()
    look = background_call("LOOK-UP", "looker", isolation="worktree")
    model = ScriptedModel({"LOOK-UP": [Call("gate"), "looked"], "": [look, "ok", "noted"]})
    async with Session(model, [gate.tool], cwd=repo) as session:
        await session.ask("Go.")
        await gate.entered.wait()
        run = run_of(session, "looker")
        assert run.worktree is not None
        async with open_tree_of(session).tree.register.services.git.alone_in(run.worktree.common_dir):
            gate.open.set()
            await eventually(lambda: run.worktree is None)
            with pytest.raises(MailRefused, match="it is finishing"):
                session.handle("looker").send("more")
        await eventually(lambda: is_tree_idle(session))

        assert session.handle("looker").view().state == "completed"
        assert run.activations == 1
    assert worktrees(repo) == []


async def test_a_child_killed_after_its_worktree_was_removed_can_end(repo: Path) -> None:
    """The kill comes between answer and end.

    The next kernel makes the worktree again, and the tree resumes with the answer.
    """
    store, types = MemoryStore(), Project.open(None, user_dir=None)
    lead = specialist_call("LOOK-UP", "looker", isolation="worktree")
    model = ScriptedModel({"LOOK-UP": ["looked"], "": [lead, "all done"]})
    async with AgentRuntime(store=store) as runtime:
        handle = await runtime.spawn(Agent(name="lead", model=model), "go", agents=types, cwd=repo / "sub")
        await handle.result()
    assert worktrees(repo) == []

    cut_store = await cut_behind(store, lambda event: isinstance(event, TurnEnded))
    async with AgentRuntime(store=cut_store) as runtime:
        [resumed_handle] = await runtime.resume(llm=ScriptedModel(["all done"]))
        assert (await resumed_handle.result()).value == "all done"
        assert "looked" in str(answers(resumed_handle.run.context.history))
    copy, branch = worktrees(repo)
    assert branch.endswith(Path(copy).name)
