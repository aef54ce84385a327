"""What is removed from a working directory: trees that ended long ago, with all that they left. Never what lives."""

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
from ramet.host.journal.blobs import drop_blobs
from ramet.host.journal.journal import REMOVING, TREES
from ramet.host.journal.result_cache import forget_results
from ramet.host.journal.ttl import Lifetime, lifetime_of, lifetimes_of
from ramet.host.retention.transcript_index import transcripts_in
from ramet.host.schedules.table import ScheduleTable
from ramet.host.session_ids import unregister
from ramet.isolation import safe_walk
from ramet.isolation.workspace.run_dirs import RunFolder, RunFolders
from ramet.store.contract import Document, Store

_log = logging.getLogger("ramet.keeping")
#: Folders of transcripts by the root of their tree.
Transcripts = Mapping[str, list[pathlib.Path]]
EXPIRED = "expired"  #: the kind of documents that say what outlived its time


class DeletedTree(Struct, frozen=True, kw_only=True):
    """A tree that was removed, or would be."""

    root: str
    path: str
    agent: str
    state: str
    ended: datetime | None
    runs: int
    events: int  #: 0 where nothing was removed yet
    folders: int  #: of runs and of transcripts


class Tombstone(Struct, frozen=True, kw_only=True):
    """What is left of a tree that outlived its time: enough to say so to whoever asks for a result."""

    runs: tuple[str, ...]
    ended: datetime | None
    keep_s: float | None
    at: datetime


class TreeDeleter:
    """Removes one tree after the other, with all that they left."""

    def __init__(self, store: Store, working_dir: pathlib.Path | None, transcripts: pathlib.Path | None) -> None:
        self._store = store
        self._records = JournalReader(store, ())
        self._folders = RunFolders(working_dir) if working_dir is not None else None
        self._transcripts = transcripts

    async def index(self) -> Transcripts:
        """Find out which transcripts are there, and of which trees: once for all trees that are to be removed."""
        return await asyncio.to_thread(transcripts_in, self._transcripts)

    async def expire(self, root: str, lifetime: Lifetime, now: datetime, told: Transcripts) -> DeletedTree | None:
        """Remove a tree whose time is up, and note that; None if it is kept, or was opened again meanwhile."""
        found = await self._store.get(TREES, root)
        rows = await rows_to_remove(self._records, root, lifetime)
        if found is None or lifetime_of(found.data).keep or any(map(_is_kept, self._left(row.id for row in rows))):
            return None
        if not await self.mark(found):
            return None
        note = Tombstone(runs=tuple(row.id for row in rows), ended=lifetime.ended, keep_s=lifetime.keep_s, at=now)
        await self._store.put(EXPIRED, root, msgspec.json.encode(note))
        return await self.remove(root, rows, told)

    async def mark(self, tree: Document) -> bool:
        """Note that a tree is being removed, so that nobody opens it again; False if its document has changed."""
        about = {**msgspec.json.decode(tree.data), REMOVING: True}
        with suppress(Conflict):
            await self._store.put(TREES, tree.key, msgspec.json.encode(about), expected=tree.version)
            return True
        return False

    async def clear(self, notes: Mapping[str, Tombstone], told: Transcripts) -> None:
        """Remove what trees left here that another kernel removed, by its notes of their roots; not what is kept."""
        runs = {run for each in notes.values() for run in each.runs}
        transcripts = [path for root in told.keys() & notes.keys() for path in told[root]]
        await asyncio.to_thread(self._clear, runs, transcripts)

    def _clear(self, runs: Collection[str], transcripts: list[pathlib.Path]) -> None:
        _remove([each for each in self._left(runs) if not _is_kept(each)], transcripts)

    async def remove(
        self, root: str, rows: list[RunRow], told: Transcripts, *, dry_run: bool = False
    ) -> DeletedTree | None:
        """Remove a tree, or say what would be; None if a folder of it is marked to be kept."""
        left = self._left(row.id for row in rows)
        if any(map(_is_kept, left)):
            return None
        transcripts = told.get(root, [])
        events = 0
        if not dry_run:
            # Folders first, the document last: what is cut short here is found again, and finished, by the next one.
            await asyncio.to_thread(_remove, left, transcripts)
            await drop_blobs(self._store, root)
            events = await self._store.forget(root)
            if (found := await self._store.get(TREES, root)) is not None:
                if session := lifetime_of(found.data).session:
                    await unregister(self._store, session, root)
                await self._store.delete(TREES, root)
        return DeletedTree(
            root=root,
            path=rows[0].path if rows else "",
            agent=rows[0].agent if rows else "",
            state=rows[0].state if rows else "",
            ended=_ended(rows),
            runs=len(rows),
            events=events,
            folders=len(left) + len(transcripts),
        )

    def _left(self, runs: Iterable[str]) -> list[RunFolder]:
        if self._folders is None:
            return []
        return [each for run in runs if (each := _folder(self._folders, run)) is not None]


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
    """Remove trees whose last run ended before a moment, at most so many: events, documents, folders, transcripts.

    A tree with a time of its own goes when that is over, by `now`, and not before. Whoever calls holds the store, and
    has the trees of these `living` roots; they stay. What is open and at work nowhere was interrupted: it stays, to be
    resumed. So does a tree in `keep` (by the id
    of any of its runs), one of which a schedule has not noted yet how it ended, one that is kept on record, and one of
    which a run's folder is marked to be kept. What a kernel left that died between a tree's document and its first
    event cannot be gone on with, and goes, too. A tree that cannot be read stays, and is logged; one that was set aside
    goes like others. With `dry_run` a store that is only read will do. Results that stood
    for equal calls until then go as well. Raises Unknown for what is to be kept and is not there.
    """
    records, gone = JournalReader(store, ()), list[DeletedTree]()
    if not dry_run:
        await forget_results(store, before=before)
    kept = {await _known(records, run) for run in keep}
    kept |= {claim.run for found in await ScheduleTable(store).all() for claim in found.book.state.claims if claim.run}
    removal = TreeDeleter(store, working_dir, transcripts or state_folder(working_dir) / "transcripts")
    documents = await store.list(TREES)
    known = lifetimes_of(documents)
    unreadable = {each.key for each in documents} - known.keys()
    aside = [root for root, each in known.items() if each.set_aside]
    roots, told = [*await records.trees(ended=True), *aside], await removal.index()
    await _drop_empty(store, set(known) - set(roots) - set(living), before, dry_run=dry_run)
    for root in roots:
        if most is not None and len(gone) >= most:
            break
        lifetime = known.get(root)
        if root in kept or root in living or root in unreadable or (lifetime is not None and lifetime.keep):
            continue
        try:
            rows = await rows_to_remove(records, root, lifetime)
        except DamagedTree as problem:  # Also one of a newer version: not ours to judge.
            _log.warning("nothing is removed of what cannot be read: %s", problem)
            continue
        is_aside = lifetime is not None and lifetime.set_aside
        ended = lifetime.ended if lifetime and is_aside else _ended(rows) if lifetime else _newest(rows)
        if ended is None or not (rows or is_aside):
            continue
        if lifetime is None or lifetime.keep_s is None or now is None:
            removed = await removal.remove(root, rows, told, dry_run=dry_run) if ended < before else None
        else:  # Nobody may have noted its end: its kernel was killed.
            lifetime = replace(lifetime, over=True, ended=lifetime.ended or ended)
            removed = None
            if lifetime.has_expired(now):
                if dry_run:
                    removed = await removal.remove(root, rows, told, dry_run=True)
                else:
                    removed = await removal.expire(root, lifetime, now, told)
        gone += [removed] if removed is not None else []
    return gone


