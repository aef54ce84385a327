"""The boards of a store, read without a change."""

from __future__ import annotations

from collections import Counter

from ramet.core.errors import Damaged, Unknown
from ramet.host.board.document import KIND, decode, task_of
from ramet.services.operator.contract import Paging
from ramet.services.operator.records.record_rows import BoardPage, BoardRow, BoardTask, ShownBoard
from ramet.services.operator.runs import RecordedTrees, checked_limit
from ramet.store.contract import Document
from ramet.tools.agents.board import Task


class BoardViews:
    """Boards by their names; that of a tree has the id of its root as its name."""

    def __init__(self, journal: RecordedTrees) -> None:
        """Keep `journal` open during the use of the views."""
        self._journal = journal

    async def page(self, request: Paging) -> BoardPage:
        """Return a page of boards, in order of their names. Raises InvalidValue."""
        limit = checked_limit(request.limit)
        documents = [each for each in await self._journal.store.list(KIND) if each.key > request.after]
        rows = [_row(each) for each in documents[:limit]]
        return BoardPage(boards=rows, more=rows[-1].name if documents[limit:] else "")

    async def get(self, name: str) -> ShownBoard:
        """Return a board with its tasks. Raises Unknown, and Damaged if it cannot be read."""
        document = await self._journal.store.get(KIND, name) if "\0" not in name else None
        if document is None:
            raise Unknown("board", name)
        board = decode(name, document.data)
        return ShownBoard(name=name, tasks=[_task(task_of(board, id)) for id in sorted(board.rows, key=int)])


def _task(task: Task) -> BoardTask:
    owner, path = task.owner or ("", "")
    return BoardTask(
        id=task.id,
        subject=task.subject,
        description=task.description,
        status=task.status,
        owner=owner,
        owner_path=path,
        blocked_by=task.blocked_by,
        open_blockers=task.open_blockers,
        metadata=task.metadata,
    )


def _row(document: Document) -> BoardRow:
    try:
        rows = decode(document.key, document.data).rows.values()
    except Damaged as error:
        return BoardRow(name=document.key, error=str(error))
    count = Counter(each.status for each in rows)
    return BoardRow(
        name=document.key,
        pending=count["pending"],
        in_progress=count["in_progress"],
        completed=count["completed"],
    )
