"""The synchronous interface of a state: keys and values, below one path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ramet.core.errors import InvalidValue
from ramet.store.state.branch import Branch
from ramet.store.state.validation import checked_key, checked_prefix


class Keys:
    """The values of a working copy by key: a change is visible here at once, and elsewhere after a commit."""

    _line: Branch
    _prefix: str  #: prefix of all keys: "", or a path and "/"

    def set(self, key: str, value: Any, *, as_: Any = None) -> None:
        """Set a key to a copy of a value.

        Raises InvalidValue, with the path inside the value, if it cannot be stored.
        """
        self._line.copy.set_key(self._whole(key), value, as_)

    def get(self, key: str, default: Any = None, *, as_: Any = None) -> Any:
        """Return a new copy of the value, as the type `as_` if given."""
        return self._line.copy.get_key(self._whole(key), default, as_)

    async def read(self, key: str, default: Any = None, *, as_: Any = None) -> Any:
        """Return a new copy of the value like `get`, without blocking other tasks."""
        return await self._line.copy.read_key(self._whole(key), default, as_)

    def remove(self, key: str) -> bool:
        """Remove a key; return False if it had no value."""
        return self._line.copy.remove_key(self._whole(key))

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self._line.copy.has_key(self._whole(key))

    def keys(self, prefix: str = "", *, recursive: bool = True) -> list[str]:
        """Return keys that begin with `prefix`, in order, without those in namespaces below if not `recursive`."""
        full_prefix = self._prefix + checked_prefix(prefix)
        matches = self._line.copy.keys(full_prefix, recursive=recursive, within=len(self._prefix))
        return [key[len(self._prefix) :] for key in matches]

    async def read_keys(self, prefix: str = "", *, recursive: bool = True) -> list[str]:
        """Return keys like `keys`, without blocking other tasks."""
        await self._line.copy.prefetch(self._prefix + checked_prefix(prefix))
        return self.keys(prefix, recursive=recursive)

    # ---- namespaces

    def namespaces(self, *, recursive: bool = False) -> list[str]:
        """Return the paths of the namespaces below that contain keys."""
        matches = self._line.copy.namespaces(self._prefix, recursive=recursive)
        return [path[len(self._prefix) :] for path in matches]

    def remove_namespace(self, path: str) -> int:
        """Remove everything below a path; return the number of keys, including entries of directories."""
        return self._line.copy.remove_below(f"{self._whole(path)}/")

    # ---- directories

    def entry(self, key: str, name: str, default: Any = None, *, as_: Any = None) -> Any:
        """Return one entry of a directory, whose key has a last part like `__this__`."""
        return self._line.copy.get_entry(self._whole(key), name, default, as_)

    async def read_entry(self, key: str, name: str, default: Any = None, *, as_: Any = None) -> Any:
        """Return one entry like `entry`, without blocking other tasks."""
        return await self._line.copy.read_entry(self._whole(key), name, default, as_)

    async def entry_json(self, key: str, name: str) -> bytes | None:
        """Return one entry as its stored JSON; None if there is none."""
        return await self._line.copy.entry_json(self._whole(key), name)

    def set_entry(self, key: str, name: str, value: Any, *, as_: Any = None) -> None:
        """Set one entry to a copy of a value; other entries stay."""
        self._line.copy.set_entry(self._whole(key), name, value, as_)

    def remove_entry(self, key: str, name: str) -> bool:
        """Remove one entry; return False if it did not exist."""
        return self._line.copy.remove_entry(self._whole(key), name)

    def entries(self, key: str, prefix: str = "", limit: int | None = None, *, as_: Any = None) -> Mapping[str, Any]:
        """Return entries whose names begin with `prefix`, in order, up to a limit."""
        return self._line.copy.entries(self._whole(key), prefix, limit, as_)

    # ---- the working copy

    @property
    def is_changed(self) -> bool:
        """Return whether the whole working copy differs from its commit."""
        return bool(self._line.copy.list_unsaved())

    @property
    def unsaved(self) -> list[str]:
        """Return the keys of the whole working copy that differ from its commit; an entry is `key[name]`."""
        return self._line.copy.list_unsaved_names()

    def discard(self) -> None:
        """Undo all uncommitted changes of the whole working copy."""
        self._line.copy.discard()

    def _whole(self, key: object) -> str:
        key = checked_key(key)
        try:
            return checked_key(self._prefix + key)
        except InvalidValue:
            raise InvalidValue("key", key, f"a key that is not too long after {self._prefix!r}") from None
