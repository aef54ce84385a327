"""Columns as binary arrays: an append is sent as one statement, and psycopg's own lists cost more per item."""

from __future__ import annotations

from itertools import chain, repeat
from struct import Struct

import psycopg
from psycopg import pq
from psycopg.abc import AdaptContext
from psycopg.adapt import Dumper

_BIGINT, _BYTEA, _TEXT = 20, 17, 25
_EMPTY, _HEAD = Struct(">iiI"), Struct(">iiIii")
_LONG, _LENGTH = Struct(">iq"), Struct(">i")


class Longs(list[int]):
    """A column of bigint."""


class Texts(list[str]):
    """A column of text."""


class Blobs(list[bytes]):
    """A column of bytea."""


class _LongsDumper(Dumper):
    format = pq.Format.BINARY
    oid = 1016

    def dump(self, obj: Longs) -> bytes:
        return _head(_BIGINT, len(obj)) + b"".join(map(_LONG.pack, repeat(8), obj))


class _BlobsDumper(Dumper):
    format = pq.Format.BINARY
    oid = 1001

    def dump(self, obj: Blobs) -> bytes:
        return _lengthy(_BYTEA, obj)


class _TextsDumper(Dumper):
    format = pq.Format.BINARY
    oid = 1009

    def dump(self, obj: Texts) -> bytes:
        return _lengthy(_TEXT, [text.encode() for text in obj])


def _lengthy(element: int, items: list[bytes]) -> bytes:
    lengths = map(_LENGTH.pack, map(len, items))
    return _head(element, len(items)) + b"".join(chain.from_iterable(zip(lengths, items, strict=True)))


def _head(element: int, count: int) -> bytes:
    return _HEAD.pack(1, 0, element, count, 1) if count else _EMPTY.pack(0, 0, element)


def register(context: AdaptContext | psycopg.Connection) -> None:
    """Register the dumpers of these columns on a connection."""
    for column, dumper in ((Longs, _LongsDumper), (Texts, _TextsDumper), (Blobs, _BlobsDumper)):
        assert context.adapters is not None
        context.adapters.register_dumper(column, dumper)
