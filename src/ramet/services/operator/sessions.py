"""The recorded conversations of a server's store: listed, shown, and removed if they are not in use."""

from __future__ import annotations

import pathlib

from msgspec.structs import replace

from ramet.core.errors import BusyError
from ramet.host.control.run_queries import INTERRUPTED, JournalReader
from ramet.host.sessions.rows import OPEN, SessionRow, session_row, sessions
from ramet.host.sessions.trees import remove
from ramet.services.errors import InUse
from ramet.services.operator.contract import Paging, RemovedSession, SessionPage, ShownSession
from ramet.services.operator.runs import IsElsewhere, RecordedTrees, checked_limit
from ramet.services.teams.tables import TeamTables


class SessionViews:
    """Conversations by the id of the session, or of the root of its tree. Unknown names raise Unknown."""

    def __init__(self, journal: RecordedTrees, working_dir: pathlib.Path | None, is_elsewhere: IsElsewhere) -> None:
        """Keep `journal` open during the use of the views.

        `is_elsewhere` returns whether another kernel runs a tree.
        """
        self._journal, self._working_dir, self._is_elsewhere = journal, working_dir, is_elsewhere

    async def page(self, request: Paging) -> SessionPage:
        """Return a page of conversations, the newest first. Raises InvalidValue, and Unknown for an unknown `after`."""
        rows, next_cursor = await sessions(self._records(), checked_limit(request.limit), request.after)
        return SessionPage(
            sessions=[await self._apply_shared_state(each) for each in rows], more=rows[-1].root if next_cursor else ""
        )

    async def get(self, name: str, last: int | None = None) -> ShownSession:
        """Return one conversation, and its messages, or the `last` of them. Raises Unknown, InvalidValue."""
        row, messages = await session_row(self._records(), name, last)
        return ShownSession(session=await self._apply_shared_state(row), messages=messages)

    async def remove(self, name: str) -> RemovedSession:
        """Remove a conversation that is closed or interrupted, with everything that its tree left.

        Raises Unknown, InUse for a conversation that is open or from which an agent continues, and Denied for one that
        is kept.
        """
        row = (await self.get(name)).session
        if row.state == OPEN:
            raise InUse("session", name, ("the kernel that has it open",))
        if row.root in await TeamTables(self._journal.store).needed_trees():
            raise InUse("session", name, ("an agent of a team that resumes it",))
        try:
            root = await remove(self._records(), self._working_dir, name)
        except BusyError:  # It was opened concurrently.
            raise InUse("session", name, ("the kernel that has it open",)) from None
        return RemovedSession(session=row.id, root=root)

    def _records(self) -> JournalReader:
        return JournalReader(self._journal.store, frozenset(self._journal.living))

    async def _apply_shared_state(self, row: SessionRow) -> SessionRow:
        """Return a row with the state that all kernels of the store give it."""
        if row.state == INTERRUPTED and await self._is_elsewhere(row.root):
            return replace(row, state=OPEN)
        return row
