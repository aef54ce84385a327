"""Tests of clones with real git: a run's work comes back as one branch, and nothing else of its clone does."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import pathlib
import shutil
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from ramet.concurrency.cancel import AbortController
from ramet.concurrency.clock import FakeClock
from ramet.core.errors import Aborted
from ramet.isolation.git import clone as clones
from ramet.isolation.git import repository_files
from ramet.isolation.git.clone import Clone
from ramet.isolation.git.clone_end import Branch, finish
from ramet.isolation.git.git import Git, NoWorktree
from ramet.tools.git.git_checkout import find
from tests.support.waiting import eventually

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")

MAX_BYTES = 8 << 20
BEGUN = datetime(2026, 1, 2, tzinfo=UTC)


def git(cwd: pathlib.Path, *args: str) -> str:
    """Run git as a user would, in any owner's folder. Raises CalledProcessError if it fails."""
    identity = ["-c", "user.name=Ann", "-c", "user.email=ann@localhost", "-c", "safe.directory=*"]
    process_result = subprocess.run(["git", *identity, *args], cwd=cwd, capture_output=True, text=True, check=True)
    return process_result.stdout.strip()


def make_repository(path: pathlib.Path, *options: str) -> pathlib.Path:
    """Create a repository with one commit of two files, one in a folder."""
    (path / "src").mkdir(parents=True)
    (path / "a.txt").write_text("one\n")
    (path / "src" / "b.txt").write_text("two\n")
    (path / ".gitignore").write_text("*.log\n")
    git(path, "init", "--quiet", "--initial-branch=main", *options)
    git(path, "add", ".")
    git(path, "commit", "--quiet", "-m", "start")
    return path


@pytest.fixture
def repo(tmp_path: pathlib.Path) -> pathlib.Path:
    return make_repository(tmp_path / "repo")


@pytest.fixture
def workspace(tmp_path: pathlib.Path) -> pathlib.Path:
    """Create the folder of a run, with its workspace."""
    path = tmp_path / "run" / "workspace"
    path.mkdir(parents=True)
    return path


async def clone_of(folder: pathlib.Path, workspace: pathlib.Path, *, mint: str = "1f") -> Clone:
    """Make the clone of a run that works in `folder`."""
    clone = await clones.plan(folder, "coder", git=Git(), mint=lambda: mint)
    assert await clones.create(clone, workspace, owner=None, max_bytes=MAX_BYTES)
    return clone


async def end_of(clone: Clone, workspace: pathlib.Path) -> Branch | None:
    """End the run of a clone."""
    return await finish(clone, workspace, begun=BEGUN, max_bytes=MAX_BYTES)


def state_of(repo: pathlib.Path) -> tuple[str, ...]:
    """Return everything of a repository that no run may change."""
    tree = git(repo, "status", "--porcelain"), git(repo, "rev-parse", "HEAD"), git(repo, "symbolic-ref", "HEAD")
    refs = [line for line in git(repo, "for-each-ref").splitlines() if "refs/heads/ramet/" not in line]
    return *tree, (repo / ".git" / "config").read_text(), *refs


def names_in(folder: pathlib.Path) -> list[str]:
    """Return the names of a folder's entries."""
    return sorted(path.name for path in folder.iterdir())


def branches(repo: pathlib.Path) -> list[str]:
    """Return the branches of ramet."""
    return git(repo, "branch", "--list", "--format=%(refname:short)", "ramet/*").split()


