"""Each command ends soon in a folder with a stranger's `.ramet`, and changes nothing outside of the folder."""

# Small files of a test, looked at by a loop that has nothing else to do.

from __future__ import annotations

import asyncio
import itertools
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec
import pytest

from ramet.cli.main import main
from ramet.core.errors import InvalidValue
from ramet.core.events import Event, encode
from ramet.host.journal.journal import TREES
from ramet.isolation import safe_walk
from ramet.store.contract import Entry
from ramet.store.sqlite.store import SqliteStore
from tests.security import every_command
from tests.security.every_command import MARK, RUN
from tests.security.planted_journals import ROLLBACKS, SIDECARS, make_journal, make_socket
from tests.security.test_values_at_rest import VALUE, older_events

ENOUGH_S = 600.0  #: for all commands, on a machine with much else to do; what hangs takes for ever

pytestmark = pytest.mark.timeout(700)


@pytest.fixture
def state(tmp_path: pathlib.Path) -> pathlib.Path:
    """Make a folder for a journal."""
    folder = tmp_path / "state"
    folder.mkdir()
    return folder


@pytest.fixture
def outside(tmp_path: pathlib.Path) -> pathlib.Path:
    """Make a folder that no agent was given, with files and an empty folder."""
    folder = tmp_path / "outside"
    (folder / "folder").mkdir(parents=True)
    (folder / "file").write_bytes(b"")
    (folder / "text.jsonl").write_bytes(encode(older_events(RUN)[0]) + b"\n")
    return folder


@pytest.fixture
def project(tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    """Make the stranger's folder, with the journal of an old tree that has ended."""
    folder = tmp_path / "project"
    (folder / ".ramet").mkdir(parents=True)
    asyncio.run(old_journal(folder / ".ramet", RUN))
    yield folder
    with safe_walk.open_root(tmp_path) as here:  # Too deep for what removes the folders of other tests.
        safe_walk.remove(here, folder.name)


async def old_journal(state: pathlib.Path, *runs: str) -> None:
    """Write a journal of trees that have ended, as an older version wrote it."""
    await make_journal(state)
    store = await SqliteStore(state / "journal.db").open()
    for run in runs:
        about = {"number": "0123456789abcdef", "cwd": None, "over": True}
        await store.put(TREES, run, msgspec.json.encode(about))
        for event in old_events(run):
            kind = str(type(event).__struct_config__.tag)
            await store.durable(store.append(Entry(run, run, event.seq, kind, encode(event))))
    await store.close()


def old_events(run: str) -> list[Event]:
    """Return the events of a tree that an older version wrote, and that ended on a fixed day."""
    return [msgspec.structs.replace(each, at=datetime(2026, 1, 1, tzinfo=UTC)) for each in older_events(run)]


def content(folder: pathlib.Path) -> list[tuple[str, bytes]]:
    """Return the paths and bytes of each entry below a folder."""
    found = sorted(folder.rglob("*"))
    return [(str(each.relative_to(folder)), each.read_bytes() if each.is_file() else b"") for each in found]


def run_commands(project: pathlib.Path, tmp_path: pathlib.Path) -> dict[str, tuple[str, str]]:
    """Run each command in a process that may be killed. Return the exit status and the text of each."""
    ended = subprocess.run(
        [sys.executable, "-m", every_command.__name__, str(project)],
        env=os.environ | {"RAMET_HOME": str(tmp_path / "home"), "COLUMNS": "200"},
        cwd=pathlib.Path(__file__).parents[2],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=ENOUGH_S,
        check=False,
    )
    found: dict[str, tuple[str, str]] = {}
    command, words = "", ""
    for line in ended.stderr.splitlines():
        if line.startswith(f"{MARK}status "):
            found[command], words = (line.removeprefix(f"{MARK}status "), words), ""
        elif line.startswith(MARK):
            command = line.removeprefix(MARK)
        else:
            words += f"{line}\n"
    assert ended.returncode == 0, ended.stderr
    assert "unexpected" not in ended.stderr, ended.stderr
    return found


# ---- the journal's own files


@pytest.mark.parametrize("name", [*ROLLBACKS, "pipe as journal.db-wal"])
def test_every_command_refuses_planted_files_of_a_journal(
    project: pathlib.Path, outside: pathlib.Path, tmp_path: pathlib.Path, name: str
) -> None:
    """Each command fails and names the journal, and the file that a planted journal names stays."""
    (ROLLBACKS | SIDECARS)[name](project / ".ramet", outside)
    before = content(outside)

    ends = run_commands(project, tmp_path)

    assert content(outside) == before
    assert ends.keys() >= set(every_command.COMMANDS)
    assert ends["server"][0] == "InvalidValue"
    for command in every_command.COMMANDS:
        status, words = ends[command]
        assert status != "0", command
        assert ".ramet/journal.db" in words, (command, words)


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("name", [*ROLLBACKS, *SIDECARS])
async def test_a_store_refuses_planted_files_beside_it(
    state: pathlib.Path, outside: pathlib.Path, name: str, read_only: bool
) -> None:
    """A store refuses planted files beside its journal, also when it only reads, and changes nothing."""
    await make_journal(state)
    (ROLLBACKS | SIDECARS)[name](state, outside)
    before = content(outside)

    with pytest.raises(InvalidValue, match=r"journal\.db.* remove it"):
        await SqliteStore(state / "journal.db", read_only=read_only).open()

    assert content(outside) == before


KILLED_WRITER = """
import asyncio, resource, signal, sys
from ramet.store.sqlite.store import SqliteStore
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
asyncio.run(SqliteStore(sys.argv[1]).open())
"""


@pytest.mark.parametrize("size", [512, 1_000, 4_096, 10_000, 40_000])
async def test_a_journal_whose_first_kernel_was_killed_can_be_opened(tmp_path: pathlib.Path, size: int) -> None:
    """A store opens a journal whose first writer was killed at a write beyond `size` bytes."""
    path = tmp_path / "journal.db"
    ended = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-B", "-c", KILLED_WRITER, str(path), str(size)],
        capture_output=True,
        check=False,
    )
    assert ended.returncode == -signal.SIGXFSZ, ended.stderr
    if size < 4_096:  # It died while the first page was written.
        assert path.with_name("journal.db-journal").stat().st_size

    store = await SqliteStore(path).open()

    assert await store.head() == 0
    await store.close()


