"""The folders of runs that are still needed: those of runs that can continue, in any kernel of the same store."""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import UTC, datetime

import msgspec

from ramet.core.errors import Damaged
from ramet.host.journal.journal import TREES
from ramet.host.journal.ttl import lifetime_of
from ramet.isolation.workspace.run_dirs import RunFolder
from ramet.store.contract import Store

#: A younger folder may belong to a run whose spawn is not recorded yet.
_SPAWN_GRACE_S = 3600.0


class FolderNeeds:
    """A check for the folders of one working directory, based on the recorded state of their runs."""

    def __init__(self, store: Store, living: Collection[str], can_continue: Callable[[str, str], bool]) -> None:
        """Set `living`, the roots of this kernel's trees, and `can_continue`.

        `can_continue` returns, by root and id, whether a run of such a tree can have another turn.
        """
        self._store, self._living, self._can_continue = store, living, can_continue

    async def __call__(self, folder: RunFolder) -> bool:
        """Return whether a folder is still needed. Raises StoreFailed.

        The folder of a run is needed while the tree is open in any kernel; in a tree of this kernel only if the run can
        have another turn. The folders of a tree that is marked to be kept are needed, too. So is the folder of the
        first run of a session with an id, which may be opened again. A recent folder of a run that is not recorded yet
        is needed.
        """
        try:
            first = await self._store.read(run=folder.id, limit=1)
        except Damaged:  # The owner is unknown: the store may be repaired.
            return True
        if not first:
            return not _has_ended(folder) and (datetime.now(UTC) - folder.last_used()).total_seconds() < _SPAWN_GRACE_S
        root = first[0].tree
        document = await self._store.get(TREES, root)
        try:
            lifetime = lifetime_of(document.data) if document is not None else None
        except (msgspec.MsgspecError, UnicodeError):  # Unknown: the document may be repaired.
            return True
        if lifetime is not None and lifetime.keep:
            return True
        if root in self._living:
            return self._can_continue(root, folder.id)
        return lifetime is not None and (not lifetime.over or (folder.id == root and lifetime.session is not None))


def _has_ended(folder: RunFolder) -> bool:
    try:
        return folder.read_info().ended is not None
    except Damaged:
        return False
