"""Rows of runs from a journal: what they say, and that a state is held against reality."""

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


class Tale:
    """Writes a tree's events into a store."""

    def __init__(self, store: MemoryStore | SqliteStore, root: str = "run-1") -> None:
        self.store, self.root, self.seq = store, root, 0

    async def add(self, kind: type[Event], run: str, /, **fields: Any) -> None:
        """One event, a second after the one before."""
        self.seq += 1
        names: dict[str, Any] = {"path": "main" if run == self.root else f"main/{run}", "agent": "worker"}
        parent = None if run == self.root else self.root
        at = START + timedelta(seconds=self.seq)
        event = kind(root=self.root, run=run, parent=parent, seq=self.seq, at=at, **names, **fields)
        entry = Entry(self.root, run, self.seq, str(kind.__struct_config__.tag), encode(event))
        await self.store.durable(self.store.append(entry))


async def under_way(tale: Tale) -> None:
    """A root that waits for a child that has ended, in a call, with mail and a question."""
    await tale.add(RunSpawned, "run-1", name="main", prompt="Why?", model="offline")
    await tale.add(StateChanged, "run-1", state="running")
    await tale.add(ToolStarted, "run-1", tool="Agent", step_id="run-1:1", call_id="c1")
    await tale.add(RunSpawned, "run-2", name="run-2", description="search")
    await tale.add(MessageRecorded, "run-2", message={"type": "ai"}, usage=Usage(model_calls=1, input_tokens=7))
    await tale.add(RunEnded, "run-2", result=DONE)
    await tale.add(MailPushed, "run-1", mail_id="m1", sender="user", kind="user", text="hello")
    await tale.add(ApprovalAsked, "run-1", approval_id="a1", tool="Write", question="may it?")
    await tale.add(ApprovalAsked, "run-1", approval_id="a2", tool="Write", question="and this?")
    await tale.add(ApprovalAnswered, "run-1", approval_id="a2", allowed=True)


async def test_a_row_says_what_is_on_record() -> None:
    """State, times, usage of its own and with all below it, children, open calls, mail, questions, result."""
    store = await MemoryStore().open()
    await under_way(Tale(store))

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


async def test_what_no_kernel_has_at_work_is_interrupted() -> None:
    """Whatever was written last; what has ended stays as it ended."""
    store = await MemoryStore().open()
    await under_way(Tale(store))

    rows = [await JournalReader(store, held).rows("run-1") for held in (None, ["run-1"], [], ["run-9"])]

    states = [[row.state for row in each] for each in rows]
    assert states == [["running", "completed"]] * 2 + [["interrupted", "completed"]] * 2
    await store.close()


async def test_a_run_leads_to_its_tree() -> None:
    """And one that nobody knows is said so."""
    store = await MemoryStore().open()
    await under_way(Tale(store))

    assert await JournalReader(store).tree_of("run-2") == "run-1"
    with pytest.raises(Unknown):
        await JournalReader(store).tree_of("run-3")
    await store.close()


async def test_a_follower_gets_each_event_once_and_ends_with_the_run() -> None:
    """What was there, then what comes: of one run, of the whole tree."""
    store = await MemoryStore().open()
    tale, records = Tale(store), JournalReader(store)
    await under_way(tale)

    async def follow(run: str | None) -> list[int]:
        return [event.seq async for event in records.follow("run-1", run=run)]

    async with asyncio.TaskGroup() as group:
        all_of_it, root, child = (group.create_task(follow(run)) for run in (None, "run-1", "run-2"))
        assert await child == [4, 5, 6]
        for _ in range(3):
            await tale.add(StateChanged, "run-1", state="running")
            await asyncio.sleep(0)
        await tale.add(RunEnded, "run-1", result=DONE)

    assert all_of_it.result() == list(range(1, 15))
    assert root.result() == [each for each in range(1, 15) if each not in (4, 5, 6)]
    await store.close()


