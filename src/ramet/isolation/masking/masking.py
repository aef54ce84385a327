"""Masking of secrets in a stream of bytes, wherever the stream is cut into pieces."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

STARS = b"***"


class Span(NamedTuple):
    """A range of bytes."""

    start: int
    end: int


def spans_of(data: bytes, secrets: Iterable[bytes]) -> list[Span]:
    """Return the positions of these secrets, in no order; positions may overlap."""
    spans = []
    for secret in secrets:
        index = data.find(secret)
        while index >= 0:
            spans.append(Span(index, index + len(secret)))
            index = data.find(secret, index + 1)
    return spans


def merge_spans(spans: Iterable[Span]) -> list[Span]:
    """Return the spans in order, with overlapping spans joined."""
    disjoint: list[Span] = []
    for start, end in sorted(spans):
        if disjoint and start < disjoint[-1].end:
            disjoint[-1] = Span(disjoint[-1].start, max(end, disjoint[-1].end))
        else:
            disjoint.append(Span(start, end))
    return disjoint


class Mask:
    """A filter that replaces every range of bytes of a secret by `***`; overlapping secrets make one range.

    Bytes that may begin a secret are held back until more have arrived: at most one byte less than the longest secret.
    The joined output does not depend on the cuts of the stream. This protects against accidents: a guest can
    deliberately print a secret in another form.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        self._secrets = sorted({each.encode(errors="surrogateescape") for each in secrets if each})
        self._longest = max(map(len, self._secrets), default=0)
        self._firsts = re.compile(b"|".join({re.escape(each[:1]) for each in self._secrets}), re.DOTALL)
        self._by_first: dict[int, list[bytes]] = {}
        for each in sorted(self._secrets, key=len, reverse=True):
            self._by_first.setdefault(each[0], []).append(each)
        self._held_bytes = b""
        #: bytes at the beginning of the held bytes that belong to a range whose stars have been output
        self._covered_size = 0

    def feed(self, data: bytes, *, last: bool = False) -> bytes:
        """Return the bytes that may be shown after `data` has arrived; with `last`, all remaining bytes."""
        if not self._secrets:
            return data
        data = self._held_bytes + data
        boundary = len(data) if last else self._beginning(data)
        output = bytearray()
        done = 0  # Everything before this index has been output, plain or as stars.
        for start, end in self._spans(data):
            if start >= boundary:
                break
            output += data[done:start]
            if start or not self._covered_size:
                output += STARS
            done = end
        output += data[done:boundary]
        self._held_bytes, self._covered_size = data[boundary:], max(0, done - boundary)
        return bytes(output)

    def _beginning(self, data: bytes) -> int:
        """Return the position where an incomplete secret may begin; the end of the data if there is none."""
        view = memoryview(data)  # A copy for each position would take the square of the data.
        for first in self._firsts.finditer(data, max(0, len(data) - self._longest + 1)):
            tail = view[first.start() :]
            for secret in self._by_first[tail[0]]:
                if len(secret) <= len(tail):
                    break  # So are the rest: the longest come first.
                if secret.startswith(tail):
                    return first.start()
        return len(data)

    def _spans(self, data: bytes) -> list[Span]:
        """Return the ranges to mask, in order, with overlapping ones joined."""
        covered_spans = [Span(0, self._covered_size)] if self._covered_size else []
        return merge_spans([*covered_spans, *spans_of(data, self._secrets)])
