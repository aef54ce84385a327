"""A cache of classes and adapters made of types from outside, bounded by their size."""

from __future__ import annotations

import threading
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class SizedCache(Generic[K, V]):
    """A cache of the most recently used values, of a bounded total size; the last value is kept whatever its size."""

    def __init__(self, size: int) -> None:
        self._remaining_size = size
        self._lock = threading.Lock()
        self._entries: dict[K, tuple[V, int]] = {}  #: value and size, the most recently used last

    def get(self, key: K) -> V | None:
        """Return the value of a key, and mark it as used; None if there is none."""
        with self._lock:
            entry = self._entries.pop(key, None)
            if entry is None:
                return None
            self._entries[key] = entry
            return entry[0]

    def put(self, key: K, value: V, size: int) -> None:
        """Add a value, and drop the least recently used ones."""
        with self._lock:
            _, old_size = self._entries.pop(key, (None, 0))
            self._entries[key] = (value, size)
            self._remaining_size -= size - old_size
            while self._remaining_size < 0 and len(self._entries) > 1:
                _, freed_size = self._entries.pop(next(iter(self._entries)))
                self._remaining_size += freed_size
