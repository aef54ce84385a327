"""Tests of programs that git runs: the user's own, those of a trusted repository, and no others."""

from __future__ import annotations

import asyncio
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from ramet.agent.files.trust import trust
from ramet.concurrency.cancel import AbortController
from ramet.core.errors import Aborted
from ramet.host.trees.project import git_of
from ramet.isolation.git import git as git_module
from ramet.isolation.git.git import Git, NoWorktree
from ramet.isolation.git.worktree import create, finish
from ramet.tools.git.git_checkout import find
from tests.support.waiting import eventually

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def git(cwd: pathlib.Path, *args: str) -> str:
    """Run git as a user would. Raises CalledProcessError if it fails."""
    identity = ["-c", "user.name=Ann", "-c", "user.email=ann@localhost"]
    process_result = subprocess.run(["git", *identity, *args], cwd=cwd, capture_output=True, text=True, check=True)
    return process_result.stdout.strip()


@pytest.fixture
def repo(tmp_path: pathlib.Path) -> pathlib.Path:
    """Create a repository with one commit, whose attributes name a filter."""
    path = tmp_path / "repo"
    path.mkdir()
    (path / "a.txt").write_text("one\n")
    (path / ".gitattributes").write_text("*.txt filter=named\n")
    git(path, "init", "--quiet", "--initial-branch=main")
    git(path, "add", ".")
    git(path, "commit", "--quiet", "-m", "start")
    return path


@pytest.fixture
def environ(tmp_path: pathlib.Path) -> dict[str, str]:
    """Return the environment of a user with an empty home."""
    home = tmp_path / "user"
    home.mkdir()
    return {"PATH": os.environ["PATH"], "HOME": str(home)}


def configure(environ: dict[str, str], key: str, value: str) -> None:
    """Set a key of the user's own configuration."""
    subprocess.run(["git", "config", "--global", key, value], env=environ, check=True)


def ignore_everywhere(environ: dict[str, str], pattern: str) -> None:
    """Write the user's own list of ignored files."""
    ignored = pathlib.Path(environ["HOME"], ".config", "git", "ignore")
    ignored.parent.mkdir(parents=True)
    ignored.write_text(f"{pattern}\n")


async def test_filters_of_the_user_work_in_an_untrusted_repository(repo: pathlib.Path, environ: dict[str, str]) -> None:
    """Filters such as those of git LFS run; a change by a filter alone is no change."""
    configure(environ, "filter.named.smudge", "sed s/one/ONE/")
    configure(environ, "filter.named.clean", "sed s/ONE/one/")
    configure(environ, "filter.named.required", "true")

    child = await create(repo, "a", git=Git(environ=environ))

    assert (child.path / "a.txt").read_text() == "ONE\n"
    os.utime(child.path / "a.txt", (1, 1))
    assert await finish(child, git=Git(environ=environ)) is None


async def test_a_repository_cannot_replace_a_filter_of_the_user(repo: pathlib.Path, environ: dict[str, str]) -> None:
    """The user's command wins over the repository's filter of one name."""
    configure(environ, "filter.named.smudge", "sed s/one/ONE/")
    git(repo, "config", "filter.named.smudge", f"touch {repo}/.git/ran; cat")

    child = await create(repo, "a", git=Git(environ=environ))

    assert (child.path / "a.txt").read_text() == "ONE\n"
    assert not (repo / ".git" / "ran").exists()
    await finish(child, git=Git(environ=environ))


async def test_files_that_the_user_ignores_everywhere_are_no_change(
    repo: pathlib.Path, environ: dict[str, str]
) -> None:
    """The sandbox sees the user's list of ignored files."""
    ignore_everywhere(environ, "*.swp")
    child = await create(repo, "a", git=Git(environ=environ))
    (child.path / "x.swp").write_text("")

    assert await finish(child, git=Git(environ=environ)) is None


