"""Readings of a text with resolved escapes, and the position of each of their bytes in the original text.

Programs escape different characters, in different cases and several times over. A secret is found in a reading however
it was escaped.
"""

from __future__ import annotations

import bisect
import html
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from ramet.isolation.masking.masking import Span

_Resolve = Callable[[re.Match[bytes]], bytes]

_LETTERS = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"f": b"\f"}
_DEPTH = 3  #: the maximum number of nested escapes


class UnescapedText(NamedTuple):
    """A text with its escapes resolved."""

    data: bytes
    starts: list[int]  #: of each resolved escape, in `data`
    ends: list[int]
    spans: list[Span]  #: the escape itself, in the text

    def in_text(self, span: Span) -> Span:
        """Return the position of bytes of `data` in the text, with escapes as a whole."""
        return Span(self._of_byte(span.start).start, self._of_byte(span.end - 1).end)

    def _of_byte(self, offset: int) -> Span:
        index = bisect.bisect_right(self.starts, offset) - 1
        if index < 0:
            return Span(offset, offset + 1)
        if offset < self.ends[index]:
            return self.spans[index]
        start = self.spans[index].end + offset - self.ends[index]
        return Span(start, start + 1)


def _percent(match: re.Match[bytes]) -> bytes:
    return bytes.fromhex(match[1].decode())


def _escape(match: re.Match[bytes]) -> bytes:
    if match[1]:
        return bytes.fromhex(match[1].decode())
    if match[2]:
        return chr(int(match[2], 16)).encode("utf-8", "surrogatepass")
    return _LETTERS.get(match[3], match[3])


def _reference(match: re.Match[bytes]) -> bytes:
    return html.unescape(match[0].decode()).encode("utf-8", "surrogatepass")


def _nothing(_: re.Match[bytes]) -> bytes:
    return b""


_PERCENT = re.compile(rb"%([0-9a-fA-F]{2})")
_ESCAPE = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|([nrtbf\"'/\\]))")
_REFERENCE = re.compile(rb"&(?:#x[0-9a-fA-F]{1,6}|#[0-9]{1,7}|amp|lt|gt|quot|apos);")
_BREAK = re.compile(rb"(?:\\{1,8}[rn]|[\r\n])+")


def readings_of(data: bytes) -> Iterator[tuple[bytes, Callable[[Span], Span]]]:
    """Yield each reading that differs from the text, with a function from its positions to positions in the text."""
    for pattern, resolve, depth in (
        (_PERCENT, _percent, _DEPTH),
        (_ESCAPE, _escape, _DEPTH),
        (_REFERENCE, _reference, 1),
        (_BREAK, _nothing, 1),
    ):
        chain: list[UnescapedText] = []
        text = data
        while len(chain) < depth and (reading := _resolve_matches(text, pattern, resolve)) is not None:
            chain.append(reading)
            text = reading.data

            def in_text(span: Span, chain: tuple[UnescapedText, ...] = tuple(chain)) -> Span:
                for each in reversed(chain):
                    span = each.in_text(span)
                return span

            yield text, in_text


def _resolve_matches(data: bytes, pattern: re.Pattern[bytes], resolve: _Resolve) -> UnescapedText | None:
    output, done = bytearray(), 0
    reading = UnescapedText(b"", [], [], [])
    for match in pattern.finditer(data):
        output += data[done : match.start()]
        reading.starts.append(len(output))
        output += resolve(match)
        reading.ends.append(len(output))
        reading.spans.append(Span(*match.span()))
        done = match.end()
    return reading._replace(data=bytes(output + data[done:])) if done else None
