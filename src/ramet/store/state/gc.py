"""Find the blobs that states refer to: all commits of all branches, back to the first, with all their data."""

from __future__ import annotations

from collections.abc import Iterable

from ramet.store.contract import Store
from ramet.store.state import commits, nodes
from ramet.store.state.blob_cache import BlobCache, MissingBlob, Steps
from ramet.store.state.branch import KIND, head_in
from ramet.store.state.nodes import Leaf

_AT_ONCE = 256


async def reachable(store: Store) -> set[str]:
    """Return the names of all blobs that a garbage collection must keep. Raises Damaged if one of them is missing."""
    heads = [head_in(document, store) for document in await store.list(KIND)]
    return await BlobCache(store).wait(_walk(heads))


def _walk(heads: Iterable[str]) -> Steps[set[str]]:
    known = set[str]()
    pending, roots = _new(known, heads), list[str]()
    while pending:
        batch, pending = pending[-_AT_ONCE:], pending[:-_AT_ONCE]
        for commit in (yield MissingBlob(batch, commits.read)):
            pending += _new(known, commit.parents)
            roots += _new(known, [commit.root] if commit.root else [])
    while roots:
        batch, roots = roots[-_AT_ONCE:], roots[:-_AT_ONCE]
        for node in (yield MissingBlob(batch, nodes.decode)):
            cells = node.entries.values() if isinstance(node, Leaf) else [node.here or b""]
            known.update(name for cell in cells if (name := nodes.blob_of(cell)))
            if not isinstance(node, Leaf):
                roots += _new(known, [str(child.node) for child in node.children.values()])
    return known


def _new(known: set[str], names: Iterable[str]) -> list[str]:
    added = [name for name in dict.fromkeys(names) if name not in known]
    known.update(added)
    return added
