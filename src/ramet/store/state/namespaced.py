"""A part of a state: the keys below a path, as if there were no others."""

from __future__ import annotations

from ramet.store.state.validation import checked_key
from ramet.store.state.versioned import Versioned


class Namespaced(Versioned):
    """The keys of a state below a path, isolated from siblings; commits and branches are those of the whole state."""

    def __init__(self, state: Versioned, path: str) -> None:
        checked_key(path, field="path")
        self._line, self._loop = state._line, state._loop
        self._prefix = f"{state._prefix}{path}/"
        checked_key(self._prefix + "a", field="path")

    @property
    def path(self) -> str:
        """Return the path from the whole state to here."""
        return self._prefix[:-1]
