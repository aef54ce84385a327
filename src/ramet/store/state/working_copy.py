"""A commit's keys with uncommitted changes: the basis of `set`, `get` and similar methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ramet.core.errors import InvalidValue, UnsavedChanges
from ramet.store.state import nodes, tree, values
from ramet.store.state.blob_cache import BlobCache, MissingBlob, Steps
from ramet.store.state.mutation_tracker import MutationTracker
from ramet.store.state.validation import (
    MOST_KEY,
    checked_directory,
    display_key,
    entry_key,
    is_directory,
    split_cell_key,
)
from ramet.store.state.values import MISSING

MARK = b"[{}]"  #: cell of a directory's own key: the directory exists, even without entries
_ATOMS = (str, int, float, bool, type(None), bytes)


class WorkingCopy:
    """Changes over a tree. Keys here are stored keys: an entry of a directory has its own."""

    def __init__(self, blob_cache: BlobCache, root: str) -> None:
        self.blob_cache, self.root = blob_cache, root
        self.changes: dict[str, bytes | None] = {}  #: cells; None for a removed key
        self.blobs: dict[str, bytes] = {}  #: values that are too large for a cell
        self.tracker = MutationTracker()

    # ---- changes

    def list_unsaved(self) -> list[str]:
        """Return the keys that differ from the commit, in order."""
        stored_cells = self.blob_cache.now(_cells(self.root, list(self.changes)))
        return sorted(key for key, cell in self.changes.items() if stored_cells[key] != cell)

    def discard(self) -> None:
        self.changes.clear()
        self.blobs.clear()
        self.tracker.clear()

    def put(self, cell_key: str, value: Any, as_: Any = None) -> None:
        """Set a stored key. Raises InvalidValue, with the path inside the value, and then changes nothing."""
        raw = values.encode(value, display_key(cell_key), as_)
        self.changes[cell_key] = self.encode_cell(raw)
        self.tracker.update(cell_key, value)

    def encode_cell(self, raw: bytes) -> bytes:
        """Return the cell for a value's JSON; a large value is kept until it is committed."""
        cell = nodes.cell(raw)
        if name := nodes.blob_of(cell):
            self.blobs[name] = raw
        return cell

    def remove(self, cell_key: str) -> bool:
        """Remove a stored key; return False if it did not exist."""
        was_there = self.cell(cell_key) is not None
        if was_there:
            self.changes[cell_key] = None
        self.tracker.update(cell_key, MISSING)
        return was_there

    def settle_mutations(self, mutated: str) -> None:
        """Handle objects that were changed since they were read. Raises UnsavedChanges."""
        changed_objects = list(self.tracker.find_changed())
        if not changed_objects or mutated == "leave":
            self.tracker.forget_changed()
            return
        keys = [display_key(each.cell_key) for each in changed_objects]
        if mutated == "refuse" or len(set(keys)) < len(keys):
            why = "objects that `get` returned were changed and not set again"
            if mutated == "keep":
                why = "several objects of the same key were changed since they were read"
            raise UnsavedChanges(tuple(keys), why, "set() the objects to keep; or commit(mutated='keep' or 'leave')")
        for cell_key, value, as_ in changed_objects:
            if split_cell_key(cell_key)[1] is None:
                self.set_key(cell_key, value, as_)
            else:
                self.put(cell_key, value, as_)

    # ---- what is kept

    def cell(self, cell_key: str) -> bytes | None:
        """Return the cell of a stored key; None if there is none."""
        if cell_key in self.changes:
            return self.changes[cell_key]
        return self.blob_cache.now(tree.find(self.root, cell_key))

    def raw(self, cell: bytes) -> bytes:
        """Return the value in a cell, as JSON."""
        name = nodes.blob_of(cell)
        if name is None:
            return nodes.inline(cell)
        return self.blobs[name] if name in self.blobs else self.blob_cache.now(_blob(name))

    async def raw_of(self, cell: bytes) -> bytes:
        """Return the value in a cell, as JSON, without blocking."""
        name = nodes.blob_of(cell)
        if name is None:
            return nodes.inline(cell)
        return self.blobs[name] if name in self.blobs else await self.blob_cache.wait(_blob(name))

    def get_value(self, cell_key: str, default: Any, as_: Any) -> Any:
        """Return a new copy of the value, and track changes of it."""
        cell = self.cell(cell_key)
        return default if cell is None else self._decode_tracked(cell_key, self.raw(cell), as_)

    async def read(self, cell_key: str, default: Any, as_: Any) -> Any:
        """Return a new copy of the value like `get_value`, without blocking."""
        if cell_key in self.changes:
            return self.get_value(cell_key, default, as_)
        cell = await self.blob_cache.wait(tree.find(self.root, cell_key))
        return default if cell is None else self._decode_tracked(cell_key, await self.raw_of(cell), as_)

    async def read_key(self, key: str, default: Any, as_: Any) -> Any:
        """Return the value of a key, without blocking."""
        if not is_directory(key):
            return await self.read(key, default, as_)
        await self.blob_cache.wait(tree.scan(self.root, f"{key}\0"))  # The following read finds these nodes in memory.
        return self.get_key(key, default, as_)

    async def read_json(self, cell_key: str) -> bytes | None:
        """Return the value as its stored JSON: it is immutable, so changes need not be tracked."""
        cell = (
            self.changes[cell_key]
            if cell_key in self.changes
            else await self.blob_cache.wait(tree.find(self.root, cell_key))
        )
        return None if cell is None else await self.raw_of(cell)

    def _decode_tracked(self, cell_key: str, raw: bytes, as_: Any) -> Any:
        label = display_key(cell_key)
        value = values.decode(raw, label, as_)
        if not isinstance(value, _ATOMS):
            self.tracker.add(cell_key, value, as_, _choose_encoder(as_, lambda it: values.encode(it, label)))
        return value

    def scan(self, prefix: str, *, cut: str = "", limit: int | None = None) -> dict[str, bytes | None]:
        """Return cells of keys that begin with `prefix`, in order; `cut` is as in `tree.scan`."""
        own_cells = {key: cell for key, cell in self.changes.items() if key.startswith(prefix)}
        removed_keys = {key for key, cell in own_cells.items() if cell is None}
        scan_limit = None if limit is None else limit + len(removed_keys)
        result = self.blob_cache.now(tree.scan(self.root, prefix, cut=cut, limit=scan_limit))
        for key, cell in own_cells.items():
            if (short_key := tree.shorten_key(key, len(prefix), cut)) != key:
                result |= {short_key: None} if cell is not None else {}
            elif cell is not None:
                result[key] = cell
            else:
                result.pop(key, None)
        # The scan of the tree does not show whether everything below was removed since.
        for short_key in {tree.shorten_key(key, len(prefix), cut) for key in removed_keys} - removed_keys:
            if short_key in result and not self._is_any_left(short_key):
                del result[short_key]
        sorted_cells = dict(sorted(result.items()))
        return sorted_cells if limit is None else dict(list(sorted_cells.items())[:limit])

    def _is_any_left(self, prefix: str) -> bool:
        return bool(self.scan(prefix, limit=1))

    async def prefetch(self, prefix: str, cut: str = "\0") -> None:
        """Read the nodes of a later scan into memory, so that it does not block."""
        await self.blob_cache.wait(tree.scan(self.root, prefix, cut=cut))

    # ---- keys as people know them, which the caller has checked

    def set_key(self, key: str, value: Any, as_: Any = None) -> None:
        """Set a key; for a directory, replace all its entries."""
        if not is_directory(key):
            self.put(key, value, as_)
            return
        if not isinstance(value, Mapping):
            raise InvalidValue(key, value, "a mapping of names to values: this key is a directory")
        cells = {}
        for name, each in value.items():
            cell_key = entry_key(key, name)
            cells[cell_key] = values.encode(each, display_key(cell_key), as_)
        existing = self.scan(f"{key}\0")
        for cell_key in existing.keys() - cells.keys():
            self.changes[cell_key] = None
        for cell_key, raw in cells.items():
            if existing.get(cell_key) != (cell := self.encode_cell(raw)):
                self.changes[cell_key] = cell
        self._mark(key)
        self.tracker.update(key, value)

    def _mark(self, key: str) -> None:
        if self.cell(key) is None:
            self.changes[key] = MARK

    def get_key(self, key: str, default: Any = None, as_: Any = None) -> Any:
        """Return the value of a key; for a directory, all entries by name."""
        if not is_directory(key):
            return self.get_value(key, default, as_)
        cells = self.scan(f"{key}\0")
        if not cells and self.cell(key) is None:
            return default
        entries = {
            str(split_cell_key(cell_key)[1]): self._value(cell_key, cell, as_) for cell_key, cell in cells.items()
        }
        self.tracker.add(key, entries, as_, _choose_encoder(as_, lambda it: values.encode_entries(it, key)))
        return entries

    def has_key(self, key: str) -> bool:
        """Return whether a key has a value."""
        return self.cell(key) is not None or (is_directory(key) and self._is_any_left(f"{key}\0"))

    def remove_key(self, key: str) -> bool:
        """Remove a key, and the entries of a directory. Return False if it did not exist."""
        was_there = self.remove(key)
        return (self.remove_below(f"{key}\0") > 0 or was_there) if is_directory(key) else was_there

    def remove_below(self, prefix: str) -> int:
        """Remove all keys that begin with `prefix`; return their number."""
        cells = self.scan(prefix)
        for cell_key in cells:
            self.remove(cell_key)
        return len(cells)

    def keys(self, prefix: str, *, recursive: bool = True, within: int = 0) -> list[str]:
        """Return keys with a prefix, in order; if not `recursive`, only without "/" after `within` characters."""
        # A directory has a mark or entries: the part before the separator is its key.
        names = dict.fromkeys(key.rstrip("\0") for key in self.scan(prefix, cut="\0"))
        return [key for key in names if recursive or "/" not in key[within:]]

    def namespaces(self, prefix: str, *, recursive: bool = False) -> list[str]:
        """Return the parts before a "/" after the prefix: the next level, or all levels below."""
        if not recursive:
            return sorted(path[:-1] for path in self.scan(prefix, cut="/\0") if path.endswith("/"))
        names = set[str]()
        for key in self.scan(prefix, cut="\0"):
            parts = key[len(prefix) :].split("/")
            names |= {prefix + "/".join(parts[:end]) for end in range(1, len(parts))}
        return sorted(names)

    # ---- entries of directories

    def set_entry(self, key: str, name: str, value: Any, as_: Any) -> None:
        self.put(entry_key(checked_directory(key), name), value, as_)
        self._mark(key)

    def entries(self, key: str, prefix: str, limit: int | None, as_: Any) -> dict[str, Any]:
        """Return some entries, in the order of their names."""
        if len(prefix) > MOST_KEY:
            raise InvalidValue("prefix", prefix, "the beginning of a name")
        if limit is not None and limit < 0:
            raise InvalidValue("limit", limit, "a whole number from 0, or None for all")
        cells = self.scan(f"{checked_directory(key)}\0{prefix}", limit=limit)
        return {str(split_cell_key(cell_key)[1]): self.get_value(cell_key, None, as_) for cell_key in cells}

    def _value(self, cell_key: str, cell: bytes | None, as_: Any) -> Any:
        assert cell is not None
        return values.decode(self.raw(cell), display_key(cell_key), as_)


def _choose_encoder(as_: Any, plain: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    """Return the function that encodes an object to detect changes."""
    return plain if as_ is None else values.encode_plain


def _blob(name: str) -> Steps[bytes]:
    (data,) = yield MissingBlob([name], bytes)
    raw: bytes = data
    return raw


def _cells(root: str, keys: list[str]) -> Steps[dict[str, bytes | None]]:
    cells = {}
    for key in keys:
        cells[key] = yield from tree.find(root, key)
    return cells
