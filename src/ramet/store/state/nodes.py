"""The nodes of the tree that stores a state's keys, and their cells.

The tree is a radix tree over the keys as UTF-8, one half of a byte (a hexadecimal digit) at a time. Up to `MOST`
entries are one leaf. More are a branch at their longest common prefix, with a child for each following digit. So the
shape depends only on the content: equal content has an equal root, in any order of insertion, and all keys with a
common prefix are below one node.

A cell is JSON: `[value]`, or `["<blob>",size]` for a value of more than `INLINE` bytes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgspec

MOST: Final = 16  #: entries of a leaf
INLINE: Final = 256  #: maximum bytes of JSON stored in the leaf itself
_REFERENCE: Final = re.compile(rb'\["([0-9a-f]{64})",\d+\]')
_encode = msgspec.json.Encoder(order="sorted").encode


class Child(NamedTuple):
    """A child of a branch: its number of entries, and its blob's name, or the node while it is new."""

    many: int
    node: str | Leaf | BranchNode


@dataclass(slots=True)
class Leaf:
    """A node with up to `MOST` entries."""

    entries: dict[str, bytes] = field(default_factory=dict)


@dataclass(slots=True)
class BranchNode:
    """A node with more entries, which share the prefix `at` (hexadecimal digits); `here` is the cell of that key."""

    at: str
    here: bytes | None = None
    children: dict[str, Child] = field(default_factory=dict)


Node = Leaf | BranchNode


def position(key: str) -> str:
    """Return the position of a key: its UTF-8 bytes in hexadecimal."""
    return key.encode().hex()


def key_at(place: str) -> str:
    return bytes.fromhex(place).decode()


def shared_prefix(positions: Collection[str]) -> str:
    """Return the longest common prefix of positions."""
    first, last = min(positions), max(positions)
    return next((first[:at] for at, digit in enumerate(first) if last[at] != digit), first)


def name_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def encode(node: Node) -> bytes:
    """Return a node as a blob. Its children must have names."""
    if isinstance(node, Leaf):
        return _encode((0, {key: msgspec.Raw(cell) for key, cell in node.entries.items()}))
    own_cell = None if node.here is None else msgspec.Raw(node.here)
    return _encode((1, node.at, own_cell, node.children))


def decode(data: bytes) -> Node:
    """Return a node from its blob. Raises ValueError, TypeError or LookupError if the data is no node."""
    parts = msgspec.json.decode(data, type=list[msgspec.Raw])
    if bytes(parts[0]) == b"0":
        entries = msgspec.json.decode(parts[1], type=dict[str, msgspec.Raw])
        return Leaf({key: bytes(cell) for key, cell in entries.items()})
    at, children = msgspec.json.decode(parts[1], type=str), msgspec.json.decode(parts[3], type=dict[str, _StoredChild])
    own_cell = None if bytes(parts[2]) == b"null" else bytes(parts[2])
    return BranchNode(at, own_cell, {digit: Child(*pair) for digit, pair in children.items()})


class _StoredChild(NamedTuple):
    many: int
    node: str


def cell(raw: bytes) -> bytes:
    """Return the cell of a value's JSON."""
    return b"[%s]" % raw if len(raw) <= INLINE else b'["%s",%d]' % (name_of(raw).encode(), len(raw))


def blob_of(cell: bytes) -> str | None:
    """Return the name of the blob that a cell refers to; None if the value is inline."""
    match = _REFERENCE.fullmatch(cell)
    return match[1].decode() if match else None


def inline(cell: bytes) -> bytes:
    """Return the JSON of a value that is stored in its cell."""
    return cell[1:-1]


def count(node: Node) -> int:
    """Return the number of entries in a node and below."""
    if isinstance(node, Leaf):
        return len(node.entries)
    return (node.here is not None) + sum(child.many for child in node.children.values())


def copy_node(node: Any) -> Any:
    """Return a copy of a node, which may be changed."""
    if isinstance(node, Leaf):
        return Leaf(dict(node.entries))
    return BranchNode(node.at, node.here, dict(node.children))
