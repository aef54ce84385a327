"""The data of a board as one document, and the rules for changing it: each change can be repeated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ramet.core.arguments import is_unicode
from ramet.core.errors import Damaged, InvalidValue, Unknown
from ramet.tools.agents.board import Owner, Status, Task, TaskRefused

KIND = "task"  #: of the documents of boards
VERSION = 1
MAX_TASKS = 1_000
MAX_SUBJECT = 200
MAX_DESCRIPTION = 20_000
MAX_METADATA = 8_000  #: bytes of JSON
MAX_BLOCKERS = 100
MAX_BOARD = 2_000_000  #: bytes of the whole board: each change writes it


class Row(msgspec.Struct, omit_defaults=True):
    subject: str
    description: str = ""
    status: Status = "pending"
    owner: Owner | None = None
    blocked_by: list[str] = []
    metadata: dict[str, Any] = {}
    key: str = ""


class _Version(msgspec.Struct):
    version: int


class BoardDocument(msgspec.Struct):
    version: int = VERSION
    newest: int = 0  #: the newest number
    rows: dict[str, Row] = {}  #: in the order in which they were created


def decode(list_id: str, data: bytes) -> BoardDocument:
    try:
        version = msgspec.json.decode(data, type=_Version).version
        if version > VERSION:
            raise Damaged("board", list_id, f"its version is {version}, and this ramet reads versions up to {VERSION}")
        return msgspec.json.decode(data, type=BoardDocument)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
        raise Damaged("board", list_id, str(problem)) from None


def next_id(page: BoardDocument) -> str:
    page.newest += 1
    return str(page.newest)


def row_of(page: BoardDocument, id: str) -> Row:
    if id not in page.rows:
        raise Unknown("task", str(id), tuple(page.rows))
    return page.rows[id]


def changeable(page: BoardDocument, id: str, by: Owner | None, ended_owner: Owner | None) -> Row:
    """Return a task that `by` may change: it is not completed, and no other living run owns it."""
    row = row_of(page, id)
    if row.status == "completed":
        raise TaskRefused(id, "it is completed", owner=name_of(row))
    if by is not None and row.owner is not None and row.owner.run != by.run and row.owner != ended_owner:
        raise TaskRefused(id, f"{name_of(row)} is working on it", owner=name_of(row))
    return row


def name_of(row: Row) -> str:
    return (row.owner.path or row.owner.run) if row.owner is not None else ""


def task_of(page: BoardDocument, id: str) -> Task:
    row = row_of(page, id)
    return Task(
        id=id,
        subject=row.subject,
        description=row.description,
        status=row.status,
        owner=row.owner,
        blocked_by=tuple(row.blocked_by),
        open_blockers=tuple(each for each in row.blocked_by if page.rows[each].status != "completed"),
        blocks=tuple(each for each, other in page.rows.items() if id in other.blocked_by),
        metadata=dict(row.metadata),
    )


def wait_for(page: BoardDocument, id: str, blockers: Sequence[str]) -> None:
    """Let a task wait for other tasks. Refuses cycles, and tasks that have begun."""
    row = row_of(page, id)
    new = [each for each in checked_ids("blocked_by", blockers) if each not in row.blocked_by]
    if new and row.status != "pending":
        raise TaskRefused(id, f"it is {row.status}: it cannot wait any more", owner=name_of(row))
    for blocker in new:
        row_of(page, blocker)
        if id in _transitive_blockers(page, blocker):
            raise InvalidValue("blocked_by", blocker, f"a task that does not itself wait for {id}")
    row.blocked_by = sorted([*row.blocked_by, *new], key=int)
    if len(row.blocked_by) > MAX_BLOCKERS:
        raise InvalidValue("blocked_by", len(row.blocked_by), f"at most {MAX_BLOCKERS} tasks")


def _transitive_blockers(page: BoardDocument, id: str) -> set[str]:
    """Return a task and all tasks that it waits for, directly or indirectly."""
    reached, pending = {id}, [id]
    while pending:
        added = set(page.rows[pending.pop()].blocked_by) - reached
        reached |= added
        pending += added
    return reached


def checked_ids(field: str, ids: Sequence[str]) -> list[str]:
    if isinstance(ids, str) or not all(isinstance(each, str) for each in ids):
        raise InvalidValue(field, ids, "a list of ids of tasks")
    return list(dict.fromkeys(ids))


def checked_subject(text: str) -> str:
    if not isinstance(text, str) or not text.strip() or len(text) > MAX_SUBJECT or not text.isprintable():
        raise InvalidValue("subject", text, f"one line of 1 to {MAX_SUBJECT} characters")
    return text.strip()


def checked_description(text: str) -> str:
    if not isinstance(text, str) or len(text) > MAX_DESCRIPTION or not is_unicode(text):
        raise InvalidValue("description", text, f"text of at most {MAX_DESCRIPTION} characters")
    return text


def note(row: Row, metadata: Mapping[str, Any] | None) -> None:
    if metadata is None:
        return
    merged = {key: value for key, value in {**row.metadata, **metadata}.items() if value is not None}
    try:
        data = msgspec.json.encode(merged)
        decoded = msgspec.json.decode(data, type=dict[str, Any])
    except (TypeError, ValueError, RecursionError):
        raise InvalidValue("metadata", metadata, "JSON with text as its keys") from None
    if len(data) > MAX_METADATA:
        raise InvalidValue("metadata", f"{len(data)} bytes", f"at most {MAX_METADATA}")
    row.metadata = decoded
