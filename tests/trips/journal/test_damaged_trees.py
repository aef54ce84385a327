"""A folder with one damaged tree: commands name the tree, work with all others, and can set it aside."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import shutil
import sqlite3
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ramet import AgentRuntime, ScriptedModel, Session
from ramet.cli.main import main
from ramet.core.errors import Damaged, DamagedTree
from ramet.core.events import IntentionRecorded, encode
from ramet.host.control.operator import OperatorControl
from ramet.host.journal.journal import TREES, Journal
from ramet.host.safety.inspection import GateEventFilter, passages
from ramet.services.operator.contract import RunFilter
from ramet.services.operator.runs import RunViews
from ramet.store.contract import Entry
from ramet.store.sqlite.store import SqliteStore

Captured = pytest.CaptureFixture[str]
JOBS = """
import asyncio, pathlib

async def wait(folder):
    while not (pathlib.Path(folder) / "go").exists():
        await asyncio.sleep(0.01)
    return "waited"
"""
#: Three trees at work, all on record; then this process is killed.
KILLED = """
import asyncio, os, signal, sys
import waiting_jobs
from ramet import AgentRuntime

async def main():
    runtime = AgentRuntime(sys.argv[1])
    for _ in range(3):
        handle = await runtime.spawn(waiting_jobs.wait, args=(sys.argv[1],))
        await runtime.trees[handle.id].recorder.durable()
        print(handle.id, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def killed_kernel(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """Return a folder whose kernel was killed with three active trees, and the roots of these trees."""
    folder = tmp_path_factory.mktemp("killed")
    (folder / "waiting_jobs.py").write_text(JOBS)
    (folder / "killed.py").write_text(KILLED)
    process_result = subprocess.run(
        [sys.executable, "killed.py", str(folder)], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    assert process_result.returncode < 0, process_result.stderr
    (folder / "go").touch()
    return folder, process_result.stdout.split()


@pytest.fixture
def folder(killed_kernel: tuple[Path, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a copy of the journal that the killed kernel left."""
    monkeypatch.setattr(sys, "path", [str(killed_kernel[0]), *sys.path])
    shutil.copytree(
        killed_kernel[0] / ".ramet", tmp_path / ".ramet", ignore=shutil.ignore_patterns("*.sock", "pod-listener")
    )
    return tmp_path


@pytest.fixture
def roots(killed_kernel: tuple[Path, list[str]]) -> list[str]:
    """Return the roots of the three trees."""
    return killed_kernel[1]


def change_journal(folder: Path, statement: str, *values: object) -> None:
    """Change the journal by hand."""
    with contextlib.closing(sqlite3.connect(folder / ".ramet/journal.db")) as journal, journal:
        assert journal.execute(statement, values).rowcount == 1


def newest_event(folder: Path, root: str) -> int:
    """Return the cursor of the newest event of a tree."""
    query = "SELECT max(cursor) FROM events JOIN trees ON trees.id = tree WHERE name = ?"
    with contextlib.closing(sqlite3.connect(folder / ".ramet/journal.db")) as journal:
        return int(journal.execute(query, (root,)).fetchone()[0])


def damage_event(folder: Path, root: str) -> int:
    """Make the newest event of a tree unreadable, and return its cursor."""
    cursor = newest_event(folder, root)
    change_journal(folder, "UPDATE events SET data = ? WHERE cursor = ?", b'{"type":"state_cha', cursor)
    return cursor


def damage_document(folder: Path, root: str) -> None:
    """Make the document of a tree unreadable."""
    change_journal(folder, "UPDATE documents SET data = ? WHERE kind = ? AND key = ?", b'{"number":', TREES, root)


def list_runs(folder: Path, capsys: Captured, *more: str) -> tuple[int, list[str], str]:
    """Return the status of `ramet ps`, the roots that it lists, and its stderr."""
    capsys.readouterr()
    status = main(["ps", "--json", "--dir", str(folder), *more])
    out, err = capsys.readouterr()
    return status, [json.loads(line)["root"] for line in out.splitlines()], err


def test_every_command_names_a_damaged_tree_and_continues_with_others(
    folder: Path, roots: list[str], capsys: Captured
) -> None:
    """One line has the file, the tree, the cursor and the remedy; the status is 1."""
    cursor = damage_event(folder, roots[1])
    others = [roots[0], roots[2]]

    status, listing, err = list_runs(folder, capsys)
    assert (status, listing) == (1, others)
    assert err.count("\n") == 1
    for part in (f"event {cursor} of tree {roots[1]}", str(folder / ".ramet/journal.db"), f"--set-aside {roots[1]}"):
        assert part in err, part
    assert list_runs(folder, capsys, "--all")[:2] == (1, others)
    assert main(["tree", "--json", "--dir", str(folder)]) == 1
    out, err = capsys.readouterr()
    assert [json.loads(line)["root"] for line in out.splitlines()] == others
    assert f"event {cursor}" in err
    for verb in ("show", "tree", "logs", "export"):
        assert main([verb, "--dir", str(folder), roots[1]]) == 1
        assert f"event {cursor} of tree {roots[1]}" in capsys.readouterr().err
    assert main(["approvals", "--dir", str(folder)]) == 1, "it may have asked something before it was interrupted"
    assert f"event {cursor} of tree {roots[1]}" in capsys.readouterr().err

    assert main(["resume", "--json", "--dir", str(folder)]) == 1
    out, err = capsys.readouterr()
    assert sorted(json.loads(line)["run"] for line in out.splitlines()) == sorted(others)
    assert f"event {cursor} of tree {roots[1]}" in err
    assert main(["gc", "--older-than", "0", "--dir", str(folder)]) == 0
    assert list_runs(folder, capsys, "--all")[:2] == (1, [])


def test_a_damaged_document_does_not_affect_other_trees(folder: Path, roots: list[str], capsys: Captured) -> None:
    """Commands name the tree without a cursor; `gc` does not remove it, as it may be repaired."""
    damage_document(folder, roots[0])

    status, listing, err = list_runs(folder, capsys)
    assert (status, listing) == (1, roots[1:])
    assert f"tree {roots[0]} in {folder}" in err
    assert main(["resume", "--json", "--dir", str(folder)]) == 1
    out, err = capsys.readouterr()
    assert sorted(json.loads(line)["run"] for line in out.splitlines()) == sorted(roots[1:])
    assert f"--set-aside {roots[0]}" in err
    assert main(["gc", "--older-than", "0", "--dir", str(folder)]) == 0
    assert newest_event(folder, roots[0]), "it may be mended"

    assert main(["repair", "--set-aside", roots[0], "--dir", str(folder)]) == 0
    assert list_runs(folder, capsys)[:2] == (0, [])


def test_a_document_without_required_fields_does_not_affect_other_trees(
    folder: Path, roots: list[str], capsys: Captured
) -> None:
    """Resume names the tree and the missing fields of a document that is JSON."""
    change_journal(folder, "UPDATE documents SET data = ? WHERE kind = ? AND key = ?", b"{}", TREES, roots[0])

    assert main(["resume", "--json", "--dir", str(folder)]) == 1

    out, err = capsys.readouterr()
    assert sorted(json.loads(line)["run"] for line in out.splitlines()) == sorted(roots[1:])
    assert f"tree {roots[0]} in {folder}" in err
    assert "does not have children, cwd" in err


def test_a_tree_that_is_set_aside_is_removed_by_gc(folder: Path, roots: list[str], capsys: Captured) -> None:
    """The events of the tree stay unchanged until gc removes them; no command lists or resumes the tree."""
    cursor = damage_event(folder, roots[1])
    assert main(["repair", "--dir", str(folder)]) == 1
    assert f"event {cursor} of tree {roots[1]}" in capsys.readouterr().err

    assert main(["repair", "--set-aside", roots[1], "--dir", str(folder)]) == 0

    assert f"{roots[1]} is set aside" in capsys.readouterr().err
    for more in ([], ["--all"]):
        assert list_runs(folder, capsys, *more) == (0, [roots[0], roots[2]], "")
    assert main(["repair", "--dir", str(folder)]) == 0
    assert "2 trees can be read, 0 cannot" in capsys.readouterr().err
    assert main(["resume", "--quiet", "--dir", str(folder)]) == 0
    assert newest_event(folder, roots[1]) == cursor
    assert main(["gc", "--older-than", "1d", "--dir", str(folder)]) == 0
    assert newest_event(folder, roots[1]) == cursor
    assert main(["gc", "--older-than", "0", "--dir", str(folder)]) == 0
    with contextlib.closing(sqlite3.connect(folder / ".ramet/journal.db")) as journal:
        for table in ("events", "runs", "trees"):
            assert journal.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,), table


def test_a_journal_that_lost_events_can_change_only_after_accept_loss(
    folder: Path, roots: list[str], capsys: Captured
) -> None:
    """Commands may read it, but resume and changes are refused, as calls could run twice."""
    log = folder / ".ramet/journal.db-wal"
    with log.open("r+b") as file:
        file.truncate(log.stat().st_size - 4096)

    status, listing, err = list_runs(folder, capsys)
    assert status == 1
    assert set(listing) <= set(roots)
    assert err.count("\n") == 1
    assert "ramet repair --accept-loss" in err
    assert main(["repair", "--dir", str(folder)]) == 1
    assert "ramet repair --accept-loss" in capsys.readouterr().err
    for line in (["resume"], ["gc"], ["keep", roots[0]], ["repair", "--set-aside", roots[0]]):
        assert main([*line, "--dir", str(folder)]) == 1
        assert "ramet repair --accept-loss" in capsys.readouterr().err, line

    assert main(["repair", "--accept-loss", "--dir", str(folder)]) == 0
    assert "continues after event" in capsys.readouterr().err
    assert list_runs(folder, capsys)[::2] == (0, "")
    assert main(["resume", "--quiet", "--dir", str(folder)]) == 0
    assert main(["repair", "--accept-loss", "--dir", str(folder)]) == 0
    assert "no committed event is missing" in capsys.readouterr().err


def test_a_removed_journal_begins_anew_only_after_accept_loss(folder: Path, roots: list[str], capsys: Captured) -> None:
    """The mark of the removed journal shows that the folder was in use."""
    (folder / ".ramet/journal.db").unlink()
    (folder / ".ramet/journal.db-wal").unlink()

    async def begin() -> None:
        async with AgentRuntime(folder) as runtime:
            await runtime.open_store()

    with pytest.raises(Damaged, match="accept-loss"):
        asyncio.run(begin())
    assert main(["repair", "--accept-loss", "--dir", str(folder)]) == 0
    asyncio.run(begin())
    assert list_runs(folder, capsys)[:2] == (0, [])


def test_repair_refuses_an_unknown_run(folder: Path, roots: list[str], capsys: Captured) -> None:
    assert main(["repair", "--set-aside", "run-unheard-of", "--dir", str(folder)]) == 2
    assert capsys.readouterr().err.startswith("ramet: unknown run 'run-unheard-of'")
    assert len(roots) == len(list_runs(folder, capsys)[1])


def test_resume_of_a_program_skips_a_damaged_tree(
    folder: Path, roots: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """`AgentRuntime.resume` logs the damaged tree; `only=` the damaged tree raises DamagedTree."""
    cursor = damage_event(folder, roots[0])

    async def go_on() -> None:
        async with AgentRuntime(folder) as runtime:
            handles = await runtime.resume()
            assert sorted(handle.id for handle in handles) == sorted(roots[1:])
            for handle in handles:
                assert (await handle.result()).value == "waited"
            with pytest.raises(DamagedTree) as refusal:
                await runtime.resume(only=roots[0])
            assert (refusal.value.tree, refusal.value.cursor) == (roots[0], cursor)

    with caplog.at_level(logging.ERROR):
        asyncio.run(go_on())
    assert [each.name for each in caplog.records if roots[0] in each.getMessage()] == ["ramet.recovery"]


def test_a_server_lists_the_undamaged_trees(folder: Path, roots: list[str], caplog: pytest.LogCaptureFixture) -> None:
    """The server logs the damaged tree once, however often a client asks for the list."""
    damage_event(folder, roots[0])

    async def looked_at() -> None:
        journal = Journal(SqliteStore(folder / ".ramet/journal.db", read_only=True))
        await journal.open()
        views = RunViews(journal, OperatorControl((), journal.store), lambda _: asyncio.sleep(0, False))
        try:
            for _ in range(2):
                page = await views.runs(RunFilter())
                assert [row.root for row in page.runs] == roots[1:]
            with pytest.raises(DamagedTree):
                await views.run(roots[0])
        finally:
            await journal.store.close()

    asyncio.run(looked_at())
    assert len([each for each in caplog.records if roots[0] in each.getMessage()]) == 1


def test_a_session_id_is_free_once_its_damaged_tree_is_set_aside(tmp_path: Path, capsys: Captured) -> None:
    """Another conversation is listed and opened as before."""

    async def talk(session: str) -> str:
        async with Session(ScriptedModel(["Sure."]), cwd=tmp_path, session_id=session) as guest_session:
            await guest_session.ask("Well?")
            return guest_session.id

    broken_run, other_run = asyncio.run(talk("broken")), asyncio.run(talk("whole"))
    damage_event(tmp_path, broken_run)

    capsys.readouterr()
    assert main(["sessions", "list", "--json", "--dir", str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert [json.loads(line)["id"] for line in out.splitlines()] == ["whole"]
    assert f"of tree {broken_run}" in err
    with pytest.raises(DamagedTree):
        asyncio.run(talk("broken"))
    assert asyncio.run(talk("whole")) == other_run
    assert main(["repair", "--set-aside", broken_run, "--dir", str(tmp_path)]) == 0
    assert asyncio.run(talk("broken")) != broken_run


@pytest.mark.parametrize("data", [b"", b'{"root":', b'{"root":7}', b"[]", 5], ids=str)
def test_a_session_id_is_found_despite_a_damaged_session_document(
    tmp_path: Path, capsys: Captured, data: bytes | int
) -> None:
    """The documents of trees name the session: the id still resumes its tree, and can be removed."""

    async def talk() -> str:
        async with Session(ScriptedModel(["Sure."]), cwd=tmp_path, session_id="broken") as session:
            await session.ask("Well?")
            return session.id

    root = asyncio.run(talk())
    change_journal(tmp_path, "UPDATE documents SET data = ? WHERE kind = 'session'", data)

    assert main(["sessions", "show", "broken", "--json", "--dir", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[0])["root"] == root
    assert asyncio.run(talk()) == root
    assert main(["sessions", "rm", "broken", "--dir", str(tmp_path)]) == 0
    assert asyncio.run(talk()) != root


def test_a_document_with_a_wrong_value_does_not_affect_other_sessions(tmp_path: Path, capsys: Captured) -> None:
    """`sessions list` and `repair` name the tree, which can be set aside."""

    async def talk(session: str) -> str:
        async with Session(ScriptedModel(["Sure."]), cwd=tmp_path, session_id=session) as guest_session:
            await guest_session.ask("Well?")
            return guest_session.id

    broken_run, _ = asyncio.run(talk("broken")), asyncio.run(talk("whole"))
    expression = "json_set(CAST(data AS TEXT), '$.keep_s', 'long')"
    change_journal(
        tmp_path,
        f"UPDATE documents SET data = CAST({expression} AS BLOB) WHERE kind = ? AND key = ?",
        TREES,
        broken_run,
    )

    capsys.readouterr()
    assert main(["sessions", "list", "--json", "--dir", str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert [json.loads(line)["id"] for line in out.splitlines()] == ["whole"]
    assert f"--set-aside {broken_run}" in err
    assert main(["repair", "--dir", str(tmp_path)]) == 1
    assert f"--set-aside {broken_run}" in capsys.readouterr().err
    assert main(["repair", "--set-aside", broken_run, "--dir", str(tmp_path)]) == 0
    assert main(["sessions", "list", "--json", "--dir", str(tmp_path)]) == 0


@pytest.mark.parametrize(("column", "value"), [("run", b"x"), ("data", 5), ("seq", "y")])
def test_an_event_with_a_value_of_a_wrong_type_does_not_affect_other_trees(
    folder: Path, roots: list[str], capsys: Captured, column: str, value: object
) -> None:
    """A row that a faulty disk changed may hold any type."""
    cursor = newest_event(folder, roots[1])
    change_journal(folder, f"UPDATE events SET {column} = ? WHERE cursor = ?", value, cursor)

    status, listing, err = list_runs(folder, capsys)

    assert (status, listing) == (1, [roots[0], roots[2]])
    assert f"event {cursor} of tree {roots[1]}" in err


async def test_gate_events_are_read_beside_a_damaged_tree(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A list of every tree logs and skips the damaged one; a list of that tree raises DamagedTree."""
    store = await SqliteStore(tmp_path / "journal.db").open()
    try:
        names = {"path": "main", "agent": "a", "at": datetime.now(UTC), "depth": 0, "parent": None}
        good = IntentionRecorded(**names, root="run-1", run="run-1", seq=1, tool="t")  # type: ignore[arg-type]  # as its fields are
        store.append(Entry("run-2", "run-2", 1, "intention_recorded", b"{"))
        await store.durable(store.append(Entry("run-1", "run-1", 1, "intention_recorded", encode(good))))

        page = await passages(store)

        assert [each.event.root for each in page.entries] == ["run-1"]
        assert any("run-2" in each.getMessage() for each in caplog.records)
        with pytest.raises(DamagedTree):
            await passages(store, GateEventFilter(tree="run-2"))
    finally:
        await store.close()
