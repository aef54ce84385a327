"""Hostile clones: whatever a run did to its clone, its end runs no program, reads no secret, and adds one branch.

Attacks on the repository that a clone is made from are in `test_hostile_repository`.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple

import pytest

from ramet.isolation.git import clone as clones
from ramet.isolation.git.clone import Clone
from ramet.isolation.git.clone_end import Branch, finish
from ramet.isolation.git.git import Git, NoWorktree
from tests.security.hostile_repositories import BUILDERS, git, plain

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")

MAX_BYTES = 8 << 20
SECRET = "the user's secret"
HOOKS = ("pre-commit", "post-commit", "post-index-change", "reference-transaction", "pre-auto-gc", "post-checkout")


class Made(NamedTuple):
    """A clone with an uncommitted change, the user's repository, and files that no attack may make or read."""

    clone: Clone
    workspace: pathlib.Path
    repo: pathlib.Path
    outside: pathlib.Path  #: a canary
    private: pathlib.Path  #: another repository of the user's, with a secret

    @property
    def top(self) -> pathlib.Path:
        """Return the clone's top."""
        return self.clone.folder(self.workspace)

    @property
    def command(self) -> str:
        """Return a shell command that makes both canaries."""
        return f"touch '{self.top}/.git/canary' '{self.outside}'"


@pytest.fixture
async def made(tmp_path: pathlib.Path) -> Made:
    base = tmp_path.resolve()  # noqa: ASYNC240 - a test
    user = plain(base, "user", attributes="")
    private = plain(base, "private", attributes="")
    (private.repo / "a.txt").write_text(SECRET)
    git(private.repo, "commit", "--quiet", "-am", "secret")
    workspace = base / "run" / "workspace"
    workspace.mkdir(parents=True)
    clone = await clones.plan(user.repo, "coder", git=Git(trusts=lambda folder: True), mint=lambda: "1f")
    await clones.create(clone, workspace, owner=None, max_bytes=MAX_BYTES)
    (clone.folder(workspace) / "a.txt").write_text("two\n")
    return Made(clone, workspace, user.repo, base / "outside", private.repo)


def hooks(made: Made) -> None:
    """Put a program at the place of every hook."""
    (made.top / ".git" / "hooks").mkdir()
    for name in HOOKS:
        hook = made.top / ".git" / "hooks" / name
        hook.write_text(f"#!/bin/sh\n{made.command}\n")
        hook.chmod(0o755)


def programs(made: Made) -> None:
    """Name programs in the configuration that git might run."""
    (made.top / ".gitattributes").write_text("* filter=evil diff=evil merge=evil\n")
    for key in (
        "filter.evil.clean",
        "filter.evil.smudge",
        "filter.evil.process",
        "core.fsmonitor",
        "core.pager",
        "core.editor",
        "core.sshCommand",
        "diff.external",
        "diff.evil.textconv",
        "gpg.program",
        "alias.add",
        "uploadpack.packObjectsHook",
        "core.alternateRefsCommand",
    ):
        git(made.top, "config", key, f"{made.command}; cat")
    git(made.top, "config", "commit.gpgSign", "true")


def included(made: Made) -> None:
    """Name a program in a file that the configuration includes under a condition."""
    git(made.top, "config", "--file", ".git/more", "core.fsmonitor", f"{made.command}; echo")
    git(made.top, "config", "includeIf.gitdir:/.path", "more")


def own_submodule(made: Made) -> None:
    """Add a submodule with programs of its own."""
    git(made.top, "clone", "--quiet", str(made.private), "sub")
    git(made.top / "sub", "config", "core.fsmonitor", f"{made.command}; echo")
    link = git(made.top / "sub", "rev-parse", "HEAD")
    git(made.top, "update-index", "--add", "--cacheinfo", f"160000,{link},sub")


def foreign_tree(made: Made) -> None:
    """Name the user's folder as the working tree."""
    git(made.top, "config", "core.worktree", str(made.private))


def link_to_file(made: Made) -> None:
    """Put links to a secret among the files."""
    (made.top / "stolen").symlink_to(made.private / "a.txt")
    (made.top / "folder").symlink_to(made.private)


def objects_of_others(made: Made) -> None:
    """Borrow the objects of another repository, whose ids are known."""
    info = made.top / ".git" / "objects" / "info"
    (info / "alternates").write_text(f"{made.private}/.git/objects\n")
    (made.top / ".git" / "refs" / "heads" / "ramet" / "coder-1f").write_text(
        f"{git(made.private, 'rev-parse', 'HEAD')}\n"
    )


def link_of_objects(made: Made) -> None:
    """Put a link to the objects of another repository in the place of the clone's own."""
    shutil.rmtree(made.top / ".git" / "objects")
    (made.top / ".git" / "objects").symlink_to(made.private / ".git" / "objects")
    (made.top / ".git" / "refs" / "heads" / "ramet" / "coder-1f").write_text(
        f"{git(made.private, 'rev-parse', 'HEAD')}\n"
    )


