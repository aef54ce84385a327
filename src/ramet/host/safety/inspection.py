"""What came to the gates of a store's trees: intentions, decisions and outputs, in order, filtered, by cursor."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from fnmatch import fnmatchcase
from typing import Literal, NamedTuple, get_args

from msgspec import Struct

from ramet.core import events
from ramet.core.errors import InvalidValue
from ramet.core.events import IntentionDecided, IntentionRecorded, ToolEnded
from ramet.host.stored_events import damaged
from ramet.store.contract import Store, Stored

_log = logging.getLogger("ramet.safety")
Kind = Literal["intention", "decision", "output"]
KINDS: tuple[Kind, ...] = get_args(Kind)
_KIND_OF: dict[str, Kind] = {"intention_recorded": "intention", "intention_decided": "decision", "tool_ended": "output"}
_READ = 1_000  #: events that are looked at in one go
MAX_LIMIT = 10_000


class Passage(NamedTuple):
    """One event at a gate, and where it stands in the journal."""

    cursor: int
    kind: Kind
    event: IntentionRecorded | IntentionDecided | ToolEnded


class Page(NamedTuple):
    """Some passages, and the cursor to go on from: behind it nothing was looked at yet."""

    entries: tuple[Passage, ...]
    cursor: int
    more: bool  #: False: the journal ended here, for now


class Filter(Struct, frozen=True, kw_only=True):
    """Which passages; what is not said does not matter."""

    tree: str | None = None  #: id of the root run
    run: str | None = None
    path: str | None = None  #: a pattern of paths, such as `main/*`
    tool: str | None = None  #: a pattern of tool names
    kinds: tuple[Kind, ...] = KINDS
    committed: bool | None = None  #: decisions only: those that committed, or those that aborted

    def __post_init__(self) -> None:
        for kind in self.kinds:
            if kind not in KINDS:
                raise InvalidValue("kinds", kind, ", ".join(KINDS))

    def takes(self, stored: Stored) -> Passage | None:
        """The passage that an event of the journal is, if it is a wanted one. Raises InvalidValue."""
        kind = _KIND_OF.get(stored.type)
        if kind is None or kind not in self.kinds:
            return None
        event = events.decode(stored.data)
        assert isinstance(event, IntentionRecorded | IntentionDecided | ToolEnded), "as its type says"
        if self.path is not None and not fnmatchcase(event.path, self.path):
            return None
        if self.tool is not None and not fnmatchcase(event.tool, self.tool):
            return None
        if self.committed is not None and not (
            isinstance(event, IntentionDecided) and event.committed is self.committed
        ):
            return None
        return Passage(stored.cursor, kind, event)


EVERYTHING = Filter()


async def passages(store: Store, wanted: Filter = EVERYTHING, *, after: int = 0, limit: int = 100) -> Page:
    """At most `limit` passages behind the cursor `after`, oldest first. `store` is open. Raises StoreFailed.

    An event that cannot be read raises DamagedTree where its tree was asked for; else it is logged, and passed over.
    """
    if not isinstance(limit, int) or not 1 <= limit <= MAX_LIMIT:
        raise InvalidValue("limit", limit, f"1 to {MAX_LIMIT}")
    found: list[Passage] = []
    while True:
        stored = await store.read(after, tree=wanted.tree, run=wanted.run, limit=_READ)
        for each in stored:
            after = each.cursor
            try:
                passage = wanted.takes(each)
            except InvalidValue as problem:
                error = damaged(store, each, problem)
                if wanted.tree is not None or wanted.run is not None:
                    raise error from None
                _log.error("an event of a gate is passed over: %s", error)
                continue
            if passage is not None:
                found.append(passage)
            if len(found) == limit:
                return Page(tuple(found), after, True)
        if len(stored) < _READ:
            return Page(tuple(found), after, False)


async def follow(store: Store, wanted: Filter = EVERYTHING, *, after: int = 0) -> AsyncGenerator[Passage]:
    """Every passage behind the cursor, then each as it comes, without an end. Raises StoreFailed."""
    while True:
        head = await store.head()  # Before the look: what is not of this tree up to here need not be looked at again.
        page = await passages(store, wanted, after=after)
        for each in page.entries:
            yield each
        after = page.cursor
        if not page.more:
            after = max(after, head)
            await store.wait(after)
