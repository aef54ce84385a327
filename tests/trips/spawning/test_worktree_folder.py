"""A child in a worktree has the folder of its parent as its root, and no higher one."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from ramet.host.session import Session
from ramet.models.scripted.model import ScriptedModel
from ramet.tools.spawn_request import SpawnRequest


@pytest.fixture
def service(tmp_path: Path) -> Path:
    """A folder of a repository with one commit."""
    folder = tmp_path / "service"
    folder.mkdir()
    (folder / "api.py").write_text("x = 1\n")
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    for words in (["init", "-q"], ["add", "."], [*identity, "commit", "-q", "-m", "one"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    return folder


@pytest.mark.skipif(shutil.which("git") is None, reason="there is no git here")
async def test_a_child_s_worktree_is_no_wider_than_its_parent_s_folder(service: Path) -> None:
    """A session works in a folder of a repository. Its child works in that folder's copy, not in the repository's."""
    async with Session(ScriptedModel({"": ["Done."]}), cwd=service) as session:
        child = await session.spawn(SpawnRequest(prompt="Go.", mode="fresh", isolation="worktree"))
        cwd = session.runtime.trees[session.handle("main").id].tree.register.runs[child.id].context.cwd
        await child.result()

    assert cwd.name == "service"
    assert cwd.is_relative_to(service.parent / ".ramet" / "worktrees")
