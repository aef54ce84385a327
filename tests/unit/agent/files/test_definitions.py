"""AC-S1-16: which definition wins, what is said of bad ones, and what a changed file changes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ramet.agent.definition import Agent
from ramet.agent.files.definitions import Definitions, load_definitions
from ramet.agent.files.search_paths import MAX_DEPTH, MAX_ENTRIES
from ramet.core.errors import InvalidValue

BUILTIN = {"general-purpose", "explore", "plan"}
HOOKS = "hooks: {Stop: [{hooks: [{type: command, command: ./stop.sh}]}]}\n"


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
    """Put an agent's file there, in place of whatever was."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / (file or f"{name}.md")
    path.write_text(f"---\nname: {name}\ndescription: {description}\n{more}---\n{body}\n")
    return path


def test_without_any_file_the_builtin_agents_are_there(project: Path, user_dir: Path) -> None:
    """Nothing is made on the disk by looking."""
    found = load_definitions(project, user_dir=user_dir)

    assert set(found) == BUILTIN
    assert (found.problems, found.notes, found.shadowed) == ((), (), ())
    assert not user_dir.exists()
    assert list(project.iterdir()) == []


def test_precedence_from_managed_down_to_builtin(project: Path, user_dir: Path, home: Path, tmp_path: Path) -> None:
    """AC-S1-16: managed > call > project > user > plugin > builtin; whoever is taken away uncovers the next."""
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
    found = load_definitions(
        project,
        user_dir=user_dir,
        home=home,
        managed_dir=tmp_path / "managed",
        plugin_dirs=[tmp_path / "plugin"],
        call=[call],
    )
    seen = [found["explore"].description]
    losers = [each.loser.split()[0] for each in found.shadowed]
    for file in files:
        file.unlink()
        found.refresh()
        seen.append(found["explore"].description)

    assert seen == ["managed", *["call"] * 7]
    assert losers == ["call", "project", "project", "project", "user", "user", "plugin", "builtin"]
    without_call = load_definitions(project, user_dir=user_dir)
    assert without_call["explore"].scope == "builtin"


def test_each_project_and_user_folder_in_its_turn(project: Path, user_dir: Path, home: Path, tmp_path: Path) -> None:
    """AC-S1-16: without a managed or called one, the folders of a scope follow each other."""
    folders = {
        "ramet": project / ".ramet" / "agents",
        "claude": project / ".claude" / "agents",
        "neutral": project / ".agents" / "agents",
        "user": user_dir / "agents",
        "user-claude": home / ".claude" / "agents",
        "plugin": tmp_path / "plugin" / "agents",
    }
    files = [write(folder, "plan", description=name) for name, folder in folders.items()]
    found = load_definitions(project, user_dir=user_dir, home=home, plugin_dirs=[tmp_path / "plugin"])
    seen = []
    for file in files:
        seen.append(found["plan"].description)
        file.unlink()
        assert found.refresh()

    assert seen == list(folders)
    assert found["plan"].scope == "builtin"


def test_two_of_one_name_in_one_folder_are_a_problem(project: Path, user_dir: Path) -> None:
    """The first file by name wins, and it is said."""
    folder = project / ".claude" / "agents"
    write(folder, "x", description="first", file="a.md")
    write(folder, "x", description="second", file="b.md")

    found = load_definitions(project, user_dir=user_dir)

    assert found["x"].description == "first"
    (problem,) = found.problems
    assert problem.path == folder / "b.md"
    assert "a.md" in problem.sentence


def test_two_of_one_name_in_a_call_are_refused(project: Path, user_dir: Path) -> None:
    """Code is corrected by whoever writes it."""
    with pytest.raises(InvalidValue, match="one definition of each name"):
        load_definitions(project, user_dir=user_dir, call=[Agent(name="x"), Agent(name="x")])


