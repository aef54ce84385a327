"""What every store promises: a journal that is only appended to, documents that change by compare-and-swap, and blobs.

The **journal** is the truth: events in the order in which they were appended, one writer, group commit. Appending
returns at once with a ticket; whoever promised something awaits `durable(ticket)`. **Documents** hold what changes in
place and is claimed by one winner: schedules, tasks of a board, the list of trees. **Blobs** are bytes by their hash.

**Kernels** may be several on one store, where it is on a server. A tree belongs to one kernel at a time; what another
one writes to it is refused, with OwnedElsewhere, and nothing of that is there. A kernel is alive as long as it holds
its lock there: no clock of a kernel is asked. A store in a file, or in memory, has exactly one.

A store belongs to one event loop. `ramet.testing.conformance.store` is the suite that every store passes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol, Self, runtime_checkable

from ramet.core.errors import OwnedElsewhere, StoreFailed


class Entry(NamedTuple):
    """An event to be appended."""

    tree: str  #: id of the root run
    run: str
    seq: int  #: numbers the events of one tree, without gaps, from 1
    type: str  #: the event's tag
    data: bytes  #: the event as one line of JSON


class StoredEvent(NamedTuple):
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


class DocumentWrite(NamedTuple):
    """A document to be written; `expected` as for `Store.put`.

    A document that was removed and made anew may be of the same version: `over` is what must be in it now as well.
    """

    kind: str
    key: str
    data: bytes
    expected: int | None = None
    over: bytes | None = None


class KernelInfo(NamedTuple):
    """A kernel, as all kernels of a store know it."""

    name: str  #: there is one of a name at a time
    epoch: int  #: how often a kernel of this name began
    address: str  #: where it answers, as it announced it; empty before that, and once it has ended properly
    alive: bool  #: it holds its lock; or the server, which lost all locks, gives it time to come back


class Store(Protocol):
    """One journal with its documents and blobs. Any method may raise StoreFailed, and does once a write has failed."""

    name: str  #: memory | sqlite | postgres; a store of another package has a name of its own
    durable_across_processes: bool
    kernel: str  #: the name of the one that has it open

    async def open(self) -> Self:
        """Begin, as the only writer. Raises StoreInUse (by whom), Damaged (newer, too), StoreFailed; idempotent.

        Before this, and after `close`, everything but `open`, `close` and `committed` raises StoreFailed.
        """

    async def close(self) -> None:
        """Write what was appended, and end; idempotent."""

    # ---- the journal

    def append(self, entry: Entry) -> int:
        """Take an event in, in order, and return its ticket: 1, 2, 3, … since the store was opened. Does not wait.

        It is written soon, whoever is cancelled meanwhile. Raises StoreFailed once the writer has failed. A tree that
        no kernel has becomes this one's; one that was found to be another's raises OwnedElsewhere.
        """

    @property
    def committed(self) -> int:
        """The newest ticket that survives whatever happens now; 0 before the first."""

    async def durable(self, ticket: int) -> None:
        """Return once the entry of this ticket, and so all before it, survives a power cut. Raises StoreFailed.

        A cancelled wait undoes nothing. InvalidValue is raised for a ticket that was not given, and OwnedElsewhere for
        that of an entry which was not written since its tree is another kernel's; those before and behind it are there.
        """

    def on_commit(self, heard: Callable[[int], None]) -> Callable[[], None]:
        """Have `heard` called on the event loop with the newest committed ticket, once per batch; returns the way out.

        It is called before any `durable` that waits for the same batch returns.
        """

    def on_loss(self, heard: Callable[[StoreFailed], None]) -> Callable[[], None]:
        """Have `heard` called on the event loop, once, when this may no longer be the only writer; returns the way out.

        Then what is on record may go on elsewhere: whoever hears of it stops acting on it. A store in memory never
        calls it.
        """

    async def read(
        self, after: int = 0, *, tree: str | None = None, run: str | None = None, limit: int = 1_000
    ) -> list[StoredEvent]:
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

    async def put(
        self, kind: str, key: str, data: bytes, *, expected: int | None = None, tree: str | None = None
    ) -> Document:
        """Write a document; durable when this returns, and everything appended before it is, too.

        `expected` is the version that it must have now, 0 for one that must not exist; else Conflict is raised and
        nothing changed. None writes whatever is there. With a `tree` it is written as its owner, like an event of it:
        OwnedElsewhere is raised, and nothing changed, if another kernel has that.
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

    async def put_together(self, blobs: Sequence[bytes], documents: Sequence[DocumentWrite]) -> Sequence[Document]:
        """Keep bytes and write documents, all of them or none, durable as `put` is; the documents as written.

        Raises Conflict, which names the document, if one is not what was expected: nothing was written then.
        A document that is named twice is an InvalidValue.
        """

    # ---- kernels

    async def kernels(self) -> Sequence[KernelInfo]:
        """This kernel, every other that lives, and those that do not and left trees; in order of their names."""

    async def announce(self, address: str) -> None:
        """Tell all kernels where this one answers, until it ends: any text, such as a URL."""

    def on_kernels(self, heard: Callable[[], None]) -> Callable[[], None]:
        """Have `heard` called on the event loop when `kernels` may say something else; returns the way out.

        Also when this kernel came back to its server, and may have missed something. A kernel that is killed is noticed
        within 2 s, one whose machine is gone within 10 s.
        """

    @property
    def is_away(self) -> bool:
        """Whether this kernel has lost its session with a server, and tries to have one: what is asked waits."""

    async def has_left(self, kernel: str, epoch: int) -> bool:
        """Whether a kernel closed its store in that epoch, and has not begun again: nothing it did is half done."""

    async def owner_of(self, tree: str) -> KernelInfo | None:
        """The kernel that a tree belongs to, alive or not; None for one that is over, let go of, or not known."""

    async def claim(self, trees: Sequence[str]) -> Sequence[str]:
        """Make trees this kernel's: those that are its own, those that no kernel has, and those of dead ones.

        Returns which are its own now; the others belong to kernels that live. Of several that claim one, one gets it.
        """

    async def take_over(
        self, kernel: str, trees: Sequence[str], documents: Sequence[DocumentWrite]
    ) -> Sequence[Document] | None:
        """Claim trees and write documents for a kernel that does not live, in one change; the documents as written.

        `kernel` may be this one, or "" for nobody. None, and nothing was changed, where it lives, or where another one
        that does has one of the trees. Raises Conflict like `put_together`, and nothing was changed, either.
        """

    async def claim_fallen(self, limit: int = 16) -> Sequence[str]:
        """Make trees of dead kernels this one's, at most `limit`, and return them; nothing is left when it is empty.

        Kernels that do this at the same time share them.
        """

    async def let_go(self, tree: str) -> None:
        """Own a tree no longer, durably; idempotent. OwnedElsewhere is not raised: another's stays another's."""

    def on_tree_loss(self, heard: Callable[[OwnedElsewhere], None]) -> Callable[[], None]:
        """Have `heard` called on the event loop once for each tree that became another kernel's; returns the way out.

        It is called before `on_commit` and `durable` tell of the batch in which it was noticed; whoever hears of it
        stops acting on that tree. A store with one kernel never calls it.
        """


def missing_members(store: object) -> tuple[str, ...]:
    """Return the names of what an object lacks to be a store; what is not async has to be there, and no more."""
    members = (*Store.__annotations__, *(name for name in vars(Store) if not name.startswith("_")))
    return tuple(name for name in dict.fromkeys(members) if not _has(store, name))


def _has(store: object, name: str) -> bool:
    promised = inspect.getattr_static(Store, name, None)
    try:
        found = getattr(store, name)
    except Exception:  # A property of a store that is not open may raise: it is there.
        return inspect.getattr_static(store, name, None) is not None
    if inspect.iscoroutinefunction(promised):
        return inspect.iscoroutinefunction(found)
    return not inspect.isfunction(promised) or callable(found)


@runtime_checkable
class Rewritable(Store, Protocol):
    """A store whose events can be replaced. For maintenance alone: a journal is only appended to otherwise."""

    async def rewrite(self, cursor: int, data: bytes) -> None:
        """Replace what the event of a cursor says, for good. An event that is not there is no error."""


@runtime_checkable
class Shrinkable(Store, Protocol):
    """A store in a file, which can become smaller when much was removed."""

    async def shrink(self) -> object:
        """Give room back that nothing is in, in small steps beside whoever writes."""
