"""Accept the loss of committed data in a journal, on an operator's request. No process may have the journal open."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import NamedTuple

from ramet.disk.state_folder import check_database
from ramet.store.operations import QueuedChange
from ramet.store.sqlite import database
from ramet.store.sqlite.database_lock import DatabaseLock
from ramet.store.sqlite.high_water import NOTHING, Mark, mark_of
from ramet.store.sqlite.lock import KernelLock, refuse_network
from ramet.store.sqlite.tables import Journal


class LossReport(NamedTuple):
    """The recorded position of a journal, and the position that was found."""

    committed_mark: Mark
    actual_mark: Mark

    @property
    def is_loss(self) -> bool:
        """Return whether committed data is missing."""
        return self.actual_mark.is_behind(self.committed_mark)


def accept_loss(path: Path) -> LossReport:
    """Make a journal that is behind its mark usable again. New cursors begin after the lost ones. Blocks.

    A missing file is replaced by an empty journal. Raises StoreInUse, StoreFailed, and Damaged for any other damage.
    """
    path = path.resolve()
    check_database(path)
    refuse_network(path)
    with contextlib.ExitStack() as stack:
        stack.callback(KernelLock(path).release)
        mark = mark_of(path)
        if mark == NOTHING and not path.exists():
            return LossReport(NOTHING, NOTHING)
        database.make(path, accepts_loss=True)
        stack.callback(DatabaseLock(path).release)
        connection = database.open_for_writing(path, accepts_loss=True)
        stack.callback(connection.close)
        with database.convert_errors(path):
            journal = Journal(connection)
            position = journal.position
            if position.is_behind(mark):
                journal.commit([QueuedChange(lambda each: each.accept_loss(mark))])
    return LossReport(mark, position)
