"""A commit's keys with uncommitted changes: the basis of `set`, `get` and similar methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ramet.core.errors import InvalidValue, UnsavedChanges
from ramet.store.state import nodes, tree, values
from ramet.store.state.blob_cache import BlobCache, MissingBlob, Steps
from ramet.store.state.mutation_tracker import Fetched
from ramet.store.state.validation import (
    MOST_KEY,
    checked_directory,
    checked_key,
    entry_key,
    is_directory,
    parted,
    shown,
)
from ramet.store.state.values import MISSING

MARK = b"[{}]"  #: cell of a directory's own key: the directory exists, even without entries
_ATOMS = (str, int, float, bool, type(None), bytes)


class WorkingCopy:
    """Changes over a tree. Keys here are stored keys: an entry of a directory has its own."""

    def __init__(self, shelf: BlobCache, root: str) -> None:
        self.shelf, self.root = shelf, root
        self.changes: dict[str, bytes | None] = {}  #: cells; None for a removed key
        self.blobs: dict[str, bytes] = {}  #: values that are too large for a cell
        self.fetched = Fetched()

    # ---- changes

    def unsaved_shown(self) -> list[str]:
        """Return the keys that differ from the commit, for display."""
        return [shown(kept) for kept in self.unsaved()]

    def unsaved(self) -> list[str]:
        """Return the keys that differ from the commit, in order."""
        there = self.shelf.now(_cells(self.root, list(self.changes)))
        return sorted(key for key, kept in self.changes.items() if there[key] != kept)

    def discard(self) -> None:
        """Undo all changes."""
        self.changes.clear()
        self.blobs.clear()
        self.fetched.clear()

    def put(self, kept: str, value: Any, as_: Any = None) -> None:
        """Set a stored key. Raises InvalidValue, with the path inside the value, and then changes nothing."""
        raw = values.encode(value, shown(kept), as_)
        self.changes[kept] = self.celled(raw)
        self.fetched.written(kept, value)

    def celled(self, raw: bytes) -> bytes:
        """Return the cell for a value's JSON; a large value is kept until it is committed."""
        kept = nodes.cell(raw)
        if name := nodes.blob_of(kept):
            self.blobs[name] = raw
        return kept

    def drop(self, kept: str) -> bool:
        """Remove a stored key; return False if it did not exist."""
        was_there = self.cell(kept) is not None
        if was_there:
            self.changes[kept] = None
        self.fetched.written(kept, MISSING)
        return was_there

    def settle_fetched(self, mutated: str) -> None:
        """Handle objects that were changed since they were read. Raises UnsavedChanges."""
        changed = list(self.fetched.changed())
        if not changed or mutated == "leave":
            self.fetched.leave()
            return
        keys = [shown(each.kept) for each in changed]
        if mutated == "refuse" or len(set(keys)) < len(keys):
            why = "objects that `get` returned were changed and not set again"
            if mutated == "keep":
                why = "several objects of the same key were changed since they were read"
            raise UnsavedChanges(tuple(keys), why, "set() the objects to keep; or commit(mutated='keep' or 'leave')")
        for kept, value, as_ in changed:
            if parted(kept)[1] is None:
                self.set_key(kept, value, as_)
            else:
                self.put(kept, value, as_)

    # ---- what is kept

    def cell(self, kept: str) -> bytes | None:
        """Return the cell of a stored key; None if there is none."""
        if kept in self.changes:
            return self.changes[kept]
        return self.shelf.now(tree.find(self.root, kept))

    def raw(self, cell: bytes) -> bytes:
        """Return the value in a cell, as JSON."""
        name = nodes.blob_of(cell)
        if name is None:
            return nodes.inline(cell)
        return self.blobs[name] if name in self.blobs else self.shelf.now(_blob(name))

    async def raw_of(self, cell: bytes) -> bytes:
        """Return the value in a cell, as JSON, without blocking."""
        name = nodes.blob_of(cell)
        if name is None:
            return nodes.inline(cell)
        return self.blobs[name] if name in self.blobs else await self.shelf.wait(_blob(name))

    def give(self, kept: str, default: Any, as_: Any) -> Any:
        """Return a new copy of the value, and track changes of it."""
        cell = self.cell(kept)
        return default if cell is None else self._given(kept, self.raw(cell), as_)

    async def read(self, kept: str, default: Any, as_: Any) -> Any:
        """Return a new copy of the value like `give`, without blocking."""
        if kept in self.changes:
            return self.give(kept, default, as_)
        cell = await self.shelf.wait(tree.find(self.root, kept))
        return default if cell is None else self._given(kept, await self.raw_of(cell), as_)

    async def read_key(self, key: str, default: Any, as_: Any) -> Any:
        """Return the value of a key, without blocking."""
        key = checked_key(key)
        if not is_directory(key):
            return await self.read(key, default, as_)
        await self.shelf.wait(tree.scan(self.root, f"{key}\0"))  # The following read finds these nodes in memory.
        return self.get_key(key, default, as_)

    async def read_entry(self, key: str, name: str, default: Any, as_: Any) -> Any:
        """Return one entry, without blocking."""
        return await self.read(entry_key(checked_directory(key), name), default, as_)

    async def entry_json(self, key: str, name: str) -> bytes | None:
        """Return one entry as its stored JSON: it is immutable, so changes need not be tracked."""
        kept = entry_key(checked_directory(key), name)
        cell = self.changes[kept] if kept in self.changes else await self.shelf.wait(tree.find(self.root, kept))
        return None if cell is None else await self.raw_of(cell)

    def _given(self, kept: str, raw: bytes, as_: Any) -> Any:
        where = shown(kept)
        value = values.decode(raw, where, as_)
        if not isinstance(value, _ATOMS):
            self.fetched.add(kept, value, as_, _seen(as_, lambda it: values.encode(it, where)))
        return value

    def scan(self, prefix: str, *, cut: str = "", limit: int | None = None) -> dict[str, bytes | None]:
        """Return cells of keys that begin with `prefix`, in order; `cut` is as in `tree.scan`."""
        mine = {key: cell for key, cell in self.changes.items() if key.startswith(prefix)}
        gone = {key for key, cell in mine.items() if cell is None}
        most = None if limit is None else limit + len(gone)
        found = self.shelf.now(tree.scan(self.root, prefix, cut=cut, limit=most))
        for key, cell in mine.items():
            if (short := tree.shortened(key, len(prefix), cut)) != key:
                found |= {short: None} if cell is not None else {}
            elif cell is not None:
                found[key] = cell
            else:
                found.pop(key, None)
        # The scan of the tree does not show whether everything below was removed since.
        for short in {tree.shortened(key, len(prefix), cut) for key in gone} - gone:
            if short in found and not self._is_any_left(short):
                del found[short]
        ordered = dict(sorted(found.items()))
        return ordered if limit is None else dict(list(ordered.items())[:limit])

    def _is_any_left(self, prefix: str) -> bool:
        return bool(self.scan(prefix, limit=1))

    async def look_ahead(self, prefix: str, cut: str = "\0") -> None:
        """Read the nodes of a later scan into memory, so that it does not block."""
        await self.shelf.wait(tree.scan(self.root, prefix, cut=cut))

    # ---- keys as people know them

    def set_key(self, key: str, value: Any, as_: Any = None) -> None:
        """Set a key; for a directory, replace all its entries."""
        key = checked_key(key)
        if not is_directory(key):
            self.put(key, value, as_)
            return
        if not isinstance(value, Mapping):
            raise InvalidValue(key, value, "a mapping of names to values: this key is a directory")
        cells = {}
        for name, each in value.items():
            kept = entry_key(key, name)
            cells[kept] = values.encode(each, shown(kept), as_)
        before = self.scan(f"{key}\0")
        for kept in before.keys() - cells.keys():
            self.changes[kept] = None
        for kept, raw in cells.items():
            if before.get(kept) != (cell := self.celled(raw)):
                self.changes[kept] = cell
        self._mark(key)
        self.fetched.written(key, value)

    def _mark(self, key: str) -> None:
        if self.cell(key) is None:
            self.changes[key] = MARK

    def get_key(self, key: str, default: Any = None, as_: Any = None) -> Any:
        """Return the value of a key; for a directory, all entries by name."""
        key = checked_key(key)
        if not is_directory(key):
            return self.give(key, default, as_)
        cells = self.scan(f"{key}\0")
        if not cells and self.cell(key) is None:
            return default
        whole = {str(parted(kept)[1]): self._value(kept, cell, as_) for kept, cell in cells.items()}
        self.fetched.add(key, whole, as_, _seen(as_, lambda it: values.encode_entries(it, key)))
        return whole

    def has_key(self, key: str) -> bool:
        """Return whether a key has a value."""
        key = checked_key(key)
        return self.cell(key) is not None or (is_directory(key) and self._is_any_left(f"{key}\0"))

    def remove_key(self, key: str) -> bool:
        """Remove a key, and the entries of a directory. Return False if it did not exist."""
        key = checked_key(key)
        was_there = self.drop(key)
        return (self.remove_below(f"{key}\0") > 0 or was_there) if is_directory(key) else was_there

    def remove_below(self, prefix: str) -> int:
        """Remove all keys that begin with `prefix`; return their number."""
        found = self.scan(prefix)
        for kept in found:
            self.drop(kept)
        return len(found)

    def keys(self, prefix: str, *, recursive: bool = True, within: int = 0) -> list[str]:
        """Return keys with a prefix, in order; if not `recursive`, only without "/" after `within` characters."""
        # A directory has a mark or entries: the part before the separator is its key.
        found = dict.fromkeys(key.rstrip("\0") for key in self.scan(prefix, cut="\0"))
        return [key for key in found if recursive or "/" not in key[within:]]

    def namespaces(self, prefix: str, *, recursive: bool = False) -> list[str]:
        """Return the parts before a "/" after the prefix: the next level, or all levels below."""
        if not recursive:
            return sorted(path[:-1] for path in self.scan(prefix, cut="/\0") if path.endswith("/"))
        found = set[str]()
        for key in self.scan(prefix, cut="\0"):
            parts = key[len(prefix) :].split("/")
            found |= {prefix + "/".join(parts[:end]) for end in range(1, len(parts))}
        return sorted(found)

    # ---- entries of directories

    def give_entry(self, key: str, name: str, default: Any, as_: Any) -> Any:
        """Return one entry."""
        return self.give(entry_key(checked_directory(key), name), default, as_)

    def set_entry(self, key: str, name: str, value: Any, as_: Any) -> None:
        """Set one entry."""
        self.put(entry_key(checked_directory(key), name), value, as_)
        self._mark(key)

    def remove_entry(self, key: str, name: str) -> bool:
        """Remove one entry; return False if it did not exist."""
        return self.drop(entry_key(checked_directory(key), name))

    def entries(self, key: str, prefix: str, limit: int | None, as_: Any) -> dict[str, Any]:
        """Return some entries, in the order of their names."""
        if len(prefix) > MOST_KEY:
            raise InvalidValue("prefix", prefix, "the beginning of a name")
        if limit is not None and limit < 0:
            raise InvalidValue("limit", limit, "a whole number from 0, or None for all")
        found = self.scan(f"{checked_directory(key)}\0{prefix}", limit=limit)
        return {str(parted(kept)[1]): self.give(kept, None, as_) for kept in found}

    def _value(self, kept: str, cell: bytes | None, as_: Any) -> Any:
        assert cell is not None
        return values.decode(self.raw(cell), shown(kept), as_)


def _seen(as_: Any, plain: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    """Return the function that encodes an object to detect changes."""
    return plain if as_ is None else values.encode_plain


def _blob(name: str) -> Steps[bytes]:
    (found,) = yield MissingBlob([name], bytes)
    raw: bytes = found
    return raw


def _cells(root: str, keys: list[str]) -> Steps[dict[str, bytes | None]]:
    found = {}
    for key in keys:
        found[key] = yield from tree.find(root, key)
    return found
