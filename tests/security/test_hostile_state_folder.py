"""State folders `.ramet` that a stranger planted are refused: nothing is read, written or believed through them."""

# Small files of a test, looked at by a loop that has nothing else to do.

from __future__ import annotations

import asyncio
import os
import pathlib
import socket
import sqlite3
from collections.abc import Callable

import pytest

from ramet import AgentRuntime
from ramet.cli.main import main
from ramet.core.errors import Damaged, InvalidValue
from ramet.host.control.socket import ControlledTrees, NoKernel, send_request
from ramet.isolation.workspace.run_dirs import RunFolders
from ramet.services.server.server import Server
from ramet.store.sqlite.store import SqliteStore

Plant = Callable[[pathlib.Path, pathlib.Path], None]  #: is told of the state folder, and of one outside


def double(number: int) -> int:
    """Return twice the number."""
    return 2 * number


async def run_double(folder: pathlib.Path) -> object:
    """Return the value of a run that is recorded in a folder."""
    async with AgentRuntime(folder) as runtime:
        handle = await runtime.spawn(double, args=(2,))
        return (await handle.result()).value


@pytest.fixture
def outside(tmp_path: pathlib.Path) -> pathlib.Path:
    """Make a folder that no agent was given, with a file and an empty folder."""
    folder = tmp_path / "outside"
    (folder / "folder").mkdir(parents=True)
    (folder / "file").write_bytes(b"")
    return folder


@pytest.fixture
def project(tmp_path: pathlib.Path) -> pathlib.Path:
    """Make the stranger's folder."""
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


def content(folder: pathlib.Path) -> list[tuple[str, int]]:
    """Return the paths and sizes of each entry below a folder."""
    return sorted((str(each.relative_to(folder)), each.lstat().st_size) for each in folder.rglob("*"))


def link(name: str, target: str) -> Plant:
    """Return a plant that makes a symbolic link in the state folder."""

    def plant(state: pathlib.Path, outside: pathlib.Path) -> None:
        state.mkdir()
        (state / name).symlink_to(outside / target)

    return plant


def link_as_folder(state: pathlib.Path, outside: pathlib.Path) -> None:
    """Make the state folder itself a link."""
    state.symlink_to(outside / "folder")


def hard_link(state: pathlib.Path, outside: pathlib.Path) -> None:
    """Make the journal a hard link to a file outside."""
    state.mkdir()
    (state / "journal.db").hardlink_to(outside / "file")


def pipe(state: pathlib.Path, outside: pathlib.Path) -> None:
    """Make the journal a pipe, on which a reader may wait for ever."""
    state.mkdir()
    os.mkfifo(state / "journal.db", 0o600)


def readable_journal(state: pathlib.Path, outside: pathlib.Path) -> None:
    """Make a journal that other users can read, as a version control system checks it out."""
    state.mkdir()
    asyncio.run(empty_journal(state / "journal.db"))
    (state / "journal.db").chmod(0o644)


async def empty_journal(path: pathlib.Path) -> None:
    store = await SqliteStore(path).open()
    await store.close()


def foreign_folder(state: pathlib.Path, outside: pathlib.Path) -> None:
    """Make a state folder that belongs to another user."""
    state.mkdir()
    os.chown(state, 60_701, 60_701)


PLANTS: dict[str, Plant] = {
    "a linked state folder": link_as_folder,
    "linked transcripts": link("transcripts", "folder"),
    "linked transcripts that lead nowhere": link("transcripts", "new"),
    "a linked journal": link("journal.db", "file"),
    "a linked journal that leads nowhere": link("journal.db", "new"),
    "a linked log of the journal": link("journal.db-wal", "file"),
    "a linked index of the journal": link("journal.db-shm", "file"),
    "a linked rollback journal": link("journal.db-journal", "file"),
    "a linked lock": link("journal.db.lock", "file"),
    "a hard link as the journal": hard_link,
    "a pipe as the journal": pipe,
    "a journal that others can read": readable_journal,
    "a state folder of another user": foreign_folder,
}


@pytest.mark.parametrize("name", PLANTS)
async def test_a_runtime_refuses_a_planted_state_folder(
    project: pathlib.Path, outside: pathlib.Path, name: str
) -> None:
    """A typed error names the path, before the runtime writes anything outside."""
    if PLANTS[name] is foreign_folder and os.geteuid() != 0:
        pytest.skip("only root can make a folder of another user")
    await asyncio.to_thread(PLANTS[name], project / ".ramet", outside)
    before = content(outside)

    with pytest.raises(InvalidValue, match=r"\.ramet"):
        await run_double(project)

    assert content(outside) == before