async def test_a_rollback_journal_without_a_header_is_accepted(tmp_path: pathlib.Path) -> None:
    """A store opens with an empty or zeroed rollback journal, which a process leaves that is killed early."""
    for left in (b"", bytes(12), bytes(512)):
        path = tmp_path / f"{len(left)}.db"
        path.touch(0o600)
        path.with_name(path.name + "-journal").write_bytes(left)

        store = await SqliteStore(path).open()

        assert await store.head() == 0
        await store.close()


# ---- transcripts and folders of runs


def fill_transcripts(state: pathlib.Path, outside: pathlib.Path) -> None:
    """Plant transcripts that wait, are links or do not end, beside an old transcript."""
    tree = state / "transcripts" / "0123456789abcdef"
    tree.mkdir(parents=True)
    (tree / "main.jsonl").write_bytes(b"\n".join(map(encode, old_events(RUN))) + b"\n")
    os.mkfifo(tree / ".scrubbed")
    os.mkfifo(tree / "pipe.jsonl")
    make_socket(tree / "socket.jsonl")
    (tree / "folder.jsonl").mkdir()
    (tree / "link.jsonl").symlink_to(outside / "text.jsonl")
    (tree / "second.jsonl").hardlink_to(outside / "text.jsonl")
    (tree / "zeros.jsonl").symlink_to("/dev/zero")
    (tree / "locked").mkdir(0)
    with (tree / "endless.jsonl").open("wb") as endless:
        endless.truncate(1 << 40)
    (state / "transcripts" / "link").symlink_to(outside)
    os.mkfifo(state / "transcripts" / "pipe")
    nested = state / "transcripts" / "nested"
    nested.mkdir()
    (nested / "main.jsonl").write_bytes(b"[" * 100_000)
    make_deep(state / "transcripts" / "deep", 3_000)
    for number in range(1_000):
        (state / "transcripts" / f"wide{number}").mkdir()
    for name in ("main.jsonl", ".scrubbed"):
        waiting = state / "transcripts" / f"waiting {name}"
        waiting.mkdir()
        os.mkfifo(waiting / name)


