"""Walk through a tree of nodes: find a key, scan a prefix, and build a changed tree.

No walk is recursive, because the user's keys determine the depth of a tree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ramet.store.state import nodes
from ramet.store.state.blob_cache import MissingBlob, Steps
from ramet.store.state.nodes import MOST, BranchNode, Child, Leaf, Node, position, shared_prefix

EMPTY = ""  #: the root of an empty tree


def find(root: str, key: str) -> Steps[bytes | None]:
    """Return the cell of a key; None if there is none."""
    key_digits = position(key)
    while root:
        (node,) = yield MissingBlob([root], nodes.decode)
        if isinstance(node, Leaf):
            cell: bytes | None = node.entries.get(key)
            return cell
        if node.at == key_digits:
            own_cell: bytes | None = node.here
            return own_cell
        child = node.children.get(key_digits[len(node.at)]) if key_digits.startswith(node.at) else None
        root = str(child.node) if child else EMPTY
    return None


def scan(root: str, prefix: str = "", *, cut: str = "", limit: int | None = None) -> Steps[dict[str, bytes | None]]:
    """Return cells of the keys that begin with `prefix`, in order, up to a limit.

    With `cut`, keys that contain one of its characters after the prefix are shortened to end with that character. Equal
    shortened keys appear once, without a cell, and the nodes below are not read.
    """
    result: dict[str, bytes | None] = {}
    prefix_digits = position(prefix)
    pending: list[Node | str] = [root] if root else []

    def take(key: str, cell: bytes) -> None:
        short_key = shorten_key(key, len(prefix), cut)
        result[short_key] = cell if short_key == key else None

    while pending and (limit is None or len(result) < limit):
        node = pending.pop()
        if isinstance(node, str):
            (node,) = yield MissingBlob([node], nodes.decode)
        if isinstance(node, Leaf):
            for key in sorted(node.entries):
                if key.startswith(prefix) and (limit is None or len(result) < limit):
                    take(key, node.entries[key])
            continue
        if not node.at.startswith(prefix_digits):
            if prefix_digits.startswith(node.at) and (child := node.children.get(prefix_digits[len(node.at)])):
                pending.append(child.node)
            continue
        if cut:
            shared_prefix = bytes.fromhex(node.at[: len(node.at) // 2 * 2]).decode(
                errors="ignore"
            )  # may end within a character
            shared_key = shorten_key(shared_prefix, len(prefix), cut)
            if len(shared_key) > len(prefix) and shared_key[-1] in cut:
                result[shared_key] = None
                continue
        if node.here is not None:
            take(nodes.key_at(node.at), node.here)
        children = [str(child.node) for _, child in sorted(node.children.items())]
        if limit is None:  # all children at once; with a limit one after another
            pending += reversed((yield MissingBlob(children, nodes.decode)))
        else:
            pending += reversed(children)
    return result


def shorten_key(key: str, start: int, cut: str) -> str:
    """Return a key up to and including the first of the characters `cut` after `start`."""
    positions = [end for each in cut if (end := key.find(each, start)) >= 0]
    return key[: min(positions) + 1] if positions else key


class TreeUpdate(NamedTuple):
    """A changed tree: its root, and the blobs that the old tree did not have."""

    root: str
    blobs: dict[str, bytes]
    nodes: dict[str, Node]  #: the decoded blobs


def update(root: str, changes: Mapping[str, bytes | None]) -> Steps[TreeUpdate]:
    """Return the tree with new cells for some keys, and without the keys whose cell is None."""
    if len(changes) > 1:
        yield from _load_paths(root, map(position, changes))
    root_node: Node | str = root
    for key, cell in sorted(changes.items()):
        root_node = (yield from _change_key(root_node, key, cell)).node
    return _encode_new_nodes(root_node)


def _load_paths(root: str, places: Iterable[str]) -> Steps[None]:
    """Read the nodes on the paths to many keys together, level by level."""
    level = {root: list(places)} if root else {}
    while level:
        loaded = yield MissingBlob(list(level), nodes.decode)
        children: dict[str, list[str]] = {}
        for node, group in zip(loaded, level.values(), strict=True):
            if isinstance(node, BranchNode):
                for place in group:
                    if place.startswith(node.at) and (child := node.children.get(place[len(node.at) :][:1])):
                        children.setdefault(str(child.node), []).append(place)
        level = children


def _load_node(node: Node | str) -> Steps[Node]:
    """Return a node that may be changed."""
    if not isinstance(node, str):
        return node
    if not node:
        return Leaf()
    (loaded,) = yield MissingBlob([node], nodes.decode)
    copy: Node = nodes.copy_node(loaded)
    return copy


def _change_key(root_node: Node | str, key: str, cell: bytes | None) -> Steps[Child]:
    key_digits, path = position(key), list[tuple[BranchNode, str]]()
    node = yield from _load_node(root_node)
    while isinstance(node, BranchNode):
        if key_digits == node.at:
            node.here = cell
            break
        if not key_digits.startswith(node.at):
            if cell is not None:
                node = _branch_above(node, key_digits, Leaf({key: cell}))
            break
        digit = key_digits[len(node.at)]
        path.append((node, digit))
        child = node.children.get(digit)
        node = yield from _load_node(child.node if child else EMPTY)
    else:
        if cell is None:
            node.entries.pop(key, None)
        else:
            node.entries[key] = cell
    reduced_child = yield from _normalise(node)
    for parent, digit in reversed(path):
        if reduced_child.many:
            parent.children[digit] = reduced_child
        else:
            parent.children.pop(digit, None)
        reduced_child = yield from _normalise(parent)
    return reduced_child


def _branch_above(node: BranchNode, key_digits: str, leaf: Leaf) -> BranchNode:
    """Return a branch of a node and a further entry that does not share the node's prefix."""
    at = shared_prefix([node.at, key_digits])
    branch = BranchNode(at, None, {node.at[len(at)]: Child(nodes.count(node), node)})
    if key_digits == at:
        (branch.here,) = leaf.entries.values()
    else:
        branch.children[key_digits[len(at)]] = Child(1, leaf)
    return branch


