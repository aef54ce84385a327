"""The face of a state that is used without awaiting: keys and values, below one path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ramet.core.errors import InvalidValue
from ramet.store.state.branch import Branch
from ramet.store.state.validation import checked_key, checked_prefix


class Keys:
    """Values by key, in a working copy: what is set is seen here at once, and elsewhere when it is committed."""

    _line: Branch
    _below: str  #: what all keys begin with: "", or a path and "/"

    def set(self, key: str, value: Any, *, as_: Any = None) -> None:
        """Keep a copy of a value. Raises InvalidValue, which names the path inside what cannot be kept."""
        self._line.copy.set_key(self._whole(key), value, as_)

    def get(self, key: str, default: Any = None, *, as_: Any = None) -> Any:
        """The value, made anew each time; as the type that it was set as, if that is named."""
        return self._line.copy.get_key(self._whole(key), default, as_)

    async def read(self, key: str, default: Any = None, *, as_: Any = None) -> Any:
        """The same, while other tasks go on."""
        return await self._line.copy.read_key(self._whole(key), default, as_)

    def remove(self, key: str) -> bool:
        """Have no value; False if there was none."""
        return self._line.copy.remove_key(self._whole(key))

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self._line.copy.has_key(self._whole(key))

    def keys(self, prefix: str = "", *, recursive: bool = True) -> list[str]:
        """Keys that begin like this, in order, those in namespaces below too unless `recursive` is False."""
        whole = self._below + checked_prefix(prefix)
        found = self._line.copy.keys(whole, recursive=recursive, within=len(self._below))
        return [key[len(self._below) :] for key in found]

    async def read_keys(self, prefix: str = "", *, recursive: bool = True) -> list[str]:
        """The same, while other tasks go on."""
        await self._line.copy.look_ahead(self._below + checked_prefix(prefix))
        return self.keys(prefix, recursive=recursive)

    # ---- namespaces

    def namespaces(self, *, recursive: bool = False) -> list[str]:
        """The paths of the namespaces below, which are those that keys are in."""
        found = self._line.copy.namespaces(self._below, recursive=recursive)
        return [path[len(self._below) :] for path in found]

    def remove_namespace(self, path: str) -> int:
        """Remove everything below a path; says how many keys, entries of directories included."""
        return self._line.copy.remove_below(f"{self._whole(path)}/")

    # ---- directories

    def entry(self, key: str, name: str, default: Any = None, *, as_: Any = None) -> Any:
        """One entry of a directory, whose key has a last part like `__this__`."""
        return self._line.copy.give_entry(self._whole(key), name, default, as_)

    async def read_entry(self, key: str, name: str, default: Any = None, *, as_: Any = None) -> Any:
        """The same, while other tasks go on."""
        return await self._line.copy.read_entry(self._whole(key), name, default, as_)

    async def entry_json(self, key: str, name: str) -> bytes | None:
        """One entry as the JSON that it is kept as; None if there is none."""
        return await self._line.copy.entry_json(self._whole(key), name)

    def set_entry(self, key: str, name: str, value: Any, *, as_: Any = None) -> None:
        """Keep a copy of one entry, beside the others."""
        self._line.copy.set_entry(self._whole(key), name, value, as_)

    def remove_entry(self, key: str, name: str) -> bool:
        """Remove one entry; False if it was not there."""
        return self._line.copy.remove_entry(self._whole(key), name)

    def entries(self, key: str, prefix: str = "", limit: int | None = None, *, as_: Any = None) -> Mapping[str, Any]:
        """Entries whose names begin like this, in order, up to a limit."""
        return self._line.copy.entries(self._whole(key), prefix, limit, as_)

    # ---- the working copy

    @property
    def is_changed(self) -> bool:
        """Whether anything of the whole working copy is not as it was committed."""
        return bool(self._line.copy.unsaved())

    @property
    def unsaved(self) -> list[str]:
        """Which keys of the whole working copy are not as they were committed; an entry is `key[name]`."""
        return self._line.copy.unsaved_shown()

    def discard(self) -> None:
        """Have the whole working copy as it was committed."""
        self._line.copy.discard()

    def _whole(self, key: object) -> str:
        key = checked_key(key)
        try:
            return checked_key(self._below + key)
        except InvalidValue:
            raise InvalidValue("key", key, f"a key that is not too long behind {self._below!r}") from None
