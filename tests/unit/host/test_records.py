"""Rows of runs from a journal, with states checked against the live kernel."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ramet.core.errors import Unknown
from ramet.core.events import (
    ApprovalAnswered,
    ApprovalAsked,
    Event,
    MailPushed,
    MessageRecorded,
    RunEnded,
    RunSpawned,
    StateChanged,
    ToolStarted,
    encode,
)
from ramet.core.outcome import ErrorInfo, Result, Status, Usage
from ramet.host.control.run_queries import JournalReader, NoJournal, journal_in, journal_reader, kernel_of
from ramet.host.retention.sweep import sweep
from ramet.isolation.workspace.run_dirs import RunFolders
from ramet.store.contract import Entry
from ramet.store.memory import MemoryStore
from ramet.store.sqlite.lock import KernelLock
from ramet.store.sqlite.store import SqliteStore

START = datetime(2026, 11, 20, 12, 0, 0, tzinfo=UTC)
DONE = Result(status=Status.COMPLETED, value="found")


class TreeWriter:
    """A writer of a tree's events into a store."""

    def __init__(self, store: MemoryStore | SqliteStore, root: str = "run-1") -> None:
        self.store, self.root, self.seq = store, root, 0

    async def add(self, kind: type[Event], run: str, /, **fields: Any) -> None:
        """Write one event, a second after the one before."""
        self.seq += 1
        names: dict[str, Any] = {"path": "main" if run == self.root else f"main/{run}", "agent": "worker"}
        parent = None if run == self.root else self.root
        at = START + timedelta(seconds=self.seq)
        event = kind(root=self.root, run=run, parent=parent, seq=self.seq, at=at, **names, **fields)
        entry = Entry(self.root, run, self.seq, str(kind.__struct_config__.tag), encode(event))
        await self.store.durable(self.store.append(entry))


async def write_running_tree(writer: TreeWriter) -> None:
    """Write a root that waits for an ended child, in a call, with mail and a question."""
    await writer.add(RunSpawned, "run-1", name="main", prompt="Why?", model="offline")
    await writer.add(StateChanged, "run-1", state="running")
    await writer.add(ToolStarted, "run-1", tool="Agent", step_id="run-1:1", call_id="c1")
    await writer.add(RunSpawned, "run-2", name="run-2", description="search")
    await writer.add(MessageRecorded, "run-2", message={"type": "ai"}, usage=Usage(model_calls=1, input_tokens=7))
    await writer.add(RunEnded, "run-2", result=DONE)
    await writer.add(MailPushed, "run-1", mail_id="m1", sender="user", kind="user", text="hello")
    await writer.add(ApprovalAsked, "run-1", approval_id="a1", tool="Write", question="may it?")
    await writer.add(ApprovalAsked, "run-1", approval_id="a2", tool="Write", question="and this?")
    await writer.add(ApprovalAnswered, "run-1", approval_id="a2", allowed=True)


async def test_a_row_shows_the_recorded_facts() -> None:
    """The row has state, times, usage of run and subtree, children, open calls, mail, questions and result."""
    store = await MemoryStore().open()
    await write_running_tree(TreeWriter(store))

    root, child = await JournalReader(store).rows("run-1")

    assert (root.state, root.is_over, root.children, root.unread) == ("running", False, ("run-2",), 1)
    assert [each.tool for each in root.calls] == ["Agent"]
    assert [each.approval_id for each in root.approvals] == ["a1"]
    assert (root.usage.tokens, root.usage_subtree.tokens) == (0, 7)
    assert (root.born, root.ended, root.seconds(START + timedelta(seconds=9))) == (
        START + timedelta(seconds=1),
        None,
        8,
    )
    assert (child.state, child.is_over, child.result, child.usage.tokens) == ("completed", True, DONE, 7)
    assert (child.parent, child.description, child.seconds(START)) == ("run-1", "search", 2)
    await store.close()


async def test_a_run_without_a_live_kernel_is_interrupted() -> None:
    """The last recorded state does not matter; ended runs stay as they ended."""
    store = await MemoryStore().open()
    await write_running_tree(TreeWriter(store))

    rows = [await JournalReader(store, runs).rows("run-1") for runs in (None, ["run-1"], [], ["run-9"])]

    states = [[row.state for row in each] for each in rows]
    assert states == [["running", "completed"]] * 2 + [["interrupted", "completed"]] * 2
    await store.close()


async def test_a_run_is_found_in_its_tree() -> None:
    """An unknown run raises Unknown."""
    store = await MemoryStore().open()
    await write_running_tree(TreeWriter(store))

    assert await JournalReader(store).tree_of("run-2") == "run-1"
    with pytest.raises(Unknown):
        await JournalReader(store).tree_of("run-3")
    await store.close()


