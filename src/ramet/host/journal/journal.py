"""The journal of a runtime: one store, opened when the first tree needs it, and one page for each tree.

Events that are appended to a page are published in order once they survive a power cut. If the store fails, no event is
published as if it had been kept: waiters get StoreFailed, and the runs of the tree end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import pathlib
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from typing import Any, Protocol

import msgspec

from ramet.core.errors import (
    Conflict,
    Damaged,
    DamagedTree,
    OwnedElsewhere,
    RametError,
    StoreFailed,
    StoreInUse,
)
from ramet.core.events import Event
from ramet.core.replay.replay import TreeReplay
from ramet.disk.state_folder import JOURNAL, ensure_state_folder, state_folder
from ramet.host import session_ids
from ramet.host.journal.stored_events import location_of, replay_tree
from ramet.store.contract import Document, Entry, Store

_log = logging.getLogger("ramet.journal")

TREES = session_ids.TREES
REMOVING = "removing"  #: a key of such a document: the tree is being removed

#: The journals of working directories, as long as they are in use.
_shared: weakref.WeakValueDictionary[pathlib.Path, Journal] = weakref.WeakValueDictionary()

#: Called with None, or with the reason why the awaited events cannot be stored.
DurableCallback = Callable[[RametError | None], None]


class BackgroundService(Protocol):
    """A service that runs as long as the journal is open, for example the control socket for other processes."""

    async def start(self) -> None:
        """Begin; never fails."""

    async def stop(self) -> None:
        """End; idempotent."""


class JournalUser(Protocol):
    """The trees of a runtime, as its journal sees them."""

    def fence(self, error: StoreFailed) -> None:
        """Begin nothing more, and end the open trees: they cannot be recorded, and another kernel may own them."""

    def fence_tree(self, root: str, error: OwnedElsewhere) -> None:
        """End the work on a tree: another kernel owns it."""

    def can_continue(self, root: str, run: str) -> bool | None:
        """Return whether a run of an open tree can have another turn; None for a tree that is not open here."""


class Journal:
    """A store that its first user opens and its last user closes.

    The runtimes of one event loop that work in one directory share a journal: they are one kernel.
    """

    def __init__(self, store: Store, folder: pathlib.Path | None = None) -> None:
        self.store, self.folder = store, folder
        self.control_socket: BackgroundService | None = None
        self.retention_job: BackgroundService | None = None  #: removes expired trees
        self.is_open = False
        self.over_listeners: list[Callable[[str, datetime], None]] = []  #: called when a tree is recorded as over
        self.users: weakref.WeakSet[JournalUser] = weakref.WeakSet()  #: of runtimes that have not stopped
        self.living: set[str] = set()  #: roots of trees that one of them has
        self._opening: asyncio.Task[Store] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._has_indexed = False  #: every session is found by its id
        self._unsubscribe: Callable[[], None] = lambda: None
        self._unsubscribe_trees: Callable[[], None] = lambda: None
        self._pages: weakref.WeakValueDictionary[str, TreeJournal] = weakref.WeakValueDictionary()

    async def open(self) -> None:
        """Open the store; idempotent; all callers get the same failure. Raises StoreInUse, StoreFailed, Damaged."""
        if self._loop not in (None, asyncio.get_running_loop()):
            raise StoreInUse(self.folder or self.store.name, "another event loop of this process")
        if self.is_open:
            return
        if self._opening is None:
            self._loop = asyncio.get_running_loop()
            self._opening = asyncio.create_task(self._open(), name="ramet journal")
        await asyncio.shield(self._opening)
        self.is_open = True

    async def _open(self) -> Store:
        if self.folder is not None:
            try:
                await asyncio.to_thread(ensure_state_folder, self.folder.parent)
            except OSError as error:
                raise StoreFailed(self.folder, error.strerror or str(error)) from error
        store = await self.store.open()
        self._unsubscribe, self._unsubscribe_trees = (
            store.on_loss(self._on_loss),
            store.on_tree_loss(self._on_tree_loss),
        )
        for each in (self.control_socket, self.retention_job):
            if each is not None:
                await each.start()
        return store

    def _on_loss(self, error: StoreFailed) -> None:
        """Fence all runtimes: nothing more can be recorded, and another kernel may own the trees."""
        for user in list(self.users):
            user.fence(error)

    def _on_tree_loss(self, error: OwnedElsewhere) -> None:
        """Fence a tree in all runtimes: another kernel adopted and continues it, as this one could not be reached."""
        page = self._pages.get(error.tree)
        if page is not None:
            page.fence(error)
        for user in list(self.users):
            user.fence_tree(error.tree, error)

    async def release(self, user: JournalUser) -> None:
        """Stop using the journal; the last user closes the store after all appended events are written. Idempotent."""
        self.users.discard(user)
        if self.users:  # They write the remaining events; each tree of this user was written when it was closed.
            return
        while self._closing:
            await asyncio.wait(list(self._closing))
        opening, self._opening, self.is_open = self._opening, None, False
        if opening is not None:
            await asyncio.wait([opening])
        for each in (self.control_socket, self.retention_job):
            if each is not None:
                await each.stop()
        self._unsubscribe()
        self._unsubscribe_trees()
        await self.store.close()
        self._loop = None

    def can_continue(self, root: str, run: str) -> bool:
        """Return whether a run of an active tree can have another turn; True for a tree that is being opened."""
        answers = [answer for user in list(self.users) if (answer := user.can_continue(root, run)) is not None]
        return any(answers) or not answers

    async def trees(self, root: str | None = None) -> list[Document]:
        """Return the documents of all trees, or of the one with that root or of that session."""
        await self.open()
        return await self.store.list(TREES) if root is None else await self._find_tree(root)

    async def _find_tree(self, name: str) -> list[Document]:
        document = await self.store.get(TREES, name)
        if document is None:
            await self._index_sessions()
            root, _ = await session_ids.root_of(self.store, name)
            document = await self.store.get(TREES, root) if root else None
        return [document] if document is not None else []

    async def _index_sessions(self) -> None:
        """Register the sessions of older versions, once: from then on each is found by its id."""
        if self._has_indexed:
            return
        trees = list[tuple[Document, Mapping[str, Any]]]()
        for each in await self.store.list(TREES):
            with contextlib.suppress(Damaged):  # The operation that resumes all trees reports it.
                trees.append((each, tree_document(each)))
        await session_ids.register_older(self.store, trees)
        self._has_indexed = True

    async def replay(self, root: str, at: int | None = None) -> TreeReplay:
        """Return the recorded state of a tree, up to an event's number. Raises DamagedTree, also for a newer event."""
        return await replay_tree(self.store, root, at=at)

    async def replay_of(self, run: str, at: int | None = None) -> TreeReplay | None:
        """Return the recorded state of a run's tree, up to an event's number; None if the run is not recorded."""
        await self.open()
        first = await self.store.read(run=run, limit=1)
        return await self.replay(first[0].tree, at) if first else None

    def mark_over(self, root: str, now: datetime, **facts: Any) -> asyncio.Task[None] | None:
        """Note that a tree is over and that no runtime has it any more. Returns the task that does so, if any."""
        self.living.discard(root)
        task = None
        if self.is_open:
            task = asyncio.create_task(self.close_tree(root, now, **facts), name="ramet journal")
            self._closing.add(task)
            task.add_done_callback(partial(self._on_closed, root))
        return task

    def _on_closed(self, root: str, task: asyncio.Task[None]) -> None:
        self._closing.discard(task)
        problem = task.exception() if not task.cancelled() else None
        if problem is not None and not isinstance(problem, OwnedElsewhere):
            _log.warning("tree %s is over, and could not be marked as such: %s", root, problem)

    async def tree_facts(self, root: str) -> dict[str, Any]:
        """Return the recorded facts of a whole tree; an empty dict for an unknown tree. Raises Damaged."""
        document = await self.store.get(TREES, root)
        return tree_document(document, location_of(self.store)) if document is not None else {}

    async def close_tree(self, root: str, now: datetime, **facts: Any) -> None:
        """Mark a tree as over, with more `facts`, and release its ownership. Raises OwnedElsewhere."""
        registered, page = None, self._pages.get(root)
        if page is not None:
            registered, page.registered = page.registered, None
        await change_tree(self.store, root, as_owner=True, known=registered, over=True, ended=now, **facts)
        await self.store.release(root)
        for each in self.over_listeners:
            each(root, now)

    async def reopen_tree(self, root: str) -> bool:
        """Note that a conversation is open again. Returns False if its tree was removed. Raises OwnedElsewhere."""
        if self._closing:
            await asyncio.wait(list(self._closing))  # One of them may close this tree.
        while (document := await self.store.get(TREES, root)) is not None:
            facts = {**msgspec.json.decode(document.data), "over": False, "ended": None}
            if REMOVING in facts:
                return False
            with contextlib.suppress(Conflict):
                await self.store.put(TREES, root, msgspec.json.encode(facts), expected=document.version, tree=root)
                return True
        return False


