"""A run that writes to a folder of its user: what it made there, and what is said of it."""

from __future__ import annotations

import os
import pathlib
from typing import Any

import pytest

import ramet
from ramet.core.events import Notice
from ramet.core.policy.policy import Policy
from tests.trips.kits.isolated import backend, runtime

__all__ = ["backend", "runtime"]


def make(folder: str, names: list[str], link: str = "") -> None:
    """Make files, with the folders above them, and a link. "@" stands for the secret."""
    import pathlib

    for name in names:
        secret = pathlib.Path("/run/secrets/key").read_text() if "@" in name else ""
        file = pathlib.Path(folder, name.replace("@", secret))
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("made")
    if link:
        pathlib.Path(folder, link).symlink_to("elsewhere")


@pytest.fixture
def project(tmp_path: pathlib.Path) -> pathlib.Path:
    """Return a folder with a repository."""
    project = tmp_path.resolve() / "project"
    (project / ".git").mkdir(parents=True)
    (project / ".git" / "config").write_text("of the project")
    return project


async def notices_of(runtime: ramet.AgentRuntime, project: pathlib.Path, *args: Any, **policy: Any) -> list[str]:
    """Run `make` in the project, and return the texts of its notices."""
    policy = {"writable_mounts": [str(project)], **policy}
    handle = await runtime.start_agent(agent=make, args=(str(project), *args), policy=Policy(**policy))
    events = [event async for event in handle.events()]
    result = await handle.result()
    assert result.status == "completed", result.error
    return [event.text for event in events if isinstance(event, Notice)]


async def test_a_run_that_makes_no_repository_is_not_reported(
    runtime: ramet.AgentRuntime, project: pathlib.Path
) -> None:
    """Usual files make no notice."""
    assert await notices_of(runtime, project, ["src/main.py", "a/.vscode/tasks.json"]) == []
    assert (project / "src" / "main.py").read_text() == "made"


async def test_new_repositories_and_settings_are_reported_by_name(
    runtime: ramet.AgentRuntime, project: pathlib.Path
) -> None:
    """The notice names each new one, and none that was there before."""
    (notice,) = await notices_of(
        runtime, project, ["src/.git/config", ".envrc", "lib/HEAD", "lib/objects/1", "lib/refs/1"]
    )

    for name in ("src/.git", ".envrc", "lib"):
        assert repr(str(project / name)) in notice
    assert repr(str(project / ".git")) not in notice


async def test_a_link_in_place_of_a_repository_is_reported(runtime: ramet.AgentRuntime, project: pathlib.Path) -> None:
    """A folder that no later run may write to says why."""
    (notice,) = await notices_of(runtime, project, ["src/file"], "src/.git")

    assert "src/.git" in notice
    assert "symbolic link" in notice


async def test_a_report_is_bounded_and_shows_no_secret(runtime: ramet.AgentRuntime, project: pathlib.Path) -> None:
    """A guest chooses the names and their number."""
    secret = "-".join(("hunter2", "and", "more"))
    names = [f"{number}-@-{'x' * 200}/.git/config" for number in range(30)]

    (notice,) = await notices_of(runtime, project, names, secrets={"key": secret})

    assert "and 20 more" in notice
    assert len(notice) < 4000
    assert len([name for name in os.listdir(project) if secret in name]) == 30  # noqa: PTH208 - in the loop
    assert secret not in notice
