"""AGENTS.md by hierarchy: from the project's root to the working directory, the nearest last."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ramet.agent.files.instructions import MAX_FILE, MAX_TOTAL, load_instructions, project_root
from ramet.core.errors import InvalidValue


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """A project with a `.git` and two folders inside each other; what lies above it is none of its business."""
    path = tmp_path / "repo"
    (path / ".git").mkdir(parents=True)
    (path / "a" / "b").mkdir(parents=True)
    (tmp_path / "AGENTS.md").write_text("ABOVE")
    return path


def test_nothing_written_is_no_section(repo: Path) -> None:
    """No file, no text."""
    assert load_instructions(repo / "a").text == ""


def test_from_the_root_down_the_nearest_last(repo: Path) -> None:
    """Later is nearer is stronger, and the text says so."""
    for folder, text in ((repo, "ROOT"), (repo / "a", "MIDDLE"), (repo / "a" / "b", "NEAR")):
        (folder / "AGENTS.md").write_text(text)

    found = load_instructions(repo / "a" / "b")

    assert found.files == (repo / "AGENTS.md", repo / "a" / "AGENTS.md", repo / "a" / "b" / "AGENTS.md")
    assert found.text.index("ROOT") < found.text.index("MIDDLE") < found.text.index("NEAR")
    assert "## a/b/AGENTS.md" in found.text
    assert "the later one, which is nearer, holds" in found.text
    assert "ABOVE" not in found.text
    assert "NEAR" not in load_instructions(repo / "a").text


def test_claude_md_where_a_folder_has_no_agents_md(repo: Path) -> None:
    """Per folder, never both."""
    (repo / "CLAUDE.md").write_text("ROOT CLAUDE")
    (repo / "a" / "AGENTS.md").write_text("A AGENTS")
    (repo / "a" / "CLAUDE.md").write_text("A CLAUDE")

    text = load_instructions(repo / "a").text

    assert "ROOT CLAUDE" in text
    assert "A AGENTS" in text
    assert "A CLAUDE" not in text


def test_where_the_project_begins(repo: Path, tmp_path: Path) -> None:
    """The nearest folder with a `.git`, which may be a file as in a worktree; else what was given; else here."""
    plain = tmp_path / "plain" / "inner"
    plain.mkdir(parents=True)
    (repo / "a" / ".git").write_text("gitdir: elsewhere")

    assert project_root(repo) == repo
    assert project_root(repo / "a" / "b") == repo / "a"
    assert project_root(plain) == plain
    assert project_root(plain, tmp_path / "plain") == tmp_path / "plain"


def test_without_git_it_stops_at_the_given_root(tmp_path: Path) -> None:
    """What lies above is another's."""
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
    """There is no way down from there."""
    (tmp_path / "root").mkdir()

    with pytest.raises(InvalidValue):
        load_instructions(tmp_path, root=tmp_path / "root")


def test_what_is_bad_is_left_out_and_said(repo: Path, tmp_path: Path) -> None:
    """A link out of the project, a pipe, another encoding: the rest is read."""
    (repo / "AGENTS.md").symlink_to(tmp_path / "AGENTS.md")
    os.mkfifo(repo / "a" / "AGENTS.md")
    (repo / "a" / "b" / "AGENTS.md").write_bytes(b"\xff\xfe")
    deepest = repo / "a" / "b" / "c"
    deepest.mkdir()
    (deepest / "CLAUDE.md").symlink_to(repo / "guide.md")
    (repo / "guide.md").write_text("GUIDE")

    found = load_instructions(deepest)

    assert [problem.path for problem in found.problems] == [
        repo / "AGENTS.md",
        repo / "a" / "AGENTS.md",
        repo / "a" / "b" / "AGENTS.md",
    ]
    assert "ABOVE" not in found.text
    assert "GUIDE" in found.text


def test_size_is_bounded_and_the_nearest_stay_whole(repo: Path) -> None:
    """A long file is cut at a whole character; when all is full, the farthest falls off. Both are said."""
    deepest = repo / "a" / "b"
    (deepest / "AGENTS.md").write_text("NEAR " + "é" * MAX_FILE)
    (repo / "a" / "AGENTS.md").write_text("x" * (MAX_TOTAL - MAX_FILE + 9))
    (repo / "AGENTS.md").write_text("ROOT")

    found = load_instructions(deepest)

    assert len(found.text.encode()) < MAX_TOTAL + 1000
    assert "NEAR é" in found.text
    assert "[cut here: too long]" in found.text
    assert "ROOT" not in found.text
    assert [problem.path for problem in found.problems] == [
        repo / "AGENTS.md",
        repo / "a" / "AGENTS.md",
        deepest / "AGENTS.md",
    ]
