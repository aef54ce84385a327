"""Tests of `store/sqlite/checkpoint.py`: SQLite's log is moved into the file outside of the writer."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest

from ramet.store.sqlite.checkpoint import Checkpoints


def test_the_log_is_moved_when_no_thread_can_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error in the writer's call would end the journal permanently."""
    own_connection, writers = (sqlite3.connect(tmp_path / "journal.db", check_same_thread=False) for _ in range(2))
    writers.execute("PRAGMA journal_mode=WAL").fetchall()
    checkpoints = Checkpoints(own_connection, writers)

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    writers.execute("CREATE TABLE t (x)")
    checkpoints.after(1)

    checkpoints.when_quiet()
    checkpoints.close()

    assert b"CREATE TABLE t" in (tmp_path / "journal.db").read_bytes()
    writers.close()
