"""Trust covers the programs that a repository's git configuration would run."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ramet.agent.files.bounded_read import Unreadable
from ramet.agent.files.trust import find_runnables, is_trusted, trust

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def git(cwd: Path, *args: str) -> None:
    """Run git as a user would; raise an error if it fails."""
    identity = ["-c", "user.name=Ann", "-c", "user.email=ann@localhost"]
    subprocess.run(["git", *identity, *args], cwd=cwd, capture_output=True, check=True)


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """A repository with one commit."""
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
def test_a_changed_git_configuration_withdraws_trust(
    repo: Path, user_dir: Path, change: Callable[[Path], None]
) -> None:
    """The configuration, nested includes, attributes, worktree configurations and named scripts count."""
    git(repo, "config", "filter.known.clean", "tools/clean.sh")
    git(repo, "config", "include.path", "more")
    git(repo, "config", "--file", ".git/more", "include.path", "../deep")
    git(repo, "worktree", "add", "--quiet", str(repo.parent / "linked"))
    trust(repo, user_dir)
    assert is_trusted(repo, user_dir)

    change(repo)

    assert not is_trusted(repo, user_dir)


def test_trust_in_a_folder_of_a_repository_covers_the_repository(repo: Path, user_dir: Path) -> None:
    """A filter applies in every folder of its repository."""
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

    runnables = "\n".join(map(str, find_runnables(repo)))

    assert "filter.known.clean" in runnables
    assert "include.path" in runnables
    assert "tools/clean.sh" in runnables


def test_an_unreadable_configuration_cannot_be_trusted(repo: Path) -> None:
    """A wrong reading would show something else than what git runs."""
    with (repo / ".git" / "config").open("a") as file:
        file.write('[filter "x"\nclean = cat\n')

    with pytest.raises(Unreadable, match="config"):
        find_runnables(repo)


def test_an_include_for_a_future_remote_is_shown_and_covered(repo: Path, user_dir: Path) -> None:
    """A remote that is added later activates the include, which was shown already."""
    git(repo, "config", "--file", ".git/later", "filter.later.clean", "cat")
    git(repo, "config", "includeIf.hasconfig:remote.*.url:https://example.org/**.path", "later")
    text = find_runnables(repo)
    assert 'filter.later.clean "cat"' in "\n".join(map(str, text))
    trust(repo, user_dir)

    git(repo, "remote", "add", "origin", "https://example.org/a")
    assert is_trusted(repo, user_dir)
    assert find_runnables(repo) == text

    git(repo, "config", "--file", ".git/later", "filter.later.clean", "tac")
    assert not is_trusted(repo, user_dir)


def _through_a_link(repo: Path) -> None:
    (repo / "deep" / "er").mkdir(parents=True)
    (repo / ".git" / "link").symlink_to("../deep/er")
    git(repo, "config", "include.path", "link/../hidden")
    git(repo, "config", "--file", "deep/hidden", "filter.hidden.smudge", "evil")


def _from_a_link(repo: Path) -> None:
    (repo / "deep").mkdir()
    (repo / ".git" / "more").symlink_to("../deep/more")
    git(repo, "config", "include.path", "more")
    git(repo, "config", "--file", "deep/more", "include.path", "hidden")
    git(repo, "config", "--file", ".git/hidden", "filter.hidden.smudge", "evil")


@pytest.mark.parametrize("build", [_through_a_link, _from_a_link], ids=lambda build: build.__name__.strip("_"))
def test_an_include_is_the_file_that_git_reads(repo: Path, build: Callable[[Path], None]) -> None:
    """Git follows links as the kernel does, and resolves paths from the name of the including file."""
    build(repo)
    listing = subprocess.run(["git", "config", "--list"], cwd=repo, capture_output=True, text=True, check=True).stdout
    assert "filter.hidden.smudge=evil" in listing, "git reads it"

    assert "filter.hidden.smudge" in "\n".join(map(str, find_runnables(repo)))


def test_an_include_below_gits_own_folder_cannot_be_trusted(repo: Path) -> None:
    """No program except git knows the folder `%(prefix)`."""
    git(repo, "config", "include.path", "%(prefix)/../tmp/hidden")

    with pytest.raises(Unreadable, match="prefix"):
        find_runnables(repo)


def test_a_cut_description_says_so(repo: Path) -> None:
    """A reader must not take the part for the whole."""
    for number in range(60):
        git(repo, "config", f"filter.f{number}.clean", "x" * 40)

    (text,) = [each for each in map(str, find_runnables(repo)) if each.startswith(".git/config")]

    assert "characters more: look at the file" in text
