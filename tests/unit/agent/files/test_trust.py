"""Trust covers a folder as a person saw it, and ends with any change to the commands that it would run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ramet.agent.files.bounded_read import Unreadable
from ramet.agent.files.trust import find_runnables, is_trusted, trust, trust_of, trusted_items, untrust

HOOK = "hooks: {PreToolUse: [{hooks: [{type: command, command: '\"$CLAUDE_PROJECT_DIR\"/tools/check.sh --fast'}]}]}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project that names commands in every possible place."""
    path = tmp_path / "project"
    for name, text in {
        ".claude/agents/guard.md": f"---\nname: guard\ndescription: d\n{HOOK}\n---\nBe careful.\n",
        ".claude/agents/plain.md": "---\nname: plain\ndescription: d\n---\n",
        ".agents/agents/served.md": "---\nname: served\ndescription: d\nmcpServers: {s: {command: npx}}\n---\n",
        ".claude/settings.json": '{"hooks": {"Stop": [{"hooks": [{"type": "command", "command": "make lint"}]}]}}',
        ".mcp.json": '{"mcpServers": {"db": {"command": "python", "args": ["tools/db.py"]}}}',
        ".ramet/settings.json": "{}",
        "tools/check.sh": "true\n",
        "tools/db.py": "pass\n",
        "tools/other.sh": "true\n",
    }.items():
        file = path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return path


@pytest.fixture
def user_dir(home: Path) -> Path:
    return home / ".ramet"


def test_the_commands_of_a_folder_are_listed(folder: Path) -> None:
    """The list has hooks, servers, settings and their scripts; agents that run nothing are left out."""
    listing = {each.path: each.description for each in find_runnables(folder)}

    assert set(listing) == {
        ".claude/agents/guard.md",
        ".agents/agents/served.md",
        ".claude/settings.json",
        ".mcp.json",
        ".ramet/settings.json",
        "tools/check.sh",
        "tools/db.py",
    }
    assert "check.sh --fast" in listing[".claude/agents/guard.md"]
    assert "make lint" in listing[".claude/settings.json"]
    assert "npx" in listing[".agents/agents/served.md"]


def test_a_folder_is_untrusted_until_a_person_trusts_it(folder: Path, user_dir: Path) -> None:
    """Asking creates no record."""
    assert trust_of(folder, user_dir) == (False, "it was never trusted (ramet trust DIR)")
    assert not user_dir.exists()


def test_trust_can_be_given_and_withdrawn(folder: Path, user_dir: Path, tmp_path: Path) -> None:
    """Trust covers one folder; other folders keep theirs."""
    other = tmp_path / "other"
    other.mkdir()
    trust(folder, user_dir)
    trust(other, user_dir)

    assert is_trusted(folder, user_dir)
    assert is_trusted(folder / "tools" / "..", user_dir)
    assert not is_trusted(folder / "tools", user_dir)
    assert untrust(folder, user_dir)
    assert not untrust(folder, user_dir)
    assert (is_trusted(folder, user_dir), is_trusted(other, user_dir)) == (False, True)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (".claude/agents/guard.md", f"---\nname: guard\ndescription: d\n{HOOK.replace('--fast', '; evil')}\n---\n"),
        (".claude/agents/new.md", f"---\nname: new\ndescription: d\n{HOOK}\n---\n"),
        (".ramet/agents/new.md", f"---\nname: new\ndescription: d\n{HOOK}\n---\n"),
        (".agents/agents/served.md", "---\nname: served\ndescription: d\nmcpServers: {s: {command: evil}}\n---\n"),
        (".claude/settings.json", "{}"),
        (".claude/settings.local.json", "{}"),
        (".ramet/settings.json", '{"env": {"PATH": "."}}'),
        (".mcp.json", "not even JSON"),
        ("tools/check.sh", "evil\n"),
        ("tools/db.py", "evil\n"),
    ],
)
def test_a_changed_command_withdraws_trust(folder: Path, user_dir: Path, name: str, text: str) -> None:
    """A script that a hook names and a new file count too."""
    trust(folder, user_dir)
    path = folder / name
    before = path.read_text() if path.exists() else None

    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    verdict = trust_of(folder, user_dir)

    assert not verdict.is_trusted
    assert "changed" in verdict.reason
    path.unlink() if before is None else path.write_text(before)
    assert is_trusted(folder, user_dir)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (".claude/agents/guard.md", f"---\nname: guard\ndescription: better\n{HOOK}\n---\nBe very careful.\n"),
        (".claude/agents/plain.md", "---\nname: plain\ndescription: better\n---\n"),
        (".claude/agents/broken.md", "---\nhooks: [\n"),
        ("tools/other.sh", "changed\n"),
        ("README.md", "changed\n"),
    ],
)
def test_other_changes_keep_trust(folder: Path, user_dir: Path, name: str, text: str) -> None:
    """Prose, and code that no command names, may change."""
    trust(folder, user_dir)

    (folder / name).write_text(text)

    assert is_trusted(folder, user_dir)


