"""The Memory tool, called as the dispatcher calls it."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import ToolCall

from ramet.core.errors import Denied, InvalidValue, Unknown
from ramet.tools.dispatch import run_tools, tool_flag
from ramet.tools.memory import memory_folder
from ramet.tools.memory.memory import MemoryTool, memory_tool
from ramet.tools.memory.memory_folder import MAX_FILE, MAX_FILES, MemoryFolder
from tests.support.context import make_context


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "root" / "memory"


@pytest.fixture
def tool(path: Path) -> MemoryTool:
    return memory_tool(MemoryFolder(path, path.parent))


def call(tool: MemoryTool, command: str, name: str = "/memories", **fields: Any) -> str:
    return str(tool.invoke({"command": command, "path": name, **fields}))


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def test_reading_an_empty_memory_makes_no_folder(tool: MemoryTool, path: Path) -> None:
    """A view writes nothing."""
    assert call(tool, "view") == "The memory is empty."
    with pytest.raises(Unknown):
        call(tool, "view", "/memories/MEMORY.md")
    with pytest.raises(Unknown):
        call(tool, "delete", "/memories/MEMORY.md")
    assert not path.parent.exists()


def test_files_are_created_viewed_and_listed(tool: MemoryTool, path: Path) -> None:
    """Views have numbered lines and ranges of them, and lists have sizes."""
    assert call(tool, "create", "/memories/MEMORY.md", file_text="one\ntwo\nthree") == "Created /memories/MEMORY.md."
    call(tool, "create", "people/ann.md", file_text="kind")

    assert (path / "MEMORY.md").read_text() == "one\ntwo\nthree"
    assert call(tool, "view", "MEMORY.md") == "     1\tone\n     2\ttwo\n     3\tthree"
    assert call(tool, "view", "MEMORY.md", view_range=[2, -1]) == "     2\ttwo\n     3\tthree"
    assert call(tool, "view").split("\n")[1:] == ["      13 /memories/MEMORY.md", "       4 /memories/people/ann.md"]
    assert call(tool, "view", "/memories/people").endswith("\n       4 /memories/people/ann.md")
    assert call(tool, "view", "/memories/").startswith("Files")


def test_create_replaces_a_file_and_says_so(tool: MemoryTool, path: Path) -> None:
    """The whole file is replaced at once."""
    call(tool, "create", "a.md", file_text="long text")

    assert call(tool, "create", "a.md", file_text="x") == "Replaced a.md."
    assert (path / "a.md").read_text() == "x"
    assert names(path) == ["a.md"]  # no draft is left


def test_only_a_single_occurrence_is_replaced(tool: MemoryTool, path: Path) -> None:
    """Nothing is guessed."""
    call(tool, "create", "a.md", file_text="a b a")

    call(tool, "str_replace", "a.md", old_str="b", new_str="c")
    with pytest.raises(InvalidValue, match="occurs 2 times"):
        call(tool, "str_replace", "a.md", old_str="a", new_str="z")
    with pytest.raises(Unknown):
        call(tool, "str_replace", "a.md", old_str="z", new_str="a")
    with pytest.raises(InvalidValue):
        call(tool, "str_replace", "a.md", old_str="", new_str="a")
    call(tool, "str_replace", "a.md", old_str=" c")

    assert (path / "a.md").read_text() == "a a"


@pytest.mark.parametrize(("line", "text"), [(0, "new\none\ntwo"), (1, "one\nnew\ntwo"), (2, "one\ntwo\nnew")])
def test_text_is_inserted_after_a_line(tool: MemoryTool, path: Path, line: int, text: str) -> None:
    """0 is the beginning; a missing line is an error."""
    call(tool, "create", "a.md", file_text="one\ntwo")

    call(tool, "insert", "a.md", insert_line=line, insert_text="new\n")
    with pytest.raises(InvalidValue, match="0 to 3"):
        call(tool, "insert", "a.md", insert_line=4, insert_text="x")

    assert (path / "a.md").read_text() == text


def test_files_and_folders_are_deleted(tool: MemoryTool, path: Path) -> None:
    """A folder is deleted with its last file; the memory itself is not deleted."""
    for name in ("a.md", "b/c/d.md", "b/e.md", "f/g.md"):
        call(tool, "create", name, file_text="x")

    call(tool, "delete", "b/c/d.md")
    assert names(path / "b") == ["e.md"]
    call(tool, "delete", "/memories/f")
    call(tool, "delete", "b/e.md")
    assert names(path) == ["a.md"]
    for name in ("/memories", "/memories/", ""):
        with pytest.raises(InvalidValue):
            call(tool, "delete", name)


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("create", {}),
        ("str_replace", {"new_str": "x"}),
        ("insert", {"insert_line": 0}),
        ("insert", {"insert_text": "x"}),
        ("view", {"view_range": [0, 1]}),
        ("view", {"view_range": [2, 1]}),
        ("view", {"view_range": [5, 9]}),
    ],
)
def test_a_missing_argument_is_refused(tool: MemoryTool, command: str, arguments: dict[str, Any]) -> None:
    """The error has a type, and the file does not change."""
    call(tool, "create", "a.md", file_text="one\ntwo")

    with pytest.raises(InvalidValue):
        call(tool, command, "a.md", **arguments)

    assert call(tool, "view", "a.md") == "     1\tone\n     2\ttwo"


def test_size_and_number_are_limited(tool: MemoryTool, path: Path) -> None:
    """A memory cannot fill the disk; files of a full memory can still be changed and deleted."""
    call(tool, "create", "a.md", file_text="x" * MAX_FILE)
    with pytest.raises(InvalidValue, match=f"at most {MAX_FILE} bytes"):
        call(tool, "create", "b.md", file_text="é" * (MAX_FILE // 2 + 1))
    with pytest.raises(InvalidValue, match=f"at most {MAX_FILE} bytes"):
        call(tool, "insert", "a.md", insert_line=0, insert_text="x")
    with pytest.raises(InvalidValue, match="UTF-8"):
        call(tool, "create", "b.md", file_text="\ud800")
    for number in range(MAX_FILES - 1):
        (path / f"f{number}.md").touch()

    for name in ("one-more.md", "folder/one-more.md"):
        with pytest.raises(InvalidValue, match=f"at most {MAX_FILES} files"):
            call(tool, "create", name, file_text="x")
    call(tool, "create", "a.md", file_text="short")
    call(tool, "delete", "f0.md")
    call(tool, "create", "folder/one-more.md", file_text="x")


def test_a_draft_after_a_crash_is_ignored(tool: MemoryTool, path: Path) -> None:
    """A draft is never listed, and the next writer overwrites it."""
    call(tool, "create", "a.md", file_text="x")
    (path / ".draft").write_text("half")

    call(tool, "create", "a.md", file_text="y")

    assert names(path) == ["a.md"]


def test_concurrent_writers_lose_nothing(path: Path) -> None:
    """Reading, changing and writing is one step for each run of a type."""
    tools = [memory_tool(MemoryFolder(path, path.parent)) for _ in range(4)]
    call(tools[0], "create", "a.md", file_text="begin")

    def work(number: int) -> None:
        for _ in range(5):
            call(tools[number], "insert", "a.md", insert_line=0, insert_text="x")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert (path / "a.md").read_text() == "x\n" * 20 + "begin"


def test_a_busy_memory_refuses_and_does_not_wait(tool: MemoryTool, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that waits in the kernel could not be ended."""
    call(tool, "create", "a.md", file_text="x")
    monkeypatch.setattr(memory_folder, "LOCK_TRIES", 2)
    holder = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(holder, fcntl.LOCK_EX)
        with pytest.raises(Denied, match="try again"):
            call(tool, "create", "a.md", file_text="y")
    finally:
        os.close(holder)

    assert (path / "a.md").read_text() == "x"


async def test_a_refusal_is_an_error_result_from_the_dispatcher(tool: MemoryTool) -> None:
    """A refusal affects that call only; unknown arguments are refused by name."""
    calls = [
        ToolCall(name="Memory", args={"command": "create", "path": "a.md", "file_text": "x"}, id="1"),
        ToolCall(name="Memory", args={"command": "view", "path": "../a.md"}, id="2"),
        ToolCall(name="Memory", args={"command": "rename", "path": "a.md"}, id="3"),
        ToolCall(name="Memory", args={"command": "view", "path": "a.md", "encoding": "x"}, id="4"),
        ToolCall(name="Memory", args={"command": "view", "path": "a.md"}, id="5"),
    ]

    answers = await run_tools(make_context(tools=[tool]), calls)

    assert [answer.status for answer in answers] == ["success", "error", "error", "error", "success"]
    assert answers[-1].content == "     1\tx"


def test_the_tool_belongs_to_one_run_and_writes(tool: MemoryTool) -> None:
    """A child does not inherit it, and a read-only agent does not get it."""
    assert tool_flag(tool, "children", True) is False
    assert not tool_flag(tool, "read_only")
    assert not tool_flag(tool, "concurrency_safe")
