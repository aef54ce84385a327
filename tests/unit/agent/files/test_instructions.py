"""AGENTS.md files from the project's root to the working directory, the nearest last."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ramet.agent.files.instructions import MAX_FILE, MAX_TOTAL, load_instructions, project_root
from ramet.core.errors import InvalidValue


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """A project with a `.git` and two nested folders; the file above it must not be read."""
    path = tmp_path / "repo"
    (path / ".git").mkdir(parents=True)
    (path / "a" / "b").mkdir(parents=True)
    (tmp_path / "AGENTS.md").write_text("ABOVE")
    return path


def test_without_files_there_is_no_text(repo: Path) -> None:
    """No section is made."""
    assert load_instructions(repo / "a").text == ""


def test_instructions_come_from_the_root_down_to_the_nearest(repo: Path) -> None:
    """The text says that the later, nearer file holds."""
    for folder, text in ((repo, "ROOT"), (repo / "a", "MIDDLE"), (repo / "a" / "b", "NEAR")):
        (folder / "AGENTS.md").write_text(text)

    instructions = load_instructions(repo / "a" / "b")

    assert instructions.files == (repo / "AGENTS.md", repo / "a" / "AGENTS.md", repo / "a" / "b" / "AGENTS.md")
    assert instructions.text.index("ROOT") < instructions.text.index("MIDDLE") < instructions.text.index("NEAR")
    assert "## a/b/AGENTS.md" in instructions.text
    assert "the later one, which is nearer, holds" in instructions.text
    assert "ABOVE" not in instructions.text
    assert "NEAR" not in load_instructions(repo / "a").text


def test_claude_md_is_read_where_agents_md_is_missing(repo: Path) -> None:
    """One of the two files of a folder is read."""
    (repo / "CLAUDE.md").write_text("ROOT CLAUDE")
    (repo / "a" / "AGENTS.md").write_text("A AGENTS")
    (repo / "a" / "CLAUDE.md").write_text("A CLAUDE")

    text = load_instructions(repo / "a").text

    assert "ROOT CLAUDE" in text
    assert "A AGENTS" in text
    assert "A CLAUDE" not in text


def test_the_project_begins_at_the_nearest_git_folder(repo: Path, tmp_path: Path) -> None:
    """`.git` may be a file, as in a worktree; without it, the given root or the folder itself counts."""
    plain = tmp_path / "plain" / "inner"
    plain.mkdir(parents=True)
    (repo / "a" / ".git").write_text("gitdir: elsewhere")

    assert project_root(repo) == repo
    assert project_root(repo / "a" / "b") == repo / "a"
    assert project_root(plain) == plain
    assert project_root(plain, tmp_path / "plain") == tmp_path / "plain"


def test_without_git_reading_stops_at_the_given_root(tmp_path: Path) -> None:
    """Files above the root belong to others."""
    inner = tmp_path / "root" / "inner"
    inner.mkdir(parents=True)
    for folder in (tmp_path, tmp_path / "root", inner):
        (folder / "AGENTS.md").write_text(folder.name)

    assert load_instructions(inner, root=tmp_path / "root").files == (
        tmp_path / "root" / "AGENTS.md",
        inner / "AGENTS.md",
    )
    assert load_instructions(inner).files == (inner / "AGENTS.md",)


def test_a_working_directory_outside_of_the_root_is_refused(tmp_path: Path) -> None:
    """No path leads from the root to such a directory."""
    (tmp_path / "root").mkdir()

    with pytest.raises(InvalidValue):
        load_instructions(tmp_path, root=tmp_path / "root")


def test_unreadable_instructions_are_left_out_and_reported(repo: Path, tmp_path: Path) -> None:
    """A link out of the project, a pipe and another encoding are skipped; the rest is read."""
    (repo / "AGENTS.md").symlink_to(tmp_path / "AGENTS.md")
    os.mkfifo(repo / "a" / "AGENTS.md")
    (repo / "a" / "b" / "AGENTS.md").write_bytes(b"\xff\xfe")
    deepest = repo / "a" / "b" / "c"
    deepest.mkdir()
    (deepest / "CLAUDE.md").symlink_to(repo / "guide.md")
    (repo / "guide.md").write_text("GUIDE")

    instructions = load_instructions(deepest)

    assert [problem.path for problem in instructions.problems] == [
        repo / "AGENTS.md",
        repo / "a" / "AGENTS.md",
        repo / "a" / "b" / "AGENTS.md",
    ]
    assert "ABOVE" not in instructions.text
    assert "GUIDE" in instructions.text


def test_the_size_is_bounded_and_near_files_go_first(repo: Path) -> None:
    """A long file is cut at a whole character, and far files are dropped first; both are reported."""
    deepest = repo / "a" / "b"
    (deepest / "AGENTS.md").write_text("NEAR " + "é" * MAX_FILE)
    (repo / "a" / "AGENTS.md").write_text("x" * (MAX_TOTAL - MAX_FILE + 9))
    (repo / "AGENTS.md").write_text("ROOT")

    instructions = load_instructions(deepest)

    assert len(instructions.text.encode()) < MAX_TOTAL + 1000
    assert "NEAR é" in instructions.text
    assert "[cut here: too long]" in instructions.text
    assert "ROOT" not in instructions.text
    assert [problem.path for problem in instructions.problems] == [
        repo / "AGENTS.md",
        repo / "a" / "AGENTS.md",
        deepest / "AGENTS.md",
    ]
