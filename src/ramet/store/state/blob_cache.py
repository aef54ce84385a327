"""Read a store's blobs, awaited or blocking, with a cache in memory.

A function that walks through a tree is a generator: it yields what it needs to read next, and receives that. The same
walk serves `await` and plain calls.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from ramet.core.errors import Damaged
from ramet.store.contract import Store
from ramet.store.state.nodes import name_of

T = TypeVar("T")
_MOST_BYTES = 16 * 2**20  #: maximum bytes of cached blobs, counted before decoding
_MOST_EACH = 64 * 1024  #: larger blobs are not cached


class MissingBlob(NamedTuple):
    """A request for blobs by name, and the function that decodes each."""

    names: Sequence[str]
    read: Callable[[bytes], Any]


Steps = Generator[MissingBlob, list[Any], T]


class BlobCache:
    """The blobs of one store. Decoded blobs never change, so they may be shared."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._entries: OrderedDict[str, tuple[Any, int]] = OrderedDict()
        self._bytes = 0

    def now(self, steps: Steps[T]) -> T:
        """Return the result of a walk; blocks this thread for reads of the store."""
        walk = _Walk(steps)
        while (request := walk.request) is not None:
            missing = self._missing(request)
            walk.send(self._read_values(request, self.store.get_blobs_now(missing) if missing else {}))
        return walk.result

    async def wait(self, steps: Steps[T]) -> T:
        """Return the result of a walk."""
        walk = _Walk(steps)
        while (request := walk.request) is not None:
            missing = self._missing(request)
            walk.send(self._read_values(request, await self.store.get_blobs(missing) if missing else {}))
        return walk.result

    def keep(self, name: str, value: Any, data: bytes) -> None:
        """Cache a blob that was just written."""
        if len(data) <= _MOST_EACH and name not in self._entries:
            self._entries[name] = value, len(data)
            self._bytes += len(data)
            self._trim()

    def _trim(self) -> None:
        while self._bytes > _MOST_BYTES:
            self._bytes -= self._entries.popitem(last=False)[1][1]

    def _missing(self, request: MissingBlob) -> list[str]:
        return [name for name in request.names if name not in self._entries]

    def _read_values(self, request: MissingBlob, blobs: Mapping[str, bytes]) -> list[Any]:
        values = []
        for name in request.names:
            if name in self._entries:
                self._entries.move_to_end(name)
                values.append(self._entries[name][0])
            else:
                values.append(self._read(name, blobs, request.read))
        self._trim()
        return values

    def _read(self, name: str, blobs: Mapping[str, bytes], read: Callable[[bytes], Any]) -> Any:
        data = blobs.get(name)
        if data is None:
            raise Damaged("a state", self.store.name, f"the blob {name} is missing")
        if name_of(data) != name:
            raise Damaged("a state", self.store.name, f"the blob {name} has changed")
        try:
            value = read(data)
        except (ValueError, TypeError, LookupError, msgspec.MsgspecError) as error:
            raise Damaged("a state", self.store.name, f"the blob {name} cannot be read: {error}") from None
        if len(data) <= _MOST_EACH:
            self._entries[name] = value, len(data)
            self._bytes += len(data)
        return value


class _Walk(Generic[T]):
    """A generator and its state: its current request, or its result."""

    def __init__(self, steps: Steps[T]) -> None:
        self._steps = steps
        self.request: MissingBlob | None = None
        self.result: T
        self.send(None)

    def send(self, values: list[Any] | None) -> None:
        try:
            self.request = next(self._steps) if values is None else self._steps.send(values)
        except StopIteration as end:
            self.request, self.result = None, end.value