async def test_filters_of_a_trusted_repository_run_until_its_configuration_changes(
    repo: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """Trust applies to the configuration at the time of the decision."""
    user_dir = tmp_path / "user_dir"
    git(repo, "config", "filter.named.smudge", "sed s/one/TRUSTED/")
    trust(repo, user_dir)

    child = await create(repo, "a", git=git_of(user_dir))
    git(repo, "config", "filter.named.smudge", "sed s/one/CHANGED/")
    other = await create(repo, "b", git=git_of(user_dir))

    assert (child.path / "a.txt").read_text() == "TRUSTED\n"
    assert (other.path / "a.txt").read_text() == "one\n"
    for each in (child, other):
        await finish(each, git=git_of(user_dir))


async def test_a_script_in_the_working_tree_does_not_run_by_trust(repo: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """The user saw neither the script of HEAD nor the one that an agent wrote."""
    user_dir, ran = tmp_path / "user_dir", tmp_path / "ran"
    script = repo / "f.sh"
    script.write_text(f"touch {ran}; cat\n")
    script.chmod(0o755)
    git(repo, "add", ".")
    git(repo, "commit", "--quiet", "-m", "a script of HEAD")
    script.write_text("cat\n")
    git(repo, "config", "filter.named.smudge", "./f.sh")
    git(repo, "config", "filter.named.clean", "./f.sh")
    trust(repo, user_dir)

    child = await create(repo, "a", git=git_of(user_dir))
    (child.path / "f.sh").write_text(f"touch {ran}; cat\n")
    (child.path / "a.txt").write_text("two\n")
    await finish(child, git=git_of(user_dir))

    assert not ran.exists()


async def test_trust_in_a_folder_above_a_repository_is_no_trust_in_it(
    repo: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """A user who trusts a folder of projects has not seen later clones in it."""
    user_dir = tmp_path / "user_dir"
    git(repo, "config", "filter.named.smudge", "sed s/one/RAN/")
    trust(repo.parent, user_dir)

    child = await create(repo, "a", git=git_of(user_dir))

    assert (child.path / "a.txt").read_text() == "one\n"
    await finish(child, git=git_of(user_dir))


async def test_an_aborted_worktree_creation_leaves_nothing(repo: pathlib.Path, environ: dict[str, str]) -> None:
    """No process, copy, branch, or lock file of git is left."""
    seconds, abort = "271828", AbortController()
    configure(environ, "filter.named.smudge", f"sleep {seconds}")
    creating = asyncio.ensure_future(create(repo, "a", git=Git(environ=environ, abort=abort)))
    await eventually(lambda: sleepers(seconds))

    abort.abort("user")

    with pytest.raises(Aborted):
        await creating
    assert not sleepers(seconds)
    assert git(repo, "branch", "--list", "ramet/*") == ""
    assert names(repo / ".ramet" / "worktrees") == []
    assert names(repo / ".git", "*.lock") == ["ramet-worktrees.lock"]


def names(folder: pathlib.Path, pattern: str = "*") -> list[str]:
    """Return the names in a folder."""
    return sorted(each.name for each in folder.glob(pattern))


def sleepers(seconds: str) -> list[str]:
    """Return the processes that sleep for this time."""
    names = []
    for each in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = each.read_bytes().split(b"\0")
        except OSError:
            continue
        if words[:2] == [b"sleep", seconds.encode()]:
            names.append(each.parent.name)
    return names


async def test_an_old_git_is_refused_without_trust(repo: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Git before 2.38 silently ignores `safe.bareRepository`."""
    old = tmp_path / "bin" / "git"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\necho git version 2.37.7\n")
    old.chmod(0o755)

    with pytest.raises(NoWorktree, match=r"git version 2\.37\.7 is older than 2\.38.*ramet trust"):
        await create(repo, "a", git=Git(environ={"PATH": f"{old.parent}:{os.environ['PATH']}"}))


async def test_git_that_cannot_be_confined_is_refused_without_trust(
    repo: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without namespaces and Landlock the error says the reason and the remedy."""
    unconfined = (
        "import sys; sys.path.insert(0, sys.argv[1]); from ramet.isolation.git.sandbox import launcher, confinement; "
        "from ramet.isolation.linux import landlock; landlock.abi = lambda: 0; "
        "confinement.attempts = lambda: (confinement._without_namespaces,); launcher.main()"
    )
    monkeypatch.setattr(git_module, "_LAUNCHER", unconfined)

    with pytest.raises(NoWorktree, match=r"cannot be confined on this machine: .*Landlock.*ramet trust DIR"):
        await create(repo, "a")

    assert names(repo / ".ramet" / "worktrees") == []


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has sandboxes")
async def test_a_repository_that_names_too_many_programs_is_refused(repo: pathlib.Path) -> None:
    """A repository cannot make a command line or environment arbitrarily large."""
    text = "".join(f'[filter "f{number}"]\nclean = x\n' for number in range(3000))
    with (repo / ".git" / "config").open("a") as file:
        file.write(text)

    with pytest.raises(NoWorktree, match="names 3000 programs"):
        await create(repo, "a")


async def test_a_repository_that_includes_too_many_files_is_refused(repo: pathlib.Path) -> None:
    """Conditionally included files may include further ones, so their number is bounded."""
    entries = "".join(f'[includeIf "onbranch:b{number}"]\npath = {number}\n' for number in range(300))
    with (repo / ".git" / "config").open("a") as file:
        file.write(entries)

    with pytest.raises(NoWorktree, match="config: it includes more than 100 files"):
        await create(repo, "a")


async def test_a_conditional_include_changes_nothing_but_programs(repo: pathlib.Path, environ: dict[str, str]) -> None:
    """A setting of line ends in it does not count while the condition is false; a missing file is no error."""
    configure(environ, "core.autocrlf", "true")
    git(repo, "config", "--file", ".git/more", "core.autocrlf", "false")
    git(repo, "config", "includeIf.onbranch:other.path", "more")
    git(repo, "config", "includeIf.onbranch:another.path", "missing")

    child = await create(repo, "a", git=Git(environ=environ))

    assert (child.path / "a.txt").read_bytes() == b"one\r\n"
    assert await finish(child, git=Git(environ=environ)) is None


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="without namespaces nothing in a worktree can be hidden")
async def test_git_does_not_see_private_files_of_a_kernel_in_a_worktree(
    repo: pathlib.Path, environ: dict[str, str]
) -> None:
    """An agent may be a kernel; files that the project keeps in that folder are visible and unchanged."""
    (repo / ".ramet" / "agents").mkdir(parents=True)
    (repo / ".ramet" / "agents" / "one.md").write_text("text")
    git(repo, "add", "--force", ".ramet")
    git(repo, "commit", "--quiet", "-m", "agent")
    configure(environ, "filter.named.clean", f"test -e .ramet/operator-token && touch '{repo}/.git/seen'; cat")
    child = await create(repo, "a", git=Git(environ=environ))
    (child.path / ".ramet" / "operator-token").write_text("hidden")
    (child.path / "a.txt").write_text("two\n")
    os.utime(child.path / "a.txt", (1, 1))

    assert await finish(child, git=Git(environ=environ)) == child.path
    (child.path / "a.txt").write_text("one\n")
    assert await finish(child, git=Git(environ=environ)) is None
    assert not (repo / ".git" / "seen").exists()


async def test_a_transport_helper_does_not_run_in_a_trusted_repository(
    repo: pathlib.Path, environ: dict[str, str], tmp_path: pathlib.Path
) -> None:
    """A transport helper (`ext::`) is a command: git refuses it although the configuration allows it."""
    ran = tmp_path / "ran"
    git(repo, "config", "protocol.ext.allow", "always")
    git_path = find(repo)
    trusting = Git(environ=environ, trusts=lambda folder: True)

    with pytest.raises(NoWorktree, match="transport 'ext' not allowed"):
        await trusting(git_path, "fetch", f"ext::touch {ran}")

    assert not ran.exists()