def link_of_repository(made: Made) -> None:
    """Put a link to another repository in the place of the clone's own."""
    shutil.rmtree(made.top / ".git")
    (made.top / ".git").symlink_to(made.private / ".git")


def pointer_to_repository(made: Made) -> None:
    """Name another repository in a file in the place of the clone's own."""
    shutil.rmtree(made.top / ".git")
    (made.top / ".git").write_text(f"gitdir: {made.private}/.git\n")


def common_folder(made: Made) -> None:
    """Name the folder of another repository as the common one."""
    (made.top / ".git" / "commondir").write_text(f"{made.private}/.git\n")


def link_of_clone(made: Made) -> None:
    """Put a link to another checkout in the place of the whole clone."""
    shutil.rmtree(made.top)
    made.top.symlink_to(made.private)


def link_of_head(made: Made) -> None:
    """Put a link to a file in the place of HEAD."""
    (made.top / ".git" / "HEAD").unlink()
    (made.top / ".git" / "HEAD").symlink_to(made.private / ".git" / "refs" / "heads" / "main")


def head_elsewhere(made: Made) -> None:
    """Let HEAD stand for a file that is no reference."""
    (made.top / ".git" / "HEAD").write_text("ref: ../../../private/a.txt\n")


def pipe_as_config(made: Made) -> None:
    """Put a pipe in the place of the configuration."""
    (made.top / ".git" / "config").unlink()
    os.mkfifo(made.top / ".git" / "config")


def pipe_as_ignore_file(made: Made) -> None:
    """Put a pipe in the place of a file that git reads in every folder."""
    (made.top / "deep").mkdir()
    os.mkfifo(made.top / "deep" / ".gitignore")


def pipe_as_shallow_file(made: Made) -> None:
    """Put a pipe in the place of the file with the ends of the history."""
    os.mkfifo(made.top / ".git" / "shallow")


def odd_references(made: Made) -> None:
    """Make branches, tags and replacements that must not travel."""
    for name in ("refs/heads/main", "refs/tags/v1", "refs/heads/-x", "refs/remotes/origin/HEAD", "refs/notes/commits"):
        git(made.top, "update-ref", name, "HEAD")


def cut_history(made: Made) -> None:
    """Say that the history ends at the run's own second commit, so that its first one need not travel."""
    git(made.top, "commit", "--quiet", "--allow-empty", "-m", "first")
    git(made.top, "commit", "--quiet", "--allow-empty", "-m", "more")
    (made.top / ".git" / "shallow").write_text(f"{git(made.top, 'rev-parse', 'HEAD')}\n")