def test_trust_covers_only_what_was_shown(folder: Path, user_dir: Path) -> None:
    """A change between showing and trusting makes the trust void."""
    runnables = find_runnables(folder)
    (folder / "tools" / "check.sh").write_text("evil\n")

    with pytest.raises(Unreadable, match="changed while"):
        trust(folder, user_dir, reviewed_items=runnables)

    assert not is_trusted(folder, user_dir)
    assert trust(folder, user_dir, reviewed_items=find_runnables(folder))


def test_trusted_items_are_of_the_state_that_was_trusted(folder: Path, user_dir: Path) -> None:
    """Trusted items are read once: what a command installs for them cannot be of another state."""
    items = trust(folder, user_dir)
    assert trusted_items(folder, user_dir) == items
    (folder / "tools/db.py").write_text("changed\n")
    with pytest.raises(Unreadable, match="has changed since it was trusted"):
        trusted_items(folder, user_dir)


def test_a_moved_folder_is_another_folder(folder: Path, user_dir: Path, tmp_path: Path) -> None:
    """A link to the folder is the same folder."""
    trust(folder, user_dir)
    (tmp_path / "link").symlink_to(folder)
    assert is_trusted(tmp_path / "link", user_dir)

    folder.rename(tmp_path / "moved")

    assert not is_trusted(tmp_path / "moved", user_dir)
    assert not is_trusted(folder, user_dir)


def test_only_the_owner_can_read_the_record(folder: Path, user_dir: Path) -> None:
    """The file has mode 0600 in a folder of mode 0700, with nothing beside it."""
    trust(folder, user_dir)

    assert (user_dir / "trust.json").stat().st_mode & 0o777 == 0o600
    assert user_dir.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in user_dir.iterdir()] == ["trust.json"]


@pytest.mark.parametrize(
    "damage",
    ["", "{", "[]", "null", '{"version": 1}', '{"version": 2, "folders": {}}', '{"version": 1, "folders": {"/a": 5}}',
     '{"version": 1, "folders": ["/a"]}', "[" * 100_000, "\udcff"],
)  # fmt: skip
def test_a_damaged_record_trusts_nothing_and_says_so(folder: Path, user_dir: Path, damage: str) -> None:
    """Trusting again moves the damaged record aside."""
    trust(folder, user_dir)
    record = user_dir / "trust.json"
    record.write_bytes(damage.encode(errors="surrogateescape"))

    verdict = trust_of(folder, user_dir)

    assert not verdict.is_trusted
    assert str(record) in verdict.reason
    trust(folder, user_dir)
    assert is_trusted(folder, user_dir)
    assert (user_dir / "trust.json.bad").exists()


def test_a_record_that_others_could_write_trusts_nothing(folder: Path, user_dir: Path, tmp_path: Path) -> None:
    """A record that is a link trusts nothing either."""
    trust(folder, user_dir)
    record = user_dir / "trust.json"
    record.chmod(0o644)
    assert "no other user" in trust_of(folder, user_dir).reason

    record.chmod(0o600)
    record.rename(tmp_path / "mine.json")
    record.symlink_to(tmp_path / "mine.json")
    assert not is_trusted(folder, user_dir)


def test_unreadable_settings_are_not_trusted(folder: Path, user_dir: Path, tmp_path: Path) -> None:
    """Settings that lead out of the folder cannot be known, and so not be trusted."""
    trust(folder, user_dir)
    (tmp_path / "settings.json").write_text("{}")
    (folder / ".claude" / "settings.json").unlink()
    (folder / ".claude" / "settings.json").symlink_to(tmp_path / "settings.json")

    verdict = trust_of(folder, user_dir)

    assert not verdict.is_trusted
    assert "leads out" in verdict.reason
    with pytest.raises(Unreadable):
        trust(folder, user_dir)


def test_the_list_cannot_control_the_terminal(folder: Path) -> None:
    """Control characters of a command are spelled out."""
    command = "evil\x1b[2K\rharmless \u202egnp.exe \ud800"
    (folder / ".mcp.json").write_text(json.dumps({"mcpServers": {"s": {"command": command}}}))

    (text,) = [str(each) for each in find_runnables(folder) if each.path == ".mcp.json"]

    assert text.isprintable()
    assert "evil" in text
    assert "harmless" in text


def test_deeply_nested_settings_can_be_trusted(folder: Path, user_dir: Path) -> None:
    """Deep JSON counts by its text."""
    (folder / ".mcp.json").write_text("[" * 200_000 + "]" * 200_000)

    trust(folder, user_dir)

    assert is_trusted(folder, user_dir)


@pytest.mark.parametrize("key", ["memory: user", "permissionMode: acceptEdits"])
def test_an_agent_with_rights_of_the_user_needs_trust(folder: Path, user_dir: Path, key: str) -> None:
    """Such an agent rewrites the user's notes, or files without a question, though it runs no command."""
    trust(folder, user_dir)
    path = folder / ".claude/agents/plain.md"
    path.write_text(f"---\nname: plain\ndescription: d\n{key}\n---\n")

    assert not is_trusted(folder, user_dir)
    runnables = {each.path: each.description for each in find_runnables(folder)}
    assert key in runnables[".claude/agents/plain.md"]