def tree_document(tree: Document, location: str = "the journal") -> dict[str, Any]:
    """Return the facts in a tree's document. Raises DamagedTree, which names `location` the document is."""
    try:
        return msgspec.json.decode(tree.data, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
        raise DamagedTree(tree.key, location, f"its document is damaged ({problem})") from None


async def change_tree(
    store: Store, root: str, *, as_owner: bool = False, known: Document | None = None, **facts: Any
) -> bool:
    """Write facts into a tree's document, safe against concurrent writers; return False if there is no document.

    With `as_owner` only while this kernel owns the tree. `known` is a version of the document: it is not read then,
    unless somebody has changed it since. Raises OwnedElsewhere.
    """
    document = known or await store.get(TREES, root)
    while document is not None:
        new_facts = {**msgspec.json.decode(document.data), **facts}
        with contextlib.suppress(Conflict):
            tree = root if as_owner else None
            await store.put(TREES, root, msgspec.json.encode(new_facts), expected=document.version, tree=tree)
            return True
        document = await store.get(TREES, root)
    return False


class TreeJournal:
    """The queue of one tree's events for the journal, and the callbacks to call when they are persisted."""

    def __init__(
        self, journal: Journal, publish: Callable[[Event, bytes], None], about: Callable[[], Mapping[str, Any]]
    ) -> None:
        self._journal, self._publish, self._about = journal, publish, about
        self.is_known = False  #: the store has the tree's document, or writes it before the events
        self.registered: Document | None = None  #: the tree's document, as this kernel wrote it first
        self._root = ""
        self._unregistered_entries: list[Entry] = []  #: from before the store was open, and had the tree's document
        #: In order, each with the ticket that it waits for; an event with its line.
        self._waiting_entries: deque[tuple[int, Event | DurableCallback, bytes]] = deque()
        self._newest = 0  #: ticket
        self._failure: RametError | None = None
        self._listening: Callable[[], None] | None = None
        self._flushing: asyncio.Task[None] | None = None
        self._registering: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """The number of entries that are not persisted or not yet processed."""
        return len(self._waiting_entries)

    def append(self, event: Event, line: bytes) -> None:
        """Put an event and its line into the journal's queue.

        Never raises: a caller that needs to know calls `durable`.
        """
        if self._failure is not None:
            return
        if not self._root:
            self._root = event.root
            self._journal._pages[self._root] = self
        entry = Entry(event.root, event.run, event.seq, type(event).__struct_config__.tag, line)  # type: ignore[arg-type]  # every event has a tag
        if not (self._journal.is_open and self.is_known):
            # A spawn that is recorded without its tree would never be found: the tree is registered in the store first.
            self._unregistered_entries.append(entry)
            self._waiting_entries.append((0, event, line))
            if self._journal.is_open:
                self._registration()
            return
        self._flush_early()
        try:
            self._newest = self._journal.store.append(entry)
        except RametError as error:
            return self._fail(error)
        if self._journal.store.committed >= self._newest and not self._waiting_entries:
            self._publish(event, line)
        else:
            self._waiting_entries.append((self._newest, event, line))

    def when_durable(self, do: DurableCallback, hurry: bool = True) -> None:
        """Call a function once all appended events are persisted, or cannot be."""
        if self._failure is not None or not self._waiting_entries:
            return do(self._failure)
        self._waiting_entries.append((self._newest, do, b""))
        if hurry and self._flushing is None:
            self._flushing = asyncio.create_task(self._flush_for_callbacks(), name="ramet journal")

    async def durable(self) -> None:
        """Wait until all appended events are durable. Raises StoreFailed."""
        try:
            await self._journal.open()
            if not self.is_known and self._root:
                await asyncio.shield(self._registration())
            self._flush_early()
            if self._failure is None and self._newest:
                await self._journal.store.durable(self._newest)
        except RametError as error:
            self._fail(error)
        self._raise_failure()

    async def confirm_ownership(self) -> None:
        """Return if the tree is still this kernel's, normally without a wait. Raises StoreFailed."""
        ticket = min(self._newest, self._journal.store.committed)
        if self._failure is None and ticket:
            try:
                await self._journal.store.durable(ticket)
            except RametError as error:
                self._fail(error)
        self._raise_failure()

    def fence(self, error: OwnedElsewhere) -> None:
        """Drop the waiting events: another kernel owns the tree."""
        self._fail(error)

    def close(self) -> None:
        """Stop listening to the store."""
        if self._listening is not None:
            self._listening()
            self._listening = None

    def _raise_failure(self) -> None:
        if isinstance(self._failure, StoreFailed):
            raise StoreFailed(self._failure.where, self._failure.why) from self._failure
        if self._failure is not None:
            raise StoreFailed(self._journal.store.name, str(self._failure)) from self._failure

    def _registration(self) -> asyncio.Task[None]:
        if self._registering is None:
            self._registering = asyncio.create_task(self._register_tree(), name="ramet journal")
        return self._registering

    async def _register_tree(self) -> None:
        """Register the tree in the store, so that other processes find it, and write the events of the tree.

        No event is durable before the tree's document: the store writes in the order of the calls. So one commit is
        enough for both.
        """
        try:
            facts = msgspec.json.encode(self._about())
            writing = asyncio.ensure_future(self._journal.store.put(TREES, self._root, facts, tree=self._root))
            await asyncio.sleep(0)  # The call has begun.
            if writing.done():
                self.registered = writing.result()  # Raises if the store refused it at once.
            self.is_known = True
            self._flush_early()
            self.registered = await writing
        except RametError as error:
            self._fail(error)

    async def _flush_for_callbacks(self) -> None:
        """Have the events written at once while callbacks wait for them."""
        try:
            while any(not isinstance(each, Event) for _, each, _ in self._waiting_entries):
                await self.durable()
        except StoreFailed:
            pass  # The callbacks have received the error.
        except Exception as error:  # A defect. Without an answer, the callers would wait forever.
            _log.exception("tree %s: the journal has failed", self._root)
            self._fail(StoreFailed(self._journal.store.name, f"{type(error).__name__}: {error}"))
        finally:
            self._flushing = None

    def _flush_early(self) -> None:
        if self._failure is not None:
            return
        if self._listening is None:
            self._listening = self._journal.store.on_commit(self._on_committed)
        entries, self._unregistered_entries = self._unregistered_entries, []
        try:
            for entry in entries:
                self._newest = self._journal.store.append(entry)
        except RametError as error:
            return self._fail(error)
        if entries:
            self._waiting_entries = deque(
                (ticket or self._newest, each, line) for ticket, each, line in self._waiting_entries
            )
            self._on_committed(self._journal.store.committed)

    def _on_committed(self, ticket: int) -> None:
        while self._waiting_entries and 0 < self._waiting_entries[0][0] <= ticket:
            _, each, line = self._waiting_entries.popleft()
            if isinstance(each, Event):
                self._publish(each, line)
            else:
                self._call(each, None)

    def _fail(self, error: RametError) -> None:
        """Stop keeping events: call the waiting callbacks with the error, in order; do not publish the lost events."""
        if self._failure is None:
            _log.critical("no more events of tree %s can be recorded: %s", self._root, error)
            self._failure = error
        entries, self._waiting_entries = self._waiting_entries, deque()
        for _, each, _ in entries:
            if not isinstance(each, Event):
                self._call(each, self._failure)

    def _call(self, callback: DurableCallback, error: RametError | None) -> None:
        """Call a callback. Its exception is logged: other callbacks wait behind it."""
        try:
            callback(error)
        except Exception:
            _log.exception("tree %s: a callback of its journal failed", self._root)


def journal_of(working_dir: pathlib.Path | None, store: Store | None) -> Journal | None:
    """Return the journal of a runtime: on `store`, else in its working directory; None if there is neither."""
    if store is not None:
        return Journal(store)
    if working_dir is None:
        return None
    from ramet.store.sqlite.store import SqliteStore

    folder = state_folder(working_dir)
    journal = _shared.get(folder)
    if journal is None:
        journal = _shared[folder] = Journal(SqliteStore(folder / JOURNAL), folder)
    return journal