def _normalise(node: Node) -> Steps[Child]:
    """Return a node after a change in the form that fits its new number of entries."""
    count = nodes.count(node)
    if isinstance(node, Leaf):
        return Child(count, _split(node) if count > MOST else node if count else EMPTY)
    if count <= MOST:
        entries = {} if node.here is None else {nodes.key_at(node.at): node.here}
        for child in node.children.values():
            leaf = yield from _load_node(child.node)
            assert isinstance(leaf, Leaf)
            entries |= leaf.entries
        return Child(count, Leaf(entries) if count else EMPTY)
    if node.here is None and len(node.children) == 1:
        return next(iter(node.children.values()))
    return Child(count, node)


def _split(leaf: Leaf) -> BranchNode:
    keys_by_digits = {position(key): key for key in leaf.entries}
    branch = BranchNode(shared_prefix(keys_by_digits))
    groups: dict[str, dict[str, bytes]] = {}
    for key_digits, key in keys_by_digits.items():
        if key_digits == branch.at:
            branch.here = leaf.entries[key]
        else:
            groups.setdefault(key_digits[len(branch.at)], {})[key] = leaf.entries[key]
    branch.children = {digit: Child(len(entries), Leaf(entries)) for digit, entries in groups.items()}
    return branch


def _encode_new_nodes(root_node: Node | str) -> TreeUpdate:
    """Encode every new node, children first, and name it."""
    if isinstance(root_node, str):
        return TreeUpdate(root_node, {}, {})
    blobs: dict[str, bytes] = {}
    names: dict[int, str] = {}
    new_nodes: dict[str, Node] = {}
    pending: list[tuple[Node, bool]] = [(root_node, False)]
    while pending:
        node, is_ready = pending.pop()
        if isinstance(node, BranchNode) and not is_ready:
            pending.append((node, True))
            pending += ((child.node, False) for child in node.children.values() if not isinstance(child.node, str))
            continue
        if isinstance(node, BranchNode):
            node.children = {
                digit: child if isinstance(child.node, str) else Child(child.many, names[id(child.node)])
                for digit, child in node.children.items()
            }
        data = nodes.encode(node)
        names[id(node)] = name = nodes.name_of(data)
        blobs[name], new_nodes[name] = data, node
    return TreeUpdate(names[id(root_node)], blobs, new_nodes)
