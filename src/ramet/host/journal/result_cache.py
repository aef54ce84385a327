"""Cached results for equal calls: the newest in memory, all of them in the runtime's store if there is one."""

from __future__ import annotations

import logging
from collections import OrderedDict
from datetime import datetime, timedelta

import msgspec
from msgspec import Struct

from ramet.concurrency.clock import Clock
from ramet.core.errors import RametError
from ramet.host.journal.journal import Journal
from ramet.spawn.result_cache import CachedResult, InFlight
from ramet.spawn.run import Run
from ramet.store.contract import Store

_log = logging.getLogger("ramet.results")
#: The kind of documents that hold results.
RESULTS = "result"
#: Results that are cached in memory.
MOST = 1_000
#: A result with more bytes is not cached.
MAX_BYTES = 4 * 1024 * 1024


class CacheEntry(Struct, frozen=True):
    """A result in the store."""

    value: object
    run: str
    at: datetime
    until: datetime


class KeptResults:
    """The cached results of one runtime. A result that cannot be read or kept is computed again; nothing else fails."""

    def __init__(self, journal: Journal | None, clock: Clock) -> None:
        self.in_flight: dict[str, InFlight] = {}
        self.waiting: dict[Run, Run] = {}
        self._journal, self._clock = journal, clock
        self._in_memory: OrderedDict[str, bytes] = OrderedDict()

    async def get(self, key: str, ttl_s: float) -> CachedResult | None:
        """Return a readable result that is not older than `ttl_s`, if there is one."""
        data = self._in_memory.get(key)
        try:
            if data is None and self._journal is not None:
                await self._journal.open()
                document = await self._journal.store.get(RESULTS, key)
                data = document.data if document is not None else None
            entry = msgspec.json.decode(data, type=CacheEntry) if data is not None else None
        except (RametError, msgspec.MsgspecError, UnicodeError, RecursionError) as problem:
            _log.warning("a cached result cannot be used, so its agent runs again: %s", problem)
            return None
        now = self._clock.now()
        if entry is None or not timedelta() <= now - entry.at < timedelta(seconds=ttl_s) or now >= entry.until:
            return None
        return CachedResult(entry.value, entry.run, entry.at)

    async def put(self, key: str, result: CachedResult, ttl_s: float) -> None:
        """Keep a result."""
        try:
            until = result.at + timedelta(seconds=min(ttl_s, 10**9))
            data = msgspec.json.encode(CacheEntry(result.value, result.run, result.at, until))
            if len(data) > MAX_BYTES:
                return
            self._in_memory[key] = data
            self._in_memory.move_to_end(key)
            while len(self._in_memory) > MOST:
                self._in_memory.popitem(last=False)
            if self._journal is not None:
                await self._journal.open()
                await self._journal.store.put(RESULTS, key, data)
        except (RametError, TypeError, ValueError) as problem:
            _log.warning("a result cannot be cached: %s", problem)


async def remove_expired_results(store: Store, *, before: datetime) -> int:
    """Remove results that expire at a moment or before, and documents that are not results; return their number."""
    removed = 0
    for each in await store.list(RESULTS):
        try:
            if msgspec.json.decode(each.data, type=CacheEntry).until > before:
                continue
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            pass  # It cannot be used.
        removed += await store.delete(RESULTS, each.key)
    return removed
