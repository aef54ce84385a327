"""AC-S1-16: The precedence of definitions, reports of bad ones, and the effect of changed files."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ramet.agent.definition import Agent
from ramet.agent.files.definitions import Definitions, load_definitions
from ramet.agent.files.search_paths import MAX_DEPTH, MAX_ENTRIES
from ramet.core.errors import InvalidValue

BUILTIN = {"general-purpose", "explore", "plan"}
HOOKS = "hooks: {Stop: [{hooks: [{type: command, command: ./stop.sh}]}]}\nmcpServers: {calc: {command: ./calc.sh}}\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    path = tmp_path / "project"
    path.mkdir()
    return path


@pytest.fixture
def user_dir(home: Path) -> Path:
    return home / ".ramet"


def write(
    folder: Path, name: str = "x", *, description: str = "d", more: str = "", body: str = "", file: str = ""
) -> Path:
    """Write an agent's file, in place of an older one."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / (file or f"{name}.md")
    path.write_text(f"---\nname: {name}\ndescription: {description}\n{more}---\n{body}\n")
    return path


def test_without_any_file_the_builtin_agents_are_there(project: Path, user_dir: Path) -> None:
    """Loading writes nothing to the disk."""
    definitions = load_definitions(project, user_dir=user_dir)

    assert set(definitions) == BUILTIN
    assert (definitions.problems, definitions.notes, definitions.shadowed_definitions) == ((), (), ())
    assert not user_dir.exists()
    assert list(project.iterdir()) == []


def test_definitions_have_an_order_from_managed_to_builtin(
    project: Path, user_dir: Path, home: Path, tmp_path: Path
) -> None:
    """AC-S1-16: managed > call > project > user > plugin > builtin; removing a winner uncovers the next."""
    files = [
        write(tmp_path / "managed" / "agents", "explore", description="managed"),
        write(project / ".ramet" / "agents", "explore", description="project, ramet"),
        write(project / ".claude" / "agents", "explore", description="project, claude"),
        write(project / ".agents" / "agents", "explore", description="project, neutral"),
        write(user_dir / "agents", "explore", description="user"),
        write(home / ".claude" / "agents", "explore", description="user, claude"),
        write(tmp_path / "plugin" / "agents", "explore", description="plugin"),
    ]
    call = Agent(name="explore", description="call", scope="builtin")
    definitions = load_definitions(
        project,
        user_dir=user_dir,
        home=home,
        managed_dir=tmp_path / "managed",
        plugin_dirs=[tmp_path / "plugin"],
        call=[call],
    )
    descriptions = [definitions["explore"].description]
    losers = [each.loser.split()[0] for each in definitions.shadowed_definitions]
    for file in files:
        file.unlink()
        definitions.refresh()
        descriptions.append(definitions["explore"].description)

    assert descriptions == ["managed", *["call"] * 7]
    assert losers == ["call", "project", "project", "project", "user", "user", "plugin", "builtin"]
    without_call = load_definitions(project, user_dir=user_dir)
    assert without_call["explore"].scope == "builtin"


def test_folders_of_a_scope_have_an_order(project: Path, user_dir: Path, home: Path, tmp_path: Path) -> None:
    """AC-S1-16: Without a managed or called definition, the folders follow each other."""
    folders = {
        "ramet": project / ".ramet" / "agents",
        "claude": project / ".claude" / "agents",
        "neutral": project / ".agents" / "agents",
        "user": user_dir / "agents",
        "user-claude": home / ".claude" / "agents",
        "plugin": tmp_path / "plugin" / "agents",
    }
    files = [write(folder, "plan", description=name) for name, folder in folders.items()]
    definitions = load_definitions(project, user_dir=user_dir, home=home, plugin_dirs=[tmp_path / "plugin"])
    descriptions = []
    for file in files:
        descriptions.append(definitions["plan"].description)
        file.unlink()
        assert definitions.refresh()

    assert descriptions == list(folders)
    assert definitions["plan"].scope == "builtin"


def test_two_definitions_of_one_name_in_a_folder_are_a_problem(project: Path, user_dir: Path) -> None:
    """The first file by name wins, and the other is reported."""
    folder = project / ".claude" / "agents"
    write(folder, "x", description="first", file="a.md")
    write(folder, "x", description="second", file="b.md")

    definitions = load_definitions(project, user_dir=user_dir)

    assert definitions["x"].description == "first"
    (problem,) = definitions.problems
    assert problem.path == folder / "b.md"
    assert "a.md" in problem.sentence


def test_two_definitions_of_one_name_in_a_call_are_refused(project: Path, user_dir: Path) -> None:
    """The author of the code can correct it."""
    with pytest.raises(InvalidValue, match="one definition of each name"):
        load_definitions(project, user_dir=user_dir, call=[Agent(name="x"), Agent(name="x")])