def test_a_bad_file_is_reported_and_skipped(project: Path, user_dir: Path) -> None:
    """One sentence with the file, and everything else is there."""
    folder = project / ".claude" / "agents"
    write(folder, "good")
    bad = write(folder, "bad", more="toolz: Read\n")
    (folder / "notes.md").write_text("just notes")
    (folder / "latin.md").write_bytes(b"---\nname: \xff\n---\n")
    (folder / "huge.md").write_bytes(b"---\nname: huge\ndescription: d\n---\n" + b"x" * 300_000)
    (folder / "folder.md").mkdir()
    os.mkfifo(folder / "pipe.md")
    (folder / "readme.txt").write_text("not looked at")

    found = load_definitions(project, user_dir=user_dir)

    assert set(found) == BUILTIN | {"good"}
    said = {problem.path.name: problem.sentence for problem in found.problems if problem.path}
    assert set(said) == {"bad.md", "notes.md", "latin.md", "huge.md", "pipe.md"}
    assert said["bad.md"].startswith("key: 'toolz' is not accepted")
    assert all(sentence.endswith("; skipped") for sentence in said.values())
    assert f"{bad}: {said['bad.md']}" in map(str, found.problems)


def test_files_in_subfolders_count(project: Path, user_dir: Path) -> None:
    """As Claude's users sort them; hidden folders and files do not count."""
    folder = project / ".claude" / "agents"
    write(folder / "review" / "security", "deep")
    write(folder / ".trash", "gone")
    write(folder, "hidden", file=".hidden.md")
    too_deep = folder.joinpath(*"abcdefgh"[: MAX_DEPTH + 1])
    write(too_deep, "abyss")

    found = load_definitions(project, user_dir=user_dir)

    assert set(found) == BUILTIN | {"deep"}
    assert [problem.path for problem in found.problems] == [too_deep.parent]


def test_a_flood_of_files_is_cut_and_said(project: Path, user_dir: Path) -> None:
    """So many files are looked at and no more."""
    folder = project / ".claude" / "agents"
    folder.mkdir(parents=True)
    for number in range(MAX_ENTRIES + 5):
        (folder / f"f{number}.txt").touch()

    found = load_definitions(project, user_dir=user_dir)

    assert [problem.path for problem in found.problems] == [folder]


def test_links_out_of_a_project_are_skipped_and_those_inside_are_not(
    project: Path, user_dir: Path, tmp_path: Path
) -> None:
    """What a cloned folder points at outside of itself is none of its definitions; a user's own links may."""
    outside = write(tmp_path / "elsewhere", "stolen")
    shared = write(project / "shared", "shared")
    folder = project / ".claude" / "agents"
    folder.mkdir(parents=True)
    (folder / "stolen.md").symlink_to(outside)
    (folder / "shared.md").symlink_to(shared)
    (folder / "gone.md").symlink_to(tmp_path / "nothing")
    (user_dir / "agents").mkdir(parents=True)
    (user_dir / "agents" / "mine.md").symlink_to(write(tmp_path / "dotfiles", "mine"))

    found = load_definitions(project, user_dir=user_dir)

    assert set(found) == BUILTIN | {"shared", "mine"}
    assert {problem.path: "leads" in problem.sentence for problem in found.problems} == {
        folder / "stolen.md": True,
        folder / "gone.md": True,
    }


def test_a_linked_agents_folder_is_skipped_if_it_leads_out(project: Path, user_dir: Path, tmp_path: Path) -> None:
    """The same for the folder itself."""
    write(tmp_path / "elsewhere" / "agents", "stolen")
    (project / ".claude").symlink_to(tmp_path / "elsewhere")

    found = load_definitions(project, user_dir=user_dir)

    assert set(found) == BUILTIN
    assert [problem.path for problem in found.problems] == [project / ".claude" / "agents"]


