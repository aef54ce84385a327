"""Bytes that tools left beside their results, kept by the store under the hash of their content.

A reference for each tree that has them says whose they are, and is written before they are: a kernel that is killed
leaves at most a reference to nothing behind. They go with the last tree that has them.

What is kept begins with a byte that no JSON begins with: so none of these blobs is at the same time a part of a state,
and what is removed here is missed nowhere else, whatever bytes a tool may return.
"""

from __future__ import annotations

import asyncio
import hashlib
import weakref

from ramet.store.contract import Store

_MARK = b"\0"
BLOB_OF = "blob_of"  #: the kind of documents that say which tree has which blob: `<root>/<name>`

#: Nobody may remove what somebody else is about to keep: one at a time in a store, which has one kernel.
_gates: weakref.WeakKeyDictionary[Store, asyncio.Lock] = weakref.WeakKeyDictionary()


async def keep_blob(store: Store, root: str, data: bytes) -> str:
    """Keep bytes as long as a tree is kept; their name. Raises StoreFailed, InvalidValue for more than it takes."""
    kept = _MARK + data
    async with _gate(store):
        await store.put(BLOB_OF, f"{root}/{hashlib.sha256(kept).hexdigest()}", b"{}")
        return await store.put_blob(kept)


async def blob_of(store: Store, name: str) -> bytes | None:
    """What `keep_blob` kept under a name; None if it is not there, or is something else."""
    kept = await store.get_blob(name)
    return kept.removeprefix(_MARK) if kept is not None and kept.startswith(_MARK) else None


async def drop_blobs(store: Store, root: str) -> int:
    """A tree is removed: so are the blobs that no other tree has; how many these were."""
    async with _gate(store):
        held = [each.key for each in await store.list(BLOB_OF, prefix=f"{root}/")]
        if not held:
            return 0
        others = {each.key.rpartition("/")[2] for each in await store.list(BLOB_OF) if each.key not in held}
        gone = 0
        for key in held:  # The reference last: what is cut short is found again.
            name = key.rpartition("/")[2]
            if name not in others:
                gone += await store.delete_blob(name)
            await store.delete(BLOB_OF, key)
        return gone


def _gate(store: Store) -> asyncio.Lock:
    return _gates.setdefault(store, asyncio.Lock())
