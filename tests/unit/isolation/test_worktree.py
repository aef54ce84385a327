"""Tests of worktrees with real git: each child has a copy, which stays only if it holds work."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import pathlib
import shutil
import subprocess
from collections.abc import Callable

import pytest

from ramet.concurrency.cancel import AbortController
from ramet.concurrency.clock import FakeClock
from ramet.core.errors import Aborted
from ramet.isolation.git.git import Git, NoWorktree
from ramet.isolation.git.worktree import Worktree, create, finish, prune
from tests.support.waiting import alive, eventually, pid_in

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def git(cwd: pathlib.Path, *args: str) -> str:
    """Run git as a user would. Raises CalledProcessError if it fails."""
    identity = ["-c", "user.name=Ann", "-c", "user.email=ann@localhost"]
    process_result = subprocess.run(["git", *identity, *args], cwd=cwd, capture_output=True, text=True, check=True)
    return process_result.stdout.strip()


@pytest.fixture
def repo(tmp_path: pathlib.Path) -> pathlib.Path:
    """Create a repository with one commit of two files, one in a folder."""
    path = tmp_path / "repo"
    (path / "src").mkdir(parents=True)
    (path / "a.txt").write_text("one\n")
    (path / "src" / "b.txt").write_text("two\n")
    (path / ".gitignore").write_text("*.log\n")
    git(path, "init", "--quiet", "--initial-branch=main")
    git(path, "add", ".")
    git(path, "commit", "--quiet", "-m", "start")
    return path


def remaining(repo: pathlib.Path) -> tuple[int, list[str]]:
    """Return the number of worktrees except the main one, and the branches of ramet."""
    return git(repo, "worktree", "list").count("\n"), git(repo, "branch", "--list", "ramet/*").split()


def crash(worktree: Worktree) -> None:
    """Release the lock of a worktree as the death of a process does."""
    worktree._live.close()


async def test_a_child_edits_its_own_copy_and_an_unchanged_copy_leaves_nothing(repo: pathlib.Path) -> None:
    """The parent's status never shows the copy."""
    worktree = await create(repo, "searcher", mint=lambda: "1f")

    assert (worktree.path / "a.txt").read_text() == "one\n"
    assert worktree.path == repo / ".ramet" / "worktrees" / "searcher-1f"
    assert (worktree.branch, worktree.base) == ("ramet/searcher-1f", git(repo, "rev-parse", "HEAD"))
    assert git(repo, "status", "--porcelain") == ""
    assert await finish(worktree) is None
    assert not worktree.path.exists()
    assert remaining(repo) == (0, [])


def _edits(path: pathlib.Path) -> None:
    (path / "a.txt").write_text("changed\n")


def _adds(path: pathlib.Path) -> None:
    (path / "src" / "new.txt").write_text("new\n")


def _removes(path: pathlib.Path) -> None:
    (path / "a.txt").unlink()


def _commits(path: pathlib.Path) -> None:
    _edits(path)
    git(path, "commit", "--quiet", "-am", "work")


def _commits_and_walks_away(path: pathlib.Path) -> None:
    _commits(path)
    git(path, "checkout", "--quiet", "--detach", "main")


def _hides_the_repository(path: pathlib.Path) -> None:
    _edits(path)
    (path / ".git").unlink()


@pytest.mark.parametrize("work", [_edits, _adds, _removes, _commits, _commits_and_walks_away, _hides_the_repository])
async def test_a_changed_copy_stays_and_its_path_is_returned(
    repo: pathlib.Path, work: Callable[[pathlib.Path], None]
) -> None:
    """Any change counts, and the parent's files are unchanged."""
    worktree = await create(repo, "writer")
    work(worktree.path)

    assert await finish(worktree) == worktree.path
    assert (repo / "a.txt").read_text() == "one\n"
    assert git(repo, "rev-parse", "--verify", worktree.branch)


async def test_an_ignored_file_is_no_change(repo: pathlib.Path) -> None:
    """A build or log file does not keep a copy."""
    worktree = await create(repo, "builder")
    (worktree.path / "run.log").write_text("noise\n")

    assert await finish(worktree) is None
    assert not worktree.path.exists()


