"""AC-S1-6: no name of an agent type or of a file leads out of its own memory, or into another memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ramet.agent.files.memory import folder_name, memory_folder
from ramet.core.errors import Denied, InvalidValue, RametError
from ramet.tools.memory.memory import MemoryTool, memory_tool
from ramet.tools.memory.memory_folder import MemoryFolder

HOSTILE = [
    "../../etc",
    "..",
    ".",
    "",
    "/etc/passwd",
    "a/b",
    "a\\b",
    "a\0b",
    "a\nb",
    "~root",
    "-rf",
    ".hidden",
    "a b",
    "plugin:scout",
    "sco\u0301ut",
    "sc\u00f3ut",
    "\ud800",
    "CON",
    "x" * 64 + "y",
    "x" * 64 + "z",
    "x" * 1_000_000,
    "scout/",
    "scout\n",
    " scout",
]
TYPES = st.one_of(st.sampled_from(HOSTILE), st.text(max_size=80), st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z"))


@given(TYPES)
def test_a_types_folder_is_one_component_below_the_memory_folder(agent_type: str) -> None:
    """The folder of each agent type is one printable name of at most 100 bytes."""
    folder = memory_folder(agent_type, "project", project_dir=Path("/p"), user_dir=Path("/u"))

    assert folder.path.parent == Path("/p/.claude/agent-memory")
    assert folder.path.name not in ("", ".", "..")
    assert len(os.fsencode(folder.path.name)) <= 100
    assert folder.path.name.isprintable()


@given(TYPES, TYPES)
@example("plugin:scout", "plugin-scout")
@example("a/b", "a-b")
@example("../x", "x")
@example("x" * 64 + "y", "x" * 64 + "z")
@example("sco\u0301ut", "sc\u00f3ut")
def test_two_types_never_share_a_folder(one: str, other: str) -> None:
    """Different names of agent types give different folders, also where one name imitates the folder of the other."""
    assert (folder_name(one) == folder_name(other)) == (one == other)


@given(TYPES)
def test_a_type_named_like_a_folder_gets_another_folder(agent_type: str) -> None:
    """A type that takes the folder name of a hostile type as its own name does not get that folder."""
    name = folder_name(agent_type)

    assert (folder_name(name) == name) == (name == agent_type)


def test_a_plain_name_is_its_own_folder() -> None:
    """A plain type name is its own folder name, so that Claude's users find their notes."""
    assert folder_name("code-reviewer") == "code-reviewer"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Make a project with a memory, and a secret beside the memory."""
    path = tmp_path / "project"
    (path / "memory").mkdir(parents=True)
    (path / "memory" / "MEMORY.md").write_text("mine")
    (path / "other").mkdir()
    (path / "other" / "MEMORY.md").write_text("SECRET")
    (tmp_path / "secret.md").write_text("SECRET")
    return path


@pytest.fixture
def tool(root: Path) -> MemoryTool:
    return memory_tool(MemoryFolder(root / "memory", root))


ATTEMPTS: list[dict[str, Any]] = [
    {"command": "view"},
    {"command": "create", "file_text": "evil"},
    {"command": "str_replace", "old_str": "SECRET", "new_str": "evil"},
    {"command": "insert", "insert_line": 0, "insert_text": "evil"},
    {"command": "delete"},
]


def attempt_all(tool: MemoryTool, path: str) -> list[type[BaseException]]:
    """Try every command on `path`.

    Assert that each is refused and that no error holds the secret. Return the errors' types.
    """
    refusals: list[type[BaseException]] = []
    for each in ATTEMPTS:
        with pytest.raises(RametError) as refusal:
            tool.invoke({**each, "path": path})
        assert "SECRET" not in str(refusal.value).replace(repr("SECRET"), "")
        refusals.append(refusal.type)
    return refusals


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def secrets(root: Path) -> list[str]:
    return [(root / "other" / "MEMORY.md").read_text(), (root.parent / "secret.md").read_text()]


@pytest.mark.parametrize(
    "path",
    [
        "../other/MEMORY.md",
        "/memories/../other/MEMORY.md",
        "/memories/a/../../other/MEMORY.md",
        "/memoriesX/a.md",
        "/etc/passwd",
        "//etc/passwd",
        "/memories//etc/passwd",
        "./MEMORY.md",
        "a/./b.md",
        "..\\other\\MEMORY.md",
        "%2e%2e/other",
        "~/secret.md",
        ".hidden",
        ".draft",
        "a\0b",
        "a\nb",
        "a/b/c/d/e.md",
        "x" * 1_000_000,
        "caf\u00e9.md",
        "a.md.",
        "a.md /b",
    ],
)
def test_paths_that_could_mean_another_place_are_refused(tool: MemoryTool, root: Path, path: str) -> None:
    """The tool refuses a path with a hostile form, and touches no file."""
    assert attempt_all(tool, path) == [InvalidValue] * len(ATTEMPTS)
    assert secrets(root) == ["SECRET", "SECRET"]
    assert names(root / "memory") == ["MEMORY.md"]


def test_a_linked_file_is_neither_read_nor_written_through(tool: MemoryTool, root: Path) -> None:
    """The tool refuses to read or write through a link to a file. Delete removes the link."""
    link = root / "memory" / "link.md"
    link.symlink_to(root.parent / "secret.md")

    for each in ATTEMPTS[:-1]:
        with pytest.raises(Denied):
            tool.invoke({**each, "path": "link.md"})
    tool.invoke({"command": "delete", "path": "link.md"})

    assert not link.is_symlink()
    assert secrets(root) == ["SECRET", "SECRET"]


def test_a_linked_folder_is_not_entered(tool: MemoryTool, root: Path) -> None:
    """The tool refuses files below a link to a folder, and lists none. Delete removes nothing behind the link."""
    link = root / "memory" / "people"
    link.symlink_to(root / "other", target_is_directory=True)

    assert attempt_all(tool, "people/MEMORY.md") == [Denied] * len(ATTEMPTS)
    assert "people" not in tool.invoke({"command": "view"})
    tool.invoke({"command": "delete", "path": "people"})
    assert secrets(root) == ["SECRET", "SECRET"]


@pytest.mark.parametrize("component", ["memory", "."])
def test_a_memory_replaced_by_a_link_is_refused(root: Path, component: str) -> None:
    """The tool refuses a memory when the memory, or a folder above it, has been replaced by a link."""
    inner = root / "a" / "memory"
    inner.mkdir(parents=True)
    replaced = inner if component == "memory" else inner.parent
    tool = memory_tool(MemoryFolder(inner, root))
    replaced.rename(root / "moved")
    (root / "target").mkdir()
    (root / "target" / "memory").mkdir()
    replaced.symlink_to(root / "target")

    with pytest.raises(Denied):
        tool.invoke({"command": "view"})
    with pytest.raises(Denied):
        tool.invoke({"command": "create", "path": "a.md", "file_text": "x"})

    assert names(root / "target") == ["memory"]
    assert names(root / "target" / "memory") == []


def test_a_memory_outside_of_its_root_cannot_be_made(tmp_path: Path) -> None:
    """A memory folder beside its root, directly or through `..`, is refused."""
    for path in (tmp_path / "beside", tmp_path / "root" / ".." / "beside"):
        with pytest.raises(InvalidValue):
            MemoryFolder(path, tmp_path / "root")


def test_pipes_and_folders_in_place_of_files_are_refused_without_waiting(tool: MemoryTool, root: Path) -> None:
    """The tool refuses a pipe or a folder in place of a file, since opening a pipe would wait for its writer."""
    os.mkfifo(root / "memory" / "pipe.md")
    (root / "memory" / "folder.md").mkdir()

    for name in ("pipe.md", "folder.md"):
        for each in ATTEMPTS[:-1]:
            with pytest.raises((InvalidValue, Denied)):
                tool.invoke({**each, "path": name})


def test_a_hard_link_is_replaced_and_not_written_through(tool: MemoryTool, root: Path) -> None:
    """The tool replaces a file by a new one, so that another name of the old file keeps its content."""
    (root / "memory" / "hard.md").hardlink_to(root.parent / "secret.md")

    tool.invoke({"command": "create", "path": "hard.md", "file_text": "evil"})

    assert secrets(root) == ["SECRET", "SECRET"]
