"""Walk through a tree of nodes: find a key, scan a prefix, and build a changed tree.

No walk is recursive, because the user's keys determine the depth of a tree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ramet.store.state import nodes
from ramet.store.state.blob_cache import MissingBlob, Steps
from ramet.store.state.nodes import MOST, BranchNode, Child, Leaf, Node, position

EMPTY = ""  #: the root of an empty tree


def find(root: str, key: str) -> Steps[bytes | None]:
    """Return the cell of a key; None if there is none."""
    place = position(key)
    while root:
        (node,) = yield MissingBlob([root], nodes.decode)
        if isinstance(node, Leaf):
            found: bytes | None = node.entries.get(key)
            return found
        if node.at == place:
            here: bytes | None = node.here
            return here
        child = node.children.get(place[len(node.at)]) if place.startswith(node.at) else None
        root = str(child.node) if child else EMPTY
    return None


def scan(root: str, prefix: str = "", *, cut: str = "", limit: int | None = None) -> Steps[dict[str, bytes | None]]:
    """Return cells of the keys that begin with `prefix`, in order, up to a limit.

    With `cut`, keys that contain one of its characters after the prefix are shortened to end with that character. Equal
    shortened keys appear once, without a cell, and the nodes below are not read.
    """
    found: dict[str, bytes | None] = {}
    place = position(prefix)
    todo: list[Node | str] = [root] if root else []

    def take(key: str, kept: bytes) -> None:
        short = shortened(key, len(prefix), cut)
        found[short] = kept if short == key else None

    while todo and (limit is None or len(found) < limit):
        node = todo.pop()
        if isinstance(node, str):
            (node,) = yield MissingBlob([node], nodes.decode)
        if isinstance(node, Leaf):
            for key in sorted(node.entries):
                if key.startswith(prefix) and (limit is None or len(found) < limit):
                    take(key, node.entries[key])
            continue
        if not node.at.startswith(place):
            if place.startswith(node.at) and (child := node.children.get(place[len(node.at)])):
                todo.append(child.node)
            continue
        if cut:
            shared = bytes.fromhex(node.at[: len(node.at) // 2 * 2]).decode(
                errors="ignore"
            )  # may end within a character
            short = shortened(shared, len(prefix), cut)
            if len(short) > len(prefix) and short[-1] in cut:
                found[short] = None
                continue
        if node.here is not None:
            take(nodes.key_at(node.at), node.here)
        children = [str(child.node) for _, child in sorted(node.children.items())]
        if limit is None:  # all children at once; with a limit one after another
            todo += reversed((yield MissingBlob(children, nodes.decode)))
        else:
            todo += reversed(children)
    return found


def shortened(key: str, start: int, cut: str) -> str:
    """Return a key up to and including the first of the characters `cut` after `start`."""
    ends = [end for each in cut if (end := key.find(each, start)) >= 0]
    return key[: min(ends) + 1] if ends else key


class Updated(NamedTuple):
    """A changed tree: its root, and the blobs that the old tree did not have."""

    root: str
    blobs: dict[str, bytes]
    nodes: dict[str, Node]  #: the decoded blobs


def update(root: str, changes: Mapping[str, bytes | None]) -> Steps[Updated]:
    """Return the tree with new cells for some keys, and without the keys whose cell is None."""
    if len(changes) > 1:
        yield from _warm(root, map(position, changes))
    top: Node | str = root
    for key, kept in sorted(changes.items()):
        top = (yield from _changed(top, key, kept)).node
    return _sealed(top)


def _warm(root: str, places: Iterable[str]) -> Steps[None]:
    """Read the nodes on the paths to many keys together, level by level."""
    level = {root: list(places)} if root else {}
    while level:
        found = yield MissingBlob(list(level), nodes.decode)
        below: dict[str, list[str]] = {}
        for node, here in zip(found, level.values(), strict=True):
            if isinstance(node, BranchNode):
                for place in here:
                    if place.startswith(node.at) and (child := node.children.get(place[len(node.at) :][:1])):
                        below.setdefault(str(child.node), []).append(place)
        level = below


def _opened(node: Node | str) -> Steps[Node]:
    """Return a node that may be changed."""
    if not isinstance(node, str):
        return node
    if not node:
        return Leaf()
    (found,) = yield MissingBlob([node], nodes.decode)
    copy: Node = nodes.copied(found)
    return copy


def _changed(top: Node | str, key: str, kept: bytes | None) -> Steps[Child]:
    place, way = position(key), list[tuple[BranchNode, str]]()
    node = yield from _opened(top)
    while isinstance(node, BranchNode):
        if place == node.at:
            node.here = kept
            break
        if not place.startswith(node.at):
            if kept is not None:
                node = _above(node, place, Leaf({key: kept}))
            break
        digit = place[len(node.at)]
        way.append((node, digit))
        below = node.children.get(digit)
        node = yield from _opened(below.node if below else EMPTY)
    else:
        if kept is None:
            node.entries.pop(key, None)
        else:
            node.entries[key] = kept
    settled = yield from _settled(node)
    for parent, digit in reversed(way):
        if settled.many:
            parent.children[digit] = settled
        else:
            parent.children.pop(digit, None)
        settled = yield from _settled(parent)
    return settled


def _above(node: BranchNode, place: str, leaf: Leaf) -> BranchNode:
    """Return a branch of a node and a further entry that does not share the node's prefix."""
    at = _shared(node.at, place)
    branch = BranchNode(at, None, {node.at[len(at)]: Child(nodes.count(node), node)})
    if place == at:
        (branch.here,) = leaf.entries.values()
    else:
        branch.children[place[len(at)]] = Child(1, leaf)
    return branch


