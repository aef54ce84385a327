"""Secrets taken out of a stream of bytes, wherever its pieces are cut."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

_STARS = b"***"


class _Span(NamedTuple):
    start: int
    end: int


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
                shown += _STARS
            done = end
        shown += data[done:keep]
        self._held, self._covered = data[keep:], max(0, done - keep)
        return bytes(shown)

    def _beginning(self, data: bytes) -> int:
        """Where a secret may begin of which there is more to come; the end of the data if nowhere."""
        for first in self._firsts.finditer(data, max(0, len(data) - self._longest + 1)):
            rest = data[first.start() :]
            if any(len(secret) > len(rest) and secret.startswith(rest) for secret in self._secrets):
                return first.start()
        return len(data)

    def _stretches(self, data: bytes) -> list[_Span]:
        """What is to be masked, in order; what overlaps is one."""
        found = [_Span(0, self._covered)] if self._covered else []
        for secret in self._secrets:
            at = data.find(secret)
            while at >= 0:
                found.append(_Span(at, at + len(secret)))
                at = data.find(secret, at + 1)
        merged: list[_Span] = []
        for start, end in sorted(found):
            if merged and start < merged[-1].end:
                merged[-1] = _Span(merged[-1].start, max(end, merged[-1].end))
            else:
                merged.append(_Span(start, end))
        return merged
