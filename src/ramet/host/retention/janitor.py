"""The retention job of a kernel: removes expired trees, at its start and at intervals. It never removes living trees.

It also removes excess folders of runs, except those of runs that can continue. A tree's document states how long the
tree is kept after its end, and whether it is marked to be kept. A removed tree leaves a note, so that a later request
for its result gets the reason for its absence.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import pathlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from datetime import datetime, timedelta

import msgspec
from msgspec import Struct

from ramet.concurrency.clock import Clock
from ramet.core.errors import Damaged, InvalidValue, RametError
from ramet.host.journal.journal import TREES
from ramet.host.journal.ttl import Collect, lifetimes_of
from ramet.host.retention.folder_needs import FolderNeeds
from ramet.host.retention.sweep import EXPIRED, DeletedTree, Tombstone, TreeDeleter, sweep
from ramet.isolation.workspace.run_dirs import RunFolders
from ramet.store.contract import Document, Shrinkable, Store

LOOK_S = 600.0  #: interval, in seconds, at which a kernel looks for expired trees
BATCH = 500  #: trees that one answer to `Collect` removes at most
NOTED = timedelta(days=30)  #: how long a note of a removed tree stays

_log = logging.getLogger("ramet.retention")


class CollectReply(Struct, frozen=True, kw_only=True):
    """The trees that were removed in one request; with `more`, another request may remove others."""

    gone: tuple[DeletedTree, ...]
    more: bool


class RetentionJob:
    """A job that removes expired trees, from `start` to `stop`: as long as the journal is open."""

    def __init__(
        self,
        store: Store,
        living: Collection[str],
        clock: Clock,
        working_dir: pathlib.Path | None,
        transcripts: pathlib.Path | None,
        *,
        folders: RunFolders | None = None,
        can_continue: Callable[[str, str], bool] = lambda root, run: True,
    ) -> None:
        """Set `living`, the roots of this kernel's trees, which may change meanwhile.

        `folders` are those of runs, to be tidied; `can_continue` returns, by root and id, whether a run of such a tree
        can continue.
        """
        self._store, self._living, self._clock = store, living, clock
        self._removal = TreeDeleter(store, working_dir, transcripts)
        self._working_dir, self._transcripts = working_dir, transcripts
        self._sweeping = asyncio.Lock()
        self._folders, self._needs = folders, FolderNeeds(store, living, can_continue)
        #: roots of ended trees that are still needed, since other runs continue from their results
        self.find_needed_roots: Callable[[], Awaitable[Collection[str]]] = _nothing
        self._cleared_roots = set[str]()  #: roots of trees that were removed, and left nothing here
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin; idempotent."""
        if self._serving is None:
            self._serving = asyncio.create_task(self._serve(), name="ramet retention", context=contextvars.Context())

    async def stop(self) -> None:
        """End; idempotent. An interrupted removal is finished by the next one."""
        serving, self._serving = self._serving, None
        if serving is not None:
            serving.cancel()
            await asyncio.wait([serving])

    async def _serve(self) -> None:
        while True:
            try:
                await self.run_once()
                await self.tidy()
                await self.shrink()
            except (RametError, OSError) as problem:
                _log.warning("expired trees could not be removed: %s", problem)
            except Exception:  # A defect. Without another attempt, the journal and the disk would fill up.
                _log.exception("expired trees could not be removed")
            await asyncio.sleep(LOOK_S)

    async def tidy(self) -> tuple[str, ...]:
        """Remove excess folders of runs, except those that are needed; return the ids of their runs."""
        if self._folders is None:
            return ()
        try:
            return await self._folders.remove_expired(self._needs)
        except (OSError, InvalidValue) as problem:
            _log.warning("the folders of runs could not be cleaned up: %s", problem)
            return ()

    async def sweep(self, request: Collect) -> CollectReply:
        """Remove trees that ended before a moment, as `ramet gc` asks.

        Raises Unknown for a run to keep that is unknown, Damaged.
        """
        if self._working_dir is None:
            raise InvalidValue("working_dir", None, "a working directory: this kernel has none")
        async with self._sweeping:
            removed = await sweep(
                self._store,
                self._working_dir,
                before=request.before,
                now=self._clock.now(),
                keep=[*request.keep, *await self.find_needed_roots()],
                transcripts=self._transcripts,
                living=self._living,
                most=BATCH,
            )
            if not (more := len(removed) == BATCH):
                await self.shrink()
        return CollectReply(gone=tuple(removed), more=more)

    async def shrink(self) -> None:
        """Have the store return the disk space of removed trees, if it is a file. Raises StoreFailed."""
        if isinstance(self._store, Shrinkable):
            await self._store.shrink()

    async def run_once(self) -> list[str]:
        """Remove every expired tree; return the ids of their roots."""
        now, removed = self._clock.now(), []
        lifetimes = lifetimes_of(await self._store.list(TREES))
        expired = [root for root, each in lifetimes.items() if root not in self._living and each.has_expired(now)]
        needed = frozenset(await self.find_needed_roots()) if expired else frozenset[str]()
        transcripts = await self._removal.index() if expired else None
        for root in expired:
            if root in self._living or root in needed:  # Checked again: both may have changed meanwhile.
                continue
            try:
                if await self._removal.expire(root, lifetimes[root], now, transcripts or {}):
                    removed.append(root)
            except (OSError, Damaged) as problem:
                _log.warning("%s could not be removed: %s", root, problem)
        notes = _read_notes(await self._store.list(EXPIRED))
        if new_notes := {
            root: note for root, note in notes.items() if root not in self._cleared_roots and root not in removed
        }:
            try:
                await self._removal.clear(
                    new_notes, transcripts if transcripts is not None else await self._removal.index()
                )
            except OSError as problem:
                _log.warning("files of removed trees could not be removed here: %s", problem)
        self._cleared_roots = set(notes)
        await self._forget_notes(notes, now)
        return removed

    async def _forget_notes(self, notes: Mapping[str, Tombstone], now: datetime) -> None:
        for root, note in notes.items():
            if note.at + NOTED < now:
                await self._store.delete(EXPIRED, root)


def _read_notes(documents: Iterable[Document]) -> dict[str, Tombstone]:
    """Return the notes of removed trees, by root. A note that cannot be read is logged, and left out."""
    notes = dict[str, Tombstone]()
    for each in documents:
        try:
            notes[each.key] = msgspec.json.decode(each.data, type=Tombstone)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as problem:
            _log.warning("the note of the removed tree %s cannot be read: %s", each.key, problem)
    return notes


async def _nothing() -> Collection[str]:
    """Return nothing: by default no ended tree is needed."""
    return ()