def test_a_bad_file_is_reported_and_skipped(project: Path, user_dir: Path) -> None:
    """The report is one sentence with the file's path; other files load."""
    folder = project / ".claude" / "agents"
    write(folder, "good")
    bad = write(folder, "bad", more="toolz: Read\n")
    (folder / "notes.md").write_text("just notes")
    (folder / "latin.md").write_bytes(b"---\nname: \xff\n---\n")
    (folder / "huge.md").write_bytes(b"---\nname: huge\ndescription: d\n---\n" + b"x" * 300_000)
    (folder / "folder.md").mkdir()
    os.mkfifo(folder / "pipe.md")
    (folder / "readme.txt").write_text("not looked at")

    definitions = load_definitions(project, user_dir=user_dir)

    assert set(definitions) == BUILTIN | {"good"}
    sentences = {problem.path.name: problem.sentence for problem in definitions.problems if problem.path}
    assert set(sentences) == {"bad.md", "notes.md", "latin.md", "huge.md", "pipe.md"}
    assert sentences["bad.md"].startswith("key: 'toolz' is not accepted")
    assert all(sentence.endswith("; skipped") for sentence in sentences.values())
    assert f"{bad}: {sentences['bad.md']}" in map(str, definitions.problems)


def test_files_in_subfolders_are_read(project: Path, user_dir: Path) -> None:
    """Hidden folders and files are not, and neither are folders below the maximum depth."""
    folder = project / ".claude" / "agents"
    write(folder / "review" / "security", "deep")
    write(folder / ".trash", "gone")
    write(folder, "hidden", file=".hidden.md")
    too_deep = folder.joinpath(*"abcdefgh"[: MAX_DEPTH + 1])
    write(too_deep, "abyss")

    definitions = load_definitions(project, user_dir=user_dir)

    assert set(definitions) == BUILTIN | {"deep"}
    assert [problem.path for problem in definitions.problems] == [too_deep.parent]


def test_the_number_of_files_in_a_folder_is_bounded(project: Path, user_dir: Path) -> None:
    """The folder is reported."""
    folder = project / ".claude" / "agents"
    folder.mkdir(parents=True)
    for number in range(MAX_ENTRIES + 5):
        (folder / f"f{number}.txt").touch()

    definitions = load_definitions(project, user_dir=user_dir)

    assert [problem.path for problem in definitions.problems] == [folder]


def test_links_out_of_a_project_are_skipped(project: Path, user_dir: Path, tmp_path: Path) -> None:
    """Links inside the project and links of the user are followed."""
    outside = write(tmp_path / "elsewhere", "stolen")
    shared = write(project / "shared", "shared")
    folder = project / ".claude" / "agents"
    folder.mkdir(parents=True)
    (folder / "stolen.md").symlink_to(outside)
    (folder / "shared.md").symlink_to(shared)
    (folder / "gone.md").symlink_to(tmp_path / "nothing")
    (user_dir / "agents").mkdir(parents=True)
    (user_dir / "agents" / "mine.md").symlink_to(write(tmp_path / "dotfiles", "mine"))

    definitions = load_definitions(project, user_dir=user_dir)

    assert set(definitions) == BUILTIN | {"shared", "mine"}
    assert {problem.path: "leads" in problem.sentence for problem in definitions.problems} == {
        folder / "stolen.md": True,
        folder / "gone.md": True,
    }


def test_a_linked_agents_folder_is_skipped_if_it_leads_out(project: Path, user_dir: Path, tmp_path: Path) -> None:
    """The folder of definitions is reported."""
    write(tmp_path / "elsewhere" / "agents", "stolen")
    (project / ".claude").symlink_to(tmp_path / "elsewhere")

    definitions = load_definitions(project, user_dir=user_dir)

    assert set(definitions) == BUILTIN
    assert [problem.path for problem in definitions.problems] == [project / ".claude" / "agents"]


def test_cyclic_links_end(project: Path, user_dir: Path) -> None:
    """A folder in itself, a file that links to itself and two files that link to each other are reported."""
    folder = project / ".claude" / "agents"
    write(folder, "good")
    (folder / "again").symlink_to(folder, target_is_directory=True)
    (folder / "self.md").symlink_to(folder / "self.md")
    (folder / "a.md").symlink_to(folder / "b.md")
    (folder / "b.md").symlink_to(folder / "a.md")
    (project / ".agents").mkdir()
    (project / ".agents" / "agents").symlink_to(project / ".agents" / "agents")

    definitions = load_definitions(project, user_dir=user_dir)

    assert set(definitions) == BUILTIN | {"good"}
    names = {problem.path.name for problem in definitions.problems if problem.path}
    assert names == {"again", "self.md", "a.md", "b.md", "agents"}