async def test_a_clone_is_at_head_and_has_nothing_of_the_user_s_repository(
    repo: pathlib.Path, workspace: pathlib.Path
) -> None:
    """A clone has the files and the history of HEAD, one branch, and a configuration without any path."""
    git(repo, "remote", "add", "origin", "https://user:key@example.org/x")
    git(repo, "branch", "other")
    git(repo, "tag", "v1")
    (repo / ".git" / "hooks" / "post-checkout").write_text("#!/bin/sh\nexit 1\n")
    (repo / "a.txt").write_text("not committed\n")

    clone = await clone_of(repo / "src", workspace)

    top = workspace / "repository"
    assert (top / "a.txt").read_text() == "one\n"
    assert clone.cwd(workspace) == top / "src"
    assert git(top, "rev-parse", "HEAD") == git(repo, "rev-parse", "HEAD") == clone.base
    assert git(top, "for-each-ref", "--format=%(refname)") == "refs/heads/ramet/coder-1f"
    assert git(top, "status", "--porcelain") == git(top, "remote") == ""
    assert not (top / ".git" / "hooks").exists()
    assert not (top / ".git" / "objects" / "info" / "alternates").exists()
    assert str(repo) not in (top / ".git" / "config").read_text()
    assert {path.stat().st_nlink for path in top.rglob("*") if path.is_file()} == {1}
    assert names_in(workspace.parent) == ["workspace"]


async def test_a_clone_belongs_to_the_user_of_the_sandbox(repo: pathlib.Path, workspace: pathlib.Path) -> None:
    """Every entry of the clone belongs to that user, so that git works there without asking."""
    if os.geteuid() != 0:
        pytest.skip("only root works for other users")
    clone = await clones.plan(repo, "coder", git=Git())

    await clones.create(clone, workspace, owner=(61_000, 61_000), max_bytes=MAX_BYTES)

    top = clone.folder(workspace)
    assert {path.lstat().st_uid for path in (top, *top.rglob("*"))} == {61_000}


async def test_a_clone_that_is_there_is_not_made_again(repo: pathlib.Path, workspace: pathlib.Path) -> None:
    """A run that continues finds its files."""
    clone = await clone_of(repo, workspace)
    (clone.folder(workspace) / "new.txt").write_text("mine\n")

    assert not await clones.create(clone, workspace, owner=None, max_bytes=MAX_BYTES)

    assert (clone.folder(workspace) / "new.txt").exists()


async def test_a_clone_without_changes_leaves_nothing(repo: pathlib.Path, workspace: pathlib.Path) -> None:
    """Ignored files do not count, and neither does a look at an older commit."""
    (repo / "a.txt").write_text("second\n")
    git(repo, "commit", "--quiet", "-am", "second")
    before = state_of(repo)
    clone = await clone_of(repo, workspace)
    (clone.folder(workspace) / "run.log").write_text("noise\n")
    git(clone.folder(workspace), "checkout", "--quiet", "HEAD~1")

    assert await end_of(clone, workspace) is None

    assert (branches(repo), state_of(repo)) == ([], before)


def _edits(top: pathlib.Path) -> None:
    (top / "a.txt").write_text("changed\n")


def _adds(top: pathlib.Path) -> None:
    (top / "new").mkdir()
    (top / "new" / "c.txt").write_text("changed\n")


def _removes(top: pathlib.Path) -> None:
    (top / "a.txt").unlink()


def _commits(top: pathlib.Path) -> None:
    _edits(top)
    git(top, "commit", "--quiet", "-am", "work")


def _commits_and_edits(top: pathlib.Path) -> None:
    _commits(top)
    (top / "src" / "b.txt").write_text("changed\n")


def _commits_on_another_branch(top: pathlib.Path) -> None:
    git(top, "checkout", "--quiet", "-b", "fix")
    _commits(top)


def _commits_without_a_branch(top: pathlib.Path) -> None:
    git(top, "checkout", "--quiet", "--detach")
    _commits(top)


def _is_killed_while_it_commits(top: pathlib.Path) -> None:
    _edits(top)
    (top / ".git" / "index.lock").touch()
    (top / ".git" / "HEAD.lock").touch()


def _loses_its_index(top: pathlib.Path) -> None:
    _edits(top)
    (top / ".git" / "index").write_bytes(b"DIRC" + bytes(100))


def _hides_a_change(top: pathlib.Path) -> None:
    git(top, "update-index", "--assume-unchanged", "a.txt")
    _edits(top)


WORKS = (
    _edits,
    _adds,
    _removes,
    _commits,
    _commits_and_edits,
    _commits_on_another_branch,
    _commits_without_a_branch,
    _is_killed_while_it_commits,
    _loses_its_index,
    _hides_a_change,
)


