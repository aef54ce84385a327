"""The answer of one turn in a transport format, also one whose first chunks another kernel sent."""

from __future__ import annotations

from collections.abc import Sequence

from ramet.core.outcome import Usage
from ramet.services.formats.registry import format_of
from ramet.services.formats.request import Stop


class AnswerWriter:
    """A writer for the chunks after `sent_chunks`, whose text is `sent_text`."""

    def __init__(self, format: str, id: str, model: str, created: int, sent_chunks: Sequence[bytes] = ()) -> None:
        """Begin an answer. `created` is in seconds since 1970. Raises Unknown for the format."""
        shape = format_of(format)
        new = shape.Writer(id, model, created)
        first = new.begin()
        self._writer = shape.writer_of(sent_chunks[0]) if sent_chunks else new
        self._first = first[len(sent_chunks) :]
        texts = [shape.text_of(each) for each in sent_chunks[len(first) :]]
        self.sent_text = "".join(texts)
        self._sent_last_count = texts.count("")

    def begin(self) -> Sequence[bytes]:
        """Return the chunks that begin the answer, once."""
        chunks, self._first = self._first, ()
        return chunks

    def text(self, piece: str) -> Sequence[bytes]:
        return self._writer.text(piece) if piece else ()

    def end(self, usage: Usage, stop: Stop = "end") -> Sequence[bytes]:
        return self._writer.end(usage, stop)[self._sent_last_count :]
