"""The lifetime of a tree in its document: a time after the end of the tree, or until a person removes it."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import msgspec
from msgspec import Struct

from ramet.core.errors import DamagedTree, InvalidValue, Unknown
from ramet.host.journal.journal import change_tree
from ramet.store.contract import Document, Store

_log = logging.getLogger("ramet.retention")
LONGEST_S = 100 * 366 * 86_400.0


class Lifetime(Struct, frozen=True, kw_only=True):
    """The beginning, the end and the retention of a tree, from its document."""

    began: datetime = datetime(1970, 1, 1, tzinfo=UTC)  #: older kernels did not record it
    over: bool = False  #: no run is active in it, and none will be
    ended: datetime | None = None  #: when that was noted
    keep: bool = False  #: never removed, whatever its retention time is
    keep_s: float | None = None  #: seconds after its end; None: until old trees are collected
    session: str | None = None  #: the id of its session, which is free again once it is removed
    conversation: bool = False  #: it can be opened again after its end
    set_aside: bool = False  #: it cannot be read, and is excluded from listing and resuming

    def expires(self) -> datetime | None:
        """Return when the tree expires; None while it lives, is marked to be kept, or has no retention time."""
        if self.keep or not self.over or self.keep_s is None or self.ended is None:
            return None
        return self.ended + timedelta(seconds=self.keep_s)

    def has_expired(self, now: datetime) -> bool:
        """Return whether the tree has expired."""
        expires = self.expires()
        return expires is not None and expires <= now


def lifetime_of(data: bytes) -> Lifetime:
    """Return the lifetime in a tree's document."""
    return msgspec.json.decode(data, type=Lifetime)


def read_lifetime(tree: Document, location: str) -> Lifetime:
    """Return the lifetime in a tree's document. Raises DamagedTree, which names `location` the document is."""
    try:
        return lifetime_of(tree.data)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
        raise DamagedTree(tree.key, location, f"its document is damaged ({problem})") from None


def lifetimes_of(trees: Iterable[Document]) -> dict[str, Lifetime]:
    """Return the lifetimes in trees' documents, by root. A document that cannot be read is logged, and left out."""
    lifetimes = dict[str, Lifetime]()
    for each in trees:
        try:
            lifetimes[each.key] = lifetime_of(each.data)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as problem:
            _log.warning("the document of tree %s cannot be read, so nothing of it is removed: %s", each.key, problem)
    return lifetimes


def checked_keep(seconds: float | None) -> float | None:
    """Return a time to keep results, or None. Raises InvalidValue."""
    if seconds is None:
        return None
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool) and math.isfinite(seconds)
    if not is_number or not 0 <= seconds <= LONGEST_S:
        raise InvalidValue("keep_results_seconds", seconds, f"None, or seconds from 0 to {LONGEST_S:.0f}")
    return float(seconds)


class Keep(Struct, frozen=True, kw_only=True, tag="keep", forbid_unknown_fields=True):
    """A request to a kernel: keep the tree of a run whatever its retention time is, or no longer."""

    run: str
    on: bool = True


class Collect(Struct, frozen=True, kw_only=True, tag="collect", forbid_unknown_fields=True):
    """A request to a kernel: remove trees that ended before a moment, except those of some runs."""

    before: datetime
    keep: tuple[str, ...] = ()


async def set_keep(store: Store, run: str, on: bool) -> str:
    """Keep the tree of a run until further notice, or no longer; return its root's id. Raises Unknown."""
    stored = await store.read(run=run, limit=1)
    if not stored:
        raise Unknown("run", run)
    root = stored[0].tree
    if not await change_tree(store, root, keep=on):
        raise Unknown("run", run)
    return root
