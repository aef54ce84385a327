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


def look_around(folder: str) -> dict[str, str]:
    """Try to change the state folder of the kernel, and write beside it."""
    import errno
    import pathlib

    top = pathlib.Path(folder)
    state = next(top.rglob(".ramet"))
    attempts: dict[str, Any] = {
        "file": lambda: (top / "file").write_text("made"),
        "own": lambda: pathlib.Path("own").write_text("made"),
        "read": lambda: (state / "journal.db").read_bytes(),
        "plant": lambda: (state / "journal.db").write_text("made"),
        "settings": lambda: (state / "settings.json").write_text("made"),
        "rename": lambda: state.rename(top / "renamed"),
        "rename above": lambda: state.parent.rename(f"{state.parent} (renamed)"),
    }
    outcomes = {"runs": " ".join(each.name for each in (state / "runs").iterdir())}
    for name, attempt in attempts.items():
        try:
            attempt()
            outcomes[name] = "done"
        except OSError as problem:
            outcomes[name] = errno.errorcode[problem.errno or 0]
    return outcomes


@pytest.mark.parametrize("mode", [0o755, 0o700])
async def test_a_project_around_the_kernels_own_folder_is_written_to(
    backend: Any, tmp_path: pathlib.Path, mode: int
) -> None:
    """The state folder stays the kernel's, at the top of the mount or below, also where only its user enters."""
    top = tmp_path / "top"
    (top / "project").mkdir(parents=True, mode=0o700)
    top.chmod(mode)
    async with ramet.AgentRuntime(working_dir=top / "project", backend=backend) as host:
        for folder in (top / "project", top):
            policy = Policy(writable_mounts=[str(folder)])
            result = await host.run_agent(agent=look_around, args=(str(folder),), policy=policy)
            assert result.status == "completed", result.error
            assert result.output.pop("runs") == result.session_id
            refused = {name: outcome for name, outcome in result.output.items() if outcome != "done"}
            assert set(result.output) - set(refused) == {"file", "own"}
            assert set(refused.values()) <= {"ENOENT", "EROFS", "EBUSY", "EACCES", "EXDEV"}
