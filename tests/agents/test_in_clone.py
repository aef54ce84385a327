"""The real programs in clones of a repository: what they write is one branch of it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import ramet
from ramet.core.outcome import Status
from tests.agents.scripts import SPEAKS_ACP, each, write_call
from tests.agents.test_in_tree import REPLY, agent_of, answering, asked, installed_programs, runtime
from tests.support.agent_programs import Program
from tests.trips.kits.forwarding import host_key

__all__ = ["host_key", "installed_programs", "runtime"]

pytestmark = pytest.mark.usefixtures("host_key")


def git(folder: Path, *args: str) -> str:
    """Run git in a folder without a user's settings."""
    names = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    return subprocess.run(["git", *names, *args], cwd=folder, check=True, capture_output=True, text=True).stdout


def start_repository(folder: Path) -> None:
    """Create a repository with one commit."""
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "a.txt").write_text("as it was\n")
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")


@each(SPEAKS_ACP)
async def test_what_it_writes_is_a_branch_and_its_home_is_not(
    program: Program, runtime: ramet.AgentRuntime, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It works in the folder of its clone; the user's files are as before."""
    start_repository(tmp_path / "repo")
    agent = agent_of(program).replace(isolation="worktree")
    async with asked(monkeypatch, write=[write_call(program.name, Path("note.txt"), "hello"), REPLY]):
        handle = await runtime.start_agent(
            agent, prompt="Please [write].", cwd=tmp_path / "repo" / "src", limits=ramet.Limits(usd=5, seconds=300)
        )
        async with answering(runtime, handle, allowed=True):
            result = await handle.result()

    assert result.status is Status.COMPLETED, (result.error, result.stderr)
    changed = git(tmp_path / "repo", "diff", "--name-only", f"HEAD...{result.branch}").split()
    assert (changed, result.artifacts) == (["src/note.txt"], ())
    assert git(tmp_path / "repo", "status", "--porcelain") == ""
