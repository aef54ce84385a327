"""What every store promises: a journal that is only appended to, documents that change by compare-and-swap, and blobs.

The **journal** is the truth: events in the order in which they were appended, one writer, group commit. Appending
returns at once with a ticket; whoever promised something awaits `durable(ticket)`. **Documents** hold what changes in
place and is claimed by one winner: schedules, tasks of a board, the list of trees. **Blobs** are bytes by their hash.

A store belongs to one event loop. `ramet.store.conformance` is the suite that every store passes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol, Self

from ramet.core.errors import StoreFailed


class Entry(NamedTuple):
    """An event to be appended."""

    tree: str  #: id of the root run
    run: str
    seq: int  #: numbers the events of one tree, without gaps, from 1
    type: str  #: the event's tag
    data: bytes  #: the event as one line of JSON


class Stored(NamedTuple):
    """An event as it is read back."""

    cursor: int  #: orders all events of a store; grows, may have gaps
    tree: str
    run: str
    seq: int
    type: str
    data: bytes


class Document(NamedTuple):
    """Something that changes in place; `version` counts its changes from 1."""

    kind: str
    key: str
    version: int
    data: bytes


class Put(NamedTuple):
    """A document to be written; `expected` as for `Store.put`.

    A document that was removed and made anew may be of the same version: `over` is what must be in it now as well.
    """

    kind: str
    key: str
    data: bytes
    expected: int | None = None
    over: bytes | None = None


class Store(Protocol):
    """One journal with its documents and blobs. Any method may raise StoreFailed, and does once a write has failed."""

    name: str  #: memory | sqlite | postgres
    durable_across_processes: bool

    async def open(self) -> Self:
        """Begin, as the only writer. Raises StoreInUse (by whom), Damaged (newer, too), StoreFailed; idempotent.

        Before this, and after `close`, everything but `open`, `close` and `committed` raises StoreFailed.
        """

    async def close(self) -> None:
        """Write what was appended, and end; idempotent."""

    # ---- the journal

    def append(self, entry: Entry) -> int:
        """Take an event in, in order, and return its ticket: 1, 2, 3, … since the store was opened. Does not wait.

        It is written soon, whoever is cancelled meanwhile. Raises StoreFailed once the writer has failed.
        """

    @property
    def committed(self) -> int:
        """The newest ticket that survives whatever happens now; 0 before the first."""

    async def durable(self, ticket: int) -> None:
        """Return once the entry of this ticket, and so all before it, survives a power cut. Raises StoreFailed.

        A cancelled wait undoes nothing. InvalidValue is raised for a ticket that was not given.
        """

    def on_commit(self, heard: Callable[[int], None]) -> Callable[[], None]:
        """Have `heard` called on the event loop with the newest committed ticket, once per batch; returns the way out.

        It is called before any `durable` that waits for the same batch returns.
        """

    def on_loss(self, heard: Callable[[StoreFailed], None]) -> Callable[[], None]:
        """Have `heard` called on the event loop, once, when this may no longer be the only writer; returns the way out.

        Then what is on record may go on elsewhere: whoever hears of it stops acting on it. A store whose lock lasts as
        long as its process never calls it.
        """

    async def read(
        self, after: int = 0, *, tree: str | None = None, run: str | None = None, limit: int = 1_000
    ) -> list[Stored]:
        """Committed events in order of their cursors, from the first behind `after`; at most `limit`."""

    async def head(self) -> int:
        """The cursor of the newest committed event; 0 without any."""

    async def wait(self, after: int, *, timeout_s: float | None = None) -> bool:
        """Return True once an event behind `after` is there, whichever process wrote it; False when the time is up."""

    async def forget(self, tree: str) -> int:
        """Remove every event of a tree, for good; says how many."""

    # ---- documents

    async def get(self, kind: str, key: str) -> Document | None:
        """The newest version, if there is one."""

    async def list(self, kind: str, *, prefix: str = "") -> list[Document]:
        """All of a kind whose keys begin like this, in order of their keys."""

    async def put(self, kind: str, key: str, data: bytes, *, expected: int | None = None) -> Document:
        """Write a document; durable when this returns, and everything appended before it is, too.

        `expected` is the version that it must have now, 0 for one that must not exist; else Conflict is raised and
        nothing changed. None writes whatever is there.
        """

    async def delete(self, kind: str, key: str, *, expected: int | None = None) -> bool:
        """Remove a document; False if there was none. Raises Conflict like `put`."""

    # ---- blobs

    async def put_blob(self, data: bytes) -> str:
        """Keep bytes, durably; their name is the SHA-256 of their content, in hex."""

    async def get_blob(self, name: str) -> bytes | None:
        """The bytes of that name."""

    async def get_blobs(self, names: Sequence[str]) -> Mapping[str, bytes]:
        """The bytes of these names, in one look; names that stand for nothing are left out."""

    def get_blobs_now(self, names: Sequence[str]) -> Mapping[str, bytes]:
        """The same without awaiting, from any thread: for a few small blobs, since the thread waits meanwhile."""

    async def list_blobs(self) -> Sequence[str]:
        """The names of all blobs."""

    async def delete_blob(self, name: str) -> bool:
        """Remove one; False if there was none."""

    # ---- both

    async def put_together(self, blobs: Sequence[bytes], documents: Sequence[Put]) -> Sequence[Document]:
        """Keep bytes and write documents, all of them or none, durable as `put` is; the documents as written.

        Raises Conflict, which names the document, if one is not what was expected: nothing was written then.
        A document that is named twice is an InvalidValue.
        """