@pytest.mark.parametrize("work", WORKS)
async def test_the_work_of_a_run_becomes_one_branch(
    repo: pathlib.Path, workspace: pathlib.Path, work: Callable[[pathlib.Path], None]
) -> None:
    """The branch has the files as the run left them; the user's files, index, HEAD and settings are as before."""
    clone, before = await clone_of(repo, workspace), state_of(repo)
    work(clone.folder(workspace))

    branch = await end_of(clone, workspace)

    assert branch is not None
    assert (branch.name, branch.left_out) == ("ramet/coder-1f", "")
    assert branch.summary == git(repo, "diff", "--shortstat", f"HEAD...{branch.name}")
    assert (branches(repo), state_of(repo)) == (["ramet/coder-1f"], before)
    files = {path.name: path.read_text() for path in clone.folder(workspace).glob("**/*.txt")}
    names = git(repo, "ls-tree", "-r", "--name-only", branch.name).split()
    assert {pathlib.Path(name).name for name in names if name.endswith(".txt")} == set(files)
    for name in names:
        if name.endswith(".txt"):
            assert git(repo, "show", f"{branch.name}:{name}") == files[pathlib.Path(name).name].strip()
    git(repo, "fsck", "--strict", "--no-dangling")
    assert names_in(workspace.parent) == ["workspace"]


async def test_commits_stay_and_the_rest_is_one_more_commit(repo: pathlib.Path, workspace: pathlib.Path) -> None:
    """The run's own commits keep their ids and messages; ramet is the author of the last one."""
    clone = await clone_of(repo, workspace)
    _commits_and_edits(clone.folder(workspace))
    own = git(clone.folder(workspace), "rev-parse", "HEAD")

    await end_of(clone, workspace)

    log = git(repo, "log", "--format=%an: %s", "main..ramet/coder-1f").splitlines()
    assert log == ["ramet: Work of coder-1f that was not committed", "Ann: work"]
    assert git(repo, "rev-parse", "ramet/coder-1f~1") == own


async def test_commits_of_its_branch_and_of_another_head_are_both_kept(
    repo: pathlib.Path, workspace: pathlib.Path
) -> None:
    """A run that leaves its own branch behind loses neither line of work."""
    clone = await clone_of(repo, workspace)
    top = clone.folder(workspace)
    _commits(top)
    git(top, "checkout", "--quiet", "-b", "fix", "HEAD~1")
    (top / "src" / "b.txt").write_text("changed\n")
    git(top, "commit", "--quiet", "-am", "fix")
    tips = [git(top, "rev-parse", name) for name in ("fix", "ramet/coder-1f")]

    await end_of(clone, workspace)

    assert git(repo, "rev-parse", "ramet/coder-1f^1", "ramet/coder-1f^2").split() == tips


@pytest.mark.parametrize("step", ["objects", "branch"])
async def test_an_end_that_is_repeated_makes_one_branch(repo: pathlib.Path, workspace: pathlib.Path, step: str) -> None:
    """After a kill behind any step, the same files give the same commit, and no second branch."""
    clone = await clone_of(repo, workspace)
    _commits_and_edits(clone.folder(workspace))
    first = await end_of(clone, workspace)
    (workspace.parent / ".clone").mkdir()
    (workspace.parent / ".clone" / "pack").write_text("left by a killed kernel")

    commit = git(repo, "rev-parse", "ramet/coder-1f")
    if step == "objects":
        git(repo, "update-ref", "-d", "refs/heads/ramet/coder-1f")

    assert await end_of(clone, workspace) == first

    assert git(repo, "rev-parse", "ramet/coder-1f") == commit
    assert branches(repo) == ["ramet/coder-1f"]


