"""A cache of classes and adapters made of types from outside, bounded by their size."""

from __future__ import annotations

import threading
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class SizedCache(Generic[K, V]):
    """The values that were used last, of at most a size in all; the very last one whatever its size."""

    def __init__(self, size: int) -> None:
        self._left = size
        self._lock = threading.Lock()
        self._entries: dict[K, tuple[V, int]] = {}  #: value and size, the one that was used last at the end

    def get(self, key: K) -> V | None:
        """The value of a key, which counts as used now; None if there is none."""
        with self._lock:
            entry = self._entries.pop(key, None)
            if entry is None:
                return None
            self._entries[key] = entry
            return entry[0]

    def put(self, key: K, value: V, size: int) -> None:
        """Keep a value, and let go of those that were not used for the longest time."""
        with self._lock:
            _, before = self._entries.pop(key, (None, 0))
            self._entries[key] = (value, size)
            self._left -= size - before
            while self._left < 0 and len(self._entries) > 1:
                _, freed = self._entries.pop(next(iter(self._entries)))
                self._left += freed
