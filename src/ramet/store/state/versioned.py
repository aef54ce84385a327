"""A state of a store: values by key with their history, awaited or, in programs without an event loop, not."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Literal

from ramet.concurrency.clock import Clock, SystemClock
from ramet.core.errors import InvalidValue
from ramet.store.contract import Store
from ramet.store.memory import MemoryStore
from ramet.store.state import commits
from ramet.store.state.blob_cache import BlobCache
from ramet.store.state.branch import KIND, Branch
from ramet.store.state.commits import Change, Commit
from ramet.store.state.mapping import Keys
from ramet.store.state.merging import Resolve
from ramet.store.state.sync import done, run_nowait
from ramet.store.state.validation import checked_name

OnConflict = Literal["retry", "abandon", "merge"]
Mutated = Literal["refuse", "keep", "leave"]


class Versioned(Keys):
    """One branch of a state. `Versioned()` lives in memory, and needs no event loop; `open` is for all others."""

    _below = ""

    def __init__(self, *, author: str = "", clock: Clock | None = None) -> None:
        store = MemoryStore()
        run_nowait(store.open())
        self._line = Branch(BlobCache(store), "state", "main", author=author, clock=clock or SystemClock())
        #: In which the store lives; None for one that lives in none.
        self._loop: asyncio.AbstractEventLoop | None = None

    @staticmethod
    async def open(
        store: Store,
        name: str,
        branch: str = "main",
        *,
        at: Commit | str | None = None,
        author: str = "",
        clock: Clock | None = None,
    ) -> Versioned:
        """A state of an open store, at the newest commit of a branch, or at a named one; a new one if there is none."""
        line = Branch(BlobCache(store), name, branch, author=author, clock=clock or SystemClock())
        await line.checkout(at)
        return _made(line, asyncio.get_running_loop())

    @staticmethod
    async def remove_state(store: Store, name: str) -> None:
        """Remove a state with all its branches, read or not; its commits go when nothing holds them."""
        for document in await store.list(KIND, prefix=f"{checked_name('state', name)}/"):
            await store.delete(KIND, document.key)

    @property
    def name(self) -> str:
        """The name of the state."""
        return self._line.name

    @property
    def branch(self) -> str:
        """The branch that is followed, or was before an older commit was checked out."""
        return self._line.branch

    @property
    def head(self) -> Commit | None:
        """The commit that the working copy stands on; None before the first."""
        return self._line.place.head

    async def commit(
        self,
        message: str = "",
        *,
        on_conflict: OnConflict = "retry",
        resolve: Resolve | None = None,
        mutated: Mutated = "refuse",
    ) -> Commit:
        """Write all changes durably, as one; the newest commit if there are none.

        If somebody else committed meanwhile: "retry" puts these changes on theirs, and raises MergeConflict if both
        changed a key differently; "merge" asks `resolve(key, base, ours, theirs)` for those (MISSING is no value);
        "abandon" drops these changes, stands on theirs, and raises Conflict. `mutated` is what becomes of objects that
        `get` returned and that were changed since: "refuse" raises UnsavedChanges, "keep" sets them, "leave" does not.
        """
        _among("on_conflict", on_conflict, ("retry", "abandon", "merge"))
        _among("mutated", mutated, ("refuse", "keep", "leave"))
        if (on_conflict == "merge") != (resolve is not None):
            raise InvalidValue("resolve", resolve, "a function with on_conflict='merge', and None otherwise")
        _text("message", message)
        return await self._line.commit(message, on_conflict, resolve, mutated)

    async def checkout(self, commit: Commit | str | None = None) -> Commit | None:
        """Stand on a commit (or the newest of another branch); without one on the newest of the own branch.

        At a named commit keys may be read and set, and not committed: `fork` makes a branch of it. Raises
        UnsavedChanges, and Unknown.
        """
        return await self._line.checkout(commit)

    async def history(self, limit: int = 100) -> Sequence[Commit]:
        """The commit that this stands on and those before it, the newest first."""
        head = self._line.place.head
        return await self._line.shelf.wait(commits.history(head, limit)) if head is not None else []

    async def own_history(self, limit: int = 100, *, most: int = 1_000) -> Sequence[Commit]:
        """Those commits alone that changed something below this path, among the `most` newest of the whole state."""
        head = self._line.place.head
        if head is None:
            return []
        return await self._line.shelf.wait(commits.history_below(head, limit, self._below, most))

    async def changed_here(self, commit: Commit) -> bool:
        """Return whether a commit changed something below this path."""
        return bool(await self._line.shelf.wait(commits.history_below(commit, 1, self._below, 1)))

    async def before(self, ref: str, *, most: int = 10_000) -> Commit | None:
        """The commit of this id if the branch has it among its `most` newest: not any that somebody made up."""
        head = (await self._line.newest()).head
        return await self._line.shelf.wait(commits.is_before(head, ref, most)) if head is not None else None

    async def beside(self, branch: str = "", *, at: Commit | str | None = None, author: str = "") -> Versioned:
        """Another working copy of the same state, of a branch or at a commit; shares what was read. Raises Unknown."""
        line = self._line.twin(branch or self.branch, author=author)
        await line.checkout(at)
        return _made(line, self._loop)

    async def diff(self, before: Commit | str | None, after: Commit | str | None = None) -> Sequence[Change]:
        """What is different between two commits (or branches); `before` may be None for nothing, `after` for here."""
        line = self._line
        first = await line.found(before) if before is not None else None
        return await line.diff(first, await line.found(after) if after is not None else line.place.head)

    async def revert(self, commit: Commit | str, *, resolve: Resolve | None = None, message: str = "") -> Commit:
        """Undo what one commit changed, by a new one. Raises MergeConflict for keys that were changed since."""
        undone = await self._line.found(commit)
        return await self._line.revert(undone, resolve, message or f"revert {undone.id}")

    @property
    def is_detached(self) -> bool:
        """Whether this is at a commit that was checked out, and follows no branch."""
        return self._line.is_detached

    async def fork(self, branch: str, *, author: str | None = None, with_changes: bool = False) -> Versioned:
        """A new branch from where this stands, as a state of its own; `with_changes` moves what is not committed there.

        Raises Conflict if there is a branch of that name, and UnsavedChanges.
        """
        return _made(await self._line.fork(branch, author=author, with_changes=with_changes), self._loop)

    async def merge(
        self, other: Versioned | Commit | str, *, resolve: Resolve | None = None, message: str = ""
    ) -> Commit:
        """Take in what another branch changed, by a commit with two parents; what is in already is not taken twice.

        Keys that both changed differently go to `resolve(key, base, ours, theirs)`, or raise MergeConflict.
        """
        if isinstance(other, Versioned):
            if other._line.shelf.store is not self._line.shelf.store:
                raise InvalidValue("other", other, "a state of the same store")
            if other._line.copy.unsaved():
                raise InvalidValue("other", other.unsaved, "a state without changes that are in no commit")
            if other.head is None:
                raise InvalidValue("other", other.branch, "a branch with a commit")
            what, other = other.branch, other.head
        else:
            what = other if isinstance(other, str) else other.id
        return await self._line.merge(await self._line.found(other), resolve, message or f"merge {what}")

    async def branches(self, prefix: str = "") -> dict[str, str]:
        """The id of the newest commit of every branch whose name begins like this, by its name."""
        return await self._line.branches(prefix)

    async def delete(self) -> None:
        """Remove the branch; its commits go when nothing holds them. Raises Conflict if it has some not seen here."""
        await self._line.delete()

    # ---- without an event loop

    def commit_sync(self, message: str = "", **settings: Any) -> Commit:
        """`commit`, for programs without an event loop."""
        return done(self.commit(message, **settings), self._loop, "commit")

    def checkout_sync(self, commit: Commit | str | None = None) -> Commit | None:
        """`checkout`, for programs without an event loop."""
        return done(self.checkout(commit), self._loop, "checkout")

    def history_sync(self, limit: int = 100) -> Sequence[Commit]:
        """`history`, for programs without an event loop."""
        return done(self.history(limit), self._loop, "history")

    def diff_sync(self, before: Commit | str | None, after: Commit | str | None = None) -> Sequence[Change]:
        """`diff`, for programs without an event loop."""
        return done(self.diff(before, after), self._loop, "diff")

    def revert_sync(self, commit: Commit | str, **settings: Any) -> Commit:
        """`revert`, for programs without an event loop."""
        return done(self.revert(commit, **settings), self._loop, "revert")

    def fork_sync(self, branch: str, **settings: Any) -> Versioned:
        """`fork`, for programs without an event loop."""
        return done(self.fork(branch, **settings), self._loop, "fork")

    def merge_sync(self, other: Versioned | Commit | str, **settings: Any) -> Commit:
        """`merge`, for programs without an event loop."""
        return done(self.merge(other, **settings), self._loop, "merge")

    def branches_sync(self) -> dict[str, str]:
        """`branches`, for programs without an event loop."""
        return done(self.branches(), self._loop, "branches")

    def delete_sync(self) -> None:
        """`delete`, for programs without an event loop."""
        done(self.delete(), self._loop, "delete")


def _made(line: Branch, loop: asyncio.AbstractEventLoop | None) -> Versioned:
    state = Versioned.__new__(Versioned)
    state._line, state._loop = line, loop
    return state


def _among(field: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise InvalidValue(field, value, f"one of {', '.join(known)}")


def _text(field: str, value: object) -> None:
    if not isinstance(value, str) or len(value) > 10_000:
        raise InvalidValue(field, value, "text of at most 10,000 characters")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidValue(field, value, "text that UTF-8 can hold") from None
