"""Ids of sessions: each id is the name of one recorded tree, until that tree is removed."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import msgspec

from ramet.core.errors import Conflict, InvalidValue
from ramet.store.contract import Document, Store

TREES: Final = "tree"  #: the kind of the documents that name the open trees
SESSIONS: Final = "session"  #: the kind of documents that name the root of a session's tree, by the session's id
MAX_ID: Final = 200


class SessionEntry(msgspec.Struct, frozen=True):
    """The document of a session: the root of the session's tree."""

    root: str


def checked_session_id(session: str | None) -> str | None:
    """Return the id of a session. Raises InvalidValue for an empty or long id, and for control characters."""
    if session is None:
        return None
    if not isinstance(session, str) or not 0 < len(session) <= MAX_ID or not session.isprintable():
        raise InvalidValue("session_id", session, f"1 to {MAX_ID} printable characters")
    return session


async def root_of(store: Store, session: str) -> tuple[str, int]:
    """Return the root of a session's tree and the version of the session's document; "" and 0 if there is none.

    The tree may have been removed. If the document is damaged, the newest tree that names the session is returned.
    """
    document = await store.get(SESSIONS, session)
    if document is None:
        return "", 0
    try:
        return msgspec.json.decode(document.data, type=SessionEntry).root, document.version
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return await _newest_of(store, session), document.version


async def register(store: Store, session: str, root: str, *, expected: int = 0) -> bool:
    """Assign a tree to a session id. Return False if the document has another version: another tree has the id now."""
    with suppress(Conflict):
        await store.put(SESSIONS, session, msgspec.json.encode(SessionEntry(root)), expected=expected)
        return True
    return False


async def unregister(store: Store, session: str, root: str) -> None:
    """Release the id of a session if it belongs to this tree. Idempotent."""
    registered_root, version = await root_of(store, session)
    if registered_root == root:
        with suppress(Conflict):
            await store.delete(SESSIONS, session, expected=version)


async def register_older(store: Store, trees: list[tuple[Document, Mapping[str, Any]]]) -> None:
    """Register the sessions of versions that did not register them.

    If several trees have one id, the newest gets the id.
    """
    registered = {each.key for each in await store.list(SESSIONS)}
    for document, about in sorted(trees, key=lambda each: str(each[1].get("began", "")), reverse=True):
        session = about.get("session")
        if session and session not in registered:
            await register(store, session, document.key)
            registered.add(session)


async def _newest_of(store: Store, session: str) -> str:
    """Return the root of the newest tree whose document names the session; "" if there is none."""
    newest = ("", "")
    for each in await store.list(TREES):
        with suppress(msgspec.DecodeError, UnicodeError, RecursionError):
            about = msgspec.json.decode(each.data, type=dict[str, Any])
            if about.get("session") == session:
                newest = max(newest, (str(about.get("began", "")), each.key))
    return newest[1]
