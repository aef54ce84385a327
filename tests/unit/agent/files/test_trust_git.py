"""Trust covers what a repository's own git configuration would run."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ramet.agent.files.reading import Unreadable
from ramet.agent.files.trust import is_trusted, trust, what_would_run

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def git(where: Path, *args: str) -> None:
    """Run git as a user would; raises if it fails."""
    identity = ["-c", "user.name=Ann", "-c", "user.email=ann@localhost"]
    subprocess.run(["git", *identity, *args], cwd=where, capture_output=True, check=True)


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """A repository with one commit, and a file beside it that its configuration includes."""
    path = tmp_path / "repo"
    (path / "tools").mkdir(parents=True)
    (path / "tools" / "clean.sh").write_text("cat\n")
    git(path, "init", "--quiet", "--initial-branch=main")
    git(path, "add", ".")
    git(path, "commit", "--quiet", "-m", "start")
    return path


@pytest.fixture
def user_dir(home: Path) -> Path:
    return home / ".ramet"


def _filter(repo: Path) -> None:
    git(repo, "config", "filter.later.smudge", "cat")


def _attributes(repo: Path) -> None:
    (repo / ".git" / "info" / "attributes").write_text("* filter=known\n")


def _included(repo: Path) -> None:
    git(repo, "config", "--file", ".git/more", "filter.later.clean", "cat")


def _included_again(repo: Path) -> None:
    git(repo, "config", "--file", "deep", "filter.later.clean", "cat")


def _worktree(repo: Path) -> None:
    git(repo, "config", "extensions.worktreeConfig", "true")
    git(repo, "config", "--worktree", "filter.later.clean", "cat")


def _linked_worktree(repo: Path) -> None:
    git(repo.parent / "linked", "config", "extensions.worktreeConfig", "true")
    git(repo.parent / "linked", "config", "--worktree", "filter.later.clean", "cat")


def _ssh(repo: Path) -> None:
    git(repo, "config", "core.sshCommand", "ssh -v")


def _script(repo: Path) -> None:
    (repo / "tools" / "clean.sh").write_text("touch elsewhere; cat\n")


CHANGES: tuple[Callable[[Path], None], ...] = (
    _filter,
    _attributes,
    _included,
    _included_again,
    _worktree,
    _linked_worktree,
    _ssh,
    _script,
)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__.strip("_"))
def test_a_change_to_what_git_would_run_takes_trust_away(
    repo: Path, user_dir: Path, change: Callable[[Path], None]
) -> None:
    """The configuration, its includes at any depth, attributes, worktrees' own configuration, named scripts."""
    git(repo, "config", "filter.known.clean", "tools/clean.sh")
    git(repo, "config", "include.path", "more")
    git(repo, "config", "--file", ".git/more", "include.path", "../deep")
    git(repo, "worktree", "add", "--quiet", str(repo.parent / "linked"))
    trust(repo, user_dir)
    assert is_trusted(repo, user_dir)

    change(repo)

    assert not is_trusted(repo, user_dir)


def test_trust_in_a_folder_of_a_repository_covers_the_repository(repo: Path, user_dir: Path) -> None:
    """A filter acts in every folder of its repository."""
    trust(repo / "tools", user_dir)

    _filter(repo)

    assert not is_trusted(repo / "tools", user_dir)


def test_trust_in_a_linked_worktree_covers_the_common_configuration(repo: Path, user_dir: Path) -> None:
    """A linked worktree has its configuration elsewhere."""
    linked = repo.parent / "linked"
    git(repo, "worktree", "add", "--quiet", str(linked))
    trust(linked, user_dir)

    _filter(repo)

    assert not is_trusted(linked, user_dir)


def test_programs_of_the_git_configuration_are_shown(repo: Path) -> None:
    """A person sees the filter, the include and the script before trusting them."""
    git(repo, "config", "filter.known.clean", "tools/clean.sh")
    git(repo, "config", "include.path", "more")

    shown = "\n".join(map(str, what_would_run(repo)))

    assert "filter.known.clean" in shown
    assert "include.path" in shown
    assert "tools/clean.sh" in shown


def test_a_configuration_that_is_not_understood_cannot_be_trusted(repo: Path) -> None:
    """Whoever reads it otherwise than git does would show something else than what runs."""
    with (repo / ".git" / "config").open("a") as file:
        file.write('[filter "x"\nclean = cat\n')

    with pytest.raises(Unreadable, match="config"):
        what_would_run(repo)
