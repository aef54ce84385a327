"""store/sqlite/writer.py: the thread that writes says how it ended."""

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


class Ended:
    """Waits for what a writer says when it has ended."""

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
    """One for the writer, and one for its checkpoints."""
    path = tmp_path / "journal.db"
    database.make(path)
    return database.open_for_writing(path), database.connect(path, "rw")


def test_a_writer_that_closes_in_order_has_no_problem(
    connections: tuple[sqlite3.Connection, sqlite3.Connection],
) -> None:
    """It says so once, with None."""
    ended, (writes, own) = Ended(), connections
    writer = SqliteWriter(Journal(writes), Checkpoints(own, writes), lambda *_: None, ended)

    writer.close()
    ended.wait(writer)

    assert ended.problems == [None]


def test_a_journal_that_cannot_be_closed_is_a_problem(
    connections: tuple[sqlite3.Connection, sqlite3.Connection],
) -> None:
    """Whoever waits for the end must not take it for one in order."""

    class Stuck(Journal):
        def close(self) -> None:
            super().close()
            self.space()  # It asks a connection that is closed.

    ended, (writes, own) = Ended(), connections
    writer = SqliteWriter(Stuck(writes), Checkpoints(own, writes), lambda *_: None, ended)

    writer.close()
    ended.wait(writer)

    [problem] = ended.problems
    assert isinstance(problem, sqlite3.ProgrammingError)


def test_what_ended_the_writing_is_the_problem_and_not_what_followed(
    connections: tuple[sqlite3.Connection, sqlite3.Connection],
) -> None:
    """A write fails, and then the journal cannot be closed either: the first is what somebody has to know."""

    class Stuck(Journal):
        def close(self) -> None:
            super().close()
            raise OSError("what followed")

    ended, (writes, own) = Ended(), connections
    journal = Stuck(writes)
    writes.execute("DROP TABLE events")
    writer = SqliteWriter(journal, Checkpoints(own, writes), lambda *_: None, ended)

    writer.add(Entry("tree", "run", 1, "type", b"{}"))
    writer.hurry()
    ended.wait(writer)

    [problem] = ended.problems
    assert isinstance(problem, sqlite3.OperationalError)