@pytest.mark.parametrize("work", [lambda path: None, _commits])
async def test_a_removed_copy_is_restored_if_it_held_commits(
    repo: pathlib.Path, work: Callable[[pathlib.Path], None]
) -> None:
    """Commits are never lost; a removed copy without commits leaves nothing."""
    worktree = await create(repo, "remover")
    work(worktree.path)
    shutil.rmtree(worktree.path)

    path = await finish(worktree)

    if work is _commits:
        assert path == worktree.path
        assert (worktree.path / "a.txt").read_text() == "changed\n"
    else:
        assert path is None
        assert remaining(repo) == (0, [])


async def test_a_child_starts_from_the_commit_in_the_folder_it_was_given(repo: pathlib.Path) -> None:
    """Uncommitted changes of the parent are left out; the child works in the same folder, even if it is missing."""
    (repo / "a.txt").write_text("not committed\n")
    (repo / "fresh").mkdir()

    in_src, in_fresh = await create(repo / "src", "a"), await create(repo / "fresh", "b")

    assert (in_src.path / "a.txt").read_text() == "one\n"
    assert (in_src.cwd / "b.txt").read_text() == "two\n"
    assert in_fresh.cwd == in_fresh.path / "fresh"
    assert [await finish(each) for each in (in_src, in_fresh)] == [None, None]


async def test_a_grandchilds_copy_starts_at_the_childs_commit_next_to_it(repo: pathlib.Path) -> None:
    """Removing the child's copy would not remove the grandchild's."""
    child = await create(repo, "child")
    _commits(child.path)

    grandchild = await create(child.path, "grandchild")

    assert grandchild.path.parent == child.path.parent
    assert (grandchild.path / "a.txt").read_text() == "changed\n"
    assert await finish(grandchild) is None
    assert await finish(child) == child.path


async def test_concurrent_worktrees_of_one_name_do_not_collide(repo: pathlib.Path) -> None:
    """Each child gets a copy of its own, and all are removed at the end."""
    worktrees = await asyncio.gather(*(create(repo, "same") for _ in range(12)))

    assert len({each.path for each in worktrees}) == 12
    assert await asyncio.gather(*(finish(each) for each in worktrees)) == [None] * 12
    assert remaining(repo) == (0, [])
    assert (repo / ".git" / "info" / "exclude").read_text().splitlines().count("/.ramet/") == 1


@pytest.mark.parametrize("name", ["../../etc", "a..b", "-rf", "x" * 1_000, "ä/ö", "", "a.lock", "@{u}"])
async def test_a_hostile_name_stays_in_its_folder_and_is_a_branch(repo: pathlib.Path, name: str) -> None:
    """Models choose these names."""
    worktree = await create(repo, name)

    assert worktree.path.parent == repo / ".ramet" / "worktrees"
    assert await finish(worktree) is None


async def test_a_taken_name_is_refused_and_its_owner_keeps_it(repo: pathlib.Path) -> None:
    """A failed creation undoes only its own work."""
    owner = await create(repo, "a", mint=lambda: "1")
    _edits(owner.path)

    with pytest.raises(NoWorktree, match="exists already"):
        await create(repo, "a", mint=lambda: "1")

    assert await finish(owner) == owner.path
    assert (owner.path / "a.txt").read_text() == "changed\n"