def make_deep(folder: pathlib.Path, depth: int) -> None:
    """Make nested folders, deeper than any path can name."""
    folder.mkdir()
    here = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY | os.O_DIRECTORY, dir_fd=here)
        os.close(here)
        here = below
    os.close(os.open("main.jsonl", os.O_WRONLY | os.O_CREAT, 0o600, dir_fd=here))
    os.close(here)


def test_no_command_hangs_on_planted_transcripts(
    project: pathlib.Path, outside: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """`ramet gc` names the entries that it skips and removes the old transcript. Other commands work."""
    fill_transcripts(project / ".ramet", outside)
    before = content(outside)

    ends = run_commands(project, tmp_path)

    assert content(outside) == before
    status, words = ends["gc --older-than 0"]
    assert status == "0", words
    assert ends["server"][0] == "0"
    assert ends["ps --all"][0] == ends[f"logs {RUN}"][0] == "0"
    assert not (project / ".ramet" / "transcripts" / "0123456789abcdef").exists()
    assert "skipped" in words


def test_gc_replaces_values_beside_planted_entries(
    project: pathlib.Path, outside: pathlib.Path, tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """`ramet gc` replaces values in a transcript beside pipes and endless files, and names each odd entry."""
    fill_transcripts(project / ".ramet", outside)
    before = content(outside)
    tree = project / ".ramet" / "transcripts" / "0123456789abcdef"

    assert main(["gc", "--dir", str(project), "--older-than", "9999d"]) == 0

    assert VALUE.encode() not in (tree / "main.jsonl").read_bytes()
    assert b"DATABASE_URL" in (tree / "main.jsonl").read_bytes()
    assert content(outside) == before
    stderr = capfd.readouterr().err
    for name in ("pipe.jsonl", "socket.jsonl", "link.jsonl", "zeros.jsonl", "endless.jsonl"):
        assert f"0123456789abcdef/{name}" in stderr
    assert "folder.jsonl" not in stderr


FILES = ("run.json", ".new-run.json", "checkpoint", "stdout.log", "stderr.log", "workspace", "artifacts")
KINDS = ("pipe", "link", "second name", "endless", "file")


def plant_run_folder(folder: pathlib.Path, outside: pathlib.Path, name: str, kind: str) -> None:
    """Make the folder of a run with one planted entry."""
    (folder / "workspace").mkdir(parents=True)
    about = {"path": "main", "agent": "older", "created": "2026-01-01T00:00:00Z"}
    (folder / "run.json").write_bytes(msgspec.json.encode(about))
    entry = folder / name
    if entry.is_dir():
        entry.rmdir()
    entry.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(entry)
    elif kind == "link":
        entry.symlink_to(outside / ("folder" if name in ("workspace", "artifacts") else "file"))
    elif kind == "second name":
        entry.hardlink_to(outside / "file")
    else:
        entry.touch()
        os.truncate(entry, 1 << 40 if kind == "endless" else 0)


def test_no_command_hangs_on_planted_run_folders(
    project: pathlib.Path, outside: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """Commands follow no planted entry of a run's folder, and `ramet gc` removes the folders."""
    runs = project / ".ramet" / "runs"
    planted = {f"{number:016}": each for number, each in enumerate(itertools.product(FILES, KINDS))}
    asyncio.run(old_journal(project / ".ramet", *planted))
    for run, (name, kind) in planted.items():
        plant_run_folder(runs / run, outside, name, kind)
    before = content(outside)

    ends = run_commands(project, tmp_path)

    assert content(outside) == before
    assert ends["run folders"] == ("0", "")
    status, words = ends["gc --older-than 0"]
    assert status == "0", words
    assert [planted[each.name] for each in runs.iterdir() if each.name in planted] == []
