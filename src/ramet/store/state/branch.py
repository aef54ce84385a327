"""A branch of a state, followed by one working copy: writes, and detection of concurrent commits.

A branch is a document that names its newest commit, and is changed by compare-and-swap. Everything else is blobs, named
by the hash of their content. So a commit writes the changed values and the few nodes above them, and a fork writes one
document. A writer that loses the race is told before any of its data is written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

import msgspec

from ramet.concurrency.clock import Clock
from ramet.core.errors import Conflict, Damaged, InvalidValue, MergeConflict, Unknown, UnsavedChanges
from ramet.store.contract import Document, DocumentWrite, Store
from ramet.store.state import commits, merging, nodes, tree
from ramet.store.state.blob_cache import BlobCache
from ramet.store.state.commits import Change, Commit
from ramet.store.state.diff import Difference, differences
from ramet.store.state.merging import Resolve
from ramet.store.state.validation import checked_name, display_key, is_commit, split_cell_key
from ramet.store.state.working_copy import WorkingCopy

KIND = "state"  #: of the documents of branches


class BranchHead(NamedTuple):
    """The position of a branch: its newest commit, and its document's version; None and 0 before the first commit."""

    head: Commit | None
    version: int

    @property
    def root(self) -> str:
        """Return the root of the tree of its keys."""
        return self.head.root if self.head is not None else tree.EMPTY


