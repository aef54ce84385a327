"""The sweep of a working directory: removes trees that ended long ago, with all their files.

It never removes living ones.
"""

from __future__ import annotations

import asyncio
import logging
import pathlib
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from datetime import datetime

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ramet.core.errors import Conflict, Damaged, DamagedTree, RametError, Unknown
from ramet.disk.state_folder import state_folder
from ramet.host.control.run_queries import JournalReader, RunRow
from ramet.host.control.schedules import ScheduleTable
from ramet.host.journal.blobs import remove_blobs
from ramet.host.journal.journal import REMOVING, TREES
from ramet.host.journal.result_cache import remove_expired_results
from ramet.host.journal.ttl import Lifetime, lifetime_of, lifetimes_of
from ramet.host.retention.transcript_index import transcripts_in
from ramet.host.session_ids import unregister
from ramet.isolation import safe_walk
from ramet.isolation.workspace.run_dirs import RunFolder, RunFolders
from ramet.store.contract import Document, Store

_log = logging.getLogger("ramet.retention")
#: Folders of transcripts by the root of their tree.
Transcripts = Mapping[str, list[pathlib.Path]]
EXPIRED = "expired"  #: the kind of the documents about expired trees


class DeletedTree(Struct, frozen=True, kw_only=True):
    """A tree that was removed, or would be removed."""

    root: str
    path: str
    agent: str
    state: str
    ended: datetime | None
    runs: int
    events: int  #: 0 if nothing was removed yet
    folders: int  #: of runs and of transcripts


class Tombstone(Struct, frozen=True, kw_only=True):
    """The note of an expired tree, from which a later request for a result gets the reason."""

    runs: tuple[str, ...]
    ended: datetime | None
    keep_s: float | None
    at: datetime


class TreeDeleter:
    """A deleter that removes trees one at a time, with all their files."""

    def __init__(self, store: Store, working_dir: pathlib.Path | None, transcripts: pathlib.Path | None) -> None:
        self._store = store
        self._records = JournalReader(store, ())
        self._folders = RunFolders(working_dir) if working_dir is not None else None
        self._transcripts = transcripts

    async def index(self) -> Transcripts:
        """Return the transcripts by their trees: once for all trees that are to be removed."""
        return await asyncio.to_thread(transcripts_in, self._transcripts)

    async def expire(
        self, root: str, lifetime: Lifetime, now: datetime, transcript_index: Transcripts
    ) -> DeletedTree | None:
        """Remove an expired tree, and write a note; return None if it is kept, or was opened again meanwhile."""
        document = await self._store.get(TREES, root)
        rows = await rows_to_remove(self._records, root, lifetime)
        if (
            document is None
            or lifetime_of(document.data).keep
            or any(map(_is_kept, self._leftover_folders(row.id for row in rows)))
        ):
            return None
        if not await self.mark(document):
            return None
        note = Tombstone(runs=tuple(row.id for row in rows), ended=lifetime.ended, keep_s=lifetime.keep_s, at=now)
        await self._store.put(EXPIRED, root, msgspec.json.encode(note))
        return await self.remove(root, rows, transcript_index)

    async def mark(self, tree: Document) -> bool:
        """Note that a tree is being removed, so that no kernel opens it; return False if its document has changed."""
        about = {**msgspec.json.decode(tree.data), REMOVING: True}
        with suppress(Conflict):
            await self._store.put(TREES, tree.key, msgspec.json.encode(about), expected=tree.version)
            return True
        return False

    async def clear(self, notes: Mapping[str, Tombstone], transcript_index: Transcripts) -> None:
        """Remove the local files of trees that another kernel removed, by its notes; files marked to be kept stay."""
        runs = {run for each in notes.values() for run in each.runs}
        transcripts = [path for root in transcript_index.keys() & notes.keys() for path in transcript_index[root]]
        await asyncio.to_thread(self._clear, runs, transcripts)

    def _clear(self, runs: Collection[str], transcripts: list[pathlib.Path]) -> None:
        _remove([each for each in self._leftover_folders(runs) if not _is_kept(each)], transcripts)

    async def remove(
        self, root: str, rows: list[RunRow], transcript_index: Transcripts, *, dry_run: bool = False
    ) -> DeletedTree | None:
        """Remove a tree, or with `dry_run` only report it; return None if a folder of it is marked to be kept."""
        leftover_folders = self._leftover_folders(row.id for row in rows)
        if any(map(_is_kept, leftover_folders)):
            return None
        transcripts = transcript_index.get(root, [])
        events = 0
        if not dry_run:
            # Folders first, the document last: an interrupted removal is found again, and finished, by the next one.
            await asyncio.to_thread(_remove, leftover_folders, transcripts)
            await remove_blobs(self._store, root)
            events = await self._store.forget(root)
            if (document := await self._store.get(TREES, root)) is not None:
                if session := lifetime_of(document.data).session:
                    await unregister(self._store, session, root)
                await self._store.delete(TREES, root)
        return DeletedTree(
            root=root,
            path=rows[0].path if rows else "",
            agent=rows[0].agent if rows else "",
            state=rows[0].state if rows else "",
            ended=_end_time(rows),
            runs=len(rows),
            events=events,
            folders=len(leftover_folders) + len(transcripts),
        )

    def _leftover_folders(self, runs: Iterable[str]) -> list[RunFolder]:
        if self._folders is None:
            return []
        return [each for run in runs if (each := _find_folder(self._folders, run)) is not None]


