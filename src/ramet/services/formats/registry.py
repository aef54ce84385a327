"""The formats that ship, by the names that `transport_format` has for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol

from ramet.core.errors import Unknown
from ramet.core.outcome import Usage
from ramet.services.formats import anthropic, openai
from ramet.services.formats.request import Stop


class ResponseWriter(Protocol):
    """Makes the chunks of one answer."""

    def begin(self) -> Sequence[bytes]:
        """An answer begins."""

    def text(self, delta: str) -> Sequence[bytes]:
        """The next piece of it."""

    def end(self, usage: Usage, stop: Stop = "end") -> Sequence[bytes]:
        """It is over, and this was used for it."""


class Format(Protocol):
    """How a message is read and its answer written. The modules of this package are such."""

    def read(self, body: bytes) -> str:
        """What is new in it. Raises InvalidValue naming the field."""

    def check(self, body: bytes) -> None:
        """Refuse a request for what no agent does. Raises InvalidValue, which names the parameter."""

    def wants_stream(self, body: bytes) -> bool:
        """Whether the answer is wanted in pieces. Raises InvalidValue."""

    def Writer(self, id: str, model: str, created: int) -> ResponseWriter:
        """For one answer; `created` in seconds since 1970."""

    def fold(self, chunks: Iterable[bytes]) -> bytes:
        """All chunks of an answer as one object."""

    def text_of(self, chunk: bytes) -> str:
        """What a chunk says of the answer's text; "" for one that begins or ends it."""

    def writer_of(self, chunk: bytes) -> ResponseWriter:
        """Goes on with the answer that this was the first chunk of."""

    def event_name(self, chunk: bytes) -> str:
        """What a stream of events calls it; "" is nothing."""

    def error(self, message: str, status: int, parameter: str = "") -> bytes:
        """A problem as the clients read it; `parameter` is what of the request is wrong."""


FORMATS: Final[Mapping[str, Format]] = {anthropic.NAME: anthropic, openai.NAME: openai}


def format_of(name: str) -> Format:
    """The format of that name. Raises Unknown."""
    if name not in FORMATS:
        raise Unknown("transport format", name, tuple(FORMATS))
    return FORMATS[name]