class Branch:
    """A branch of a state as last read, with changes that are not committed yet."""

    def __init__(self, blob_cache: BlobCache, name: str, branch: str, *, author: str, clock: Clock) -> None:
        self.blob_cache, self.name, self.branch = (
            blob_cache,
            checked_name("state", name),
            checked_name("branch", branch),
        )
        self.author, self._clock = author, clock
        self.tip = BranchHead(None, 0)
        self.is_detached = False  #: at a checked-out commit, not following its branch
        self.copy = WorkingCopy(blob_cache, tree.EMPTY)
        self._turn = asyncio.Lock()

    def other_branch(self, branch: str, *, author: str | None = None) -> Branch:
        """Return another branch of the same state, at the same commit, without changes."""
        author = self.author if author is None else author
        other = Branch(self.blob_cache, self.name, branch, author=author, clock=self._clock)
        other.tip = BranchHead(self.tip.head, 0)
        other.copy.root = self.tip.root
        return other

    # ---- going there

    async def checkout(self, ref: Commit | str | None) -> Commit | None:
        """Move to a commit, or with None to the newest of the branch. Raises UnsavedChanges and Unknown."""
        async with self._turn:
            self._require_saved("checkout")
            tip = await self.read_head() if ref is None else BranchHead(await self.resolve_ref(ref), 0)
            self._require_saved("checkout")  # nor changes set meanwhile
            self.is_detached = ref is not None
            self._move_to(tip)
            return tip.head

    async def read_head(self) -> BranchHead:
        document = await self.blob_cache.store.get(KIND, self._key())
        if document is None:
            return BranchHead(None, 0)
        return BranchHead(
            await self.blob_cache.wait(commits.load(head_in(document, self.blob_cache.store))), document.version
        )

    async def resolve_ref(self, ref: Commit | str) -> Commit:
        """Return the commit of an id, or the newest of a branch.

        Raises Unknown, and InvalidValue for another state's.
        """
        if isinstance(ref, str) and not is_commit(ref):
            document = await self.blob_cache.store.get(KIND, self._key(checked_name("branch", ref)))
            if document is None:
                raise Unknown("branch", ref, tuple(await self.branches()))
            ref = head_in(document, self.blob_cache.store)
        id = ref.id if isinstance(ref, Commit) else ref
        if not await self.blob_cache.store.get_blobs([id]):
            raise Unknown("commit", id)
        commit = await self.blob_cache.wait(commits.load(id))
        if commit.state != self.name:
            raise InvalidValue("commit", id, f"one of the state {self.name!r}; this is one of {commit.state!r}")
        return commit

    # ---- writing

    async def commit(self, message: str, on_conflict: str, resolve: Resolve | None, mutated: str) -> Commit:
        """Write the changes as a commit. Raises Conflict, MergeConflict, UnsavedChanges."""
        async with self._turn:
            if self.is_detached:
                why = "this is at an older commit, which no branch points to"
                remedy = "fork(branch, with_changes=True) makes a branch of it; discard() and checkout() go back"
                raise UnsavedChanges(tuple(self.copy.changes), why, remedy)
            self.copy.settle_mutations(mutated)
            own_changes, tip = dict(self.copy.changes), self.tip
            decisions: dict[str, bytes | None] = {}
            while True:
                changes = {**own_changes, **decisions}
                tree_update = await self.blob_cache.wait(tree.update(tip.root, changes))
                if tree_update.root == tip.root and tip.head is not None:
                    break
                try:
                    tip = await self._write(tip, tree_update, self._blobs(changes), (), message)
                    break
                except Conflict:
                    tip = await self._after_conflict()
                    theirs = await self.blob_cache.wait(differences(self.tip.root, tip.root))
                    decisions = await self._resolve_conflicts(tip, own_changes, theirs, on_conflict, resolve)
            self._clear_committed(tip, own_changes)
            assert tip.head is not None
            return tip.head

    async def _resolve_conflicts(
        self,
        tip: BranchHead,
        own_changes: Mapping[str, bytes | None],
        theirs: Mapping[str, Difference],
        on_conflict: str,
        resolve: Resolve | None,
    ) -> dict[str, bytes | None]:
        """Return the resolved values for our changes.

        Raises Conflict, and drops our changes, if `on_conflict` is "abandon".
        """
        if on_conflict == "abandon":
            self.copy.discard()
            expected = self.tip.version
            self._move_to(tip)
            raise Conflict(KIND, self._key(), expected=expected, found=tip.version)
        ours = {
            cell_key: Difference(theirs[cell_key].before if cell_key in theirs else None, cell)
            for cell_key, cell in own_changes.items()
        }
        return await self._merge_changes(ours, theirs, resolve if on_conflict == "merge" else None, tip.version)

    async def merge(self, other: Commit, resolve: Resolve | None, message: str) -> Commit:
        """Merge the changes of another branch since the common base. Raises MergeConflict, UnsavedChanges."""
        async with self._turn:
            self._require_saved("merge")
            self._require_attached("merge")

            async def merge_head(tip: BranchHead) -> BranchHead:
                base = None
                if tip.head is not None:
                    base = await self.blob_cache.wait(commits.merge_base(tip.head, other))
                if base is not None and base.id == other.id:  # It is merged already: once is enough.
                    return tip
                root = base.root if base else tree.EMPTY
                return await self._three_way(tip, root, other.root, resolve, message, (other,))

            return await self._update_head(merge_head)

    async def revert(self, undone: Commit, resolve: Resolve | None, message: str) -> Commit:
        """Undo the changes of one commit by a new commit. Raises MergeConflict, UnsavedChanges."""
        async with self._turn:
            self._require_saved("revert")
            self._require_attached("revert")
            base_root = tree.EMPTY
            if undone.parents:
                base_root = (await self.blob_cache.wait(commits.load(undone.parents[0]))).root
            return await self._update_head(
                lambda place: self._three_way(place, undone.root, base_root, resolve, message, ())
            )

    async def _update_head(self, change: Callable[[BranchHead], Awaitable[BranchHead]]) -> Commit:
        """Make a change on top of the newest commit, with retries after concurrent commits. Raises MergeConflict."""
        tip = self.tip
        while True:
            try:
                tip = await change(tip)
                break
            except MergeConflict:
                raise
            except Conflict:
                tip = await self._after_conflict()
        # Changes set meanwhile stay, on top of the commit.
        self.tip, self.copy.root = tip, tip.root
        assert tip.head is not None
        return tip.head

    async def _three_way(
        self,
        tip: BranchHead,
        base: str,
        their_root: str,
        resolve: Resolve | None,
        message: str,
        parents: tuple[Commit, ...],
    ) -> BranchHead:
        ours = await self.blob_cache.wait(differences(base, tip.root))
        theirs = await self.blob_cache.wait(differences(base, their_root))
        decisions = await self._merge_changes(ours, theirs, resolve, tip.version)
        changes = {**{cell_key: each.after for cell_key, each in theirs.items()}, **decisions}
        tree_update = await self.blob_cache.wait(tree.update(tip.root, changes))
        if tree_update.root == tip.root and tip.head is not None and not parents:
            return tip
        return await self._write(tip, tree_update, self._blobs(changes), parents, message)

    async def _merge_changes(
        self,
        ours: Mapping[str, Difference],
        theirs: Mapping[str, Difference],
        resolve: Resolve | None,
        version: int,
    ) -> dict[str, bytes | None]:
        keys = merging.conflicts(ours, theirs)
        if keys and resolve is None:
            raise MergeConflict(
                KIND, self._key(), tuple(map(display_key, keys)), expected=self.tip.version, found=version
            )
        return await merging.resolve_conflicts(self.copy, resolve, ours, theirs) if resolve is not None else {}

    async def _write(
        self,
        tip: BranchHead,
        tree_update: tree.TreeUpdate,
        blobs: list[bytes],
        parents: tuple[Commit, ...],
        message: str,
    ) -> BranchHead:
        """Write a new commit. Raises Conflict if another commit was written first."""
        commit_parents = (*((tip.head,) if tip.head else ()), *parents)
        commit, data = commits.finalize(
            Commit(
                state=self.name,
                parents=tuple(each.id for each in commit_parents),
                height=1 + max((each.height for each in commit_parents), default=0),
                root=tree_update.root,
                at=self._clock.now(),
                message=message,
                author=self.author,
            )
        )
        expected_data = _head_document(tip.head) if tip.version and tip.head is not None else None
        head = DocumentWrite(KIND, self._key(), _head_document(commit), tip.version, expected_data)
        (document,) = await self.blob_cache.store.put_together([*blobs, *tree_update.blobs.values(), data], [head])
        for name, blob in tree_update.blobs.items():
            self.blob_cache.keep(name, tree_update.nodes[name], blob)
        self.blob_cache.keep(commit.id, commit, data)
        return BranchHead(commit, document.version)

    async def fork(self, branch: str, *, author: str | None, with_changes: bool) -> Branch:
        """Create a branch here. Raises Conflict if the name is taken, and UnsavedChanges."""
        async with self._turn:
            if not with_changes:
                self._require_saved("fork", " or fork(branch, with_changes=True)")
            twin = self.other_branch(branch, author=author)
            if self.tip.head is None:
                self.tip = await self._write(self.tip, tree.TreeUpdate(tree.EMPTY, {}, {}), [], (), "")
                twin.tip = BranchHead(self.tip.head, 0)
            assert self.tip.head is not None
            document = await self.blob_cache.store.put(KIND, twin._key(), _head_document(self.tip.head), expected=0)
            twin.tip = BranchHead(self.tip.head, document.version)
            if with_changes:
                twin.copy.changes, twin.copy.blobs = dict(self.copy.changes), dict(self.copy.blobs)
                self.copy.discard()
            return twin

    async def delete(self) -> None:
        """Delete the branch. Raises Conflict if it has commits that were not seen here."""
        async with self._turn:
            await self.blob_cache.store.delete(
                KIND, self._key(), expected=None if self.is_detached else self.tip.version
            )

    # ---- looking

    async def branches(self, begins: str = "") -> dict[str, str]:
        """Return the newest commit of every branch whose name begins with `begins`, by name."""
        prefix = f"{self.name}/"
        documents = await self.blob_cache.store.list(KIND, prefix=prefix + begins)
        return {document.key[len(prefix) :]: head_in(document, self.blob_cache.store) for document in documents}

    async def diff(self, before: Commit | None, after: Commit | None) -> list[Change]:
        """Return the differences between two commits, in the order of keys."""
        roots = [each.root if each is not None else tree.EMPTY for each in (before, after)]
        changed_cells = await self.blob_cache.wait(differences(*roots))
        return [
            Change(
                *split_cell_key(cell_key),
                *[await merging.value_of_cell(self.copy, cell_key, cell) for cell in changed_cells[cell_key]],
            )
            for cell_key in sorted(changed_cells)
            if not merging.is_directory_mark(cell_key, changed_cells[cell_key])
        ]

    # ---- inside

    def _key(self, branch: str | None = None) -> str:
        return f"{self.name}/{branch or self.branch}"

    def _blobs(self, changes: Mapping[str, bytes | None]) -> list[bytes]:
        """Return the large values among the changes that are not in the store yet."""
        names = {name for cell in changes.values() if cell is not None and (name := nodes.blob_of(cell))}
        return [self.copy.blobs[name] for name in names if name in self.copy.blobs]

    async def _after_conflict(self) -> BranchHead:
        """Return the new position of the branch.

        Raises Conflict if the branch was deleted or replaced by another one.
        """
        tip, old_head = await self.read_head(), self.tip.head
        is_descendant = tip.head is not None and (
            old_head is None or await self.blob_cache.wait(commits.merge_base(tip.head, old_head)) == old_head
        )
        if not is_descendant:
            raise Conflict(KIND, self._key(), expected=self.tip.version, found=tip.version)
        return tip

    def _move_to(self, tip: BranchHead) -> None:
        self.tip = tip
        self.copy.root = tip.root
        self.copy.discard()

    def _clear_committed(self, tip: BranchHead, committed_cells: Mapping[str, bytes | None]) -> None:
        """Remove the written changes from the working copy; changes set meanwhile stay."""
        self.tip, copy = tip, self.copy
        copy.root = tip.root
        copy.changes = {
            cell_key: cell for cell_key, cell in copy.changes.items() if committed_cells.get(cell_key, b"") != cell
        }
        if not copy.changes:
            copy.blobs.clear()

    def _require_saved(self, action: str, hint: str = "") -> None:
        unsaved_keys = self.copy.list_unsaved()
        changed_keys = [each.cell_key for each in self.copy.tracker.find_changed()]
        if unsaved_keys or changed_keys:
            keys = tuple(map(display_key, dict.fromkeys([*unsaved_keys, *changed_keys])))
            raise UnsavedChanges(keys, f"{action} with uncommitted changes", f"commit() or discard() first{hint}")

    def _require_attached(self, action: str) -> None:
        if self.is_detached:
            remedy = "checkout() goes back to the branch, fork(branch) makes one here"
            raise UnsavedChanges((), f"{action} at an older commit, which no branch points to", remedy)


def head_in(document: Document, store: Store) -> str:
    """Return the id of the newest commit in the document of a branch. Raises Damaged."""
    try:
        return msgspec.json.decode(document.data, type=dict[str, str])["head"]
    except (msgspec.MsgspecError, KeyError) as error:
        raise Damaged("a state", store.name, f"the branch {document.key!r}: {error}") from None


def _head_document(head: Commit) -> bytes:
    """Return the document of a branch whose newest commit is `head`."""
    return b'{"head":"%s"}' % head.id.encode()
