"""Permissions of settings files: what holds at once, what waits for trust, and how files go together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ramet.agent.files.permissions import FoundPermissions, find_permissions
from ramet.agent.files.trust import trust
from ramet.core.errors import InvalidValue


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project beside a home and a user's folder."""
    for name in ("project/.claude", "home/.claude", "user"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "user").chmod(0o700)
    return tmp_path / "project"


def write(path: Path, **permissions: object) -> None:
    """Write a settings file."""
    path.write_text(json.dumps({"permissions": permissions}))


def found(folder: Path) -> FoundPermissions:
    """What is found in a folder by its user."""
    return find_permissions(folder, user_dir=folder.parent / "user", home=folder.parent / "home")


def rules(permissions: FoundPermissions) -> list[tuple[str, str]]:
    """The rules that hold, with the last parts of their files."""
    return [(each.text, "/".join(Path(each.source).parts[-2:])) for each in permissions.active.rules]


def modes(permissions: FoundPermissions) -> list[str]:
    """The modes that hold."""
    return [each.mode for each in permissions.active.modes]


def test_the_rules_of_all_files_hold_together(folder: Path) -> None:
    """The user's first, then the project's; deny before ask before allow. The user's own need no trust."""
    write(folder.parent / "user" / "settings.json", deny=["Bash(a)"], allow=["Bash(b)"])
    write(folder.parent / "home" / ".claude" / "settings.json", ask=["Bash(c)"])
    write(folder / ".claude" / "settings.json", deny=["Bash(d)"])
    write(folder / ".claude" / "settings.local.json", ask=["Bash(e)"])

    assert rules(found(folder)) == [
        ("Bash(a)", "user/settings.json"),
        ("Bash(d)", ".claude/settings.json"),
        ("Bash(c)", ".claude/settings.json"),
        ("Bash(e)", ".claude/settings.local.json"),
        ("Bash(b)", "user/settings.json"),
    ]


def test_rules_that_widen_wait_for_trust(folder: Path) -> None:
    """Rules of `allow` and modes that allow; a change takes the trust away again."""
    write(folder / ".claude" / "settings.json", allow=["Bash(ls)"], deny=["Bash(rm)"], defaultMode="acceptEdits")

    before = found(folder)
    trust(folder, folder.parent / "user")
    trusted = found(folder)
    write(folder / ".claude" / "settings.local.json", allow=["Bash"])
    changed = found(folder)

    assert (rules(before), modes(before)) == ([("Bash(rm)", ".claude/settings.json")], [])
    assert [each.text for each in before.pending.rules] == ["Bash(ls)"]
    assert [each.mode for each in before.pending.modes] == ["acceptEdits"]
    assert "ramet trust DIR): Bash(ls), defaultMode acceptEdits" in before.notes[0]
    assert [each[0] for each in rules(trusted)] == ["Bash(rm)", "Bash(ls)"]
    assert (modes(trusted), trusted.pending.rules, trusted.notes) == (["acceptEdits"], (), ())
    assert ([each[0] for each in rules(changed)], modes(changed)) == (["Bash(rm)"], [])


def test_modes_that_narrow_hold_at_once_and_are_not_taken_back(folder: Path) -> None:
    """A folder may narrow what the user said, and cannot widen it, trusted or not."""
    write(folder.parent / "user" / "settings.json", defaultMode="plan")
    write(folder / ".claude" / "settings.json", defaultMode="dontAsk")
    write(folder / ".claude" / "settings.local.json", defaultMode="bypassPermissions")
    assert modes(found(folder)) == ["plan", "dontAsk"]

    trust(folder, folder.parent / "user")
    assert modes(found(folder)) == ["plan", "dontAsk", "bypassPermissions"]


def test_bypassing_can_be_turned_off_by_any_file(folder: Path) -> None:
    """Also by one that nobody trusts, since that narrows."""
    write(folder.parent / "user" / "settings.json", defaultMode="bypassPermissions")
    assert modes(found(folder)) == ["bypassPermissions"]

    write(folder / ".claude" / "settings.json", disableBypassPermissionsMode="disable")
    assert modes(found(folder)) == []


def test_additional_directories_are_not_dropped_without_a_word(folder: Path) -> None:
    """They widen; a note says that they do not."""
    write(folder / ".claude" / "settings.json", additionalDirectories=["../other"])

    assert "additionalDirectories is not supported" in found(folder).notes[0]


def test_many_patterns_that_are_slow_together_are_refused(folder: Path) -> None:
    """A folder must not make every call of a tool slow."""
    write(folder / ".claude" / "settings.json", deny=["Read({" + "a,b," * 20 + "c}/" + "**/" * 1 + "x)"] * 100)

    with pytest.raises(InvalidValue, match=r"settings\.json: permissions"):
        found(folder)


def test_a_folder_without_settings_has_no_permissions(folder: Path) -> None:
    """Nothing holds and nothing waits."""
    assert found(folder) == FoundPermissions()
