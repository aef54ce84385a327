"""Skills: found by their folder's name in fixed places, and read whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from ramet.agent.files.bounded_read import Unreadable
from ramet.agent.files.skills import load_skill, load_skills, render_skills, skill_names, skill_search_paths
from ramet.core.errors import InvalidValue, Unknown


@pytest.fixture
def project(tmp_path: Path) -> Path:
    path = tmp_path / "project"
    path.mkdir()
    return path


def write(
    folder: Path, name: str = "pdf", *, description: str = "Reads PDFs.", more: str = "", body: str = "Do it."
) -> Path:
    path = folder / "skills" / name / "SKILL.md"
    path.parent.mkdir(parents=True)
    path.write_text(f"---\nname: {name}\ndescription: {description}\n{more}---\n{body}\n")
    return path


def test_a_skill_is_read_from_its_folder(project: Path, home: Path) -> None:
    """The skill has a name, a description, its full text and its path."""
    path = write(
        project / ".claude", more="license: MIT\ncompatibility: any\nmetadata: {author: me}\n", body="One.\nTwo."
    )

    skill = load_skill("pdf", skill_search_paths(project, home / ".ramet"))

    assert (skill.name, skill.description, skill.text, skill.path) == ("pdf", "Reads PDFs.", "One.\nTwo.", path)
    assert skill.notes == ()


def test_the_first_folder_with_a_skill_wins(project: Path, home: Path) -> None:
    """The order is ramet's folder, Claude's, the neutral one, the user's, and the user's Claude folder."""
    folders = [project / ".ramet", project / ".claude", project / ".agents", home / ".ramet", home / ".claude"]
    paths = [write(folder) for folder in folders]
    search_paths = skill_search_paths(project, home / ".ramet", home)

    for path in paths:
        assert load_skill("pdf", search_paths).path == path
        path.unlink()
    with pytest.raises(Unknown):
        load_skill("pdf", search_paths)


def test_an_unknown_skill_is_refused_with_the_known_ones(project: Path, home: Path) -> None:
    """An agent does not start without its skill."""
    write(project / ".claude", "pdf")
    write(home / ".ramet", "xls")
    search_paths = skill_search_paths(project, home / ".ramet")

    with pytest.raises(Unknown) as refusal:
        load_skill("pfd", search_paths)

    assert (refusal.value.kind, refusal.value.known) == ("skill", ("pdf", "xls"))
    assert skill_names(search_paths) == ("pdf", "xls")


@pytest.mark.parametrize("name", ["../pdf", "..", ".", "", "/etc", "a/b", "a\\b", "-x", "x\0", "x" * 1_000_000])
def test_hostile_names_are_refused(project: Path, home: Path, name: str) -> None:
    """The refusal comes before any access to the disk."""
    with pytest.raises(InvalidValue):
        load_skill(name, skill_search_paths(project, home / ".ramet"))


def test_a_skill_outside_its_project_is_refused(project: Path, home: Path, tmp_path: Path) -> None:
    """The folder or the file may be the link; links inside the project and the user's own are followed."""
    search_paths = skill_search_paths(project, home / ".ramet")
    outside = write(tmp_path / "elsewhere", "secret")
    shared_file = write(project / "shared", "shared")
    skills = project / ".claude" / "skills"
    (skills / "by-file").mkdir(parents=True)
    (skills / "by-file" / "SKILL.md").symlink_to(outside)
    (skills / "by-folder").symlink_to(outside.parent)
    (skills / "shared").symlink_to(shared_file.parent)
    (home / ".ramet" / "skills").mkdir(parents=True)
    (home / ".ramet" / "skills" / "mine").symlink_to(outside.parent)

    for name in ("by-file", "by-folder"):
        with pytest.raises(Unreadable, match="leads out of"):
            load_skill(name, search_paths)
    assert load_skill("shared", search_paths).text == "Do it."
    assert load_skill("mine", search_paths).text == "Do it."


@pytest.mark.parametrize(
    ("more", "description", "reason"),
    [
        ("alowed-tools: Read\n", "d", "alowed-tools"),
        ("", "", "what the skill is for"),
        ("", "5", "what the skill is for"),
    ],
)
def test_a_bad_skill_is_a_typed_error(project: Path, home: Path, more: str, description: str, reason: str) -> None:
    """An unknown key and a missing description name the file."""
    path = write(project / ".claude", more=more, description=description)

    with pytest.raises(InvalidValue, match=reason) as refusal:
        load_skill("pdf", skill_search_paths(project, home / ".ramet"))

    assert str(path) in str(refusal.value)


def test_unsupported_keys_of_a_skill_are_noted_and_not_granted(project: Path, home: Path) -> None:
    """`allowed-tools` of a skill does not widen the rights of its reader."""
    write(project / ".claude", more="allowed-tools: Bash\nversion: 2\n")

    notes = load_skill("pdf", skill_search_paths(project, home / ".ramet")).notes

    assert [note.split(":")[0] for note in notes] == ["allowed-tools", "version"]


def test_rendered_skills_hold_the_full_text_once_each(project: Path, home: Path) -> None:
    """Each skill is in the prompt from the start, and once even if it is named twice."""
    write(project / ".claude", "pdf", body="PDF steps.")
    path = write(project / ".claude", "xls", body="XLS steps.")

    text = render_skills(load_skills(["xls", "pdf", "xls"], skill_search_paths(project, home / ".ramet")))

    assert text.index("XLS steps.") < text.index("PDF steps.")
    assert text.count("XLS steps.") == 1
    assert str(path.parent) in text
    assert render_skills([]) == ""
