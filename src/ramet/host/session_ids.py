"""Ids of sessions: each is the name of one tree on record, until that tree is removed."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import msgspec

from ramet.core.errors import Conflict, InvalidValue
from ramet.store.contract import Document, Store

TREES: Final = "tree"  #: the kind of documents that say what trees are open
SESSIONS: Final = "session"  #: the kind of documents that name the root of a session's tree, by the session's id
MAX_ID: Final = 200


class SessionEntry(msgspec.Struct, frozen=True):
    """A session's document: the root of its tree."""

    root: str


def checked_session_id(session: str | None) -> str | None:
    """Return the id of a session. Raises InvalidValue for an empty or long one, and for control characters."""
    if session is None:
        return None
    if not isinstance(session, str) or not 0 < len(session) <= MAX_ID or not session.isprintable():
        raise InvalidValue("session_id", session, f"1 to {MAX_ID} printable characters")
    return session


async def root_of(store: Store, session: str) -> tuple[str, int]:
    """Return the root of a session's tree, which may be removed, and the version of its document; "" and 0 for none.

    Where the document is damaged, the documents of trees say which is the newest of that session.
    """
    found = await store.get(SESSIONS, session)
    if found is None:
        return "", 0
    try:
        return msgspec.json.decode(found.data, type=SessionEntry).root, found.version
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return await _newest_of(store, session), found.version


async def register(store: Store, session: str, root: str, *, expected: int = 0) -> bool:
    """Make a tree that of a session. False if the id's document is not of this version: another tree has it now."""
    with suppress(Conflict):
        await store.put(SESSIONS, session, msgspec.json.encode(SessionEntry(root)), expected=expected)
        return True
    return False


async def unregister(store: Store, session: str, root: str) -> None:
    """Make the id of a session free again, if it is that of this tree. Idempotent."""
    known, version = await root_of(store, session)
    if known == root:
        with suppress(Conflict):
            await store.delete(SESSIONS, session, expected=version)


async def register_older(store: Store, trees: list[tuple[Document, Mapping[str, Any]]]) -> None:
    """Register sessions of versions that did not register them; of several trees of one id the newest has it."""
    known = {each.key for each in await store.list(SESSIONS)}
    for document, about in sorted(trees, key=lambda each: str(each[1].get("began", "")), reverse=True):
        session = about.get("session")
        if session and session not in known:
            await register(store, session, document.key)
            known.add(session)


async def _newest_of(store: Store, session: str) -> str:
    """Return the root of the newest tree that says that it is of a session; "" for none."""
    newest = ("", "")
    for each in await store.list(TREES):
        with suppress(msgspec.DecodeError, UnicodeError, RecursionError):
            about = msgspec.json.decode(each.data, type=dict[str, Any])
            if about.get("session") == session:
                newest = max(newest, (str(about.get("began", "")), each.key))
    return newest[1]