def missing_objects(made: Made) -> None:
    """Commit a file whose content does not exist."""
    tree = subprocess.run(
        ["git", "mktree", "--missing"],
        cwd=made.top,
        input=f"100644 blob {'1' * 40}\tgone.txt\n",
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    git(made.top, "reset", "--quiet", "--soft", git(made.top, "commit-tree", "-p", "HEAD", "-m", "gone", tree))


def repository_in_tree(made: Made) -> None:
    """Commit a folder `.git` with a hook, which a checkout would write."""
    blob = git(made.top, "hash-object", "-w", "a.txt")
    entries = f"100755 {'post-checkout'}\0".encode() + bytes.fromhex(blob)
    inner = _write(made.top, "tree", entries)
    tree = _write(made.top, "tree", b"40000 .git\0" + bytes.fromhex(inner))
    git(made.top, "reset", "--quiet", "--soft", git(made.top, "commit-tree", "-p", "HEAD", "-m", "evil", tree))


def evil_modules(made: Made) -> None:
    """Commit a submodule whose address is an option."""
    (made.top / ".gitmodules").write_text('[submodule "x"]\n\tpath = x\n\turl = -u./payload\n')
    git(made.top, "add", ".gitmodules")
    git(made.top, "commit", "--quiet", "-m", "modules")


def false_object(made: Made) -> None:
    """Commit a file whose object holds other content than its id says."""
    git(made.top, "commit", "--quiet", "-am", "two")
    blob = git(made.top, "rev-parse", "HEAD:a.txt")
    (made.top / "other.txt").write_text("other\n")
    other = git(made.top, "hash-object", "-w", "other.txt")
    objects = made.top / ".git" / "objects"
    (objects / blob[:2] / blob[2:]).unlink()
    shutil.copyfile(objects / other[:2] / other[2:], objects / blob[:2] / blob[2:])
    (made.top / "other.txt").unlink()
    (made.top / "a.txt").write_text("three\n")


def many_bytes(made: Made) -> None:
    """Commit more than the limit allows."""
    for number in range(3):
        (made.top / f"{number}.bin").write_bytes(os.urandom(MAX_BYTES // 2))
    git(made.top, "add", ".")
    git(made.top, "commit", "--quiet", "-m", "large")


def _write(repo: pathlib.Path, kind: str, content: bytes) -> str:
    command = ["git", "hash-object", "-t", kind, "-w", "--stdin", "--literally"]
    return subprocess.run(command, cwd=repo, input=content, capture_output=True, check=True).stdout.decode().strip()


#: Each attack, and whether the work of the run is refused: the attack destroyed it, or it is what must not arrive.
ATTACKS: dict[Callable[[Made], None], bool] = {
    hooks: False,
    programs: False,
    included: False,
    own_submodule: False,
    foreign_tree: False,
    link_to_file: False,
    odd_references: False,
    objects_of_others: True,
    link_of_objects: True,
    link_of_repository: True,
    pointer_to_repository: True,
    common_folder: True,
    link_of_clone: True,
    link_of_head: True,
    head_elsewhere: True,
    pipe_as_config: True,
    pipe_as_ignore_file: True,
    pipe_as_shallow_file: True,
    cut_history: True,
    missing_objects: True,
    repository_in_tree: True,
    evil_modules: True,
    false_object: True,
    many_bytes: True,
}


def content_of(repo: pathlib.Path) -> str:
    """Return every object of a repository."""
    command = ["git", "cat-file", "--batch-all-objects", "--batch"]
    return subprocess.run(command, cwd=repo, capture_output=True, check=True).stdout.decode(errors="replace")


def state_of(repo: pathlib.Path) -> dict[str, bytes]:
    """Return every file of a checkout except objects, the one branch, and ramet's lock."""
    return {
        str(path): path.read_bytes()
        for path in repo.rglob("*")
        if path.is_file() and not {"objects", "ramet", "ramet-worktrees.lock"} & set(path.parts[len(repo.parts) :])
    }


async def end_of(made: Made) -> Branch | None:
    """End the run; None if its work was refused."""
    try:
        return await finish(made.clone, made.workspace, begun=datetime.now(UTC), max_bytes=MAX_BYTES)
    except (NoWorktree, OSError):
        return None


@pytest.mark.parametrize("attack", ATTACKS)
async def test_a_hostile_clone_gets_at_most_one_branch(made: Made, attack: Callable[[Made], None]) -> None:
    """No program runs, no secret is read, and the user's repository has at most its objects and one more branch."""
    states = state_of(made.repo), state_of(made.private)
    attack(made)

    branch = await end_of(made)

    assert (branch is None) == ATTACKS[attack]
    assert not made.outside.exists(), "it ran on the host"
    assert not (made.top / ".git" / "canary").exists(), "it ran in git's sandbox"
    assert (state_of(made.repo), state_of(made.private)) == states
    refs = git(made.repo, "for-each-ref", "--format=%(refname)").split()
    assert refs == ["refs/heads/main"] + ["refs/heads/ramet/coder-1f"] * (branch is not None)
    assert SECRET not in content_of(made.repo)
    git(made.repo, "fsck", "--strict", "--connectivity-only")
    assert [path.name for path in made.workspace.parent.iterdir()] == ["workspace"]


async def test_control_without_an_attack_the_work_arrives(made: Made) -> None:
    """Positive control: the change is on the branch."""
    branch = await end_of(made)

    assert branch is not None
    assert git(made.repo, "show", f"{branch.name}:a.txt") == "two"


async def test_a_link_arrives_as_a_link(made: Made) -> None:
    """The branch holds where a link leads, not what is there."""
    link_to_file(made)

    branch = await end_of(made)

    assert branch is not None
    assert git(made.repo, "cat-file", "blob", f"{branch.name}:stolen") == str(made.private / "a.txt")


async def test_names_that_are_no_text_arrive(made: Made) -> None:
    """A file's name is bytes for git, also where a repository is inside it."""
    name = os.fsdecode(b"\xff\x1b[31m")
    (made.top / name).write_text("odd")
    git(made.top, "init", "--quiet", f"inner{name}")

    branch = await end_of(made)

    assert branch is not None
    assert branch.left_out == f"the repositories inside it: inner{name}"
    names = git(made.repo, "-c", "core.quotePath=true", "ls-tree", "--name-only", branch.name).split()
    assert '"\\377\\033[31m"' in names


@pytest.mark.parametrize("vector", [name for name in BUILDERS if name not in ("embedded", "promisor")])
async def test_a_hostile_source_runs_nothing(tmp_path: pathlib.Path, vector: str) -> None:
    """Programs of the repository that is cloned run neither when the clone is made nor at its end, trusted or not."""
    source = BUILDERS[vector](tmp_path.resolve())  # noqa: ASYNC240 - a test
    workspace = tmp_path / "run" / "workspace"
    workspace.mkdir(parents=True)
    clone = await clones.plan(source.folder, "coder", git=Git(trusts=lambda folder: True))
    await clones.create(clone, workspace, owner=None, max_bytes=MAX_BYTES)
    (clone.folder(workspace) / "a.txt").write_text("two\n")

    assert await finish(clone, workspace, begun=datetime.now(UTC), max_bytes=MAX_BYTES) is not None

    assert not source.outside.exists(), "it ran on the host"
    assert not source.inside.exists(), "it ran in git's sandbox"