def _settled(node: Node) -> Steps[Child]:
    """Return a node after a change in the form that fits its new number of entries."""
    many = nodes.count(node)
    if isinstance(node, Leaf):
        return Child(many, _split(node) if many > MOST else node if many else EMPTY)
    if many <= MOST:
        entries = {} if node.here is None else {nodes.key_at(node.at): node.here}
        for child in node.children.values():
            leaf = yield from _opened(child.node)
            assert isinstance(leaf, Leaf)
            entries |= leaf.entries
        return Child(many, Leaf(entries) if many else EMPTY)
    if node.here is None and len(node.children) == 1:
        return next(iter(node.children.values()))
    return Child(many, node)


def _split(leaf: Leaf) -> BranchNode:
    places = {position(key): key for key in leaf.entries}
    branch = BranchNode(_shared(min(places), max(places)))
    groups: dict[str, dict[str, bytes]] = {}
    for place, key in places.items():
        if place == branch.at:
            branch.here = leaf.entries[key]
        else:
            groups.setdefault(place[len(branch.at)], {})[key] = leaf.entries[key]
    branch.children = {digit: Child(len(entries), Leaf(entries)) for digit, entries in groups.items()}
    return branch


def _shared(one: str, other: str) -> str:
    """Return the common prefix of two positions."""
    for at, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return one[:at]
    return min(one, other, key=len)


def _sealed(top: Node | str) -> Updated:
    """Encode every new node, children first, and name it."""
    if isinstance(top, str):
        return Updated(top, {}, {})
    blobs: dict[str, bytes] = {}
    names: dict[int, str] = {}
    made: dict[str, Node] = {}
    todo: list[tuple[Node, bool]] = [(top, False)]
    while todo:
        node, is_ready = todo.pop()
        if isinstance(node, BranchNode) and not is_ready:
            todo.append((node, True))
            todo += ((child.node, False) for child in node.children.values() if not isinstance(child.node, str))
            continue
        if isinstance(node, BranchNode):
            node.children = {
                digit: child if isinstance(child.node, str) else Child(child.many, names[id(child.node)])
                for digit, child in node.children.items()
            }
        data = nodes.encode(node)
        names[id(node)] = name = nodes.name_of(data)
        blobs[name], made[name] = data, node
    return Updated(names[id(top)], blobs, made)