@pytest.mark.parametrize("is_alone", [True, False])
async def test_a_follower_ends_when_nobody_writes_any_more(is_alone: bool) -> None:
    """Its kernel was killed, and the one that is there now, if any, has not gone on with it: that is all there is."""
    store = await MemoryStore().open()
    await under_way(Tale(store))

    records = JournalReader(store, ("run-2",), is_alone=lambda: is_alone)

    assert [event.seq async for event in records.follow("run-1")] == list(range(1, 11))
    await store.close()


async def test_whose_journal_it_is_follows_from_the_lock(tmp_path: Path) -> None:
    """Not from what was written into it: a process that was killed leaves its number behind."""
    journal = tmp_path / "journal.db"
    assert kernel_of(journal) is None
    lock = KernelLock(journal)
    held = kernel_of(journal)
    lock.release()
    assert held is not None
    assert held.pid.isdigit()
    assert kernel_of(journal) is None

    program = (
        "import os, signal, pathlib; from ramet.store.sqlite.lock import KernelLock; "
        f"lock = KernelLock(pathlib.Path({str(journal)!r})); os.kill(os.getpid(), signal.SIGKILL)"
    )
    await asyncio.to_thread(subprocess.run, [sys.executable, "-c", program], check=False)
    assert journal.with_name("journal.db.lock").read_text().strip().isdigit()
    assert kernel_of(journal) is None
    KernelLock(journal).release()  # To look has not taken it.


async def test_a_folder_without_a_journal_is_said(tmp_path: Path) -> None:
    """And none is made."""
    with pytest.raises(NoJournal):
        journal_in(tmp_path)
    with pytest.raises(NoJournal):
        await journal_reader(tmp_path)
    assert not (tmp_path / ".ramet").exists()


async def ended(store: SqliteStore, root: str) -> None:
    """A tree of two that has ended, three seconds after the start."""
    tale = Tale(store, root)
    await tale.add(RunSpawned, root, name="main")
    await tale.add(RunEnded, f"{root}-nobody", result=DONE)
    await tale.add(RunEnded, root, result=Result(status=Status.FAILED, error=ErrorInfo(type="X", message="no")))
    await store.put("tree", root, b"{}")


@pytest.mark.parametrize("dry", [True, False])
async def test_what_ended_before_is_removed_and_nothing_else(tmp_path: Path, dry: bool) -> None:
    """Neither what lives, nor what ended later, nor what is kept, by name or by its folder; a dry run does nothing."""
    folders = RunFolders(tmp_path)
    store = await SqliteStore(tmp_path / "journal.db").open()
    await under_way(Tale(store))
    await store.put("tree", "run-1", b"{}")
    for root in ("run-old", "run-kept", "run-marked"):
        await ended(store, root)
        folders.create(root, path="main", agent="worker")
    folders.find("run-marked").keep()
    late = Tale(store, "run-late")
    await late.add(RunSpawned, "run-late", name="main")
    late.seq = 1000
    await late.add(RunEnded, "run-late", result=DONE)
    before = START + timedelta(seconds=60)

    gone = await sweep(store, tmp_path, before=before, keep=["run-kept"], dry_run=dry)

    left = await JournalReader(store).trees(ended=True)
    assert [(each.root, each.state, each.runs, each.folders) for each in gone] == [("run-old", "failed", 1, 1)]
    assert left == ["run-1", *(["run-old"] if dry else []), "run-kept", "run-marked", "run-late"]
    assert [each.key for each in await store.list("tree")] == sorted({*left} - {"run-late"})
    assert {each.id for each in folders.list()} == {*left} - {"run-1", "run-late"}
    await store.close()


async def test_what_is_to_be_kept_must_be_there(tmp_path: Path) -> None:
    """A slip of the pen removes nothing."""
    store = await SqliteStore(tmp_path / "journal.db").open()
    await ended(store, "run-old")

    with pytest.raises(Unknown):
        await sweep(store, tmp_path, before=START + timedelta(days=1), keep=["run-odl"])

    assert await JournalReader(store).trees(ended=True) == ["run-old"]
    await store.close()