def test_types_may_spawn_each_other_and_unknown_types_are_problems(project: Path, user_dir: Path) -> None:
    """The depth limit bounds a cycle of types; an unknown type is a mistake."""
    folder = project / ".ramet" / "agents"
    write(folder, "ping", more="tools: Agent(pong, ping)\n")
    write(folder, "pong", more="tools: Task(ping), Agent(explorer)\n")

    definitions = load_definitions(project, user_dir=user_dir, call=[Agent(name="lead", tools=["Agent(ping, nobody)"])])

    assert {"ping", "pong", "lead"} <= set(definitions)
    assert sorted(problem.sentence for problem in definitions.problems) == [
        "agent 'lead' may spawn 'nobody', which is not defined",
        "agent 'pong' may spawn 'explorer', which is not defined",
    ]


def test_refresh_sees_new_changed_and_removed_files(project: Path, user_dir: Path) -> None:
    """AC-S1-16: Definitions reload; without a change, `refresh` returns False."""
    folder = project / ".claude" / "agents"
    definitions = load_definitions(project, user_dir=user_dir)
    assert not definitions.refresh()

    write(folder, "x", description="one")
    assert definitions.refresh()
    assert definitions["x"].description == "one"
    assert not definitions.refresh()
    write(folder, "x", description="two")  # same size, same inode, perhaps the same tick of the clock
    assert definitions.refresh()
    assert definitions["x"].description == "two"
    (folder / "x.md").unlink()
    assert definitions.refresh()
    assert "x" not in definitions


def test_an_unchanged_file_is_not_read_again(project: Path, user_dir: Path) -> None:
    """The file's time, size and inode decide, so that a refresh costs one stat per file."""
    path = write(project / ".claude" / "agents", "x", description="one")
    os.utime(path, ns=(10**18, 10**18))
    definitions = load_definitions(project, user_dir=user_dir)

    path.write_text(path.read_text().replace("one", "two"))
    os.utime(path, ns=(10**18, 10**18))
    assert not definitions.refresh()
    os.utime(path, ns=(10**18, 10**18 + 1))
    assert definitions.refresh()
    assert definitions["x"].description == "two"


def test_a_file_that_became_bad_keeps_its_last_good_version(project: Path, user_dir: Path) -> None:
    """The definition stays usable and is reported until the file is good again or removed."""
    path = write(project / ".claude" / "agents", "x", description="good")
    definitions = load_definitions(project, user_dir=user_dir)

    path.write_text("---\nname: [\n---\n")
    assert definitions.refresh()
    assert definitions["x"].description == "good"
    assert "stays in use" in definitions.problems[0].sentence
    assert not definitions.refresh()
    path.write_text("---\nname: [[\n---\n")
    definitions.refresh()
    assert definitions["x"].description == "good"
    write(path.parent, "x", description="better")
    assert definitions.refresh()
    assert (definitions["x"].description, definitions.problems) == ("better", ())


def test_an_unreadable_file_keeps_its_last_good_version(project: Path, user_dir: Path, tmp_path: Path) -> None:
    """A file that became a link out of the project, or a pipe, is reported."""
    path = write(project / ".claude" / "agents", "x", description="good")
    definitions = load_definitions(project, user_dir=user_dir)

    path.unlink()
    path.symlink_to(write(tmp_path / "elsewhere", "x", description="evil"))
    assert definitions.refresh()
    assert definitions["x"].description == "good"
    path.unlink()
    os.mkfifo(path)
    definitions.refresh()
    assert (definitions["x"].description, len(definitions.problems)) == ("good", 1)


def test_an_unreadable_folder_keeps_its_definitions(project: Path, user_dir: Path) -> None:
    """Every file of it is reported, and none is lost."""
    folder = project / ".claude" / "agents"
    write(folder, "x")
    definitions = load_definitions(project, user_dir=user_dir)

    folder.rename(project / ".claude" / "moved")
    folder.write_text("in the way")
    assert definitions.refresh()

    assert "x" in definitions
    assert {problem.path for problem in definitions.problems} == {folder, folder / "x.md"}


def test_a_snapshot_never_changes(project: Path, user_dir: Path) -> None:
    """A tree keeps the definitions of its spawn, whatever its runs write."""
    folder = project / ".claude" / "agents"
    write(folder, "x", description="one")
    definitions = load_definitions(project, user_dir=user_dir)
    tree = definitions.snapshot()

    write(folder, "x", description="two")
    write(folder, "y")
    definitions.refresh()

    assert (tree["x"].description, "y" in tree) == ("one", False)
    assert (definitions["x"].description, "y" in definitions) == ("two", True)
    with pytest.raises(TypeError):
        tree["x"] = definitions["x"]  # type: ignore[index]  # that it is refused is the point


def has_hooks(definitions: Definitions) -> bool:
    """Return whether an agent has hooks; it has servers if and only if it has hooks."""
    assert bool(definitions["x"].mcp) == (definitions["x"].hooks is not None)
    return definitions["x"].hooks is not None