def test_circles_of_links_end(project: Path, user_dir: Path) -> None:
    """A cyclic definition on the disk: a folder in itself, a file that is its own target, two that are each other's."""
    folder = project / ".claude" / "agents"
    write(folder, "good")
    (folder / "again").symlink_to(folder, target_is_directory=True)
    (folder / "self.md").symlink_to(folder / "self.md")
    (folder / "a.md").symlink_to(folder / "b.md")
    (folder / "b.md").symlink_to(folder / "a.md")
    (project / ".agents").mkdir()
    (project / ".agents" / "agents").symlink_to(project / ".agents" / "agents")

    found = load_definitions(project, user_dir=user_dir)

    assert set(found) == BUILTIN | {"good"}
    names = {problem.path.name for problem in found.problems if problem.path}
    assert names == {"again", "self.md", "a.md", "b.md", "agents"}


def test_types_that_spawn_each_other_are_fine_and_unknown_ones_are_a_problem(project: Path, user_dir: Path) -> None:
    """Depth bounds a circle of types; a type that does not exist is somebody's mistake."""
    folder = project / ".ramet" / "agents"
    write(folder, "ping", more="tools: Agent(pong, ping)\n")
    write(folder, "pong", more="tools: Task(ping), Agent(explorer)\n")

    found = load_definitions(project, user_dir=user_dir, call=[Agent(name="lead", tools=["Agent(ping, nobody)"])])

    assert {"ping", "pong", "lead"} <= set(found)
    assert sorted(problem.sentence for problem in found.problems) == [
        "agent 'lead' may spawn 'nobody', which is not defined",
        "agent 'pong' may spawn 'explorer', which is not defined",
    ]


def test_refresh_sees_what_is_new_changed_and_gone(project: Path, user_dir: Path) -> None:
    """AC-S1-16: hot reload; nothing changed is False."""
    folder = project / ".claude" / "agents"
    found = load_definitions(project, user_dir=user_dir)
    assert not found.refresh()

    write(folder, "x", description="one")
    assert found.refresh()
    assert found["x"].description == "one"
    assert not found.refresh()
    write(folder, "x", description="two")  # same size, same inode, perhaps the same tick of the clock
    assert found.refresh()
    assert found["x"].description == "two"
    (folder / "x.md").unlink()
    assert found.refresh()
    assert "x" not in found


def test_an_old_file_is_not_read_again(project: Path, user_dir: Path) -> None:
    """Refreshing costs a stat a file: with time, size and inode as they were, the content is not looked at."""
    path = write(project / ".claude" / "agents", "x", description="one")
    os.utime(path, ns=(10**18, 10**18))
    found = load_definitions(project, user_dir=user_dir)

    path.write_text(path.read_text().replace("one", "two"))
    os.utime(path, ns=(10**18, 10**18))
    assert not found.refresh()
    os.utime(path, ns=(10**18, 10**18 + 1))
    assert found.refresh()
    assert found["x"].description == "two"


def test_a_file_that_became_bad_keeps_its_last_good_version(project: Path, user_dir: Path) -> None:
    """It stays usable and is reported, until it is good again or gone."""
    path = write(project / ".claude" / "agents", "x", description="good")
    found = load_definitions(project, user_dir=user_dir)

    path.write_text("---\nname: [\n---\n")
    assert found.refresh()
    assert found["x"].description == "good"
    assert "stays in use" in found.problems[0].sentence
    assert not found.refresh()
    path.write_text("---\nname: [[\n---\n")
    found.refresh()
    assert found["x"].description == "good"
    write(path.parent, "x", description="better")
    assert found.refresh()
    assert (found["x"].description, found.problems) == ("better", ())


def test_a_file_that_cannot_be_read_any_more_keeps_its_last_good_version(
    project: Path, user_dir: Path, tmp_path: Path
) -> None:
    """Nor one that became a link out of the project, or a pipe."""
    path = write(project / ".claude" / "agents", "x", description="good")
    found = load_definitions(project, user_dir=user_dir)

    path.unlink()
    path.symlink_to(write(tmp_path / "elsewhere", "x", description="evil"))
    assert found.refresh()
    assert found["x"].description == "good"
    path.unlink()
    os.mkfifo(path)
    found.refresh()
    assert (found["x"].description, len(found.problems)) == ("good", 1)