async def test_an_end_with_other_work_leaves_the_first_branch(repo: pathlib.Path, workspace: pathlib.Path) -> None:
    """A run that was woken again leaves another branch: the first may be merged, checked out or changed by now."""
    clone = await clone_of(repo, workspace)
    _edits(clone.folder(workspace))
    await end_of(clone, workspace)
    first = git(repo, "rev-parse", "ramet/coder-1f")
    _removes(clone.folder(workspace))

    branch = await end_of(clone, workspace)

    assert branch is not None
    assert branch.name == "ramet/coder-1f-2"
    assert branches(repo) == ["ramet/coder-1f", "ramet/coder-1f-2"]
    assert git(repo, "rev-parse", "ramet/coder-1f") == first


async def test_the_branch_is_made_under_the_lock_of_the_repository(repo: pathlib.Path, workspace: pathlib.Path) -> None:
    """While another process makes a worktree there, the end waits; after the time limit of git it is refused."""
    clone, clock = await clone_of(repo, workspace), FakeClock()
    clone = dataclasses.replace(clone, git=dataclasses.replace(clone.git, clock=clock))
    _edits(clone.folder(workspace))
    async with Git().alone_in(repo / ".git"):
        ending = asyncio.create_task(end_of(clone, workspace))
        await eventually(lambda: clock.sleeping == 2 or ending.done())  # The wait for the lock, and its limit.
        while not ending.done():
            await clock.advance(30)

        with pytest.raises(NoWorktree, match="another process holds its lock"):
            await ending

    assert branches(repo) == []


def test_no_link_above_a_repository_is_followed(tmp_path: pathlib.Path, repo: pathlib.Path) -> None:
    """A guest could put a link in the place of its clone at any moment; ramet's own files are not made behind it."""
    (tmp_path / "link").symlink_to(repo)

    with pytest.raises(OSError, match="symbolic link"):
        repository_files.open_lock(tmp_path / "link" / ".git", "ramet-worktrees.lock")

    assert not (repo / ".git" / "ramet-worktrees.lock").exists()


async def test_git_gets_no_folder_behind_a_link(tmp_path: pathlib.Path, repo: pathlib.Path) -> None:
    """A link in the middle of the path of a folder that git may write to is refused, as one at its end is."""
    (tmp_path / "real" / "packs").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real")

    with pytest.raises(NoWorktree, match="leads through a symbolic link"):
        await Git()(find(repo), "rev-parse", "HEAD", write=[tmp_path / "link" / "packs"])


@pytest.mark.parametrize("has_commits", [True, False])
async def test_files_that_cannot_be_read_are_named_and_commits_are_kept(
    repo: pathlib.Path, workspace: pathlib.Path, has_commits: bool
) -> None:
    """A pipe at the place of one of git's files keeps the files out, not the commits. Without any, it is an error."""
    clone = await clone_of(repo, workspace)
    _edits(clone.folder(workspace))
    if has_commits:
        _commits(clone.folder(workspace))
    os.mkfifo(clone.folder(workspace) / "src" / ".gitignore")

    if not has_commits:
        with pytest.raises(NoWorktree, match="not a regular file"):
            await end_of(clone, workspace)
        return
    branch = await end_of(clone, workspace)

    assert branch is not None
    assert branch.left_out.startswith("what was not committed: ")
    assert git(repo, "log", "--format=%s", f"main..{branch.name}") == "work"


async def test_repositories_inside_a_clone_are_named_and_stay(repo: pathlib.Path, workspace: pathlib.Path) -> None:
    """The rest of the files arrives. A repository that is ignored is not named."""
    clone = await clone_of(repo, workspace)
    make_repository(clone.folder(workspace) / "inner")
    make_repository(clone.folder(workspace) / "ignored.log")
    (clone.folder(workspace) / "c.txt").write_text("new\n")

    branch = await end_of(clone, workspace)

    assert branch is not None
    assert branch.left_out == "the repositories inside it: inner"
    assert git(repo, "ls-tree", "--name-only", branch.name).split() == [".gitignore", "a.txt", "c.txt", "src"]


async def test_a_clone_that_was_removed_is_refused(repo: pathlib.Path, workspace: pathlib.Path) -> None:
    """Nothing is left to take; the error says so."""
    clone = await clone_of(repo, workspace)
    shutil.rmtree(clone.folder(workspace))

    with pytest.raises(NoWorktree, match="the run removed it"):
        await end_of(clone, workspace)


