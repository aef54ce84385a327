"""The events at the gates of a store's trees: intentions, decisions and outputs, in order, filtered, by cursor."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from fnmatch import fnmatchcase
from typing import Literal, NamedTuple, get_args

from msgspec import Struct

from ramet.core import events
from ramet.core.errors import InvalidValue
from ramet.core.events import IntentionDecided, IntentionRecorded, ToolEnded
from ramet.host.journal.stored_events import damage_error
from ramet.store.contract import Store, StoredEvent

_log = logging.getLogger("ramet.safety")
Kind = Literal["intention", "decision", "output"]
KINDS: tuple[Kind, ...] = get_args(Kind)
_INTENTION, _OUTPUT, _RUN_ENDED = "intention_recorded", "tool_ended", "run_ended"
_KIND_OF: dict[str, Kind] = {_INTENTION: "intention", "intention_decided": "decision", _OUTPUT: "output"}
_READ = 1_000  #: events that are read at a time
MAX_LIMIT = 10_000


class GateEvent(NamedTuple):
    """An event at a gate, with its cursor in the journal; an output only of a call that came to the gate."""

    cursor: int
    kind: Kind
    event: IntentionRecorded | IntentionDecided | ToolEnded


class GateEventPage(NamedTuple):
    """A page of gate events, and the cursor from which to continue: later events were not read yet."""

    entries: tuple[GateEvent, ...]
    cursor: int
    more: bool  #: False: this was the end of the journal


class GateEventFilter(Struct, frozen=True, kw_only=True):
    """A filter of gate events; a field that is not set matches all."""

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

    def takes(self, stored: StoredEvent) -> GateEvent | None:
        """Return the gate event of a journal event, if it matches the filter; else None. Raises InvalidValue."""
        kind = _KIND_OF.get(stored.type)
        if kind is None or kind not in self.kinds:
            return None
        event = events.decode(stored.data)
        assert isinstance(event, IntentionRecorded | IntentionDecided | ToolEnded), (
            "a gate event has one of these types"
        )
        if self.path is not None and not fnmatchcase(event.path, self.path):
            return None
        if self.tool is not None and not fnmatchcase(event.tool, self.tool):
            return None
        if self.committed is not None and not (
            isinstance(event, IntentionDecided) and event.committed is self.committed
        ):
            return None
        return GateEvent(stored.cursor, kind, event)


EVERYTHING = GateEventFilter()


async def passages(
    store: Store, wanted: GateEventFilter = EVERYTHING, *, after: int = 0, limit: int = 100
) -> GateEventPage:
    """Return at most `limit` gate events after the cursor `after`, oldest first. `store` is open. Raises StoreFailed.

    An unreadable event raises DamagedTree if its tree or run was requested; otherwise it is logged, and skipped.
    """
    if not isinstance(limit, int) or not 1 <= limit <= MAX_LIMIT:
        raise InvalidValue("limit", limit, f"1 to {MAX_LIMIT}")
    return await _Reader(store, wanted, after).page(limit)


async def follow(store: Store, wanted: GateEventFilter = EVERYTHING, *, after: int = 0) -> AsyncGenerator[GateEvent]:
    """Yield every gate event after the cursor, then each new one, without an end. Raises StoreFailed."""
    reader = _Reader(store, wanted, after)
    while True:
        head = await store.head()  # Before reading: events up to here that do not match need not be read again.
        page = await reader.page(100)
        for each in page.entries:
            yield each
        if not page.more:
            reader.after = max(reader.after, head)
            await store.wait(reader.after)


class _Reader:
    """A reader of a journal from a cursor on, page by page, which knows the calls at gates without an output yet.

    The intention of an output may lie before the cursor. The events of a run before the cursor are read once, when the
    first output of the run comes.
    """

    def __init__(self, store: Store, event_filter: GateEventFilter, after: int) -> None:
        self._store, self._filter, self._start = store, event_filter, after
        self._pending_calls: dict[str, set[str | None]] = {}  #: ids of calls without an output yet, by run
        self._searched_runs = set[str]()  #: runs whose events before the first cursor were read
        self.after = after

    async def page(self, limit: int) -> GateEventPage:
        """Return the next gate events. Raises DamagedTree, StoreFailed."""
        entries: list[GateEvent] = []
        while True:
            stored = await self._read(self.after, tree=self._filter.tree, run=self._filter.run)
            for each in stored:
                self.after = each.cursor
                if await self._passed_gate(each) and (gate_event := self._matching_event(each)) is not None:
                    entries.append(gate_event)
                if len(entries) == limit:
                    return GateEventPage(tuple(entries), self.after, True)
            if len(stored) < _READ:
                return GateEventPage(tuple(entries), self.after, False)

    async def _passed_gate(self, stored: StoredEvent) -> bool:
        """Return whether an event belongs to a call that came to a gate; note that call."""
        if "output" not in self._filter.kinds:
            return True
        if stored.type == _OUTPUT and self._start and stored.run not in self._searched_runs:
            self._searched_runs.add(stored.run)
            await self._search(stored.tree, stored.run)
        return self._note(stored)

    async def _search(self, tree: str, run: str) -> None:
        pending_ids, after = self._pending_calls.pop(run, set()), 0
        while after < self._start and (stored := await self._read(after, tree=tree, run=run)):
            for each in stored:
                after = each.cursor
                if after > self._start:
                    break
                self._note(each)
        self._pending_calls.setdefault(run, set()).update(pending_ids)

    def _note(self, stored: StoredEvent) -> bool:
        if stored.type == _RUN_ENDED:
            self._pending_calls.pop(stored.run, None)
        if stored.type not in (_INTENTION, _OUTPUT):
            return True
        event = self._event(stored)
        if event is None:
            return False
        pending_ids = self._pending_calls.setdefault(stored.run, set())
        if stored.type == _INTENTION:
            pending_ids.add(event.call_id)
            return True
        if event.call_id not in pending_ids:
            return False
        pending_ids.remove(event.call_id)
        return True

    def _matching_event(self, stored: StoredEvent) -> GateEvent | None:
        try:
            return self._filter.takes(stored)
        except InvalidValue as problem:
            self._report_damage(stored, problem)
            return None

    def _event(self, stored: StoredEvent) -> events.Event | None:
        try:
            return events.decode(stored.data)
        except InvalidValue as problem:
            self._report_damage(stored, problem)
            return None

    def _report_damage(self, stored: StoredEvent, problem: InvalidValue) -> None:
        error = damage_error(self._store, stored, problem)
        if self._filter.tree is not None or self._filter.run is not None:
            raise error from None
        _log.error("an event of a gate is skipped: %s", error)

    async def _read(self, after: int, *, tree: str | None, run: str | None) -> list[StoredEvent]:
        return await self._store.read(after, tree=tree, run=run, limit=_READ)
