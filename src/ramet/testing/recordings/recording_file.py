"""The file of a recording: lines of JSON, versioned and bounded. The first one names the format, each other a request.

    {"format": "ramet-recording", "version": 1}
    {"request": {"model": "gpt-5", "messages": [{"type": "human", "content": "Hi."}], "tools": ["Read"]},
     "reply": {"chunks": [{"content": "Hel"}, {"content": "lo."}]}}
    {"request": {"model": "gpt-5", "after": 1, "messages": [{"type": "ai", …}, …]}, "reply": {"error": {…}}}

A conversation grows at its end. So a request names the one that it continues, by its number, and has only the messages
after those: the file grows with the conversation, and shows what is new.
"""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage
from msgspec import Struct

from ramet.core.errors import Damaged, InvalidValue, ModelFailed
from ramet.disk.regular_files import read_regular
from ramet.models.call import output_limit
from ramet.models.messages import encode
from ramet.testing.recordings.key_mask import KeyMask
from ramet.testing.recordings.text_replacement import TextReplacement

FORMAT: Final = "ramet-recording"
VERSION: Final = 1
MAX_BYTES: Final = 64 * 1024 * 1024
MAX_REQUESTS: Final = 10_000
#: Messages of all requests together, each as often as it was sent.
MAX_MESSAGES: Final = 5_000_000
#: What ramet reads of the profile of a model.
_PROFILE: Final = ("max_input_tokens", "image_inputs", "pdf_inputs")
#: Fields of a message that are sent to a model. Ids and metadata differ from one process to the next.
_FIELDS_SENT: Final = ("type", "content", "name", "tool_calls", "tool_call_id", "status")

Messages = list[dict[str, Any]]  # messages as data


