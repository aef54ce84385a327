"""Compute the differences between two trees: equal parts have equal names, and are not read."""

from __future__ import annotations

from typing import NamedTuple

from ramet.store.state import nodes
from ramet.store.state.blob_cache import MissingBlob, Steps
from ramet.store.state.nodes import BranchNode, Leaf, Node, position


class Difference(NamedTuple):
    """The cell of a key in one tree and in the other; None if absent."""

    before: bytes | None
    after: bytes | None


_Item = Node | str | None
_NOTHING = Leaf()
_MOST_AT_ONCE = 256


def differences(before: str, after: str) -> Steps[dict[str, Difference]]:
    """Return the cells of all keys that differ between the trees."""
    result: dict[str, Difference] = {}
    pending: list[tuple[_Item, _Item]] = [(before, after)]
    while pending:
        pairs, pending = pending[-_MOST_AT_ONCE:], pending[:-_MOST_AT_ONCE]
        pairs = [(one, other) for one, other in pairs if not (isinstance(one, str) and one == other)]
        names = [item for pair in pairs for item in pair if isinstance(item, str) and item]
        loaded: dict[str | None, Node] = {"": _NOTHING, None: _NOTHING}
        if names:
            loaded |= zip(names, (yield MissingBlob(names, nodes.decode)), strict=True)
        for pair in pairs:
            left, right = (loaded[item] if item is None or isinstance(item, str) else item for item in pair)
            if isinstance(left, Leaf) and isinstance(right, Leaf):
                for key in left.entries.keys() | right.entries.keys():
                    difference = Difference(left.entries.get(key), right.entries.get(key))
                    if difference.before != difference.after:
                        result[key] = difference
            else:
                at = nodes.shared_prefix([*_positions(left), *_positions(right)])
                (left_cell, left_children), (right_cell, right_children) = _expand(left, at), _expand(right, at)
                if left_cell != right_cell:
                    result[nodes.key_at(at)] = Difference(left_cell, right_cell)
                digits = left_children.keys() | right_children.keys()
                pending += [(left_children.get(digit), right_children.get(digit)) for digit in digits]
    return result


def _positions(node: Node) -> list[str]:
    """Return positions that all entries of a node begin with, one for each entry of a leaf."""
    return [node.at] if isinstance(node, BranchNode) else list(map(position, node.entries))


def _expand(node: Node, at: str) -> tuple[bytes | None, dict[str, _Item]]:
    """Return a node as a branch at a position that all its entries begin with: its own cell, and its children."""
    if isinstance(node, BranchNode):
        if node.at != at:
            return None, {node.at[len(at)]: node}
        return node.here, {digit: child.node for digit, child in node.children.items()}
    own_cell: bytes | None = None
    leaves: dict[str, Leaf] = {}
    for key, cell in node.entries.items():
        if (key_digits := position(key)) == at:
            own_cell = cell
        else:
            leaves.setdefault(key_digits[len(at)], Leaf()).entries[key] = cell
    return own_cell, {**leaves}