async def test_a_worktree_outside_the_repository_changes_no_settings(
    repo: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """The list of excluded files is not changed."""
    worktree = await create(repo, "a", into=tmp_path / "elsewhere")

    assert worktree.path.parent == tmp_path / "elsewhere"
    assert "/.ramet/" not in (repo / ".git" / "info" / "exclude").read_text()
    assert await finish(worktree) is None


async def test_errors_say_what_a_worktree_needs(tmp_path: pathlib.Path) -> None:
    """The cases are: no repository, no commit, no working tree, no folder, and no git."""
    empty, bare = tmp_path / "empty", tmp_path / "bare"
    for folder in (empty, bare):
        folder.mkdir()

    with pytest.raises(NoWorktree, match="git init"):
        await create(empty, "a")
    git(empty, "init", "--quiet")
    with pytest.raises(NoWorktree, match="commit once"):
        await create(empty, "a")
    git(bare, "init", "--quiet", "--bare")
    with pytest.raises(NoWorktree, match="no working tree"):
        await create(bare, "a")
    with pytest.raises(NoWorktree, match="name a folder that exists"):
        await create(tmp_path / "nowhere", "a")
    with pytest.raises(NoWorktree, match="install git"):
        await create(empty, "a", git=Git(environ={"PATH": str(bare)}))


async def test_hooks_of_the_repository_do_not_run(repo: pathlib.Path) -> None:
    """Making a copy runs no program of the repository."""
    hook = repo / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {repo}/ran\n")
    hook.chmod(0o755)

    worktree = await create(repo, "a")

    assert not (repo / "ran").exists()
    await finish(worktree)


async def test_git_variables_of_our_environment_are_ignored(repo: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Variables that git sets for its hooks would point to another repository."""
    environ = {**os.environ, "GIT_DIR": str(tmp_path / "other"), "GIT_INDEX_FILE": str(tmp_path / "index")}

    worktree = await create(repo, "a", git=Git(environ=environ))

    assert (worktree.path / "a.txt").exists()
    assert await finish(worktree, git=Git(environ=environ)) is None


@pytest.fixture
def slow_checkout(repo: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    """Configure a checkout filter that hangs, and return the file with the filter's pid."""
    pid = tmp_path / "pid"
    script = tmp_path / "filter"
    script.write_text(f"#!/bin/sh\nif [ -e {tmp_path}/go ]; then cat; exit; fi\necho $$ > {pid}\nsleep 1000\n")
    script.chmod(0o755)
    (repo / ".gitattributes").write_text("a.txt filter=slow\n")
    git(repo, "add", ".gitattributes")
    git(repo, "commit", "--quiet", "-m", "filter")
    git(repo, "config", "filter.slow.smudge", str(script))
    return pid


@pytest.mark.parametrize("mode", ["timeout", "abort", "cancel"])
async def test_a_creation_that_is_cut_off_leaves_no_process_no_copy_and_no_branch(
    repo: pathlib.Path, slow_checkout: pathlib.Path, mode: str
) -> None:
    """The repository is unchanged, and has no lock file that would stop the user's git."""
    clock, abort, pid = FakeClock(), AbortController(), pid_in(slow_checkout)
    trusting = Git(clock=clock, abort=abort, timeout_s=30, trusts=lambda _: True)
    creating = asyncio.ensure_future(create(repo, "slow", git=trusting))
    await eventually(lambda: pid() and clock.sleeping)
    if mode == "timeout":
        await clock.advance(30)
    elif mode == "abort":
        abort.abort("user")
    else:
        creating.cancel()

    with pytest.raises((NoWorktree, Aborted, asyncio.CancelledError)):
        await creating
    assert not alive(pid())
    assert remaining(repo) == (0, [])
    assert list((repo / ".ramet" / "worktrees").iterdir()) == []
    assert list((repo / ".git").rglob("*.lock")) in ([], [repo / ".git" / "ramet-worktrees.lock"])


async def test_prune_removes_only_unchanged_copies_of_dead_processes(repo: pathlib.Path) -> None:
    """Living, changed and committed copies stay, and so do foreign branches."""
    numbers = itertools.count()

    async def one(name: str) -> Worktree:
        return await create(repo, name, mint=lambda: str(next(numbers)))

    dead, living, changed, committed, merged, removed_tree = [
        await one(name) for name in ("dead", "living", "changed", "committed", "merged", "gone")
    ]
    git(repo, "branch", "other")
    _edits(changed.path)
    _commits(committed.path)
    _adds(merged.path)
    git(merged.path, "add", ".")
    git(merged.path, "commit", "--quiet", "-m", "more")
    git(repo, "merge", "--quiet", merged.branch)
    shutil.rmtree(removed_tree.path)
    for each in (dead, changed, committed, merged, removed_tree):
        crash(each)

    assert set(await prune(repo)) == {dead.path, merged.path}

    assert git(repo, "branch", "--format=%(refname:short)").splitlines() == [
        "main",
        "other",
        changed.branch,
        committed.branch,
        living.branch,
    ]
    assert [each.path.exists() for each in (living, changed, committed)] == [True] * 3
    assert await prune(repo) == []
    assert await finish(living) is None


async def test_waiting_for_the_lock_of_another_process_ends_at_the_timeout(repo: pathlib.Path) -> None:
    """Two programs in one repository take turns, and a hanging one does not block the other."""
    clock = FakeClock()
    waiting = Git(clock=clock, timeout_s=1)
    async with contextlib.AsyncExitStack() as other:
        await other.enter_async_context(Git().alone_in(repo / ".git"))
        creating = asyncio.ensure_future(create(repo, "a", git=waiting))
        await eventually(lambda: clock.sleeping == 2 or creating.done())
        while not creating.done():
            await clock.advance(0.25)

        with pytest.raises(NoWorktree, match="another process"):
            await creating
    assert await finish(await create(repo, "a")) is None
