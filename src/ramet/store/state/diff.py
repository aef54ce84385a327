"""Compute the differences between two trees: equal parts have equal names, and are not read."""

from __future__ import annotations

from collections.abc import Iterator
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
        read = dict(zip(names, (yield MissingBlob(names, nodes.decode)), strict=True)) if names else {}
        for one, other in pairs:
            left, right = (
                read[item]
                if isinstance(item, str) and item
                else item
                if not isinstance(item, str) and item
                else _NOTHING
                for item in (one, other)
            )
            if isinstance(left, Leaf) and isinstance(right, Leaf):
                for key in left.entries.keys() | right.entries.keys():
                    _add_difference(result, key, left.entries.get(key), right.entries.get(key))
            else:
                pending += _expand_pair(left, right, result)
    return result


def _expand_pair(left: Node, right: Node, result: dict[str, Difference]) -> Iterator[tuple[_Item, _Item]]:
    """Yield the pairs to compare next, for two nodes of which at least one is a branch."""
    if isinstance(left, Leaf):
        assert isinstance(right, BranchNode)
        for mine, theirs in _split_leaf(right, left):
            yield theirs, mine
        _compare_rest(left, right, result, is_left=True)
    elif isinstance(right, Leaf):
        yield from _split_leaf(left, right)
        _compare_rest(right, left, result, is_left=False)
    elif left.at == right.at:
        if left.here != right.here:
            _add_difference(result, nodes.key_at(left.at), left.here, right.here)
        for digit in left.children.keys() | right.children.keys():
            yield _child(left, digit), _child(right, digit)
    elif right.at.startswith(left.at):
        yield from _pair_children(left, right, result, is_left=True)
    elif left.at.startswith(right.at):
        for mine, theirs in _pair_children(right, left, result, is_left=False):
            yield theirs, mine
    else:
        yield from _pair_children(left, None, result, is_left=True)
        for mine, theirs in _pair_children(right, None, result, is_left=False):
            yield theirs, mine


def _pair_children(
    wide: BranchNode, narrow: BranchNode | None, result: dict[str, Difference], *, is_left: bool
) -> Iterator[tuple[_Item, _Item]]:
    """Yield each child of a branch with its part of the other node; `narrow` fits into at most one child."""
    if wide.here is not None:
        _add_one_sided(result, nodes.key_at(wide.at), wide.here, is_left=is_left)
    inner_digits = narrow.at[len(wide.at)] if narrow is not None else ""
    for digit in {*wide.children, *inner_digits}:
        yield _child(wide, digit), narrow if digit == inner_digits else None


def _split_leaf(branch: BranchNode, leaf: Leaf) -> Iterator[tuple[_Item, _Item]]:
    """Yield each child of a branch with the entries of a leaf that belong there."""
    parts: dict[str, dict[str, bytes]] = {}
    for key, cell in leaf.entries.items():
        key_digits = position(key)
        if key_digits.startswith(branch.at) and key_digits != branch.at:
            parts.setdefault(key_digits[len(branch.at)], {})[key] = cell
    for digit in branch.children.keys() | parts.keys():
        yield _child(branch, digit), Leaf(parts[digit]) if digit in parts else None


def _compare_rest(leaf: Leaf, branch: BranchNode, result: dict[str, Difference], *, is_left: bool) -> None:
    """Note the entries of a leaf that belong to no child of a branch, and the entry of the branch itself."""
    own_key = nodes.key_at(branch.at) if branch.here is not None else None
    for key, cell in leaf.entries.items():
        if key != own_key and (not (key_digits := position(key)).startswith(branch.at) or key_digits == branch.at):
            _add_one_sided(result, key, cell, is_left=is_left)
    if own_key is not None:
        pair = leaf.entries.get(own_key), branch.here
        _add_difference(result, own_key, *(pair if is_left else pair[::-1]))


def _child(branch: BranchNode, digit: str) -> _Item:
    child = branch.children.get(digit)
    return child.node if child else None


def _add_one_sided(result: dict[str, Difference], key: str, cell: bytes, *, is_left: bool) -> None:
    _add_difference(result, key, *((cell, None) if is_left else (None, cell)))


def _add_difference(result: dict[str, Difference], key: str, before: bytes | None, after: bytes | None) -> None:
    if before != after:
        result[key] = Difference(before, after)
