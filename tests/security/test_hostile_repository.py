"""Programs of an untrusted repository do not run when ramet makes, reads or removes a worktree."""

from __future__ import annotations

import functools
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest

from ramet.isolation.git import worktree
from tests.security.hostile_repositories import BUILDERS, burglar, git, live_unprotected, plain
from tests.security.kit import HANG_S, HERE, ORDINARY, OUTSIDE, PROJECT, UNSHARED
from tests.trips.kits.terminal import ramet

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")

#: No worktree can be had there: the folder is no checkout, or files would have to be fetched.
REFUSED = ("embedded", "promisor")
#: This user; one who owns nothing else; one who, besides, may not make namespaces.
USERS = ("me", "ordinary", "bare")
#: What is tried as other users than this one: a filter of each step, and one that is hidden when programs are listed.
FEW = ("smudge", "clean", "included_if")
USER_VECTORS = [(user, vector) for user in USERS for vector in (BUILDERS if user == "me" else FEW)]


def as_user(user: str, *command: str) -> list[str]:
    """Return the command line that runs a command as that user, in an outer limit."""
    if user == "me":
        return list(command)
    outer = [*UNSHARED, sys.executable, "-I", str(HERE / "outer.py"), str(ORDINARY), *command]
    return [sys.executable, "-I", str(HERE / "no_namespaces.py"), *outer] if user == "bare" else outer


@pytest.fixture
def base() -> Iterator[pathlib.Path]:
    """Make a folder that any user may enter."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="ramet-repositories-", dir=OUTSIDE))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def play_repositories(user: str, *arguments: str) -> dict[str, Any]:
    """Run `tests.security.hostile_repositories` as one user, and return what ran in each repository."""
    if user != "me" and os.geteuid() != 0:
        pytest.skip("only root can become another user; 'me' is an ordinary one already")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="ramet-repositories-", dir=OUTSIDE))
    folder.chmod(0o755)
    if user != "me":
        os.chown(folder, ORDINARY, ORDINARY)
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": str(PROJECT)}
    program = [sys.executable, "-m", "tests.security.hostile_repositories", str(folder), *arguments]
    done = subprocess.run(as_user(user, *program), cwd=PROJECT, env=env, capture_output=True, timeout=4 * HANG_S)
    shutil.rmtree(folder)
    assert done.returncode == 0, done.stderr.decode()
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@functools.cache
def protected_runs(user: str) -> dict[str, Any]:
    """Return what ran in hostile repositories with every layer in place, as one user."""
    return play_repositories(user, "", *(vector for other, vector in USER_VECTORS if other == user))


@pytest.mark.parametrize(("user", "vector"), USER_VECTORS)
def test_no_program_of_an_untrusted_repository_runs(user: str, vector: str) -> None:
    """Programs of a repository run neither on the host nor in a sandbox during the life of a worktree."""
    lived = protected_runs(user)[vector]
    assert not lived["outside"], "it ran on the host"
    assert not lived["inside"], "it ran in a sandbox"
    if vector not in REFUSED:
        assert lived["refusals"] == [], "the repository can be worked with all the same"


@pytest.mark.parametrize("vector", BUILDERS)
def test_control_plain_git_runs_each_program(base: pathlib.Path, vector: str) -> None:
    """Positive control: plain git runs the program of each repository."""
    made = BUILDERS[vector](base)

    live_unprotected(made)

    assert made.outside.exists()


async def test_ask_in_an_untrusted_repository_runs_none_of_its_programs(base: pathlib.Path) -> None:
    """`ramet ask` starts an agent type that asks for a worktree, and runs no filter of the repository."""
    made = plain(base, "project", attributes="* filter=evil\n")
    for name, text in {
        ".claude/agents/explore.md": "---\nname: explore\ndescription: Look\nisolation: worktree\n---\nLook.\n",
        "logs/app.log": "ERROR: timeout\n",
    }.items():
        (made.repo / name).parent.mkdir(parents=True, exist_ok=True)
        (made.repo / name).write_text(text)
    git(made.repo, "add", ".")
    git(made.repo, "commit", "--quiet", "-m", "agents")
    for step in ("smudge", "clean"):
        git(made.repo, "config", f"filter.evil.{step}", f"{made.command}; cat")

    done = await ramet("ask", "Why the timeout?", "--dir", str(made.repo), env={"HOME": str(base)})

    assert done.status == 0, done.err
    assert "started explore" in done.err
    assert not made.outside.exists(), "it ran on the host"
    assert not made.inside.exists(), "it ran in a sandbox"


@pytest.mark.parametrize("user", USERS)
def test_a_program_in_the_sandbox_of_git_reaches_nothing(user: str) -> None:
    """The sandbox alone, without the options of git, lets the filter run, and stops each of its attempts."""
    found = play_repositories(user, "options", "burglar", *(("clean", "process") if user == "me" else ()))

    assert found["burglar"]["did"] == ["ran"]
    assert [name for name, each in found.items() if each["outside"]] == []
    assert all(each["inside"] for each in found.values()), "the control: without options each runs"


def test_the_options_of_git_alone_stop_every_program() -> None:
    """The options alone, without the sandbox, keep each program from running."""
    found = play_repositories("me", "sandbox", *FEW)

    assert [name for name, each in found.items() if each["outside"] or each["inside"]] == []


def test_control_a_program_outside_of_a_sandbox_does_each_attempt(base: pathlib.Path) -> None:
    """Positive control: each attempt of the filter works without a sandbox."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        made = burglar(base, server.getsockname()[1])

        live_unprotected(made)

    expected = {"changed", "connected", "dated", "ran", "read", "signalled", "stole", "touched"}
    assert set(made.inside.read_text().split()) == expected


@pytest.mark.skipif(os.geteuid() != 0, reason="only root works for other owners")
async def test_root_owns_no_file_that_git_makes_for_another_user(base: pathlib.Path) -> None:
    """A root host works as the owner of the repository, so that the owner owns each file."""
    made = plain(base, "owned")
    for path in (made.repo, *made.repo.rglob("*")):
        os.lchown(path, ORDINARY, ORDINARY)

    child = await worktree.create(made.repo, "child")

    owners = {path.lstat().st_uid for path in (made.repo, *made.repo.rglob("*"))}
    assert owners == {ORDINARY}
    assert await worktree.finish(child) is None
    assert {path.lstat().st_uid for path in made.repo.rglob("*")} == {ORDINARY}
