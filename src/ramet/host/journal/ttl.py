"""How long a tree is kept, as its document in the store says: for a time after its end, or until somebody says so."""

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

_log = logging.getLogger("ramet.keeping")
LONGEST_S = 100 * 366 * 86_400.0


class Lifetime(Struct, frozen=True, kw_only=True):
    """What a tree's document says of its beginning, its end, and of what comes after."""

    began: datetime = datetime(1970, 1, 1, tzinfo=UTC)  #: older kernels did not say
    over: bool = False  #: nobody is at work in it, and nobody will be
    ended: datetime | None = None  #: when that was noted
    keep: bool = False  #: never removed, whatever its time is
    keep_s: float | None = None  #: seconds after its end; None: until somebody collects what is old
    session: str | None = None  #: the id of its session, which is free again once it is removed
    conversation: bool = False  #: it can be opened again after its end
    set_aside: bool = False  #: it cannot be read, and somebody said that nobody is to try

    def expires(self) -> datetime | None:
        """When its time is up; None while it lives, or is kept, or has no time of its own."""
        if self.keep or not self.over or self.keep_s is None or self.ended is None:
            return None
        return self.ended + timedelta(seconds=self.keep_s)

    def has_expired(self, now: datetime) -> bool:
        """Whether its time is up."""
        expires = self.expires()
        return expires is not None and expires <= now


def lifetime_of(data: bytes) -> Lifetime:
    """What a tree's document says."""
    return msgspec.json.decode(data, type=Lifetime)


def read_lifetime(tree: Document, where: str) -> Lifetime:
    """Return what a tree's document says. Raises DamagedTree, which names `where` the document is."""
    try:
        return lifetime_of(tree.data)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
        raise DamagedTree(tree.key, where, f"its document is damaged ({problem})") from None


def lifetimes_of(trees: Iterable[Document]) -> dict[str, Lifetime]:
    """Return what the documents of trees say, by root. A document that cannot be read is logged, and left out."""
    found = dict[str, Lifetime]()
    for each in trees:
        try:
            found[each.key] = lifetime_of(each.data)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as problem:
            _log.warning("the document of tree %s cannot be read, so nothing of it is removed: %s", each.key, problem)
    return found


def checked_keep(seconds: float | None) -> float | None:
    """A time to keep results, or None. Raises InvalidValue."""
    if seconds is None:
        return None
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool) and math.isfinite(seconds)
    if not is_number or not 0 <= seconds <= LONGEST_S:
        raise InvalidValue("keep_results_seconds", seconds, f"None, or seconds from 0 to {LONGEST_S:.0f}")
    return float(seconds)


class Keep(Struct, frozen=True, kw_only=True, tag="keep", forbid_unknown_fields=True):
    """Said at a kernel's door: keep the tree of a run whatever its time is, or no longer."""

    run: str
    on: bool = True


class Collect(Struct, frozen=True, kw_only=True, tag="collect", forbid_unknown_fields=True):
    """Said at a kernel's door: remove trees that ended before a moment, but for those of some runs."""

    before: datetime
    keep: tuple[str, ...] = ()


async def set_keep(store: Store, run: str, on: bool) -> str:
    """Keep the tree of a run until told otherwise; its root's id. Raises Unknown."""
    found = await store.read(run=run, limit=1)
    if not found:
        raise Unknown("run", run)
    root = found[0].tree
    if not await change_tree(store, root, keep=on):
        raise Unknown("run", run)
    return root
