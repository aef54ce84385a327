"""`ramet init`: what it writes works as it is, and nothing is overwritten."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

from ramet.cli.main import main

FILES = [".ramet/.gitignore", ".ramet/agents/writer-helper.md", "test_word_agent.py", "word_agent.py"]


def files(folder: pathlib.Path) -> list[str]:
    """Return the files below a folder."""
    return sorted(str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_symlink() or not each.is_dir())


def test_what_it_writes_passes_its_own_test(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The files are run with pytest, unchanged; version control sees the agent and no record of a run."""
    project = tmp_path / "new" / "project"

    assert main(["init", str(project)]) == 0
    out = capsys.readouterr().out
    assert files(project) == FILES
    assert all(each in out for each in FILES[1:])
    assert f"cd {project}" in out
    assert main(["agents", "check", "--dir", str(project)]) == 0
    (project / ".ramet" / "a-record-of-a-run").touch()
    subprocess.run(["git", "init", "-q", str(project)], check=True)
    listed = subprocess.run(
        ["git", "-C", str(project), "status", "--short", "-uall"], check=True, capture_output=True, text=True
    )
    assert [line.split()[1] for line in listed.stdout.splitlines()] == FILES
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:schemathesis", "--rootdir", "."]
    done = subprocess.run(words, check=False, cwd=project, capture_output=True, text=True)
    assert (done.returncode, "1 passed" in done.stdout) == (0, True), done.stdout


def test_a_file_that_exists_stays_and_nothing_is_written(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error names the file. A link in place of a file counts as one."""
    (tmp_path / "word_agent.py").write_text("mine\n")
    (tmp_path / "test_word_agent.py").symlink_to(tmp_path / "elsewhere.py")

    assert main(["init", str(tmp_path)]) == 2

    err = capsys.readouterr().err
    assert "a folder without word_agent.py, test_word_agent.py: nothing is overwritten" in err
    assert err.count("\n") == 1
    assert files(tmp_path) == ["test_word_agent.py", "word_agent.py"]
    assert (tmp_path / "word_agent.py").read_text() == "mine\n"


@pytest.mark.parametrize("link", [".ramet", ".ramet/agents"])
def test_no_link_is_followed_out_of_the_folder(
    tmp_path: pathlib.Path, link: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder that is a link is refused, and nothing is written on either side."""
    project, outside = tmp_path / "project", tmp_path / "outside"
    outside.mkdir()
    (project / link).parent.mkdir(parents=True)
    (project / link).symlink_to(outside)

    assert main(["init", str(project)]) == 2

    assert capsys.readouterr().err.startswith("ramet: ")
    assert files(project) == [link]
    assert files(outside) == []


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file in place of the folder is named."""
    (tmp_path / "file").touch()

    assert main(["init", str(tmp_path / "file" / "project")]) == 2
    err = capsys.readouterr().err
    assert err.startswith("ramet: DIR: ")
    assert err.count("\n") == 1