async def test_a_link_to_the_project_itself_is_followed(
    tmp_path: pathlib.Path, project: pathlib.Path, outside: pathlib.Path
) -> None:
    """The owner's own link to the project is followed. A link in the project's state folder is refused."""
    (tmp_path / "short").symlink_to(project)

    assert await run_double(tmp_path / "short") == 4
    assert (project / ".ramet" / "journal.db").stat().st_size

    (project / ".ramet" / "transcripts").rename(project / "moved")
    (project / ".ramet" / "transcripts").symlink_to(outside / "folder")
    with pytest.raises(InvalidValue, match="transcripts"):
        await run_double(tmp_path / "short")
    assert not any((outside / "folder").iterdir())


async def test_transcripts_do_not_follow_a_later_link(project: pathlib.Path, outside: pathlib.Path) -> None:
    """A link that replaces the transcripts of an active runtime is refused."""
    async with AgentRuntime(project) as runtime:
        await (await runtime.spawn(double, args=(1,))).result()
        (project / ".ramet" / "transcripts").rename(project / "moved")
        (project / ".ramet" / "transcripts").symlink_to(outside / "folder")
        with pytest.raises(InvalidValue, match="transcripts"):
            await runtime.spawn(double, args=(2,))

    assert not any((outside / "folder").iterdir())


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TRIGGER loud AFTER INSERT ON events BEGIN DELETE FROM events; END",
        "CREATE VIEW seen AS SELECT * FROM events",
        "CREATE TABLE brought (data TEXT)",
        "CREATE INDEX brought ON events (abs(seq))",
    ],
)
@pytest.mark.parametrize("read_only", [False, True])
async def test_a_journal_with_foreign_objects_is_refused(
    tmp_path: pathlib.Path, statement: str, read_only: bool
) -> None:
    """A journal with a trigger, view, table or index that ramet does not make is refused."""
    path = tmp_path / "journal.db"
    await empty_journal(path)
    with sqlite3.connect(path) as planted:
        planted.execute(statement)
    planted.close()

    with pytest.raises(Damaged, match=r"loud|seen|brought"):
        await SqliteStore(path, read_only=read_only).open()


@pytest.mark.parametrize("verb", ["ps", "gc"])
def test_the_command_line_refuses_a_planted_journal(
    project: pathlib.Path, outside: pathlib.Path, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    """One line of error names the journal and the symbolic link. The journal behind the link is unchanged."""
    asyncio.run(empty_journal(outside / "journal.db"))
    (project / ".ramet").mkdir()
    (project / ".ramet" / "journal.db").symlink_to(outside / "journal.db")
    before = content(outside)

    assert main([verb, "--dir", str(project)]) != 0

    stderr = capsys.readouterr().err
    assert "journal.db" in stderr
    assert "symbolic link" in stderr
    assert stderr.count("\n") == 1
    assert content(outside) == before


def test_ask_in_a_folder_with_linked_transcripts_is_refused(
    project: pathlib.Path, outside: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`ramet ask` in a cloned repository writes nothing to the target of a link."""
    (project / ".ramet").mkdir()
    (project / ".ramet" / "transcripts").symlink_to(outside / "folder")

    assert main(["ask", "What is here?", "--dir", str(project), "--model", "offline", "--backend", "inline"]) != 0

    assert "no symbolic link at .ramet/transcripts" in capsys.readouterr().err
    assert not any((outside / "folder").iterdir())


async def test_a_request_does_not_follow_a_linked_kernel_socket(project: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """A request to a kernel does not connect to another program's socket behind a link."""
    (project / ".ramet").mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.bind(str(tmp_path / "other"))
        other.listen()
        other.setblocking(False)
        (project / ".ramet" / "kernel.sock").symlink_to(tmp_path / "other")

        with pytest.raises(NoKernel):
            await send_request(project, ControlledTrees(), patience_s=0.2)

        with pytest.raises(BlockingIOError):
            other.accept()


@pytest.mark.parametrize("name", ["agents", "packaging"])
async def test_a_server_refuses_linked_folders(project: pathlib.Path, outside: pathlib.Path, name: str) -> None:
    """A server makes no folder of agents or images in the target of a link."""
    (project / ".ramet").mkdir()
    (project / ".ramet" / name).symlink_to(outside / "folder")

    with pytest.raises(InvalidValue, match=name):
        await Server(project, types={}).start()

    assert not any((outside / "folder").iterdir())


def test_shelves_are_not_made_behind_a_link(project: pathlib.Path, outside: pathlib.Path) -> None:
    """Files for later sandboxes are not made in the target of a link."""
    folders = RunFolders(project)
    folders.create("first")
    (project / ".ramet" / "runs" / ".shelves").symlink_to(outside / "folder")

    with pytest.raises(InvalidValue, match="shelves"):
        folders.import_dir("brought")

    assert not any((outside / "folder").iterdir())