async def rows_to_remove(records: JournalReader, root: str, lifetime: Lifetime | None) -> list[RunRow]:
    """Return the runs of a tree; none for a tree that was set aside. Raises DamagedTree."""
    return [] if lifetime is not None and lifetime.set_aside else await records.rows(root)


async def _known(records: JournalReader, run: str) -> str:
    try:
        return await records.tree_of(run)
    except Unknown:
        raise Unknown("run to keep", run) from None


def _ended(rows: list[RunRow]) -> datetime | None:
    """When the last one ended; None while anybody lives, or was interrupted."""
    if not all(row.is_over for row in rows):
        return None
    return max((row.ended for row in rows if row.ended is not None), default=None)


def _newest(rows: list[RunRow]) -> datetime | None:
    """When something was last heard of a tree that has no document: older kernels recorded births before these."""
    return max((moment for row in rows if (moment := row.ended or row.born) is not None), default=None)


async def _drop_empty(store: Store, roots: Collection[str], before: datetime, *, dry_run: bool) -> None:
    """Forget trees of which nothing is on record: their kernel died before anything happened in them."""
    for root in roots if not dry_run else ():
        found = await store.get(TREES, root)
        lifetime = lifetimes_of([found] if found is not None else []).get(root)
        if lifetime is not None and lifetime.began < before:
            await store.delete(TREES, root)


def _folder(folders: RunFolders, run: str) -> RunFolder | None:
    try:
        return folders.left_by(run)
    except RametError:
        return None


def _is_kept(folder: RunFolder) -> bool:
    try:
        return folder.about().keep
    except Damaged:
        return False


def _remove(folders: list[RunFolder], transcripts: list[pathlib.Path]) -> None:
    for each in folders:
        each.remove()
    for path in transcripts:
        with safe_walk.opened(path.parent) as folder:
            safe_walk.remove(folder, path.name)
