"""Which folders of runs are still needed: those of runs that can go on, here or in another kernel of the same store."""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import UTC, datetime

import msgspec

from ramet.core.errors import Damaged
from ramet.host.journal.journal import TREES
from ramet.host.journal.ttl import lifetime_of
from ramet.isolation.workspace.run_dirs import RunFolder
from ramet.store.contract import Store

#: A folder that is younger may be that of a run whose birth is not on record yet.
_BORN_S = 3600.0


class FolderNeeds:
    """Answers for the folders of one working directory, by what is on record of their runs."""

    def __init__(self, store: Store, living: Collection[str], can_go_on: Callable[[str, str], bool]) -> None:
        """`living` are roots of trees of this kernel; `can_go_on` says of a run of one, by root and id, if it can."""
        self._store, self._living, self._can_go_on = store, living, can_go_on

    async def __call__(self, folder: RunFolder) -> bool:
        """Say whether somebody may still look for a folder. Raises StoreFailed.

        Needed is the folder of a run whose tree is open, whoever has it: of a tree of this kernel only if the run can
        have another turn. Needed is that of a tree that is to be kept, too, that of the first run of a session with an
        id, which may be opened again, and one of which nothing is known yet.
        """
        try:
            first = await self._store.read(run=folder.id, limit=1)
        except Damaged:  # Nobody knows whose it is: it may be mended.
            return True
        if not first:
            return not _has_ended(folder) and (datetime.now(UTC) - folder.last_used()).total_seconds() < _BORN_S
        root = first[0].tree
        found = await self._store.get(TREES, root)
        if root in self._living:
            is_needed = self._can_go_on(root, folder.id)
        else:
            is_needed = found is not None and not _is_over(found.data, is_root=folder.id == root)
        return is_needed or (found is not None and _is_kept(found.data))


def _has_ended(folder: RunFolder) -> bool:
    try:
        return folder.about().ended is not None
    except Damaged:
        return False


def _is_over(document: bytes, *, is_root: bool) -> bool:
    try:
        lifetime = lifetime_of(document)
        return lifetime.over and not (is_root and lifetime.session is not None)
    except (msgspec.MsgspecError, UnicodeError):  # Nobody knows: it may be mended.
        return False


def _is_kept(document: bytes) -> bool:
    try:
        return lifetime_of(document).keep
    except (msgspec.MsgspecError, UnicodeError):
        return True