class Request(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A request to a model. Messages and tools identify it; the rest is for readers."""

    model: str
    messages: Messages  #: in a file only those that follow the messages of request number `after`
    after: int = 0  #: 0: all messages are here
    tools: tuple[str, ...] = ()  #: their names, sorted
    max_tokens: int | None = None  #: of the reply, as asked
    output_limit: int | None = None  #: of the model itself, by which ramet reserves
    profile: dict[
        str, bool | int
    ] = {}  #: of the model: its window, by which ramet compacts, and whether it reads files

    @property
    def key(self) -> bytes:
        """The hash of what identifies the request, of which all messages are here."""
        return _key(_digests(self.messages)[-1], self.tools)


class Failure(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A `ModelFailed` as data."""

    reason: str
    status: int | None = None
    retryable: bool = False
    retry_after_s: float | None = None
    unsent: bool = False

    @classmethod
    def of(cls, error: ModelFailed) -> Failure:
        """Return an error as data."""
        return cls(
            reason=error.reason,
            status=error.status,
            retryable=error.retryable,
            retry_after_s=error.retry_after_s,
            unsent=error.unsent,
        )

    def error(self, model: str) -> ModelFailed:
        """Return the error as it was raised."""
        fields = {name: getattr(self, name) for name in ("status", "retryable", "retry_after_s", "unsent")}
        return ModelFailed(model, self.reason, **fields)


class Reply(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The reply to a request: chunks or a complete message, then an error if it failed, or that it was cancelled."""

    chunks: Messages = []
    message: dict[str, Any] | None = None
    error: Failure | None = None
    cancelled: bool = False


class Exchange(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request and its reply."""

    request: Request
    reply: Reply


class RecordedExchange(NamedTuple):
    """A request with all its messages, its key, and its reply."""

    request: Request
    key: bytes
    reply: Reply


class _Sent(NamedTuple):
    """The messages of a request that was read, and their hash."""

    messages: Messages
    digest: bytes


class _Header(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: str
    version: int


class RecordingWriter:
    """The writer of one recording. An older file of that name is replaced at once, by an empty recording."""

    def __init__(self, path: pathlib.Path, mask: KeyMask, stand_ins: TextReplacement) -> None:
        self.path, self._mask, self._stand_ins = path, mask, stand_ins
        self._count = self._bytes = 0
        self._numbers: dict[bytes, int] = {}  #: of the first request with these messages
        path.parent.mkdir(parents=True, exist_ok=True)
        self._write(msgspec.json.encode(_Header(format=FORMAT, version=VERSION)), os.O_TRUNC)

    def append(self, request: Request, reply: Reply) -> None:
        """Append a request and its reply, with the stand-ins and without keys.

        Raises InvalidValue, and writes nothing, if the file would be too large, if a key would be in it, or if somebody
        else has written to it.
        """
        chunks = self._mask.mask(self._stand_ins.apply(reply.chunks))
        if reply.error is not None:  # Its text may have been cut in the middle of a key.
            error = msgspec.structs.replace(reply.error, reason=self._mask.mask_end(reply.error.reason))
            reply = msgspec.structs.replace(reply, error=error)
        rest = [msgspec.to_builtins(request), msgspec.to_builtins(msgspec.structs.replace(reply, chunks=[]))]
        request_data, reply_data = (self._mask.mask(self._stand_ins.apply([each]))[0] for each in rest)
        masked = msgspec.convert(request_data, Request)
        digests = _digests(masked.messages)
        after, kept = next(
            (
                (self._numbers[digest], at)
                for at, digest in reversed(list(enumerate(digests)))
                if digest in self._numbers
            ),
            (0, 0),
        )
        line = msgspec.json.encode(
            Exchange(
                request=msgspec.structs.replace(masked, messages=masked.messages[kept:], after=after),
                reply=msgspec.structs.replace(msgspec.convert(reply_data, Reply), chunks=chunks),
            )
        )
        self._mask.check(line.decode())
        if self._count == MAX_REQUESTS or self._bytes + len(line) >= MAX_BYTES:
            raise InvalidValue(
                "recording", str(self.path), f"at most {MAX_REQUESTS:,} requests, and {MAX_BYTES:,} bytes"
            )
        self._write(line, os.O_APPEND)
        self._count += 1
        self._numbers.setdefault(digests[-1], self._count)

    def _write(self, line: bytes, flags: int) -> None:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | flags, 0o644)
        with os.fdopen(descriptor, "wb") as file:
            if os.fstat(descriptor).st_size != self._bytes:  # Numbers of requests would lead to others.
                raise InvalidValue("recording", str(self.path), "a file that nobody else writes to")
            file.write(line + b"\n")
        self._bytes += len(line) + 1


def read_recording(path: pathlib.Path) -> list[RecordedExchange]:
    """Return the requests of a recording, with all their messages, and the replies.

    Raises FileNotFoundError, InvalidValue for a file that is not a regular one, too large or of another version, and
    Damaged for a line that cannot be read.
    """
    try:
        # Through links: test runners put data into place by them.
        content = read_regular(path.resolve(strict=True), limit=MAX_BYTES)
    except FileNotFoundError:
        raise
    except OSError as error:
        accepted = f"a regular file of at most {MAX_BYTES:,} bytes ({error.strerror})"
        raise InvalidValue("recording", str(path), accepted) from None
    # Bounded: millions of short lines are not made into objects.
    lines = content.split(b"\n", MAX_REQUESTS + 2)
    if not lines[-1]:  # Behind the end of the last line.
        lines.pop()
    _check_header(path, lines[0] if lines else b"")
    if len(lines) > MAX_REQUESTS + 1:
        raise InvalidValue("recording", str(path), f"at most {MAX_REQUESTS:,} requests")
    return list(_exchanges(path, lines))


def request_of(
    model: BaseChatModel, name: str, messages: Sequence[BaseMessage], tools: Sequence[str], max_tokens: int | None
) -> Request:
    """Return a request to a model as data. Raises InvalidValue if a message is not data."""
    return Request(
        model=name,
        messages=[_sent(message) for message in messages],
        tools=tuple(sorted(tools)),
        max_tokens=max_tokens,
        output_limit=output_limit(model),
        profile={name: value for name in _PROFILE if isinstance(value := (model.profile or {}).get(name), int)},
    )


def _sent(message: BaseMessage) -> dict[str, Any]:
    data = encode(message)
    sent: dict[str, Any] = {name: data[name] for name in _FIELDS_SENT if name in data}
    if invalid := data.get("invalid_tool_calls"):  # Without the parser's text, which is another one in each Python.
        sent["invalid_tool_calls"] = [{name: call[name] for name in ("name", "args", "id")} for call in invalid]
    return sent


def _key(digest: bytes, tools: Sequence[str]) -> bytes:
    return hashlib.sha256(digest + json.dumps(tools).encode()).digest()


def _digests(messages: Messages, before: bytes = b"") -> list[bytes]:
    """Return the hash of the messages `before`, of those and the first one, of those and the first two, and so on."""
    digests = [before]
    for message in messages:
        digests.append(hashlib.sha256(digests[-1] + json.dumps(message, sort_keys=True).encode()).digest())
    return digests


def _check_header(path: pathlib.Path, line: bytes) -> None:
    try:
        header = msgspec.json.decode(line, type=_Header)
    except (msgspec.DecodeError, UnicodeError) as problem:
        raise InvalidValue("recording", str(path), f"a file whose first line names {FORMAT!r} ({problem})") from None
    if (header.format, header.version) != (FORMAT, VERSION):
        raise InvalidValue("recording", f"{header.format} {header.version}", f"{FORMAT} {VERSION}: record it again")


def _exchanges(path: pathlib.Path, lines: list[bytes]) -> Iterator[RecordedExchange]:
    decoder = msgspec.json.Decoder(Exchange)
    sent = [_Sent([], b"")]
    total = 0
    for number, line in enumerate(lines[1:], 2):
        try:
            request, reply = (exchange := decoder.decode(line)).request, exchange.reply
        except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
            raise Damaged("a recording", path, f"line {number}: {problem}") from None
        if not 0 <= request.after < len(sent):
            raise Damaged("a recording", path, f"line {number}: no request {request.after} is above it")
        before = sent[request.after]
        total += len(before.messages) + len(request.messages)
        if total > MAX_MESSAGES:
            raise InvalidValue("recording", str(path), f"requests of at most {MAX_MESSAGES:,} messages in all")
        sent.append(_Sent(before.messages + request.messages, _digests(request.messages, before.digest)[-1]))
        request = msgspec.structs.replace(request, messages=sent[-1].messages, after=0)
        yield RecordedExchange(request, _key(sent[-1].digest, request.tools), reply)
