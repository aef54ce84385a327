"""Secrets taken out of a stream of bytes, wherever its pieces are cut."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

STARS = b"***"


class Span(NamedTuple):
    """A stretch of bytes."""

    start: int
    end: int


def spans_of(data: bytes, secrets: Iterable[bytes]) -> list[Span]:
    """Return where these secrets stand, in no order; places may overlap."""
    found = []
    for secret in secrets:
        at = data.find(secret)
        while at >= 0:
            found.append(Span(at, at + len(secret)))
            at = data.find(secret, at + 1)
    return found


def merged(spans: Iterable[Span]) -> list[Span]:
    """Return the spans in order, those that overlap as one."""
    found: list[Span] = []
    for start, end in sorted(spans):
        if found and start < found[-1].end:
            found[-1] = Span(found[-1].start, max(end, found[-1].end))
        else:
            found.append(Span(start, end))
    return found


class Mask:
    """Puts `***` in place of every stretch of bytes that belongs to a secret; secrets that overlap make one stretch.

    What may be the beginning of a secret is held back until more has come: at most one byte less than the longest has.
    What comes out, put together, does not depend on how the stream was cut. This is against accidents: a guest that
    wants to can print a secret in another form.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        self._secrets = sorted({each.encode(errors="surrogateescape") for each in secrets if each})
        self._longest = max(map(len, self._secrets), default=0)
        self._firsts = re.compile(b"|".join({re.escape(each[:1]) for each in self._secrets}), re.DOTALL)
        self._by_first: dict[int, list[bytes]] = {}
        for each in self._secrets:
            self._by_first.setdefault(each[0], []).append(each)
        self._held = b""
        self._covered = 0  #: bytes at the beginning of what is held that belong to a stretch whose stars are out

    def feed(self, data: bytes, *, last: bool = False) -> bytes:
        """What may be shown now that `data` has come; with `last`, all that is left."""
        if not self._secrets:
            return data
        data = self._held + data
        keep = len(data) if last else self._beginning(data)
        shown = bytearray()
        done = 0  # Everything before it is shown, as it is or as stars.
        for start, end in self._stretches(data):
            if start >= keep:
                break
            shown += data[done:start]
            if start or not self._covered:
                shown += STARS
            done = end
        shown += data[done:keep]
        self._held, self._covered = data[keep:], max(0, done - keep)
        return bytes(shown)

    def _beginning(self, data: bytes) -> int:
        """Where a secret may begin of which there is more to come; the end of the data if nowhere."""
        for first in self._firsts.finditer(data, max(0, len(data) - self._longest + 1)):
            rest = data[first.start() :]
            if any(len(secret) > len(rest) and secret.startswith(rest) for secret in self._by_first[rest[0]]):
                return first.start()
        return len(data)

    def _stretches(self, data: bytes) -> list[Span]:
        """What is to be masked, in order; what overlaps is one."""
        held = [Span(0, self._covered)] if self._covered else []
        return merged([*held, *spans_of(data, self._secrets)])