def test_hooks_are_on_only_while_the_folder_is_trusted(project: Path, user_dir: Path) -> None:
    """Hooks are off at first, on with trust, and off again without it."""
    write(project / ".claude" / "agents", "x", more=HOOKS)
    definitions = load_definitions(project, user_dir=user_dir)
    results = [has_hooks(definitions)]
    assert "ramet trust" in definitions.notes[0].sentence

    for trusted in (True, None, False):
        definitions.refresh(trusted=trusted)
        results.append(has_hooks(definitions))

    assert results == [False, True, True, False]


def test_a_file_changed_after_trust_has_no_hooks(project: Path, user_dir: Path) -> None:
    """Trust covers the content at that time; only new trust covers the new content."""
    path = write(project / ".claude" / "agents", "x", more=HOOKS)
    definitions = load_definitions(project, user_dir=user_dir, trusted=True)
    assert has_hooks(definitions)

    path.write_text(path.read_text().replace("stop.sh", "evil.sh"))
    definitions.refresh()

    assert not has_hooks(definitions)


def test_withdrawn_trust_removes_hooks_of_the_last_good_version(project: Path, user_dir: Path) -> None:
    """A file that is bad now does not keep its hooks."""
    path = write(project / ".claude" / "agents", "x", more=HOOKS)
    definitions = load_definitions(project, user_dir=user_dir, trusted=True)

    path.write_text("broken")
    definitions.refresh(trusted=False)

    assert "x" in definitions
    assert not has_hooks(definitions)


def test_agents_name_servers_of_a_trusted_project(project: Path, user_dir: Path) -> None:
    """A name in an agent's file is a server of `.mcp.json`; without trust, not even a user's agent gets one."""
    servers = {"calc": {"command": "calc"}, "far": {"type": "sse", "url": "https://x.example"}, "bad": 5}
    file = project / ".mcp.json"
    file.write_text(json.dumps({"mcpServers": servers}))
    for folder, name in ((project / ".claude" / "agents", "x"), (user_dir / "agents", "y")):
        write(folder, name, more="mcpServers: [calc, gone]\n")
    definitions = load_definitions(project, user_dir=user_dir)
    results = [_servers(definitions)]
    for trusted in (True, None, False, True):
        definitions.refresh(trusted=trusted)
        results.append(_servers(definitions))

    assert results == [([], []), (["calc"], ["calc"]), (["calc"], ["calc"]), ([], []), (["calc"], ["calc"])]
    assert [each.sentence.partition(":")[0] for each in definitions.problems] == ["mcp.far.type", "mcp"]
    assert {each.sentence for each in definitions.notes} == {
        "mcpServers: gone: no server of .mcp.json in a trusted folder"
    }
    file.unlink()
    file.symlink_to(user_dir / "servers.json")
    (user_dir / "servers.json").write_text(json.dumps({"mcpServers": servers}))
    definitions.refresh(trusted=True)
    assert _servers(definitions) == ([], [])
    file.unlink()
    file.write_text("[" * 100_000)
    definitions.refresh(trusted=True)
    assert [each.sentence for each in definitions.problems] == [
        ".mcp.json: 'its text' is not accepted; expected JSON; skipped"
    ]


def _servers(definitions: Definitions) -> tuple[list[str], list[str]]:
    first, second = ([each.name for each in definitions[name].mcp_servers] for name in ("x", "y"))
    return first, second


def test_a_home_folder_as_project_needs_trust_like_a_project(home: Path, user_dir: Path) -> None:
    """`~/.claude/agents` is read once, as the project's."""
    write(home / ".claude" / "agents", "x", more=HOOKS)

    definitions = load_definitions(home, user_dir=user_dir, home=home)

    assert (definitions["x"].scope, has_hooks(definitions), definitions.shadowed_definitions) == ("project", False, ())


def test_notes_of_the_user_need_trust_in_the_folder(project: Path, user_dir: Path) -> None:
    """A definition without trust is skipped and reported; withdrawn trust removes its notes."""
    write(project / ".claude" / "agents", "x", more="memory: user\n")
    definitions = load_definitions(project, user_dir=user_dir)
    assert "x" not in definitions
    assert "ramet trust DIR" in definitions.problems[0].sentence

    definitions.refresh(trusted=True)
    assert definitions["x"].memory == "user"

    definitions.refresh(trusted=False)
    assert definitions["x"].memory is None


def test_a_tool_declared_later_does_not_change_an_open_tree() -> None:
    """The definitions of a call are copies, also of an agent that was in a call before."""
    agent = Agent(name="reader", tools=["Read"], scope="call")
    definitions = load_definitions(None, user_dir=None, call=[agent]).snapshot()
    agent.tool("Bash")

    assert definitions["reader"].tools == ("Read",)
