"""Boards in a store: one document each, so that a change of several tasks is atomic.

Every change is a compare-and-swap of that document, repeated on the newest version until it fits or is refused. A claim
is a lease that ends with its owner: a task that a run has claimed and not completed may be claimed by another run once
the owner has ended. A run that a killed process left has not ended: it keeps its tasks when it is resumed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from ramet.core.errors import Conflict, InvalidValue, Unknown
from ramet.host.board.document import (
    KIND,
    MAX_BOARD,
    MAX_TASKS,
    BoardDocument,
    Row,
    changeable,
    checked_description,
    checked_ids,
    checked_subject,
    decode,
    name_of,
    next_id,
    note,
    row_of,
    task_of,
    wait_for,
)
from ramet.host.runtime import AgentRuntime
from ramet.store.contract import Store
from ramet.store.memory import MemoryStore
from ramet.tools.agents.board import Owner, Task, TaskRefused

_PAGE = 1_000

T = TypeVar("T")


class Board:
    """A list of tasks on a store: a `TaskBoard`."""

    def __init__(
        self,
        store: Store,
        list_id: str,
        *,
        is_living: Callable[[str], bool] | None = None,
        open: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        """Set up a board. `is_living` returns whether a run is active here; for other runs the store's journal is read.

        `open` is awaited before the store is used; by default the caller opens the store.
        """
        if not isinstance(list_id, str) or not list_id:
            raise InvalidValue("list_id", list_id, "a name")
        self._store, self._list_id = store, list_id
        self._is_living, self._open = is_living, open

    async def reserve(self) -> str:
        return await self._change(next_id)

    async def create(
        self,
        subject: str,
        description: str = "",
        *,
        blocked_by: Sequence[str] = (),
        metadata: Mapping[str, Any] | None = None,
        id: str | None = None,
        key: str = "",
    ) -> Task:
        """Create a task on the board; `id` is a reserved one.

        An existing task with the same `key` is returned instead.
        """

        def create(page: BoardDocument) -> Task:
            for task_id, row in page.rows.items():
                if key and row.key == key:
                    return task_of(page, task_id)
            if len(page.rows) >= MAX_TASKS:
                raise InvalidValue("board", f"{len(page.rows)} tasks", f"at most {MAX_TASKS}: delete completed tasks")
            if id is not None and (id in page.rows or id not in map(str, range(1, page.newest + 1))):
                raise InvalidValue("id", id, "a reserved id")
            new_id = id or next_id(page)
            page.rows[new_id] = Row(checked_subject(subject), checked_description(description), key=key)
            wait_for(page, new_id, blocked_by)
            note(page.rows[new_id], metadata)
            return task_of(page, new_id)

        return await self._change(create)

    async def claim(self, id: str, by: Owner) -> Task:
        """Claim a task for one run: exactly one of concurrent claimants succeeds.

        Refused while the task waits for other tasks; idempotent.
        """
        ended_owner = await self._find_ended_owner(id, by)

        def claim(page: BoardDocument) -> Task:
            task, row = task_of(page, id), row_of(page, id)
            if row.owner is not None and row.owner.run == by.run:
                return task
            if row.status == "completed":
                raise TaskRefused(id, "it is completed", owner=name_of(row))
            if row.owner is not None and row.owner != ended_owner:
                raise TaskRefused(id, f"{name_of(row)} is working on it", owner=name_of(row))
            if task.open_blockers:
                names = ", ".join(task.open_blockers)
                raise TaskRefused(id, f"it waits for {names}", blocked_by=task.open_blockers)
            row.status, row.owner = "in_progress", by
            return task_of(page, id)

        return await self._change(claim)

    async def complete(self, id: str, by: Owner) -> Task:
        """Mark a task as completed by its owner; tasks that waited for it may then be claimed. Idempotent."""

        def complete(page: BoardDocument) -> Task:
            row = row_of(page, id)
            if row.owner is None or row.owner.run != by.run:
                raise TaskRefused(
                    id, f"{name_of(row)} is working on it" if row.owner else "claim it first", owner=name_of(row)
                )
            row.status = "completed"
            return task_of(page, id)

        return await self._change(complete)

    async def release(self, id: str, by: Owner | None = None) -> Task:
        """Release a task uncompleted; `by=None` is the host, which needs no claim. Idempotent."""
        ended_owner = await self._find_ended_owner(id, by)

        def release(page: BoardDocument) -> Task:
            row = changeable(page, id, by, ended_owner)
            row.status, row.owner = "pending", None
            return task_of(page, id)

        return await self._change(release)

    async def delete(self, id: str, by: Owner | None = None) -> Task:
        """Delete a task from the board, unless another run works on it; no task waits for it any more."""
        ended_owner = await self._find_ended_owner(id, by)

        def delete(page: BoardDocument) -> Task:
            row = row_of(page, id)
            if row.status != "completed":
                changeable(page, id, by, ended_owner)
            row.status = "deleted"
            task = task_of(page, id)
            del page.rows[id]
            for each in page.rows.values():
                each.blocked_by = [blocker for blocker in each.blocked_by if blocker != id]
            return task

        return await self._change(delete)

    async def update(
        self,
        id: str,
        *,
        by: Owner | None = None,
        subject: str | None = None,
        description: str | None = None,
        add_blocked_by: Sequence[str] = (),
        add_blocks: Sequence[str] = (),
        metadata: Mapping[str, Any] | None = None,
    ) -> Task:
        """Change a task, unless another run works on it, or it is completed. In `metadata` None removes a key."""
        ended_owner = await self._find_ended_owner(id, by)

        def update(page: BoardDocument) -> Task:
            row = changeable(page, id, by, ended_owner)
            if subject is not None:
                row.subject = checked_subject(subject)
            if description is not None:
                row.description = checked_description(description)
            wait_for(page, id, add_blocked_by)
            for other in checked_ids("add_blocks", add_blocks):
                wait_for(page, other, (id,))
            note(row, metadata)
            return task_of(page, id)

        return await self._change(update)

    async def get(self, id: str) -> Task:
        """Return one task. Raises Unknown."""
        return task_of((await self._read())[0], id)

    async def list(self) -> Sequence[Task]:
        page, _ = await self._read()
        return [task_of(page, id) for id in sorted(page.rows, key=int)]

    # ----

    async def _read(self) -> tuple[BoardDocument, int]:
        if self._open is not None:
            await self._open()
        document = await self._store.get(KIND, self._list_id)
        return (
            (decode(self._list_id, document.data), document.version) if document is not None else (BoardDocument(), 0)
        )

    async def _change(self, step: Callable[[BoardDocument], T]) -> T:
        """Write the result of `step` on the newest version, repeated on conflicts.

        If `step` raises, nothing is written.
        """
        while True:
            page, version = await self._read()
            before = msgspec.json.encode(page)
            result = step(page)
            data = msgspec.json.encode(page)
            if data == before:
                return result
            if len(data) > MAX_BOARD and len(data) > len(before):
                raise InvalidValue("board", f"{len(data)} bytes", f"at most {MAX_BOARD}: delete completed tasks")
            try:
                await self._store.put(KIND, self._list_id, data, expected=version)
            except Conflict:
                continue  # Another writer was faster: each round some writer succeeds.
            return result

    async def _find_ended_owner(self, id: str, by: Owner | None) -> Owner | None:
        """Return the owner of a task whose lease has ended; None if the task has no owner, or a living one."""
        page, _ = await self._read()
        owner = row_of(page, id).owner
        if owner is None or (by is not None and owner.run == by.run):
            return None
        if self._is_living is not None and self._is_living(owner.run):
            return None
        return None if await self._is_resumable(owner.run) else owner

    async def _is_resumable(self, run: str) -> bool:
        """Return whether the journal has a run without its end: the run can be resumed."""
        cursor, is_open = 0, False
        while stored := await self._store.read(cursor, run=run, limit=_PAGE):
            for each in stored:
                if each.type in ("run_spawned", "run_resumed", "turn_started"):
                    is_open = True
                elif each.type == "run_ended":
                    is_open = False
            cursor = stored[-1].cursor
        return is_open


def boards(runtime: AgentRuntime) -> Callable[[str], Board]:
    """Return the boards of a runtime, by a name: in its journal's store, or in memory if it has no journal."""
    journal = runtime.journal
    store: Store = MemoryStore() if journal is None else journal.store
    open_store = store.open if journal is None else journal.open

    def is_living(run: str) -> bool:
        try:
            return runtime.get(run).run.is_living
        except Unknown:
            return False

    return lambda list_id: Board(store, list_id, is_living=is_living, open=open_store)
