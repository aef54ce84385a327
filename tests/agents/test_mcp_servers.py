"""MCP servers of other makers, from npm and PyPI, as `ramet mcp install` installed them: each does its work."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sqlite3
import subprocess
from pathlib import Path

import pytest

import ramet
from ramet.agent.files.mcp_file import read_server_file
from ramet.models.scripted.dialogue import Call
from tests.support.agent_programs import INSTALLED, MCP_PROJECT, MCP_SERVERS, node
from tests.support.waiting import eventually

PACKAGES = INSTALLED / MCP_SERVERS
NAMES = {"files", "git", "sqlite", "fast"}


def server_processes() -> set[str]:
    """Return the names of the installed packages that processes run."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            text = (process / "cmdline").read_bytes().decode(errors="replace")
            found |= {each for each in installed_folders() if each in text}
    return found


def installed_folders() -> set[str]:
    return {each.name for each in (PACKAGES / "ramet" / "mcp").iterdir()}


FAST_SERVER = """
import pathlib
from fastmcp import FastMCP

mcp = FastMCP("fast")

@mcp.tool
def note(text: str) -> str:
    (pathlib.Path(__file__).parent / "note.txt").write_text(text)
    return f"{len(text)} characters"
"""


def git(repository: Path, *words: str) -> str:
    """Run git in a repository of any owner, and return what it printed."""
    command = ["git", "-c", "safe.directory=*", "-C", str(repository), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.agents(MCP_SERVERS)
async def test_servers_of_npm_and_pypi_work_in_one_sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers of both eras of the protocol change files that the agent may change, and end with its turn."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(PACKAGES))
    monkeypatch.setenv("PATH", f"{node().parent}:/usr/bin:/bin")
    project, shared = tmp_path / "project", tmp_path / "shared"
    shutil.copytree(MCP_PROJECT, project)
    shared.mkdir(mode=0o777)
    shared.chmod(0o777)
    (shared / "fast_server.py").write_text(FAST_SERVER)
    (shared / "repo").mkdir()
    git(shared / "repo", "init", "-q", "-b", "main")
    git(shared / "repo", "-c", "user.name=x", "-c", "user.email=x@y", "commit", "-q", "--allow-empty", "-m", "By hand")
    for path in shared.rglob("*"):
        path.chmod(0o777)
    repo = {"repo_path": str(shared / "repo")}
    model = ramet.ScriptedModel(
        script={
            "Begin!": [Call("Agent", {"subagent_type": "user", "prompt": "Play."}), "Done."],
            "Play.": [
                Call("mcp__files__write_file", {"path": str(shared / "repo" / "a.txt"), "content": "by files"}),
                Call("mcp__git__git_log", repo),
                Call("mcp__git__git_create_branch", {**repo, "branch_name": "other"}),
                Call("mcp__sqlite__create_table", {"query": "CREATE TABLE notes (text TEXT)"}),
                Call("mcp__sqlite__write_query", {"query": "INSERT INTO notes VALUES ('by sqlite')"}),
                Call("mcp__fast__note", {"text": "by fast"}),
                Call("mcp__files__read_text_file", {"path": "/etc/shadow"}),
                "Played.",
            ],
        }
    )
    user = ramet.Agent(
        name="user",
        description="Uses servers",
        mcp=list(read_server_file(project).servers.values()),
        tools=None,
        policy=ramet.Policy(
            memory_mb=4096,
            pids=256,
            writable_mounts=(str(shared),),
            env_vars={"SHARED": str(shared)},
        ),
    )
    async with ramet.Session(model, agents=[user], cwd=project, backend="bwrap", unattended=True) as session:
        asking = asyncio.create_task(session.ask("Begin!"))
        await eventually(lambda: server_processes() == installed_folders() or asking.done(), within_s=100)
        seen = server_processes()
        await asking
        await eventually(lambda: not server_processes(), within_s=10)
        history = session.handle("main/1").run.context.history
        answers = [each.text for each in history if each.type == "tool"]

    assert (shared / "repo" / "a.txt").read_text() == "by files", answers
    assert "By hand" in answers[1]
    assert git(shared / "repo", "branch", "--list").split() == ["*", "main"], "a sandbox changes no .git"
    with contextlib.closing(sqlite3.connect(shared / "notes.db")) as database:
        assert database.execute("SELECT text FROM notes").fetchall() == [("by sqlite",)], answers
    assert (shared / "note.txt").read_text() == "by fast", answers
    assert "Access denied" in answers[-1]
    assert len(seen) == len(NAMES), "each server ran, and was seen"
