"""A repository that nobody trusts: none of its programs runs when ramet makes, looks at or removes a worktree."""

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
LIVES = [(user, vector) for user in USERS for vector in (BUILDERS if user == "me" else FEW)]


def as_user(user: str, *command: str) -> list[str]:
    """The command line that runs a command as that user, in an outer limit."""
    if user == "me":
        return list(command)
    outer = [*UNSHARED, sys.executable, "-I", str(HERE / "outer.py"), str(ORDINARY), *command]
    return [sys.executable, "-I", str(HERE / "no_namespaces.py"), *outer] if user == "bare" else outer


@pytest.fixture
def base() -> Iterator[pathlib.Path]:
    """A folder that any user may come to."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="ramet-repositories-", dir=OUTSIDE))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def played(user: str, *arguments: str) -> dict[str, Any]:
    """What ran in hostile repositories, as one user; see `tests.security.hostile_repositories`."""
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
def lives(user: str) -> dict[str, Any]:
    """What ran in hostile repositories, as one user."""
    return played(user, "", *(vector for other, vector in LIVES if other == user))


@pytest.mark.parametrize(("user", "vector"), LIVES)
def test_no_program_of_an_untrusted_repository_runs(user: str, vector: str) -> None:
    """Neither on the host nor in a sandbox, from the making of a worktree to its removal."""
    lived = lives(user)[vector]
    assert not lived["outside"], "it ran on the host"
    assert not lived["inside"], "it ran in a sandbox"
    if vector not in REFUSED:
        assert lived["refusals"] == [], "the repository can be worked with all the same"


@pytest.mark.parametrize("vector", BUILDERS)
def test_control_plain_git_runs_each_program(base: pathlib.Path, vector: str) -> None:
    """The positive control: each repository is really hostile."""
    made = BUILDERS[vector](base)

    live_unprotected(made)

    assert made.outside.exists()


async def test_ask_in_an_untrusted_repository_runs_nothing_of_it(base: pathlib.Path) -> None:
    """A project's agent type asks for a worktree; the command line, offline and without any trust given, makes one."""
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
def test_a_program_that_runs_nevertheless_reaches_nothing(user: str) -> None:
    """The sandbox alone, with the options removed: the filter runs, and can do none of what it tries."""
    found = played(user, "options", "burglar", *(("clean", "process") if user == "me" else ()))

    assert found["burglar"]["did"] == ["ran"]
    assert [name for name, each in found.items() if each["outside"]] == []
    assert all(each["inside"] for each in found.values()), "the control: without options each runs"


def test_options_alone_keep_every_program_from_running() -> None:
    """The options alone, with the sandbox removed. That each program is overridden shows in a sandbox, too."""
    found = played("me", "sandbox", *FEW)

    assert [name for name, each in found.items() if each["outside"] or each["inside"]] == []


def test_control_a_program_outside_of_a_sandbox_reaches_everything(base: pathlib.Path) -> None:
    """The positive control: each attempt of the filter works where nothing stands against it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        made = burglar(base, server.getsockname()[1])

        live_unprotected(made)

    expected = {"changed", "connected", "dated", "ran", "read", "signalled", "stole", "touched"}
    assert set(made.inside.read_text().split()) == expected


@pytest.mark.skipif(os.geteuid() != 0, reason="only root works for other owners")
async def test_root_does_not_own_what_git_makes_in_the_repository_of_another_user(base: pathlib.Path) -> None:
    """A root host works as the owner of the repository; the owner can go on with all of it."""
    made = plain(base, "owned")
    for path in (made.repo, *made.repo.rglob("*")):
        os.lchown(path, ORDINARY, ORDINARY)

    child = await worktree.create(made.repo, "child")

    owners = {path.lstat().st_uid for path in (made.repo, *made.repo.rglob("*"))}
    assert owners == {ORDINARY}
    assert await worktree.finish(child) is None
    assert {path.lstat().st_uid for path in made.repo.rglob("*")} == {ORDINARY}
