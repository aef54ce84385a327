"""Bytes of tool results, kept by the store under the hash of their content.

A reference document names each tree that has a blob, and is written before the blob: a kernel that is killed leaves at
most a reference to a missing blob. A blob is removed with the last tree that has it.

Each stored blob begins with a byte that no JSON begins with. Therefore none of these blobs is also a part of a state,
and a removal here affects no state, whatever bytes a tool returns.
"""

from __future__ import annotations

import asyncio
import hashlib
import weakref
from collections.abc import Awaitable, Callable

from ramet.store.contract import Store
from ramet.tools.run_info import RunInfo

_MARK = b"\0"
BLOB_OF = "blob_of"  #: the kind of the documents that say which tree has which blob: `<root>/<name>`

#: A blob that is about to be stored must not be removed: one operation at a time per store, which has one kernel.
_gates: weakref.WeakKeyDictionary[Store, asyncio.Lock] = weakref.WeakKeyDictionary()


async def store_blob(store: Store, root: str, data: bytes) -> str:
    """Keep bytes as long as a tree is kept; return their name.

    Raises StoreFailed, InvalidValue if the bytes are too large.
    """
    stored = _MARK + data
    async with _gate(store):
        await store.put(BLOB_OF, f"{root}/{hashlib.sha256(stored).hexdigest()}", b"{}")
        return await store.put_blob(stored)


async def read_blob(store: Store, name: str) -> bytes | None:
    """Return the bytes that `store_blob` kept under a name; None if they are missing, or another kind of blob."""
    stored = await store.get_blob(name)
    return stored.removeprefix(_MARK) if stored is not None and stored.startswith(_MARK) else None


async def load_blob(store: Store, root: str, name: str) -> bytes | None:
    """Return the bytes of a blob of this tree; None if the tree has none of this name."""
    if await store.get(BLOB_OF, f"{root}/{name}") is None:
        return None
    return await read_blob(store, name)


async def share_blob(store: Store, root: str, name: str) -> None:
    """Give a tree a blob of another tree, which keeps it: the content is there once. A missing blob stays missing."""
    async with _gate(store):
        if await read_blob(store, name) is not None:
            await store.put(BLOB_OF, f"{root}/{name}", b"{}")


class TreeBlobs:
    """The blobs of one tree: in the store of its journal, otherwise in memory, where they end with the tree."""

    def __init__(self, store: Store | None) -> None:
        self._store = store
        self._in_memory: dict[str, bytes] = {}

    def writer(self, run: RunInfo) -> Callable[[bytes], Awaitable[str]]:
        """Return the function that stores bytes for a run, and returns their name."""

        async def write(data: bytes) -> str:
            if self._store is not None:
                return await store_blob(self._store, run.root, data)
            name = hashlib.sha256(_MARK + data).hexdigest()
            self._in_memory[name] = data
            return name

        return write

    def reader(self, run: RunInfo) -> Callable[[str], Awaitable[bytes | None]]:
        """Return the function that returns the bytes of a name, if the tree of the run has it."""

        async def read(name: str) -> bytes | None:
            return self._in_memory.get(name) if self._store is None else await load_blob(self._store, run.root, name)

        return read


async def remove_blobs(store: Store, root: str) -> int:
    """Remove the blobs of a removed tree that no other tree has; return their number."""
    async with _gate(store):
        keys = [each.key for each in await store.list(BLOB_OF, prefix=f"{root}/")]
        if not keys:
            return 0
        shared_names = {each.key.rpartition("/")[2] for each in await store.list(BLOB_OF) if each.key not in keys}
        removed = 0
        for key in keys:  # The reference last: an interrupted removal is found again.
            name = key.rpartition("/")[2]
            if name not in shared_names:
                removed += await store.delete_blob(name)
            await store.delete(BLOB_OF, key)
        return removed


def _gate(store: Store) -> asyncio.Lock:
    return _gates.setdefault(store, asyncio.Lock())
