"""`ramet ask --agent codex`: a program of another maker answers, and its work is on a branch of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import acp_program
from tests.trips.kits.external import script
from tests.trips.kits.terminal import ramet

COMMAND = {"command": "make"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return an empty folder to work in."""
    made = tmp_path / "work"
    made.mkdir()
    return made


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """Return an environment in whose PATH a scripted program has the name of Codex's adapter."""
    program = tmp_path / "bin" / "codex-acp"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\n{Path(acp_program.__file__).read_text()}")
    program.chmod(0o755)
    return {"PATH": f"{program.parent}:{os.environ['PATH']}"}


def git(folder: Path, *args: str) -> str:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *args]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


async def test_its_work_is_a_branch_of_the_repository(folder: Path, env: dict[str, str]) -> None:
    """What it writes is committed in its clone, and fetched; the working tree stays as it is."""
    git(folder, "init", "-q")
    (folder / "a.txt").write_text("one\n")
    git(folder, "add", "a.txt")
    git(folder, "commit", "-qm", "one")
    prompt = script(["write", "note.txt", "hello"], ["say", "Written."])
    answer = await ramet("ask", prompt, "--agent", "codex", "--dir", str(folder), env=env)

    assert (answer.status, answer.out) == (0, "Written.\n"), answer.err
    (branch,) = git(folder, "branch", "--list", "ramet/*", "--format=%(refname:short)").split()
    assert f"git diff HEAD...{branch}" in answer.err
    assert git(folder, "show", f"{branch}:note.txt") == "hello"
    assert git(folder, "status", "--porcelain") == ""


async def test_without_a_repository_it_reads_the_folder_and_leaves_files_beside_it(
    folder: Path, env: dict[str, str]
) -> None:
    (folder / "a.txt").write_text("one\n")
    prompt = script(["read", str(folder / "a.txt")], ["write", "note.txt", "hello"])
    answer = await ramet("ask", prompt, "--agent", "codex", "--dir", str(folder), env=env)

    assert (answer.status, answer.out) == (0, "one\n"), answer.err
    assert not (folder / "note.txt").exists()


@pytest.mark.parametrize(("options", "said"), [((), "rejected"), (("--yes",), "allowed")])
async def test_what_it_asks_for_is_denied_where_nobody_can_answer(
    folder: Path, env: dict[str, str], options: tuple[str, ...], said: str
) -> None:
    prompt = script(["ask", "1", "Bash", COMMAND])
    answer = await ramet("ask", prompt, "--agent", "codex", "--dir", str(folder), *options, env=env)

    assert (answer.status, answer.out) == (0, f"{said}\n"), answer.err


async def test_a_program_that_is_not_installed_is_one_line(folder: Path) -> None:
    answer = await ramet("ask", "hi", "--agent", "gemini", "--dir", str(folder), env={"PATH": "/usr/bin:/bin"})

    assert (answer.status, answer.out) == (2, "")
    assert "gemini in PATH" in answer.err
    assert len(answer.err.splitlines()) == 1