def test_a_folder_that_cannot_be_reached_any_more_keeps_what_it_held(project: Path, user_dir: Path) -> None:
    """Unreadable is not gone: every file of it is reported, none is lost."""
    folder = project / ".claude" / "agents"
    write(folder, "x")
    found = load_definitions(project, user_dir=user_dir)

    folder.rename(project / ".claude" / "moved")
    folder.write_text("in the way")
    assert found.refresh()

    assert "x" in found
    assert {problem.path for problem in found.problems} == {folder, folder / "x.md"}


def test_a_snapshot_never_changes(project: Path, user_dir: Path) -> None:
    """What a run writes is not hot-reloaded into its own tree: the tree holds the view of its birth."""
    folder = project / ".claude" / "agents"
    write(folder, "x", description="one")
    found = load_definitions(project, user_dir=user_dir)
    tree = found.snapshot()

    write(folder, "x", description="two")
    write(folder, "y")
    found.refresh()

    assert (tree["x"].description, "y" in tree) == ("one", False)
    assert (found["x"].description, "y" in found) == ("two", True)
    with pytest.raises(TypeError):
        tree["x"] = found["x"]  # type: ignore[index]  # that it is refused is the point


def hooked(found: Definitions) -> bool:
    return found["x"].hooks is not None


def test_hooks_follow_the_verdict_on_the_folder(project: Path, user_dir: Path) -> None:
    """Off until trusted, on with the verdict, off again when it is withdrawn."""
    write(project / ".claude" / "agents", "x", more=HOOKS)
    found = load_definitions(project, user_dir=user_dir)
    seen = [hooked(found)]
    assert "ramet trust" in found.notes[0].sentence

    for trusted in (True, None, False):
        found.refresh(trusted=trusted)
        seen.append(hooked(found))

    assert seen == [False, True, True, False]


def test_a_file_that_changed_after_the_verdict_has_no_hooks(project: Path, user_dir: Path) -> None:
    """Trust was in what stood there then; only a new verdict covers what stands there now."""
    path = write(project / ".claude" / "agents", "x", more=HOOKS)
    found = load_definitions(project, user_dir=user_dir, trusted=True)
    assert hooked(found)

    path.write_text(path.read_text().replace("stop.sh", "evil.sh"))
    found.refresh()

    assert not hooked(found)


def test_a_withdrawn_verdict_reaches_the_last_good_version(project: Path, user_dir: Path) -> None:
    """A file that is bad now does not keep its hooks by that."""
    path = write(project / ".claude" / "agents", "x", more=HOOKS)
    found = load_definitions(project, user_dir=user_dir, trusted=True)

    path.write_text("broken")
    found.refresh(trusted=False)

    assert "x" in found
    assert not hooked(found)


def test_a_home_that_is_the_project_is_trusted_no_more_than_a_project(home: Path, user_dir: Path) -> None:
    """`~/.claude/agents` is then both; it is read once, as the project's."""
    write(home / ".claude" / "agents", "x", more=HOOKS)

    found = load_definitions(home, user_dir=user_dir, home=home)

    assert (found["x"].scope, hooked(found), found.shadowed) == ("project", False, ())


def test_notes_of_the_user_follow_the_verdict_on_the_folder(project: Path, user_dir: Path) -> None:
    """Without trust the definition is skipped and reported; a withdrawn trust takes the notes away."""
    write(project / ".claude" / "agents", "x", more="memory: user\n")
    found = load_definitions(project, user_dir=user_dir)
    assert "x" not in found
    assert "ramet trust DIR" in found.problems[0].sentence

    found.refresh(trusted=True)
    assert found["x"].memory == "user"

    found.refresh(trusted=False)
    assert found["x"].memory is None
