"""Tests of `store/sqlite/writer.py`: the writing thread reports how it ended."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest

from ramet.store.contract import Entry
from ramet.store.sqlite import database
from ramet.store.sqlite.checkpoint import Checkpoints
from ramet.store.sqlite.tables import Journal
from ramet.store.sqlite.writer import SqliteWriter


class EndListener:
    """Listener that records the reported end of a writer."""

    def __init__(self) -> None:
        self.problems: list[Exception | None] = []
        self._is_said = threading.Event()

    def __call__(self, problem: Exception | None) -> None:
        self.problems.append(problem)
        self._is_said.set()

    def wait(self, writer: SqliteWriter) -> None:
        assert self._is_said.wait(30)
        writer.join()


@pytest.fixture
def connections(tmp_path: Path) -> tuple[sqlite3.Connection, sqlite3.Connection]:
    """Return a connection for the writer, and one for its checkpoints."""
    path = tmp_path / "journal.db"
    database.make(path)
    return database.open_for_writing(path), database.connect(path, "rw")


def test_a_writer_that_closes_normally_reports_no_problem(
    connections: tuple[sqlite3.Connection, sqlite3.Connection],
) -> None:
    """The listener is called once, with None."""
    listener, (writes, own_connection) = EndListener(), connections
    writer = SqliteWriter(Journal(writes), Checkpoints(own_connection, writes), lambda *_: None, listener)

    writer.close()
    listener.wait(writer)

    assert listener.problems == [None]


def test_a_failed_close_of_the_journal_is_reported(
    connections: tuple[sqlite3.Connection, sqlite3.Connection],
) -> None:
    """A waiter must not take such an end for a normal one."""

    class Stuck(Journal):
        def close(self) -> None:
            super().close()
            self.space()  # It asks a connection that is closed.

    listener, (writes, own_connection) = EndListener(), connections
    writer = SqliteWriter(Stuck(writes), Checkpoints(own_connection, writes), lambda *_: None, listener)

    writer.close()
    listener.wait(writer)

    [problem] = listener.problems
    assert isinstance(problem, sqlite3.ProgrammingError)


def test_the_first_failure_of_a_writer_is_reported(
    connections: tuple[sqlite3.Connection, sqlite3.Connection],
) -> None:
    """A write fails, and then the close fails; the report has the error of the write."""

    class Stuck(Journal):
        def close(self) -> None:
            super().close()
            raise OSError("what followed")

    listener, (writes, own_connection) = EndListener(), connections
    journal = Stuck(writes)
    writes.execute("DROP TABLE events")
    writer = SqliteWriter(journal, Checkpoints(own_connection, writes), lambda *_: None, listener)

    writer.add(Entry("tree", "run", 1, "type", b"{}"))
    writer.hurry()
    listener.wait(writer)

    [problem] = listener.problems
    assert isinstance(problem, sqlite3.OperationalError)
