"""The nodes of the tree that a state's keys are kept in, and the cells that they hold.

The tree is a radix tree over the keys as UTF-8, one half of a byte (a hexadecimal digit) at a time. Up to `MOST`
entries are one leaf; more are a branch at the longest beginning that all of them share, with a child for each digit
that follows. So its form depends on what it holds and on nothing else: equal content has an equal root, whatever came
first, and all keys that begin alike are below one node.

A cell is JSON: `[value]`, or `["<blob>",size]` for a value of more than `INLINE` bytes.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgspec

MOST: Final = 16  #: entries of a leaf
INLINE: Final = 256  #: bytes of JSON that are kept in the leaf itself
_REFERENCE: Final = re.compile(rb'\["([0-9a-f]{64})",\d+\]')
_encode = msgspec.json.Encoder(order="sorted").encode


class Child(NamedTuple):
    """What is below a branch: how many entries, and the name of the blob, or the node while it is new."""

    many: int
    node: str | Leaf | BranchNode


@dataclass(slots=True)
class Leaf:
    """A few entries."""

    entries: dict[str, bytes] = field(default_factory=dict)


@dataclass(slots=True)
class BranchNode:
    """More than a few, which all begin with `at`, in hexadecimal digits; `here` is the cell of the key that is it."""

    at: str
    here: bytes | None = None
    children: dict[str, Child] = field(default_factory=dict)


Node = Leaf | BranchNode


def position(key: str) -> str:
    """Where a key is."""
    return key.encode().hex()


def key_at(place: str) -> str:
    """The key that ends at a position."""
    return bytes.fromhex(place).decode()


def name_of(data: bytes) -> str:
    """The name of a blob."""
    return hashlib.sha256(data).hexdigest()


def encode(node: Node) -> bytes:
    """A node as a blob. Its children have their names."""
    if isinstance(node, Leaf):
        return _encode((0, {key: msgspec.Raw(cell) for key, cell in node.entries.items()}))
    here = None if node.here is None else msgspec.Raw(node.here)
    return _encode((1, node.at, here, node.children))


def decode(data: bytes) -> Node:
    """A node, as it was. Raises ValueError, TypeError or LookupError for what is none."""
    parts = msgspec.json.decode(data, type=list[msgspec.Raw])
    if bytes(parts[0]) == b"0":
        entries = msgspec.json.decode(parts[1], type=dict[str, msgspec.Raw])
        return Leaf({key: bytes(cell) for key, cell in entries.items()})
    at, children = msgspec.json.decode(parts[1], type=str), msgspec.json.decode(parts[3], type=dict[str, _Kept])
    here = None if bytes(parts[2]) == b"null" else bytes(parts[2])
    return BranchNode(at, here, {digit: Child(*kept) for digit, kept in children.items()})


class _Kept(NamedTuple):
    many: int
    node: str


def cell(raw: bytes) -> bytes:
    """The cell of a value as JSON."""
    return b"[%s]" % raw if len(raw) <= INLINE else b'["%s",%d]' % (name_of(raw).encode(), len(raw))


def blob_of(kept: bytes) -> str | None:
    """The name of the blob that a cell points to, if it does."""
    found = _REFERENCE.fullmatch(kept)
    return found[1].decode() if found else None


def inline(kept: bytes) -> bytes:
    """The JSON of a value that is in its cell."""
    return kept[1:-1]


def count(node: Node) -> int:
    """How many entries are in it and below."""
    if isinstance(node, Leaf):
        return len(node.entries)
    return (node.here is not None) + sum(child.many for child in node.children.values())


def copied(node: Any) -> Any:
    """The same, to be changed."""
    if isinstance(node, Leaf):
        return Leaf(dict(node.entries))
    return BranchNode(node.at, node.here, dict(node.children))