async def sweep(
    store: Store,
    working_dir: pathlib.Path,
    *,
    before: datetime,
    now: datetime | None = None,
    keep: Collection[str] = (),
    dry_run: bool = False,
    transcripts: pathlib.Path | None = None,
    living: Collection[str] = (),
    most: int | None = None,
) -> list[DeletedTree]:
    """Remove trees whose last run ended before a moment, at most `most`: events, documents, folders, transcripts.

    A tree with a retention time is removed when that time has ended, by `now`, and not before. The caller holds the
    store, and owns the trees of these `living` roots; they stay. An open tree that is active nowhere was interrupted:
    it stays, to be resumed. A tree also stays if it is in `keep` (by the id of any of its runs), or if a schedule has
    not yet noted its result. It stays if it, or a folder of one of its runs, is marked to be kept. A tree whose kernel
    died between the tree's document and its first event cannot be resumed, and is removed, too. A tree that cannot be
    read stays, and is logged; one that was set aside is removed like others. With `dry_run` a read-only store is
    enough. Cached results that expire by then are removed, too. Raises Unknown for a run in `keep` that is not
    recorded.
    """
    records, removed_trees = JournalReader(store, ()), list[DeletedTree]()
    if not dry_run:
        await remove_expired_results(store, before=before)
    kept_roots = {await _root_of_run(records, run) for run in keep}
    kept_roots |= {
        claim.run for entry in await ScheduleTable(store).all() for claim in entry.record.state.claims if claim.run
    }
    removal = TreeDeleter(store, working_dir, transcripts or state_folder(working_dir) / "transcripts")
    documents = await store.list(TREES)
    lifetimes = lifetimes_of(documents)
    unreadable = {each.key for each in documents} - lifetimes.keys()
    aside_roots = [root for root, each in lifetimes.items() if each.set_aside]
    roots, indexed = [*await records.trees(ended=True), *aside_roots], await removal.index()
    await _drop_empty(store, set(lifetimes) - set(roots) - set(living), before, dry_run=dry_run)
    for root in roots:
        if most is not None and len(removed_trees) >= most:
            break
        lifetime = lifetimes.get(root)
        if root in kept_roots or root in living or root in unreadable or (lifetime is not None and lifetime.keep):
            continue
        try:
            rows = await rows_to_remove(records, root, lifetime)
        except DamagedTree as problem:  # This includes trees of a newer version, which this version cannot assess.
            _log.warning("a tree that cannot be read is not removed: %s", problem)
            continue
        is_aside = lifetime is not None and lifetime.set_aside
        ended = lifetime.ended if lifetime and is_aside else _end_time(rows) if lifetime else _newest_time(rows)
        if ended is None or not (rows or is_aside):
            continue
        if lifetime is None or lifetime.keep_s is None or now is None:
            removed = await removal.remove(root, rows, indexed, dry_run=dry_run) if ended < before else None
        else:  # Its end may not be noted: its kernel was killed.
            lifetime = replace(lifetime, over=True, ended=lifetime.ended or ended)
            removed = None
            if lifetime.has_expired(now):
                if dry_run:
                    removed = await removal.remove(root, rows, indexed, dry_run=True)
                else:
                    removed = await removal.expire(root, lifetime, now, indexed)
        removed_trees += [removed] if removed is not None else []
    return removed_trees


async def rows_to_remove(records: JournalReader, root: str, lifetime: Lifetime | None) -> list[RunRow]:
    """Return the runs of a tree; an empty list for a tree that was set aside. Raises DamagedTree."""
    return [] if lifetime is not None and lifetime.set_aside else await records.rows(root)


async def _root_of_run(records: JournalReader, run: str) -> str:
    try:
        return await records.tree_of(run)
    except Unknown:
        raise Unknown("run to keep", run) from None


def _end_time(rows: list[RunRow]) -> datetime | None:
    """Return when the last run ended; None if a run is living, or was interrupted."""
    if not all(row.is_over for row in rows):
        return None
    return max((row.ended for row in rows if row.ended is not None), default=None)


def _newest_time(rows: list[RunRow]) -> datetime | None:
    """Return the newest recorded time of a tree without a document: older kernels recorded spawns before documents."""
    return max((moment for row in rows if (moment := row.ended or row.born) is not None), default=None)


async def _drop_empty(store: Store, roots: Collection[str], before: datetime, *, dry_run: bool) -> None:
    """Remove the documents of trees without events: their kernel died before the first event."""
    for root in roots if not dry_run else ():
        document = await store.get(TREES, root)
        lifetime = lifetimes_of([document] if document is not None else []).get(root)
        if lifetime is not None and lifetime.began < before:
            await store.delete(TREES, root)


def _find_folder(folders: RunFolders, run: str) -> RunFolder | None:
    try:
        return folders.find_any(run)
    except RametError:
        return None


def _is_kept(folder: RunFolder) -> bool:
    try:
        return folder.read_info().keep
    except Damaged:
        return False


def _remove(folders: list[RunFolder], transcripts: list[pathlib.Path]) -> None:
    for each in folders:
        each.remove()
    for path in transcripts:
        with safe_walk.open_root(path.parent) as folder:
            safe_walk.remove(folder, path.name)
