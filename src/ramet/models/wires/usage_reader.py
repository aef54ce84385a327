"""Usage in the bytes of a reply: a stream of server-sent events, or one JSON object, cut anywhere on the way.

The bytes are hostile. An event, or a whole reply, of more than `MAX_EVENT_BYTES` is passed over: it reports nothing.
A number that is negative, fractional, not a number, or above `MAX_TOKENS` makes its report worthless, and so does less
output than the text that was streamed can have: a token of text has at most `MAX_TOKEN_BYTES` bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from ramet.models.wires.contract import MAX_TOKENS

if TYPE_CHECKING:  # LangChain takes 0.4 s to import, and only its type is needed
    from langchain_core.messages.ai import UsageMetadata

#: The largest event that is read. OpenAI's last one repeats the whole reply.
MAX_EVENT_BYTES: Final = 8 * 1024 * 1024
#: Bytes of text in one token: vocabularies have no longer ones, but for runs of blanks.
MAX_TOKEN_BYTES: Final = 128


class InvalidUsage(Exception):
    """A report that cannot be believed."""


class EventFold(Protocol):
    """The reading of the events of a reply in one wire."""

    def add(self, event: Mapping[str, Any]) -> None:
        """Read one event, or a whole reply. May raise anything: the event then counts as unreadable."""

    def usage(self) -> UsageMetadata | None:
        """Return the reported usage. Raises InvalidUsage."""

    @property
    def text_bytes(self) -> int:
        """The bytes of text that were streamed."""


class ReplyUsageReader:
    """A `UsageReader` for one reply."""

    def __init__(self, fold: EventFold, *, is_stream: bool) -> None:
        self._fold, self._is_stream = fold, is_stream
        self._line = bytearray()  #: of the stream, or the whole reply
        self._event = bytearray()  #: the data of the event so far
        self._is_skipping = False  #: the line is too long
        self._is_event_skipped = False

    def feed(self, data: bytes) -> None:
        if not self._is_stream:
            self._add_to_line(data)
            return
        start = 0
        while (end := data.find(b"\n", start)) >= 0:
            self._add_to_line(data[start:end])
            self._end_line()
            start = end + 1
        self._add_to_line(data[start:] if start else data)

    def finish(self) -> UsageMetadata | None:
        if self._is_stream:
            self._end_line()
            self._end_event()
        elif not self._is_skipping:
            self._read_event(bytes(self._line))
        self._line = bytearray()
        try:
            usage = self._fold.usage()
        except Exception:  # Nonsense of a provider: the whole reservation is settled.
            return None
        if usage is None or usage["output_tokens"] * MAX_TOKEN_BYTES < self._fold.text_bytes:
            return None
        return usage

    def _add_to_line(self, data: bytes) -> None:
        if self._is_skipping:
            return
        if len(self._line) + len(data) > MAX_EVENT_BYTES:
            self._is_skipping, self._line = True, bytearray()
        else:
            self._line += data

    def _end_line(self) -> None:
        line, is_skipped = bytes(self._line), self._is_skipping
        if line:
            self._line = bytearray()
        self._is_skipping = False
        if is_skipped:
            self._is_event_skipped, self._event = True, bytearray()
            return
        line = line.removesuffix(b"\r")
        if not line:
            self._end_event()
        elif line.startswith(b"data:") and not self._is_event_skipped:
            if len(self._event) + len(line) > MAX_EVENT_BYTES:
                self._is_event_skipped, self._event = True, bytearray()
            else:
                self._event += line[5:] + b"\n"

    def _end_event(self) -> None:
        event, self._event = bytes(self._event), bytearray()
        if event and not self._is_event_skipped:
            self._read_event(event)
        self._is_event_skipped = False

    def _read_event(self, data: bytes) -> None:
        try:
            event = msgspec.json.decode(data)
            if isinstance(event, dict):
                self._fold.add(event)
        except Exception:
            pass  # Not an event of this wire: it reports nothing.


def count(report: Mapping[str, Any], name: str) -> int:
    """Return a number of tokens; 0 if it is missing or null. Raises InvalidUsage."""
    value = report.get(name)
    if value is None:
        return 0
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_TOKENS:
        raise InvalidUsage(name)
    return value


def details(report: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a part of a report; empty if it is missing or null. Raises InvalidUsage."""
    value = report.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidUsage(name)
    return value


def text_size(value: object) -> int:
    """Return the bytes of a text at least; 0 for anything else."""
    return len(value) if isinstance(value, str) else 0


def arguments_size(value: object) -> int:
    """Return the bytes of the arguments of a call at least: text, or an object; 0 for anything else."""
    return len(msgspec.json.encode(value)) if isinstance(value, dict) else text_size(value)


def make_usage(
    *,
    input_tokens: int,
    output_tokens: int,
    cache_read: int = 0,
    cache_creation: int = 0,
    cache_creation_5m: int = 0,
    cache_creation_1h: int = 0,
    reasoning: int = 0,
) -> UsageMetadata:
    """Return a usage in LangChain's form: `input_tokens` holds the cached ones, and `output_tokens` the reasoning.

    Raises InvalidUsage if a part is larger than its whole, or if there is no input: no request is empty.
    """
    if cache_creation_5m + cache_creation_1h:
        cache_creation = 0
    if cache_read + cache_creation + cache_creation_5m + cache_creation_1h > input_tokens or reasoning > output_tokens:
        raise InvalidUsage("a part is larger than its whole")
    if input_tokens < 1:
        raise InvalidUsage("a request without input")
    cached: dict[str, int] = {
        "cache_read": cache_read,
        "cache_creation": cache_creation,
        "ephemeral_5m_input_tokens": cache_creation_5m,
        "ephemeral_1h_input_tokens": cache_creation_1h,
    }
    return {
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
        "total_tokens": input_tokens + output_tokens,
        "input_token_details": {name: tokens for name, tokens in cached.items() if tokens},  # type: ignore[typeddict-item]  # providers add keys
        "output_token_details": {"reasoning": reasoning} if reasoning else {},
    }
