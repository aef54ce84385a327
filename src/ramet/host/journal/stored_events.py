"""Decoding of stored events. An event that cannot be decoded is an error that names its file, tree and cursor."""

from __future__ import annotations

from collections.abc import Callable

from ramet.core import events
from ramet.core.errors import DamagedTree, InvalidValue
from ramet.core.events import Event
from ramet.store.contract import Store, StoredEvent


def decode_stored(store: Store, stored: StoredEvent, decode: Callable[[bytes], Event] = events.decode) -> Event:
    """Return the event that a store keeps. Raises DamagedTree for bytes that are not an event of this version."""
    try:
        return decode(stored.data)
    except InvalidValue as problem:
        raise damage_error(store, stored, problem) from None


def damage_error(store: Store, stored: StoredEvent, problem: InvalidValue) -> DamagedTree:
    """Return the error for a stored event whose content is not accepted."""
    return DamagedTree(stored.tree, location_of(store), f"it is not {problem.accepted}", cursor=stored.cursor)


def location_of(store: Store) -> str:
    """Return the location of a store, for errors: the path of its file, if it has one."""
    return str(getattr(store, "path", store.name))