async def test_a_follower_gets_each_event_once_and_ends_with_the_run() -> None:
    """The follower gets past events, then new ones, of one run or of the whole tree."""
    store = await MemoryStore().open()
    writer, records = TreeWriter(store), JournalReader(store)
    await write_running_tree(writer)

    async def follow(run: str | None) -> list[int]:
        return [event.seq async for event in records.follow("run-1", run=run)]

    async with asyncio.TaskGroup() as group:
        all_of_it, root, child = (group.create_task(follow(run)) for run in (None, "run-1", "run-2"))
        assert await child == [4, 5, 6]
        for _ in range(3):
            await writer.add(StateChanged, "run-1", state="running")
            await asyncio.sleep(0)
        await writer.add(RunEnded, "run-1", result=DONE)

    assert all_of_it.result() == list(range(1, 15))
    assert root.result() == [each for each in range(1, 15) if each not in (4, 5, 6)]
    await store.close()


@pytest.mark.parametrize("is_alone", [True, False])
async def test_a_follower_ends_when_no_kernel_writes_the_tree(is_alone: bool) -> None:
    """The tree's kernel was killed, and the present one, if any, has not resumed it."""
    store = await MemoryStore().open()
    await write_running_tree(TreeWriter(store))

    records = JournalReader(store, ("run-2",), is_alone=lambda: is_alone)

    assert [event.seq async for event in records.follow("run-1")] == list(range(1, 11))
    await store.close()


async def test_the_lock_decides_which_kernel_owns_a_journal(tmp_path: Path) -> None:
    """The process id in the lock file does not count: a killed process leaves it."""
    journal = tmp_path / "journal.db"
    assert kernel_of(journal) is None
    lock = KernelLock(journal)
    kernel_lease = kernel_of(journal)
    lock.release()
    assert kernel_lease is not None
    assert kernel_lease.isdigit()
    assert kernel_of(journal) is None

    program = (
        "import os, signal, pathlib; from ramet.store.sqlite.lock import KernelLock; "
        f"lock = KernelLock(pathlib.Path({str(journal)!r})); os.kill(os.getpid(), signal.SIGKILL)"
    )
    await asyncio.to_thread(subprocess.run, [sys.executable, "-c", program], check=False)
    assert journal.with_name("journal.db.lock").read_text().strip().isdigit()
    assert kernel_of(journal) is None
    KernelLock(journal).release()  # To look has not taken it.


async def test_a_folder_without_a_journal_raises_no_journal(tmp_path: Path) -> None:
    """No journal is made."""
    with pytest.raises(NoJournal):
        journal_in(tmp_path)
    with pytest.raises(NoJournal):
        await journal_reader(tmp_path)
    assert not (tmp_path / ".ramet").exists()


async def write_ended_tree(store: SqliteStore, root: str) -> None:
    """Write a tree of two that ended three seconds after the start."""
    writer = TreeWriter(store, root)
    await writer.add(RunSpawned, root, name="main")
    await writer.add(RunEnded, f"{root}-nobody", result=DONE)
    await writer.add(RunEnded, root, result=Result(status=Status.FAILED, error=ErrorInfo(type="X", message="no")))
    await store.put("tree", root, b"{}")


@pytest.mark.parametrize("dry", [True, False])
async def test_sweep_removes_old_ended_trees_and_nothing_else(tmp_path: Path, dry: bool) -> None:
    """Running, newer and kept trees stay, by name or by folder; a dry run removes nothing."""
    folders = RunFolders(tmp_path)
    store = await SqliteStore(tmp_path / "journal.db").open()
    await write_running_tree(TreeWriter(store))
    await store.put("tree", "run-1", b"{}")
    for root in ("run-old", "run-kept", "run-marked"):
        await write_ended_tree(store, root)
        folders.create(root, path="main", agent="worker")
    folders.find("run-marked").keep()
    late = TreeWriter(store, "run-late")
    await late.add(RunSpawned, "run-late", name="main")
    late.seq = 1000
    await late.add(RunEnded, "run-late", result=DONE)
    before = START + timedelta(seconds=60)

    swept_trees = await sweep(store, tmp_path, before=before, keep=["run-kept"], dry_run=dry)

    remaining = await JournalReader(store).trees(ended=True)
    assert [(each.root, each.state, each.runs, each.folders) for each in swept_trees] == [("run-old", "failed", 1, 1)]
    assert remaining == ["run-1", *(["run-old"] if dry else []), "run-kept", "run-marked", "run-late"]
    assert [each.key for each in await store.list("tree")] == sorted({*remaining} - {"run-late"})
    assert {each.id for each in folders.list()} == {*remaining} - {"run-1", "run-late"}
    await store.close()


async def test_sweep_refuses_to_keep_an_unknown_tree(tmp_path: Path) -> None:
    """A typing error must not remove anything."""
    store = await SqliteStore(tmp_path / "journal.db").open()
    await write_ended_tree(store, "run-old")

    with pytest.raises(Unknown):
        await sweep(store, tmp_path, before=START + timedelta(days=1), keep=["run-odl"])

    assert await JournalReader(store).trees(ended=True) == ["run-old"]
    await store.close()
