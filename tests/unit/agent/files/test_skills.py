"""Skills: found by their folder's name in fixed places, checked against the limits of the standard."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ramet.agent.files.bounded_read import Unreadable
from ramet.agent.files.skills import (
    MAX_SHOWN,
    find_skills,
    load_skill,
    load_skills,
    load_usable_skills,
    render_listing,
    skill_names,
    skill_search_paths,
)
from ramet.core.errors import InvalidValue, Unknown
from ramet.tools.skills.skill_folder import MAX_BODY


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
    """The order is ramet's folder, Claude's, the neutral one, then the same of the user, then plugins."""
    folders = [each / name for each in (project, home) for name in (".ramet", ".claude", ".agents")]
    paths = [write(folder) for folder in (*folders, home / "plugin")]
    search_paths = skill_search_paths(project, home / ".ramet", home, [home / "plugin"])
    hiding = find_skills(search_paths).notes[0]
    assert (hiding.path, hiding.sentence) == (paths[1], f"{paths[0]} has the same name, and is used")

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
    """A linked folder is followed inside the project, and anywhere if it is the user's own; a linked file is not."""
    search_paths = skill_search_paths(project, home / ".ramet")
    outside = write(tmp_path / "elsewhere", "secret")
    shared_file = write(project / "shared", "shared")
    skills = project / ".claude" / "skills"
    (skills / "by-file").mkdir(parents=True)
    (skills / "by-file" / "SKILL.md").symlink_to(outside)
    (skills / "by-folder").symlink_to(outside.parent)
    (skills / "shared").symlink_to(shared_file.parent)
    (home / ".ramet" / "skills").mkdir(parents=True)
    (home / ".ramet" / "skills" / "secret").symlink_to(outside.parent)

    for name, reason in (("by-file", "SKILL.md is not a regular file"), ("by-folder", "leads out of")):
        with pytest.raises(Unreadable, match=reason):
            load_skill(name, search_paths)
    assert load_skill("shared", search_paths).text == "Do it."
    assert load_skill("secret", search_paths).text == "Do it."


@pytest.mark.parametrize(
    ("more", "description", "reason"),
    [
        ("alowed-tools: Read\n", "d", "alowed-tools"),
        ("", "", "what the skill is for"),
        ("", "5", "description: 5 is not accepted"),
        ("", "x" * 1025, "description: '1025 characters' is not accepted; expected at most 1024"),
        (f"compatibility: {'x' * 501}\n", "d", "compatibility: '501 characters'"),
        ("metadata: 3\n", "d", "metadata: 3 is not accepted; expected a mapping"),
    ],
)
def test_a_bad_skill_is_a_typed_error(project: Path, home: Path, more: str, description: str, reason: str) -> None:
    """An unknown key, and a value beyond the standard's limits, name the file."""
    path = write(project / ".claude", more=more, description=description)

    with pytest.raises(InvalidValue, match=reason) as refusal:
        load_skill("pdf", skill_search_paths(project, home / ".ramet"))

    assert str(path) in str(refusal.value)


def test_unsupported_keys_of_a_skill_are_noted_and_not_granted(project: Path, home: Path) -> None:
    """`allowed-tools` of a skill does not widen the rights of its reader."""
    write(project / ".claude", more="allowed-tools: Bash\nversion: 2\n")

    notes = load_skill("pdf", skill_search_paths(project, home / ".ramet")).notes

    assert [note.split(":")[0] for note in notes] == ["allowed-tools", "version"]


def test_a_skill_is_named_as_its_folder_in_the_form_of_the_standard(project: Path, home: Path) -> None:
    """Another name, and a folder that the standard does not accept, are problems; the other skills are found."""
    search_paths = skill_search_paths(project, home / ".ramet")
    skills = project / ".claude" / "skills"
    bad_names = ("Upper", "under_score", "double--hyphen", "-first", "last-", "x" * 65)
    for name in ("good", "other", *bad_names):
        write(project / ".claude", name)
    (skills / "other" / "SKILL.md").write_text((skills / "good" / "SKILL.md").read_text())
    write(project / ".claude", "huge", body="x" * MAX_BODY)
    for name in ("unnamed", "pipe"):
        (skills / name).mkdir()
    (skills / "unnamed" / "SKILL.md").write_text("---\ndescription: d\n---\n")
    os.mkfifo(skills / "pipe" / "SKILL.md")

    found = find_skills(search_paths)

    assert [each.name for each in found.skills] == ["good", "unnamed"]
    assert [(each.path, each.sentence.split(";")[0]) for each in found.notes] == [
        (skills / "unnamed" / "SKILL.md", "name: missing")
    ]
    sentences = {each.path.parent.name: each.sentence for each in found.problems if each.path}
    assert sentences.keys() == {*bad_names, "other", "huge", "pipe"}
    assert sentences["other"] == "name: 'good' is not accepted; expected other, the name of its folder; skipped"
    assert all("lower-case letters" in sentences[each] for each in bad_names)
    assert f"at most {MAX_BODY} bytes" in sentences["huge"]
    assert "not a regular file" in sentences["pipe"]
    assert [each.name for each in load_skills(["*"], search_paths)] == ["good", "unnamed"]
    assert [each.name for each in load_usable_skills(["other", "none", "good"], search_paths)] == ["good"]


def test_a_prompt_lists_names_and_descriptions_within_a_bound(project: Path, home: Path) -> None:
    """Texts are not listed. Where descriptions do not fit, their skills are still named."""
    write(project / ".claude", "a", description="Reads PDFs.\n  And more.", body="PDF steps.")
    for number in range(20):
        write(project / ".claude", f"b{number:02}", description="x" * 1024)

    text = render_listing(load_skills(["*"], skill_search_paths(project, home / ".ramet")))

    assert "\n- a: Reads PDFs. And more.\n- b00: xxx" in text
    assert text.endswith("\n- b19")
    assert "PDF steps." not in text
    assert len(text) < MAX_SHOWN + 1_000
    assert render_listing([]) == ""


def test_a_skill_that_is_named_twice_is_listed_once(project: Path, home: Path) -> None:
    """The order is that of the names."""
    write(project / ".claude", "pdf")
    write(project / ".claude", "xls")

    skills = load_skills(["xls", "pdf", "xls"], skill_search_paths(project, home / ".ramet"))

    assert [each.name for each in skills] == ["xls", "pdf"]
