"""Ways out of the workspace are refused.

Each attack is shown to be real: a harmless call of the same kind, or the attack without our defence, works.
"""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest
from langchain_core.tools import ToolException

from ramet.tools.context import ToolUseContext
from ramet.tools.files.paths import directory, open_file, resolve
from ramet.tools.workspace import workspace_tools
from tests.support.context import calling, make_context

TOOLS = {tool.name: tool for tool in workspace_tools()}
SECRET = "the-secret-of-the-host"
READERS: list[tuple[str, dict[str, Any]]] = [
    ("Read", {}),
    ("Grep", {"pattern": "secret", "output_mode": "content"}),
    ("Edit", {"old_string": SECRET, "new_string": "mine"}),
    ("Write", {"content": "mine"}),
]


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """Make a directory of the host with a secret in it."""
    path = tmp_path / "outside"
    path.mkdir()
    (path / "secret.txt").write_text(SECRET)
    return path


@pytest.fixture
def context(tmp_path: Path, outside: Path) -> ToolUseContext:
    """Make a run whose workspace lies beside that directory."""
    root = tmp_path / "root"
    root.mkdir()
    (root / "mine.txt").write_text("a secret of my own")
    return make_context(root)


@pytest.fixture(params=["ripgrep", "python"])
def program(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run searches with ripgrep, and on a PATH without ripgrep."""
    if request.param == "python":
        monkeypatch.setenv("PATH", "/nonexistent")
    elif shutil.which("rg") is None:
        pytest.skip("no ripgrep here; `make setup` installs it")


async def call(context: ToolUseContext, name: str, **arguments: Any) -> str:
    with calling(context):
        return str(await TOOLS[name].ainvoke(arguments))


def names(path: Path) -> list[str]:
    """Return the names in a directory."""
    return sorted(each.name for each in path.iterdir())


def path_argument(name: str, path: str) -> dict[str, str]:
    """Return the argument by which a tool takes a path."""
    return {"path": path} if name in ("Grep", "Glob") else {"file_path": path}


async def assert_refused(context: ToolUseContext, name: str, arguments: dict[str, Any]) -> None:
    """Assert that a call is refused, with a text that does not hold the secret."""
    with pytest.raises(ToolException) as refusal:
        await call(context, name, **arguments)
    assert SECRET not in str(refusal.value)


async def test_control_the_tools_work_inside(context: ToolUseContext) -> None:
    """Control: each tool works on files of the workspace."""
    assert "my own" in await call(context, "Read", file_path="mine.txt")
    assert "my own" in await call(context, "Grep", pattern="secret", path="mine.txt", output_mode="content")
    await call(context, "Edit", file_path="mine.txt", old_string="my own", new_string="ours")
    await call(context, "Write", file_path="mine.txt", content="x")
    assert "mine.txt" in await call(context, "Glob", pattern="*")


@pytest.mark.parametrize(("name", "arguments"), READERS)
@pytest.mark.parametrize(
    "path",
    [
        "../outside/secret.txt",
        "x/../../outside/secret.txt",
        "{outside}/secret.txt",
        "/proc/self/root{outside}/secret.txt",
        "/proc/self/cwd/secret.txt",
        "//{outside}/secret.txt",
        "{root}/../outside/secret.txt",
    ],
)
async def test_no_name_leads_out(
    context: ToolUseContext, outside: Path, path: str, name: str, arguments: dict[str, Any]
) -> None:
    """Paths with `..`, absolute paths and links in /proc are refused."""
    path = path.format(outside=outside, root=context.cwd)

    await assert_refused(context, name, {**path_argument(name, path), **arguments})

    assert (outside / "secret.txt").read_text() == SECRET


@pytest.mark.parametrize(("name", "arguments"), READERS)
@pytest.mark.parametrize("link", ["file", "folder/secret.txt", "chain", "proc/secret.txt", "dangling"])
async def test_no_link_leads_out(
    context: ToolUseContext, outside: Path, link: str, name: str, arguments: dict[str, Any]
) -> None:
    """Links to files and directories outside are refused, also through other links and to missing files."""
    (context.cwd / "file").symlink_to(outside / "secret.txt")
    (context.cwd / "folder").symlink_to(outside)
    (context.cwd / "chain").symlink_to("file")
    (context.cwd / "proc").symlink_to(f"/proc/self/root{outside}")
    (context.cwd / "dangling").symlink_to(outside / "new.txt")
    if link != "dangling":
        assert (context.cwd / link).read_text() == SECRET  # the attack is real

    await assert_refused(context, name, {**path_argument(name, link), **arguments})

    assert names(outside) == ["secret.txt"]
    assert (outside / "secret.txt").read_text() == SECRET


async def test_control_links_inside_work(context: ToolUseContext) -> None:
    """Control: a link to a file of the workspace works."""
    (context.cwd / "link").symlink_to("mine.txt")

    assert "my own" in await call(context, "Read", file_path="link")
    await call(context, "Write", file_path="link", content="through")
    assert (context.cwd / "mine.txt").read_text() == "through"
    assert (context.cwd / "link").is_symlink()


def test_a_directory_swapped_after_the_check_is_refused(context: ToolUseContext, outside: Path) -> None:
    """A directory that becomes a link between check and open leads nowhere, to read or to write."""
    (context.cwd / "sub").mkdir()
    (context.cwd / "sub/secret.txt").write_text("harmless")
    location = resolve(context, "sub/secret.txt")
    os.close(open_file(location))  # control: without the swap it opens
    shutil.rmtree(context.cwd / "sub")
    (context.cwd / "sub").symlink_to(outside)
    assert location.path.read_text() == SECRET  # the attack is real: opening by name would be caught by it

    with pytest.raises(ToolException):
        os.close(open_file(location))
    with pytest.raises(ToolException), directory(location._replace(parts=location.parts[:-1]), make=True):
        raise AssertionError("it was followed")


def test_a_file_swapped_after_the_check_is_refused(context: ToolUseContext, outside: Path) -> None:
    """A file that becomes a link between check and open is refused."""
    location = resolve(context, "mine.txt")
    (context.cwd / "mine.txt").unlink()
    (context.cwd / "mine.txt").symlink_to(outside / "secret.txt")
    assert location.path.read_text() == SECRET  # the attack is real

    with pytest.raises(ToolException, match="symbolic link"):
        os.close(open_file(location))


@pytest.mark.usefixtures("program")
async def test_searches_do_not_follow_links(context: ToolUseContext, outside: Path) -> None:
    """Searches find neither the names nor the lines behind a link."""
    (context.cwd / "folder").symlink_to(outside)
    (context.cwd / "file").symlink_to(outside / "secret.txt")

    assert await call(context, "Grep", pattern="secret") == "mine.txt"
    assert "secret.txt" not in await call(context, "Glob", pattern="**")
    assert sorted((await call(context, "Glob", pattern="*")).split()) == ["file", "folder", "mine.txt"]


@pytest.mark.usefixtures("program")
@pytest.mark.parametrize("arguments", [{"pattern": "x", "glob": "../*"}, {"pattern": "x", "path": ".."}])
async def test_searches_above_the_workspace_are_refused(context: ToolUseContext, arguments: dict[str, Any]) -> None:
    """A pattern or path that leads above the workspace is refused."""
    await assert_refused(context, "Grep", arguments)
    await assert_refused(context, "Glob", {"pattern": "../*"})
    await assert_refused(context, "Glob", {"pattern": str(context.cwd.parent) + "/**"})


async def test_writing_to_a_hard_link_does_not_change_the_other_file(context: ToolUseContext, outside: Path) -> None:
    """A change of a hard link makes a new file, so that the host's file keeps its content."""
    (context.cwd / "hard.txt").hardlink_to(outside / "secret.txt")
    await call(context, "Read", file_path="hard.txt")

    await call(context, "Edit", file_path="hard.txt", old_string=SECRET, new_string="mine")
    await call(context, "Write", file_path="hard.txt", content="mine, too")

    assert (context.cwd / "hard.txt").read_text() == "mine, too"
    assert (outside / "secret.txt").read_text() == SECRET


@pytest.mark.usefixtures("program")
@pytest.mark.parametrize(("name", "arguments"), READERS)
async def test_a_fifo_is_refused_without_waiting(context: ToolUseContext, name: str, arguments: dict[str, Any]) -> None:
    """The tools refuse a FIFO without a writer, on which an open would wait for ever."""
    os.mkfifo(context.cwd / "fifo")

    with pytest.raises(ToolException, match="FIFO"):
        await call(context, name, **{**path_argument(name, "fifo"), **arguments})
    assert await call(context, "Grep", pattern="secret") == "mine.txt"
    assert "fifo" in await call(context, "Glob", pattern="*")


@pytest.mark.parametrize(("name", "arguments"), READERS)
async def test_a_socket_is_refused(
    context: ToolUseContext, monkeypatch: pytest.MonkeyPatch, name: str, arguments: dict[str, Any]
) -> None:
    """The refusal of a socket says that the file is a socket."""
    monkeypatch.chdir(context.cwd)  # the names of sockets are short
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("sock")

        with pytest.raises(ToolException, match="socket"):
            await call(context, name, **{**path_argument(name, "sock"), **arguments})


@pytest.mark.parametrize(("name", "arguments"), READERS)
async def test_a_device_is_not_opened(context: ToolUseContext, name: str, arguments: dict[str, Any]) -> None:
    """A device in the workspace is refused without an open. A device outside is refused as any path outside."""
    await assert_refused(context, name, {**path_argument(name, "/dev/zero"), **arguments})
    try:
        os.mknod(context.cwd / "zero", 0o666 | 0o020000, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("only root makes devices")

    with pytest.raises(ToolException, match="device"):
        await call(context, name, **{**path_argument(name, "zero"), **arguments})


@pytest.mark.parametrize("name", [".git/hooks/post-checkout", ".git/config", "sub/.git/config", ".ramet/x", ".GIT/x"])
async def test_files_that_the_host_would_run_are_not_written(context: ToolUseContext, name: str) -> None:
    """Files of git and ramet, such as hooks, can be read but not written."""
    path = context.cwd / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("old")
    await call(context, "Read", file_path=name)

    await assert_refused(context, "Write", {"file_path": name, "content": "new"})
    await assert_refused(context, "Edit", {"file_path": name, "old_string": "old", "new_string": "new"})

    assert path.read_text() == "old"
    await call(context, "Write", file_path=".github/workflows/ci.yml", content="control: not everything with a dot")


async def test_a_name_cannot_forge_a_line(context: ToolUseContext) -> None:
    """A file whose name holds a line end is still one line of a listing."""
    (context.cwd / "a\nfake.txt").touch()

    lines = (await call(context, "Glob", pattern="*")).split("\n")

    assert sorted(lines) == ["a\\nfake.txt", "mine.txt"]


@pytest.mark.parametrize("name", ["mine.txt\0.png", "\0", "x" * 1_000_000, "\udcff\ud800"])
async def test_impossible_names_are_refused(context: ToolUseContext, name: str) -> None:
    """Each tool refuses names that no file can have, with a short text."""
    for tool, arguments in READERS:
        with pytest.raises(ToolException) as refusal:
            await call(context, tool, **{**path_argument(tool, name), **arguments})
        assert len(str(refusal.value)) < 1_000


async def test_a_refused_write_leaves_no_file(context: ToolUseContext) -> None:
    """A refused write leaves no directory and no temporary file."""
    before = sorted(context.cwd.rglob("*"))

    await assert_refused(context, "Write", {"file_path": "new/../../x", "content": "y"})
    await assert_refused(context, "Write", {"file_path": "mine.txt", "content": "not read before"})
    await assert_refused(context, "Write", {"file_path": "mine.txt/below", "content": "a file is no directory"})

    assert sorted(context.cwd.rglob("*")) == before
