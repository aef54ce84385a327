"""The built-in formats, by their names in `transport_format`, and the answers that are written in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol

from ramet.core.errors import Unknown
from ramet.core.outcome import Usage
from ramet.services.formats import anthropic, openai
from ramet.services.formats.request import Stop


class ResponseWriter(Protocol):
    """A writer for the chunks of one answer."""

    def begin(self) -> Sequence[bytes]:
        """Return the chunks that begin an answer."""

    def text(self, delta: str) -> Sequence[bytes]:
        """Return the chunks with the next piece of text: none for an empty one."""

    def end(self, usage: Usage, stop: Stop = "end") -> Sequence[bytes]:
        """Return the chunks that end the answer, with its usage."""


class Format(Protocol):
    """A transport format: functions to check a request and to write its answer. Modules of this package implement it.

    `ramet.services.formats.request` reads the messages of all formats.
    """

    def check(self, body: bytes, *, files: bool) -> None:
        """Refuse a request for something that no agent does, and `files` for one that reads none.

        Raises InvalidValue, which names the parameter.
        """

    def Writer(self, id: str, model: str, created: int) -> ResponseWriter:
        """Return a writer for one answer; `created` is in seconds since 1970."""

    def fold(self, chunks: Iterable[bytes]) -> bytes:
        """Return all chunks of an answer as one object, for a client that wants no stream."""

    def text_of(self, chunk: bytes) -> str:
        """Return the answer's text in a chunk; "" for a chunk that begins or ends the answer."""

    def writer_of(self, chunk: bytes) -> ResponseWriter:
        """Return a writer that continues the answer with this first chunk."""

    def event_name(self, chunk: bytes) -> str:
        """Return the name of the chunk in a stream of events; "" for no name."""

    def error(self, message: str, status: int, parameter: str = "") -> bytes:
        """Return a problem in the clients' format, for a request or within a stream. `status` is HTTP's.

        `parameter` is the invalid part of the request.
        """


FORMATS: Final[Mapping[str, Format]] = {anthropic.NAME: anthropic, openai.NAME: openai}


def format_of(name: str) -> Format:
    """Return the format of that name. Raises Unknown."""
    if name not in FORMATS:
        raise Unknown("transport format", name, tuple(FORMATS))
    return FORMATS[name]


class AnswerWriter:
    """A writer for the answer of one turn, the first chunks of which another kernel may have sent.

    It writes the chunks after `sent_chunks`. `sent_text` is the text of these.
    """

    def __init__(self, format: str, id: str, model: str, created: int, sent_chunks: Sequence[bytes]) -> None:
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
        return self._first

    def text(self, delta: str) -> Sequence[bytes]:
        return self._writer.text(delta)

    def end(self, usage: Usage, stop: Stop = "end") -> Sequence[bytes]:
        return self._writer.end(usage, stop)[self._sent_last_count :]
