"""Tests of untrusted repositories: links in place of ramet's files are not followed."""

from __future__ import annotations

import pathlib
import shutil
import subprocess

import pytest

from ramet.isolation.git.git import NoWorktree
from ramet.isolation.git.worktree import create, finish

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def git(cwd: pathlib.Path, *args: str) -> str:
    """Run git as a user would. Raises CalledProcessError if it fails."""
    identity = ["-c", "user.name=Ann", "-c", "user.email=ann@localhost"]
    process_result = subprocess.run(["git", *identity, *args], cwd=cwd, capture_output=True, text=True, check=True)
    return process_result.stdout.strip()


def make_repository(path: pathlib.Path) -> pathlib.Path:
    """Create a repository with one commit."""
    path.mkdir()
    (path / "a.txt").write_text("one\n")
    git(path, "init", "--quiet", "--initial-branch=main")
    git(path, "add", ".")
    git(path, "commit", "--quiet", "-m", "start")
    return path


def names(folder: pathlib.Path) -> list[str]:
    """Return the names in a folder."""
    return sorted(each.name for each in folder.iterdir())


@pytest.fixture
def repo(tmp_path: pathlib.Path) -> pathlib.Path:
    return make_repository(tmp_path / "repo")


@pytest.fixture
def outside_folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """Create a folder of the user with one file, in which nothing may change."""
    path = tmp_path / "elsewhere"
    path.mkdir()
    (path / "profile").write_text("the user's own\n")
    return path


@pytest.mark.parametrize("name", [".ramet", ".ramet/worktrees"])
async def test_a_folder_for_worktrees_that_is_a_link_is_refused(
    repo: pathlib.Path, outside_folder: pathlib.Path, name: str
) -> None:
    """A repository cannot choose the folder of a checkout."""
    (repo / name).parent.mkdir(exist_ok=True)
    (repo / name).symlink_to(outside_folder)

    with pytest.raises(NoWorktree, match="symbolic link"):
        await create(repo, "a")

    assert names(outside_folder) == ["profile"]


async def test_a_linked_list_of_excluded_files_is_refused(repo: pathlib.Path, outside_folder: pathlib.Path) -> None:
    """A repository cannot choose the file into which a line for git is written."""
    exclude = repo / ".git" / "info" / "exclude"
    exclude.unlink()
    exclude.symlink_to(outside_folder / "profile")

    with pytest.raises(NoWorktree, match="symbolic link"):
        await create(repo, "a")

    assert (outside_folder / "profile").read_text() == "the user's own\n"


async def test_a_linked_lock_file_is_refused(repo: pathlib.Path, outside_folder: pathlib.Path) -> None:
    """A repository cannot choose the place of a new file."""
    (repo / ".git" / "ramet-worktrees.lock").symlink_to(outside_folder / "new")

    with pytest.raises(NoWorktree, match="symbolic link"):
        await create(repo, "a")

    assert not (outside_folder / "new").exists()


async def test_a_folder_that_claims_another_repository_is_refused(repo: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """A `.git` file gives no right to write into a repository that does not know the folder."""
    claimant = tmp_path / "claimant"
    claimant.mkdir()
    (claimant / ".git").write_text(f"gitdir: {repo / '.git'}\n")

    with pytest.raises(NoWorktree, match="ramet trust"):
        await create(claimant, "a")

    assert git(repo, "branch", "--list", "ramet/*") == ""


async def test_a_repository_that_borrows_another_s_configuration_is_refused(
    repo: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """A `commondir` file has the effect of a `.git` file."""
    claimant = make_repository(tmp_path / "claimant")
    (claimant / ".git" / "commondir").write_text(str(repo / ".git"))

    with pytest.raises(NoWorktree, match="ramet trust"):
        await create(claimant, "a")

    assert git(repo, "branch", "--list", "ramet/*") == ""


async def test_other_worktrees_of_the_user_stay_registered(repo: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Pruning removes only ramet's worktrees, even while the folder of another one is missing."""
    away = tmp_path / "away"
    git(repo, "worktree", "add", "--quiet", "-b", "mine", str(away))
    hidden = away.rename(tmp_path / "unplugged")
    child = await create(repo, "a")
    shutil.rmtree(child.path)

    await finish(child)

    hidden.rename(away)
    assert git(away, "rev-parse", "--abbrev-ref", "HEAD") == "mine"