@pytest.mark.parametrize("kind", ["sha256", "shallow", "linked", "packed"])
async def test_other_kinds_of_repositories_work(tmp_path: pathlib.Path, workspace: pathlib.Path, kind: str) -> None:
    """Ids of SHA-256, a history that is cut off, a worktree of the user's, and packed refs."""
    repo = make_repository(tmp_path / "repo", *(["--object-format=sha256"] if kind == "sha256" else []))
    (repo / "a.txt").write_text("second\n")
    git(repo, "commit", "--quiet", "-am", "second")
    source = repo
    if kind == "shallow":
        source = tmp_path / "shallow"
        git(tmp_path, "clone", "--quiet", "--depth=1", f"file://{repo}", str(source))
    elif kind == "linked":
        source = tmp_path / "linked"
        git(repo, "worktree", "add", "--quiet", str(source))
    elif kind == "packed":
        git(repo, "gc", "--quiet")
    clone = await clone_of(source, workspace)
    assert git(clone.folder(workspace), "rev-list", "HEAD") == git(source, "rev-list", "HEAD")
    _commits_and_edits(clone.folder(workspace))

    branch = await end_of(clone, workspace)

    assert branch is not None
    assert git(source, "log", "--format=%s", f"HEAD..{branch.name}").splitlines()[1:] == ["work"]
    assert git(source, "diff", "--name-only", f"HEAD...{branch.name}").split() == ["a.txt", "src/b.txt"]


async def test_a_folder_that_is_not_in_head_exists_in_the_clone(repo: pathlib.Path, workspace: pathlib.Path) -> None:
    """A run works in the same folder of its clone as its caller does in the repository."""
    (repo / "not" / "committed").mkdir(parents=True)

    clone = await clone_of(repo / "not" / "committed", workspace)

    assert clone.cwd(workspace).is_dir()


