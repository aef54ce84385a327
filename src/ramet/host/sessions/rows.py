"""Recorded conversations for read-only users: rows for listings, and messages."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from msgspec import Struct

from ramet.core.errors import DamagedTree, InvalidValue, Unknown
from ramet.core.outcome import Usage
from ramet.core.replay.run_replay import RunReplay
from ramet.host import session_ids
from ramet.host.control.run_queries import INTERRUPTED, JournalReader
from ramet.host.journal.journal import TREES, tree_document
from ramet.host.journal.stored_events import location_of
from ramet.host.journal.ttl import read_lifetime
from ramet.store.contract import Document

OPEN: Final = "open"  #: a kernel has it open
CLOSED: Final = "closed"  #: it stays closed until it is opened again
_MOST_SHOWN = 200  #: characters of a first prompt


class SessionRow(Struct, frozen=True, kw_only=True):
    """A recorded conversation, as a row of a listing."""

    id: str  #: of the session; the root's id if the session has none
    root: str
    state: str  #: open | interrupted | closed
    agent: str
    began: datetime | None
    ended: datetime | None  #: when it was last closed
    turns: int
    usage: Usage  #: of the whole tree
    first_prompt: str  #: at most 200 characters


async def sessions(records: JournalReader, limit: int = 0, after: str = "") -> tuple[list[SessionRow], int]:
    """Return the newest conversations, the newest first, and the number of the others; without a limit return all.

    With the root of a conversation as `after`, only older ones are returned. A conversation that cannot be read is
    skipped, and is then in `records.damage_by_root`. Raises Unknown if the root is not that of a conversation.
    """
    entries = list[tuple[str, Document, Mapping[str, Any]]]()
    for each in await records.store.list(TREES):
        try:
            about: Mapping[str, Any] = tree_document(each, location_of(records.store))
        except DamagedTree as problem:
            records.damage_by_root[each.key] = problem
            continue
        if _is_conversation(about):
            entries.append((str(about.get("began", "")), each, about))
    entries.sort(key=lambda each: each[0], reverse=True)
    if after:
        begin = next((index + 1 for index, each in enumerate(entries) if each[1].key == after), 0)
        if not begin:
            raise Unknown("session", after)
        entries = entries[begin:]
    page = entries[:limit] if limit else entries
    rows = list[SessionRow]()
    for _, document, about in page:
        try:
            rows.append(await _row(records, document, about))
        except DamagedTree as problem:
            records.damage_by_root[document.key] = problem
    return rows, len(entries) - len(page)


async def session_row(
    records: JournalReader, name: str, last: int | None = None
) -> tuple[SessionRow, list[dict[str, Any]]]:
    """Return one conversation, by the session's id or its root's, and its messages, or the `last` of them, as data.

    Raises Unknown, also for the root of a tree that is not a conversation, and InvalidValue for a `last` below 1.
    """
    if last is not None and last < 1:
        raise InvalidValue("last", last, "a whole number from 1")
    for root in (name, (await session_ids.root_of(records.store, name))[0]):
        document = await records.store.get(TREES, root) if root else None
        about = tree_document(document, location_of(records.store)) if document is not None else {}
        if document is not None and _is_conversation(about):
            row = await _row(records, document, about)
            replay = await records.replay(document.key)
            messages = replay.root.conversation if replay.runs else []
            return row, [each.data for each in (messages if last is None else messages[-last:])]
    ids = tuple(each.key for each in await records.store.list(session_ids.SESSIONS))
    raise Unknown("session", name, ids)


def _is_conversation(about: Mapping[str, Any]) -> bool:
    return bool(about.get("conversation") or about.get("session"))


async def _row(records: JournalReader, document: Document, about: Mapping[str, Any]) -> SessionRow:
    lifetime, replay = read_lifetime(document, location_of(records.store)), await records.replay(document.key)
    root = replay.root if replay.runs else None
    is_closed = lifetime.over or replay.is_over
    return SessionRow(
        id=about.get("session") or document.key,
        root=document.key,
        state=CLOSED if is_closed else OPEN if records.is_active(document.key) else INTERRUPTED,
        agent=root.spawn_event.agent if root is not None else "",
        began=lifetime.began,
        ended=lifetime.ended,
        turns=root.turn if root is not None else 0,
        usage=root.subtree if root is not None else Usage(),
        first_prompt=_first_prompt(root),
    )


def _first_prompt(root: RunReplay | None) -> str:
    for each in root.conversation if root is not None else ():
        if each.kind == "human":
            content = each.data.get("content")
            if isinstance(content, list) and content and isinstance(content[0], dict):  # With attachments behind it.
                content = content[0].get("text")
            return content[:_MOST_SHOWN] if isinstance(content, str) else ""
    return ""
