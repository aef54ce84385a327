"""The contract of every store: an append-only journal, documents changed by compare-and-swap, and blobs.

The **journal** is the source of truth: events in the order of their appends, one writer, group commit. An append
returns at once with a ticket. A caller that promises something awaits `durable(ticket)`. **Documents** hold data that
changes in place and is claimed by one winner: schedules, tasks of a board, the list of trees. **Blobs** are bytes,
named by their hash.

Several **kernels** may use one store if it is on a server. A tree belongs to one kernel at a time. A write by another
kernel is refused with OwnedElsewhere, and nothing of it is stored. A kernel is alive as long as it holds its lock in
the store; no kernel's clock is used. A store in a file, or in memory, has exactly one kernel.

A store belongs to one event loop. `ramet.testing.conformance.store` is the suite that every store passes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol, Self, TypeVar, runtime_checkable

import msgspec

from ramet.core.errors import Damaged, OwnedElsewhere, StoreFailed

T = TypeVar("T")


class Entry(NamedTuple):
    """An event to append."""

    tree: str  #: id of the root run
    run: str
    seq: int  #: numbers the events of a tree from 1, without gaps
    type: str  #: the event's tag
    data: bytes  #: the event as one line of JSON


class StoredEvent(NamedTuple):
    """A stored event."""

    cursor: int  #: orders all events of a store; increases, may have gaps
    tree: str
    run: str
    seq: int
    type: str
    data: bytes


class Document(NamedTuple):
    """A record that changes in place; `version` counts its changes from 1."""

    kind: str
    key: str
    version: int
    data: bytes

    def decode(self, type: type[T], decode: Callable[..., T] = msgspec.json.decode) -> T:
        """Return the data as a value of a type. Raises Damaged."""
        try:
            return decode(self.data, type=type)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
            raise Damaged(self.kind, self.key, str(problem)) from None


class DocumentWrite(NamedTuple):
    """A document to write; `expected` as for `Store.put`.

    A document that was deleted and created again may have the same version: `over` is the data that it must also have
    now.
    """

    kind: str
    key: str
    data: bytes
    expected: int | None = None
    over: bytes | None = None


class KernelInfo(NamedTuple):
    """A kernel, as seen by all kernels of a store."""

    name: str  #: one kernel per name at a time
    epoch: int  #: number of times a kernel of this name began
    address: str  #: address that the kernel announced; empty before that, and after a clean end
    alive: bool  #: it holds its lock; or the server lost all locks, and grants it time to reconnect


class Store(Protocol):
    """A journal with its documents and blobs. Any method may raise StoreFailed, and does after a failed write."""

    name: str  #: memory | sqlite | postgres; a store of another package has its own name
    durable_across_processes: bool
    kernel: str  #: name of the kernel that has the store open

    async def open(self) -> Self:
        """Open the store as its only writer. Idempotent.

        Raises StoreInUse, with the holder, if another process has it open, Damaged if it is damaged or too new, and
        StoreFailed. Before this, and after `close`, every member except `open`, `close` and `committed` raises
        StoreFailed.
        """

    async def close(self) -> None:
        """Write every appended event, and close the store; idempotent."""

    # ---- the journal

    def append(self, entry: Entry) -> int:
        """Add an event, in order, and return its ticket: 1, 2, 3, … since the store was opened. Does not wait.

        The event is written soon, even if the caller is cancelled. Raises StoreFailed if the writer has failed. A tree
        that no kernel owns becomes this kernel's. Raises OwnedElsewhere if the tree is known to be another kernel's.
        """

    @property
    def committed(self) -> int:
        """Return the newest ticket that survives every crash; 0 before the first."""

    async def durable(self, ticket: int) -> None:
        """Return once the entry of this ticket, and all before it, survives a power cut. Raises StoreFailed.

        A cancelled wait changes nothing. Raises InvalidValue if the ticket was never returned. Raises OwnedElsewhere if
        the entry was not written because its tree is another kernel's; the entries before and after it are stored.
        """

    def on_commit(self, listener: Callable[[int], None]) -> Callable[[], None]:
        """Call `listener` with the newest committed ticket, once per batch; return a function that stops this.

        The call happens on the event loop, before any `durable` that waits for the same batch returns.
        """

    def on_loss(self, listener: Callable[[StoreFailed], None]) -> Callable[[], None]:
        """Call `listener` once when this store can write nothing more, or may not be the only writer.

        The call happens on the event loop. Another kernel may then continue the recorded work, so the listener must
        stop acting on it. A store in memory never calls `listener`. Returns a function that stops this.
        """

    async def read(
        self, after: int = 0, *, tree: str | None = None, run: str | None = None, limit: int = 1_000
    ) -> list[StoredEvent]:
        """Return committed events in order of their cursors, from the first after `after`; at most `limit`."""

    async def head(self) -> int:
        """Return the cursor of the newest committed event; 0 if there is none."""

    async def wait(self, after: int, *, timeout_s: float | None = None) -> bool:
        """Wait until any process has written an event after `after`, and return True; return False at the timeout."""

    async def forget(self, tree: str) -> int:
        """Remove every event of a tree permanently; return their number."""

    # ---- documents

    async def get(self, kind: str, key: str) -> Document | None:
        """Return the newest version; None if the document does not exist."""

    async def list(self, kind: str, *, prefix: str = "") -> list[Document]:
        """Return all documents of a kind whose keys begin with `prefix`, in order of their keys."""

    async def put(
        self, kind: str, key: str, data: bytes, *, expected: int | None = None, tree: str | None = None
    ) -> Document:
        """Write a document; it and all earlier appends are durable when this returns.

        An entry that is appended once the call has begun is not durable before the document, unless the call is
        refused.

        `expected` is the version that the document must have, 0 if it must not exist. Otherwise Conflict is raised and
        nothing changes. None writes in any case. With a `tree` the document is written by the tree's owner, like an
        event. Raises OwnedElsewhere, and changes nothing, if another kernel owns the tree.
        """

    async def delete(self, kind: str, key: str, *, expected: int | None = None) -> bool:
        """Delete a document; return False if there was none. Raises Conflict like `put`."""

    # ---- blobs

    async def put_blob(self, data: bytes) -> str:
        """Store bytes durably; return their name, the SHA-256 of the content in hex."""

    async def get_blob(self, name: str) -> bytes | None:
        """Return the bytes with this name; None if there are none."""

    async def get_blobs(self, names: Sequence[str]) -> Mapping[str, bytes]:
        """Return the bytes of these names, in one query; unknown names are omitted."""

    def get_blobs_now(self, names: Sequence[str]) -> Mapping[str, bytes]:
        """Return the bytes of these names, from any thread, without awaiting. Blocks: use it for a few small blobs."""

    async def list_blobs(self) -> Sequence[str]:
        """Return the names of all blobs."""

    async def delete_blob(self, name: str) -> bool:
        """Delete a blob; return False if there was none."""

    # ---- both

    async def put_together(self, blobs: Sequence[bytes], documents: Sequence[DocumentWrite]) -> Sequence[Document]:
        """Store blobs and write documents, all or none, durably like `put`; return the documents as written.

        Raises Conflict, with the document, if one does not have its expected version; nothing is written then. Raises
        InvalidValue if a document is named twice.
        """

    # ---- kernels

    async def kernels(self) -> Sequence[KernelInfo]:
        """Return this kernel, all other live ones, and dead ones that left trees; in order of their names."""

    async def announce(self, address: str) -> None:
        """Publish this kernel's address to all kernels, until it ends: any text, such as a URL."""

    def on_kernels(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` on the event loop when `kernels` may have changed; return a function that stops this.

        The call also happens after this kernel has reconnected to its server, because it may have missed a change. A
        killed kernel is noticed within 2 s, and a lost machine within 10 s.
        """

    @property
    def is_away(self) -> bool:
        """Return whether this kernel lost its session with a server and is reconnecting: calls wait meanwhile."""

    async def has_closed(self, kernel: str, epoch: int) -> bool:
        """Return whether a kernel closed its store in that epoch, finished its work, and has not begun again."""

    async def owner_of(self, tree: str) -> KernelInfo | None:
        """Return the kernel that owns a tree, alive or not; None if the tree has ended, was released, or is unknown."""

    async def claim(self, trees: Sequence[str]) -> Sequence[str]:
        """Claim trees: this kernel's own, trees without a kernel, and trees of dead kernels.

        Returns the trees that this kernel owns now; live kernels own the others. If several kernels claim a tree, one
        gets it.
        """

    async def take_over(
        self, kernel: str, trees: Sequence[str], documents: Sequence[DocumentWrite]
    ) -> Sequence[Document] | None:
        """Claim trees and write documents for a dead kernel, in one change; return the documents as written.

        `kernel` may be this one, or "" for none. Returns None, and changes nothing, if `kernel` is alive or if another
        live kernel owns one of the trees. Raises Conflict like `put_together`, and then changes nothing either.
        """

    async def claim_orphaned(self, limit: int = 16) -> Sequence[str]:
        """Claim at most `limit` trees of dead kernels, and return them; an empty result means that none are left.

        Kernels that call this concurrently share the trees.
        """

    async def release(self, tree: str) -> None:
        """Release a tree durably; idempotent. A tree of another kernel is left unchanged, without OwnedElsewhere."""

    def on_tree_loss(self, listener: Callable[[OwnedElsewhere], None]) -> Callable[[], None]:
        """Call `listener` on the event loop for each tree that became another kernel's; return a function that stops
        this.

        The call happens once per tree, before `on_commit` and `durable` report the batch in which the loss was noticed.
        The listener must stop acting on that tree. A store with one kernel never calls `listener`.
        """


def missing_members(store: object) -> tuple[str, ...]:
    """Return the names of the members that an object lacks to be a store.

    A member that is not async must only exist.
    """
    members = (*Store.__annotations__, *(name for name in vars(Store) if not name.startswith("_")))
    return tuple(name for name in dict.fromkeys(members) if not _has(store, name))


def _has(store: object, name: str) -> bool:
    declaration = inspect.getattr_static(Store, name, None)
    try:
        member = getattr(store, name)
    except Exception:  # A property of a store that is not open may raise: the member exists.
        return inspect.getattr_static(store, name, None) is not None
    if inspect.iscoroutinefunction(declaration):
        return inspect.iscoroutinefunction(member)
    return not inspect.isfunction(declaration) or callable(member)


@runtime_checkable
class Rewritable(Store, Protocol):
    """A store whose events can be replaced. For maintenance only: a journal is otherwise append-only."""

    async def rewrite(self, cursor: int, data: bytes) -> None:
        """Replace the data of the event at a cursor, permanently. A missing event is no error."""


@runtime_checkable
class Shrinkable(Store, Protocol):
    """A store in a file, which can shrink after much was removed."""

    async def shrink(self) -> object:
        """Release unused space, in small steps, concurrently with writers."""
