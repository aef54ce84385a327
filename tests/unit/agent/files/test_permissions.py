"""Permissions of settings files: which apply at once, which need trust, and how files combine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ramet.agent.files.permissions import FoundPermissions, find_permissions
from ramet.agent.files.trust import trust
from ramet.core.errors import InvalidValue


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project beside a home folder and a user's folder."""
    for name in ("project/.claude", "home/.claude", "user"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "user").chmod(0o700)
    return tmp_path / "project"


def write(path: Path, **permissions: object) -> None:
    """Write a settings file."""
    path.write_text(json.dumps({"permissions": permissions}))


def permissions_of(folder: Path) -> FoundPermissions:
    """Return the permissions that the user of a folder has."""
    return find_permissions(folder, user_dir=folder.parent / "user", home=folder.parent / "home")


def rules(permissions: FoundPermissions) -> list[tuple[str, str]]:
    """Return the rules that apply, with the last parts of their files."""
    return [(each.text, "/".join(Path(each.source).parts[-2:])) for each in permissions.active.rules]


def modes(permissions: FoundPermissions) -> list[str]:
    """Return the modes that apply."""
    return [each.mode for each in permissions.active.modes]


def test_rules_of_all_files_apply_together(folder: Path) -> None:
    """The user's rules come first; deny goes before ask and ask before allow. The user's own rules need no trust."""
    write(folder.parent / "user" / "settings.json", deny=["Bash(a)"], allow=["Bash(b)"])
    write(folder.parent / "home" / ".claude" / "settings.json", ask=["Bash(c)"])
    write(folder / ".claude" / "settings.json", deny=["Bash(d)"])
    write(folder / ".claude" / "settings.local.json", ask=["Bash(e)"])

    assert rules(permissions_of(folder)) == [
        ("Bash(a)", "user/settings.json"),
        ("Bash(d)", ".claude/settings.json"),
        ("Bash(c)", ".claude/settings.json"),
        ("Bash(e)", ".claude/settings.local.json"),
        ("Bash(b)", "user/settings.json"),
    ]


def test_rules_that_widen_need_trust(folder: Path) -> None:
    """`allow` rules and modes that allow need trust; a change withdraws it."""
    write(folder / ".claude" / "settings.json", allow=["Bash(ls)"], deny=["Bash(rm)"], defaultMode="acceptEdits")

    before = permissions_of(folder)
    trust(folder, folder.parent / "user")
    trusted = permissions_of(folder)
    write(folder / ".claude" / "settings.local.json", allow=["Bash"])
    new_permissions = permissions_of(folder)

    assert (rules(before), modes(before)) == ([("Bash(rm)", ".claude/settings.json")], [])
    assert [each.text for each in before.pending.rules] == ["Bash(ls)"]
    assert [each.mode for each in before.pending.modes] == ["acceptEdits"]
    assert "ramet trust DIR): Bash(ls), defaultMode acceptEdits" in before.notes[0]
    assert [each[0] for each in rules(trusted)] == ["Bash(rm)", "Bash(ls)"]
    assert (modes(trusted), trusted.pending.rules, trusted.notes) == (["acceptEdits"], (), ())
    assert ([each[0] for each in rules(new_permissions)], modes(new_permissions)) == (["Bash(rm)"], [])


def test_modes_that_narrow_apply_at_once(folder: Path) -> None:
    """A folder can narrow the user's mode, and cannot widen it, trusted or not."""
    write(folder.parent / "user" / "settings.json", defaultMode="plan")
    write(folder / ".claude" / "settings.json", defaultMode="dontAsk")
    write(folder / ".claude" / "settings.local.json", defaultMode="bypassPermissions")
    assert modes(permissions_of(folder)) == ["plan", "dontAsk"]

    trust(folder, folder.parent / "user")
    assert modes(permissions_of(folder)) == ["plan", "dontAsk", "bypassPermissions"]


def test_any_file_can_forbid_bypassing(folder: Path) -> None:
    """An untrusted file can too, since that narrows."""
    write(folder.parent / "user" / "settings.json", defaultMode="bypassPermissions")
    assert modes(permissions_of(folder)) == ["bypassPermissions"]

    write(folder / ".claude" / "settings.json", disableBypassPermissionsMode="disable")
    assert modes(permissions_of(folder)) == []


def test_additional_directories_are_noted_as_unsupported(folder: Path) -> None:
    """Such directories would widen the permissions."""
    write(folder / ".claude" / "settings.json", additionalDirectories=["../other"])

    assert "additionalDirectories is not supported" in permissions_of(folder).notes[0]


def test_many_patterns_that_are_slow_together_are_refused(folder: Path) -> None:
    """A folder must not make every tool call slow."""
    write(folder / ".claude" / "settings.json", deny=["Read({" + "a,b," * 20 + "c}/" + "**/" * 1 + "x)"] * 100)

    with pytest.raises(InvalidValue, match=r"settings\.json: permissions"):
        permissions_of(folder)


def test_a_folder_without_settings_has_no_permissions(folder: Path) -> None:
    """No rule applies and none waits."""
    assert permissions_of(folder) == FoundPermissions()
