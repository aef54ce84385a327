"""Search mounts for state folders (`.ramet`) of any kernel: their private entries must be covered.

No list of kernels exists, so the search reads the folders below a mount. A search has a bound. A mount beyond the bound
is refused, because it may show private files. A state folder that is created after the search is not covered.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple

from ramet.core.errors import InvalidValue
from ramet.isolation.mounts import STATE, Sources, is_private_name, refusal

MOST_FOLDERS = 200_000
MOST_ENTRIES = 3_000_000
MOST_FOUND = 500  #: each one costs a sandbox some mounts
MOST_S = 10.0
_REUSE = 10  #: a result is reused for this multiple of the time that the search took
_NO_TIME_S = 0.05  #: of processor time: a search that took less is not reused
#: A sandbox sees nothing there either; no kernel works in a folder with so long a path.
_NO_KERNEL = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)
_DENIED = (errno.EACCES, errno.EPERM)


class _CachedSearch(NamedTuple):
    """The state folders found in a folder, and the time until which the result is used."""

    folders: tuple[str, ...]
    until: float


class StateSearch:
    """The searches of one backend. A long search is reused for a while: many agents have the same mounts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  #: held during a search, so that two callers with the same mounts search once
        self._cache: dict[str, _CachedSearch] = {}  #: by source

    def find_folders(self, sources: Sources) -> tuple[str, ...]:
        """Return the paths at which mounts show state folders: at the path of the mount and at its source. Blocks.

        Raises InvalidValue, which names the mount, if a mount cannot be searched within the bounds.
        """
        with self._lock:
            states = {mount: self._states_of_mount(mount, source) for mount, source in sources.items()}
        visible = {
            f"{path.rstrip('/')}/{relative_path}"
            for mount, source in sources.items()
            for relative_path in states[mount]
            for path in (mount, source)
        }
        return tuple(sorted(visible))

    def _states_of_mount(self, mount: str, source: str) -> tuple[str, ...]:
        began, cpu_start = time.monotonic(), time.thread_time()
        self._cache = {key: each for key, each in self._cache.items() if each.until > began}
        if (known := self._cache.get(source)) is not None:
            return known.folders
        states = tuple(_states_below(mount, source, began + MOST_S))
        if time.thread_time() - cpu_start > _NO_TIME_S:
            now = time.monotonic()
            self._cache[source] = _CachedSearch(states, now + _REUSE * (now - began))
        return states


def _states_below(mount: str, source: str, end: float) -> Iterator[str]:
    """Yield the paths of state folders below a source, except those in private parts of others. Follows no link."""
    folders = entries = state_count = 0
    pending = [""]
    while pending:
        folder = pending.pop()
        if (folders := folders + 1) > MOST_FOLDERS:
            raise _too_much(mount, f"{MOST_FOLDERS} folders")
        for name in _folders_in(mount, f"{source}/{folder}" if folder else source):
            if (entries := entries + 1) > MOST_ENTRIES:
                raise _too_much(mount, f"{MOST_ENTRIES} entries")
            if time.monotonic() > end:
                raise _too_much(mount, f"{MOST_S:g} s")
            if not name or (os.path.basename(folder) == STATE and is_private_name(name)):  # noqa: PTH119 - no time
                continue
            path = f"{folder}/{name}" if folder else name
            pending.append(path)
            if name == STATE:
                if (state_count := state_count + 1) > MOST_FOUND:
                    raise _too_much(mount, f"{MOST_FOUND} of them")
                yield path


def _folders_in(mount: str, path: str) -> Iterator[str]:
    """Yield the name of each entry that is a folder, and an empty name for any other entry."""
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                yield entry.name if entry.is_dir(follow_symlinks=False) else ""
    except OSError as error:
        # A process that knows a name can open it.
        if error.errno in _DENIED and os.access(path, os.X_OK, effective_ids=True):
            accepted = f"a folder that can be searched for state folders of kernels: {path} can only be entered"
            raise InvalidValue("readonly_mounts", mount, accepted) from error
        if error.errno not in (*_NO_KERNEL, *_DENIED):
            raise refusal(mount, error) from error


def _too_much(mount: str, bound: str) -> InvalidValue:
    accepted = f"a folder that can be searched for state folders of kernels: this takes more than {bound}; name less"
    return InvalidValue("readonly_mounts", mount, accepted)
