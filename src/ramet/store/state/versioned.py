"""A state of a store: values by key with their history, awaited, or synchronous in programs without an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from ramet.concurrency.clock import Clock, SystemClock
from ramet.core.arguments import is_unicode
from ramet.core.errors import InvalidValue
from ramet.store.contract import Store
from ramet.store.memory import MemoryStore
from ramet.store.state import commits
from ramet.store.state.blob_cache import BlobCache
from ramet.store.state.branch import KIND, Branch
from ramet.store.state.commits import Change, Commit
from ramet.store.state.merging import Resolve
from ramet.store.state.sync import run_nowait, without_loop
from ramet.store.state.validation import (
    checked_directory,
    checked_key,
    checked_name,
    checked_prefix,
    display_key,
    entry_key,
)

OnConflict = Literal["retry", "abandon", "merge"]
Mutated = Literal["refuse", "keep", "leave"]


class Versioned:
    """A branch of a state. `Versioned()` is in memory, and needs no event loop; use `open` for all other states.

    A change of a value is visible here at once, and elsewhere after a commit.
    """

    _prefix = ""  #: of all keys: "", or a path and "/"

    def __init__(self, *, author: str = "", clock: Clock | None = None) -> None:
        store = MemoryStore()
        run_nowait(store.open())
        self._line = Branch(BlobCache(store), "state", "main", author=author, clock=clock or SystemClock())
        #: The loop of the store; None for a store without one.
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
        """Open a state of an open store, at a branch's newest commit or at a named one; a missing state is created."""
        working_branch = Branch(BlobCache(store), name, branch, author=author, clock=clock or SystemClock())
        await working_branch.checkout(at)
        return _new_versioned(working_branch, asyncio.get_running_loop())

    @staticmethod
    async def remove_state(store: Store, name: str) -> None:
        """Delete a state with all its branches, readable or not; garbage collection removes unreferenced commits."""
        for document in await store.list(KIND, prefix=f"{checked_name('state', name)}/"):
            await store.delete(KIND, document.key)

    @property
    def name(self) -> str:
        """Return the name of the state."""
        return self._line.name

    @property
    def branch(self) -> str:
        """Return the branch that is followed, or was followed before an older commit was checked out."""
        return self._line.branch

    @property
    def head(self) -> Commit | None:
        """Return the commit that the working copy is based on; None before the first."""
        return self._line.tip.head

    # ---- keys and values

    def set(self, key: str, value: Any, *, as_: Any = None) -> None:
        """Set a key to a copy of a value.

        Raises InvalidValue, with the path inside the value, if it cannot be stored.
        """
        self._line.copy.set_key(self._whole(key), value, as_)

    def get(self, key: str, default: Any = None, *, as_: Any = None) -> Any:
        """Return a new copy of the value, as the type `as_` if given."""
        return self._line.copy.get_key(self._whole(key), default, as_)

    async def read(self, key: str, default: Any = None, *, as_: Any = None) -> Any:
        """Return a new copy of the value like `get`, without blocking other tasks."""
        return await self._line.copy.read_key(self._whole(key), default, as_)

    def remove(self, key: str) -> bool:
        """Remove a key; return False if it had no value."""
        return self._line.copy.remove_key(self._whole(key))

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self._line.copy.has_key(self._whole(key))

    def keys(self, prefix: str = "", *, recursive: bool = True) -> list[str]:
        """Return keys that begin with `prefix`, in order, without those in namespaces below if not `recursive`."""
        full_prefix = self._prefix + checked_prefix(prefix)
        matches = self._line.copy.keys(full_prefix, recursive=recursive, within=len(self._prefix))
        return [key[len(self._prefix) :] for key in matches]

    async def read_keys(self, prefix: str = "", *, recursive: bool = True) -> list[str]:
        """Return keys like `keys`, without blocking other tasks."""
        await self._line.copy.prefetch(self._prefix + checked_prefix(prefix))
        return self.keys(prefix, recursive=recursive)

    # ---- namespaces

    def namespaces(self, *, recursive: bool = False) -> list[str]:
        """Return the paths of the namespaces below that contain keys."""
        matches = self._line.copy.namespaces(self._prefix, recursive=recursive)
        return [path[len(self._prefix) :] for path in matches]

    def remove_namespace(self, path: str) -> int:
        """Remove everything below a path; return the number of keys, including entries of directories."""
        return self._line.copy.remove_below(f"{self._whole(path)}/")

    # ---- directories

    def entry(self, key: str, name: str, default: Any = None, *, as_: Any = None) -> Any:
        """Return one entry of a directory, whose key has a last part like `__this__`."""
        return self._line.copy.get_value(self._entry_key(key, name), default, as_)

    async def read_entry(self, key: str, name: str, default: Any = None, *, as_: Any = None) -> Any:
        """Return one entry like `entry`, without blocking other tasks."""
        return await self._line.copy.read(self._entry_key(key, name), default, as_)

    async def entry_json(self, key: str, name: str) -> bytes | None:
        """Return one entry as its stored JSON; None if there is none."""
        return await self._line.copy.read_json(self._entry_key(key, name))

    def set_entry(self, key: str, name: str, value: Any, *, as_: Any = None) -> None:
        """Set one entry to a copy of a value; other entries stay."""
        self._line.copy.set_entry(self._whole(key), name, value, as_)

    def remove_entry(self, key: str, name: str) -> bool:
        """Remove one entry; return False if it did not exist."""
        return self._line.copy.remove(self._entry_key(key, name))

    def entries(self, key: str, prefix: str = "", limit: int | None = None, *, as_: Any = None) -> Mapping[str, Any]:
        """Return entries whose names begin with `prefix`, in order, up to a limit."""
        return self._line.copy.entries(self._whole(key), prefix, limit, as_)

    # ---- the working copy

    @property
    def is_changed(self) -> bool:
        """Return whether the whole working copy differs from its commit."""
        return bool(self._line.copy.list_unsaved())

    @property
    def unsaved(self) -> list[str]:
        """Return the keys of the whole working copy that differ from its commit; an entry is `key[name]`."""
        return [display_key(cell_key) for cell_key in self._line.copy.list_unsaved()]

    def discard(self) -> None:
        """Undo all uncommitted changes of the whole working copy."""
        self._line.copy.discard()

    def _entry_key(self, key: str, name: str) -> str:
        return entry_key(checked_directory(self._whole(key)), name)

    def _whole(self, key: object) -> str:
        key = checked_key(key)
        try:
            return checked_key(self._prefix + key)
        except InvalidValue:
            raise InvalidValue("key", key, f"a key that is not too long after {self._prefix!r}") from None

    # ---- commits

    async def commit(
        self,
        message: str = "",
        *,
        on_conflict: OnConflict = "retry",
        resolve: Resolve | None = None,
        mutated: Mutated = "refuse",
    ) -> Commit:
        """Write all changes durably, as one commit; return the newest commit if there are none.

        After a concurrent commit: "retry" applies these changes on top of it, and raises MergeConflict if both changed
        a key differently. "merge" calls `resolve(key, base, ours, theirs)` for such keys (MISSING is no value).
        "abandon" drops these changes, moves to the other commit, and raises Conflict.

        `mutated` controls objects that `get` returned and that were changed since: "refuse" raises UnsavedChanges,
        "keep" sets them, "leave" ignores them.
        """
        _check_choice("on_conflict", on_conflict, ("retry", "abandon", "merge"))
        _check_choice("mutated", mutated, ("refuse", "keep", "leave"))
        if (on_conflict == "merge") != (resolve is not None):
            raise InvalidValue("resolve", resolve, "a function with on_conflict='merge', and None otherwise")
        _text("message", message)
        return await self._line.commit(message, on_conflict, resolve, mutated)

    async def checkout(self, commit: Commit | str | None = None) -> Commit | None:
        """Move to a commit, or to the newest of another branch; without an argument to the newest of this branch.

        At a named commit keys may be read and set, but not committed: `fork` makes a branch of it. Raises
        UnsavedChanges and Unknown.
        """
        return await self._line.checkout(commit)

    async def history(self, limit: int = 100) -> Sequence[Commit]:
        """Return the current commit and its ancestors, the newest first."""
        return await self._line.blob_cache.wait(commits.history(self.head, limit))

    async def newest_by(self, moment: datetime) -> Commit | None:
        """Return the newest commit of the history that was made by that moment; None if there is none."""
        return await self._line.blob_cache.wait(commits.find(self.head, lambda each: each.at <= moment))

    async def own_history(self, limit: int = 100, *, most: int = 1_000) -> Sequence[Commit]:
        """Return only commits that changed a key below this path, among the `most` newest of the whole state."""
        return await self._line.blob_cache.wait(commits.history_below(self.head, limit, self._prefix, most))

    async def changed_here(self, commit: Commit) -> bool:
        """Return whether a commit changed a key below this path."""
        return bool(await self._line.blob_cache.wait(commits.history_below(commit, 1, self._prefix, 1)))

    async def before(self, ref: str, *, most: int = 10_000) -> Commit | None:
        """Return the commit with this id if it is among the `most` newest of the branch; None for any other id."""
        head = (await self._line.read_head()).head
        return await self._line.blob_cache.wait(commits.find(head, lambda each: each.id == ref, most))

    async def open_copy(self, branch: str = "", *, at: Commit | str | None = None, author: str = "") -> Versioned:
        """Return another working copy of the state, of a branch or at a commit, with a shared cache. Raises Unknown."""
        working_branch = self._line.other_branch(branch or self.branch, author=author)
        await working_branch.checkout(at)
        return _new_versioned(working_branch, self._loop)

    async def diff(self, before: Commit | str | None, after: Commit | str | None = None) -> Sequence[Change]:
        """Return the differences of two commits or branches; `before` None is empty, `after` None is this one."""
        working_branch = self._line
        first = await working_branch.resolve_ref(before) if before is not None else None
        return await working_branch.diff(
            first, await working_branch.resolve_ref(after) if after is not None else working_branch.tip.head
        )

    async def revert(self, commit: Commit | str, *, resolve: Resolve | None = None, message: str = "") -> Commit:
        """Undo the changes of one commit by a new commit. Raises MergeConflict for keys changed since."""
        undone = await self._line.resolve_ref(commit)
        return await self._line.revert(undone, resolve, message or f"revert {undone.id}")

    @property
    def is_detached(self) -> bool:
        """Return whether the state is at a checked-out commit, and follows no branch."""
        return self._line.is_detached

    async def fork(self, branch: str, *, author: str | None = None, with_changes: bool = False) -> Versioned:
        """Create a branch from the current commit, as a separate state; `with_changes` moves uncommitted changes there.

        Raises Conflict if the branch exists, and UnsavedChanges.
        """
        return _new_versioned(await self._line.fork(branch, author=author, with_changes=with_changes), self._loop)

    async def merge(
        self, other: Versioned | Commit | str, *, resolve: Resolve | None = None, message: str = ""
    ) -> Commit:
        """Merge the changes of another branch, by a commit with two parents; merged commits are not merged again.

        Keys that both changed differently are decided by `resolve(key, base, ours, theirs)`. Raises MergeConflict
        without it.
        """
        if isinstance(other, Versioned):
            if other._line.blob_cache.store is not self._line.blob_cache.store:
                raise InvalidValue("other", other, "a state of the same store")
            if other._line.copy.list_unsaved():
                raise InvalidValue("other", other.unsaved, "a state without uncommitted changes")
            if other.head is None:
                raise InvalidValue("other", other.branch, "a branch with a commit")
            source, other = other.branch, other.head
        else:
            source = other if isinstance(other, str) else other.id
        return await self._line.merge(await self._line.resolve_ref(other), resolve, message or f"merge {source}")

    async def branches(self, prefix: str = "") -> dict[str, str]:
        """Return the id of the newest commit of every branch whose name begins with `prefix`, by branch name."""
        return await self._line.branches(prefix)

    async def delete(self) -> None:
        """Delete the branch.

        Raises Conflict if it has commits not seen here. Garbage collection removes its commits.
        """
        await self._line.delete()

    # ---- without an event loop

    commit_sync = without_loop(commit)
    checkout_sync = without_loop(checkout)
    history_sync = without_loop(history)
    diff_sync = without_loop(diff)
    revert_sync = without_loop(revert)
    fork_sync = without_loop(fork)
    merge_sync = without_loop(merge)
    branches_sync = without_loop(branches)
    delete_sync = without_loop(delete)


def _new_versioned(working_branch: Branch, loop: asyncio.AbstractEventLoop | None) -> Versioned:
    state = Versioned.__new__(Versioned)
    state._line, state._loop = working_branch, loop
    return state


def _check_choice(field: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise InvalidValue(field, value, f"one of {', '.join(known)}")


def _text(field: str, value: object) -> None:
    if not isinstance(value, str) or len(value) > 10_000:
        raise InvalidValue(field, value, "text of at most 10,000 characters")
    if not is_unicode(value):
        raise InvalidValue(field, value, "text that UTF-8 can hold")