async def test_contents_of_submodules_and_filters_are_not_in_a_clone(
    tmp_path: pathlib.Path, repo: pathlib.Path, workspace: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The place of a submodule is empty, and files of LFS are pointers; neither counts as a change at the end."""
    (repo / ".gitattributes").write_text("*.bin filter=lfs\n")
    (repo / "big.bin").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    link = git(repo, "rev-parse", "HEAD")
    git(repo, "update-index", "--add", "--cacheinfo", f"160000,{link},sub")
    git(repo, "add", ".gitattributes", "big.bin")
    git(repo, "commit", "--quiet", "-m", "more")
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    git(repo, "config", "--global", "filter.lfs.smudge", "exit 1")
    git(repo, "config", "--global", "filter.lfs.clean", "exit 1")
    git(repo, "config", "--global", "filter.lfs.required", "true")

    clone = await clone_of(repo, workspace)

    assert (clone.folder(workspace) / "big.bin").read_text().startswith("version")
    assert names_in(clone.folder(workspace) / "sub") == []
    assert await end_of(clone, workspace) is None


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("none", "it is in no git repository"),
        ("empty", "it has no commit yet"),
        ("bare", "it is in no working tree"),
        ("alternates", "its repository uses objects of another one"),
    ],
)
async def test_a_folder_that_cannot_be_cloned_is_refused(tmp_path: pathlib.Path, kind: str, reason: str) -> None:
    """The refusal names the folder and a remedy, which never is to trust the repository."""
    folder = tmp_path / "folder"
    folder.mkdir()
    if kind == "empty":
        git(folder, "init", "--quiet")
    elif kind == "bare":
        git(folder, "init", "--quiet", "--bare")
    elif kind == "alternates":
        git(tmp_path, "clone", "--quiet", "--shared", str(make_repository(tmp_path / "repo")), str(folder))

    with pytest.raises(NoWorktree, match=reason) as refusal:
        await clones.plan(folder, "coder", git=Git(trusts=lambda folder: True))

    assert refusal.value.remedy
    assert "ramet trust" not in refusal.value.remedy


@pytest.mark.parametrize("size", ["history", "files"])
async def test_a_clone_above_its_limit_is_refused(repo: pathlib.Path, workspace: pathlib.Path, size: str) -> None:
    """Neither a large history nor many files are put into a workspace that is too small."""
    large = os.urandom(MAX_BYTES + 1 if size == "history" else MAX_BYTES // 2)
    for name in ("c.bin", "d.bin", "e.bin"):
        (repo / name).write_bytes(large)
    git(repo, "add", ".")
    git(repo, "commit", "--quiet", "-m", "large")
    if size == "history":
        git(repo, "rm", "--quiet", "c.bin", "d.bin", "e.bin")
        git(repo, "commit", "--quiet", "-m", "small again")
    clone = await clones.plan(repo, "coder", git=Git())

    with pytest.raises(NoWorktree, match=r"takes more than the 8 MB of policy\.workspace_size_mb"):
        await clones.create(clone, workspace, owner=None, max_bytes=MAX_BYTES)

    assert names_in(workspace) == []
    assert names_in(workspace.parent) == ["workspace"]


async def test_work_above_its_limit_stays_in_the_clone(repo: pathlib.Path, workspace: pathlib.Path) -> None:
    """A pack that is too large is not made, and the user's repository gets nothing."""
    clone, before = await clone_of(repo, workspace), state_of(repo)
    (clone.folder(workspace) / "large.bin").write_bytes(os.urandom(MAX_BYTES + 1))
    _commits(clone.folder(workspace))
    git(clone.folder(workspace), "add", ".")
    git(clone.folder(workspace), "commit", "--quiet", "-m", "large")

    with pytest.raises(NoWorktree, match="too large"):
        await end_of(clone, workspace)

    assert (branches(repo), state_of(repo)) == ([], before)


async def test_another_repository_at_the_place_gets_no_branch(
    tmp_path: pathlib.Path, repo: pathlib.Path, workspace: pathlib.Path
) -> None:
    """The branch goes to the repository that the clone was made from, or nowhere."""
    (repo / "below").mkdir()
    clone = await clone_of(repo, workspace)
    _edits(clone.folder(workspace))
    shutil.rmtree(repo / ".git")
    make_repository(tmp_path, "--separate-git-dir", str(tmp_path / "elsewhere"))

    with pytest.raises(NoWorktree, match="another repository is there now"):
        await end_of(clone, workspace)


async def test_a_stopped_run_gets_no_clone(repo: pathlib.Path, workspace: pathlib.Path) -> None:
    """A stop while git works leaves nothing; neither does a kernel that was killed then."""
    (workspace.parent / ".clone" / "repository").mkdir(parents=True)
    clone, abort = await clones.plan(repo, "coder", git=Git()), AbortController()
    abort.abort("stopped")

    with pytest.raises(Aborted):
        await clones.create(clone, workspace, owner=None, max_bytes=MAX_BYTES, abort=abort)

    assert names_in(workspace.parent) == ["workspace"]
    assert names_in(workspace) == []


async def test_only_the_clone_of_a_parent_is_copied_for_its_child(
    tmp_path: pathlib.Path, repo: pathlib.Path, workspace: pathlib.Path
) -> None:
    """A child gets the commits of its parent's clone. Another repository, behind a link there, is refused."""
    parent = await clone_of(repo, workspace)
    top = parent.folder(workspace)
    _commits(top)
    child_workspace = tmp_path / "child" / "workspace"
    child_workspace.mkdir(parents=True)
    child = await clones.plan(top, "child", git=Git(), inside=top, mint=lambda: "2e")
    await clones.create(child, child_workspace, owner=None, max_bytes=MAX_BYTES)
    (child.folder(child_workspace) / "new.txt").write_text("mine\n")

    branch = await end_of(child, child_workspace)

    assert branch is not None
    assert branches(repo) == []
    assert git(top, "log", "--format=%s", branch.name).splitlines()[1:] == ["work", "start"]
    (top / "link").symlink_to(repo)
    for folder in (top / "link", repo):
        with pytest.raises(NoWorktree, match="no longer a repository of its own"):
            await clones.plan(folder, "child", git=Git(), inside=top)
