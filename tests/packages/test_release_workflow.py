"""The workflow of releases runs on tags alone, with few rights and no secret, and trusts no file by its name."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

TEXT = (Path(__file__).parents[2] / ".github" / "workflows" / "release.yml").read_text()
WORKFLOW: dict[Any, Any] = yaml.safe_load(TEXT)
JOBS: dict[str, dict[str, Any]] = WORKFLOW["jobs"]
PINNED = re.compile(r"[\w./-]+@[0-9a-f]{40}")
IMAGE = f"python@sha256:{'0' * 64}"


def steps() -> Iterator[dict[str, Any]]:
    """Yield the steps of all jobs."""
    for job in JOBS.values():
        yield from job["steps"]


def script(job: str, name: str) -> str:
    """Return the script of a step, by the beginning of the step's name."""
    (found,) = [each["run"] for each in JOBS[job]["steps"] if each.get("name", "").startswith(name)]
    return str(found)


def run(text: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script as a runner does, in a folder."""
    env = {"PATH": os.environ["PATH"], "RUNNER_TEMP": str(folder.parent), **environment}
    return subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", text], cwd=folder, env=env, capture_output=True, text=True, check=False
    )


def test_a_release_runs_on_tags_with_no_more_rights_than_its_jobs_need() -> None:
    """Only `publish` and `image` may prove who they are, and neither builds the packages."""
    assert WORKFLOW[True] == {"push": {"tags": ["v[0-9]*"]}}  # YAML reads `on` as true.
    assert WORKFLOW["permissions"] == {}
    assert {name: job["permissions"] for name, job in JOBS.items()} == {
        "settings": {},
        "test": {"contents": "read"},
        "build": {"contents": "read"},
        "check": {"contents": "read"},
        "publish": {"id-token": "write"},
        "image": {"attestations": "write", "contents": "read", "id-token": "write", "packages": "write"},
    }
    assert "secrets." not in TEXT
    assert JOBS["publish"]["environment"]
    assert set(JOBS["publish"]["needs"]) == {"test", "build", "check"}
    assert all("settings" in str(JOBS[each]["needs"]) for each in ("test", "build"))
    assert all(0 < job["timeout-minutes"] <= 120 for job in JOBS.values())


def test_code_of_others_is_pinned_and_no_script_has_a_value_in_its_text() -> None:
    """Actions are pinned by commit, images by a digest; `${{ }}` in a script would run a tag's name as code."""
    used = [each["uses"] for each in steps() if "uses" in each]
    assert used
    assert [each for each in used if not PINNED.fullmatch(each)] == []
    assert {job["container"]["image"] for job in JOBS.values() if "container" in job} == {"${{ vars.CI_IMAGE }}"}
    assert [each["run"] for each in steps() if "${{" in each.get("run", "")] == []
    assert "://" not in TEXT
    assert [each["uses"] for each in JOBS["publish"]["steps"] if "uses" in each][1].startswith("pypa/")


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({}, ""),
        ({"CI_IMAGE": ""}, "the variable CI_IMAGE"),
        ({"IMAGE_BASE": "python:3.13-slim"}, "the variable IMAGE_BASE"),
        ({"IMAGE": "ramet"}, "the variable IMAGE"),
    ],
)
def test_a_release_without_the_settings_of_its_repository_fails_at_once(
    changed: dict[str, str], problem: str, tmp_path: Path
) -> None:
    """Settings that a commit cannot hold are variables, and an image without a digest is refused."""
    given = {"CI_IMAGE": IMAGE, "IMAGE_BASE": IMAGE, "IMAGE": "registry.example/team/ramet", **changed}

    result = run(script("settings", "Refuse"), tmp_path, **given)

    assert (result.returncode, problem in result.stderr) == (1 if problem else 0, True)


def test_only_the_files_that_were_built_are_checked_and_published(tmp_path: Path) -> None:
    """A file with another content, or one more, stops the job."""
    take = script("publish", "Take")
    assert take == script("check", "Take")
    dist = tmp_path / "dist"
    dist.mkdir()
    (dist / "a.whl").write_bytes(b"wheel")
    (dist / "a.tar.gz").write_bytes(b"sdist")
    assert run(f"cd ..\n{script('build', 'Note')}", dist, GITHUB_OUTPUT=str(tmp_path / "output")).returncode == 0
    hashes = (tmp_path / "output").read_text().strip().removeprefix("hashes=")
    assert hashlib.sha256(b"wheel").hexdigest() in base64.b64decode(hashes).decode()
    assert run(take, tmp_path, HASHES=hashes, RUNNER_TEMP=str(tmp_path)).returncode == 0

    assert run(take, tmp_path, HASHES="", RUNNER_TEMP=str(tmp_path)).returncode != 0
    (dist / "b.whl").touch()
    assert run(take, tmp_path, HASHES=hashes, RUNNER_TEMP=str(tmp_path)).returncode != 0
    (dist / "b.whl").unlink()
    (dist / "a.whl").write_bytes(b"whale")
    assert run(take, tmp_path, HASHES=hashes, RUNNER_TEMP=str(tmp_path)).returncode != 0
