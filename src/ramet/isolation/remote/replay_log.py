"""The log of a sandbox's channel: the messages that may not be persisted, so that another kernel can get them again.

The machine that keeps a sandbox holds the log, if the sandbox outlives its kernel. A request is kept unchanged until
its answer has arrived; so are a request to watch a child's end, and the final message. A record, which needs no answer,
is kept until an answer shows that it was persisted: the answer to a later request that implies all records before it.
Other data that only the kernel's memory holds is lost with that kernel: changes of a state that are in no commit, or
the beginning of a streamed reply. In that case no kernel can continue the sandbox.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from ramet.core.errors import Gone, ProtocolError
from ramet.wire.frames import MAX_BODY, MAX_CONTROL
from ramet.wire.guest_protocol import message_codec
from ramet.wire.guest_protocol.guest_to_host import (
    DURABLE_REQUESTS,
    Done,
    GuestMessage,
    Record,
    Request,
    UseState,
    Watch,
)
from ramet.wire.guest_protocol.host_to_guest import (
    Answer,
    ChildEnded,
    HostMessage,
    StartConversation,
    StartFunction,
    StreamChunk,
)

MAX_KEPT = 8 * 1024 * 1024  #: bytes of all unanswered messages

_HEADER = struct.Struct("!II")
_CHANGING = frozenset(
    {"set", "remove", "checkout", "merge", "drop"}
)  #: operations that change a working copy, or change a store again if repeated
_SETTLING = frozenset({"commit", "discard"})  #: operations whose answer means that the working copy has no changes left


class _Key(NamedTuple):
    """The identity of a message: its kind, and its number or the run that it is about."""

    kind: str
    of: int | str = 0


class _Mark(NamedTuple):
    """A point in a channel: the number of changes of its state's working copy, and the number of records."""

    changes: int
    records: int


class ChannelLog:
    """The log of one sandbox's channel, from its first message on."""

    def __init__(self) -> None:
        self._output_cutter, self._input_cutter = _Cutter(MAX_KEPT), _Cutter(0)
        self._unanswered_frames: dict[_Key, bytes | None] = {}  #: in the order of sending
        self._size = 0
        self._done = _Mark(0, 0)  #: changes and records so far, which need no answer
        self._persisted_mark = _Mark(0, 0)  #: the part of `_done` that is persisted, or dropped
        self._marks: dict[int, _Mark] = {}  #: by request: the part of `_done` that its answer proves to be persisted
        self._in_pieces: set[int] = set()  #: requests whose answer has arrived in part
        self._has_begun = False  #: the sandbox has received its start message
        self._refusal = ""  #: the reason why no kernel can ever continue it

    def record_output(self, data: bytes) -> None:
        """Record bytes from the sandbox on their way to the kernel."""
        try:
            for control, frame in self._output_cutter.cut(data):
                self._take_output(message_codec.from_guest(control), frame)
        except ProtocolError as violation:  # The kernel ends the sandbox for that.
            self._refusal = str(violation)

    def record_input(self, data: bytes) -> None:
        """Record bytes from the kernel on their way into the sandbox."""
        try:
            for control, _ in self._input_cutter.cut(data):
                self._take_input(message_codec.from_host(control))
        except ProtocolError as violation:
            self._refusal = str(violation)

    def encode_unanswered(self) -> bytes:
        """Return the bytes that another kernel must receive first; later bytes of the sandbox follow them.

        Raises Gone if the sandbox cannot continue without data that only its kernel had.
        """
        if self._refusal:
            raise Gone(self._refusal)
        if not self._has_begun:
            raise Gone("it had not received its start message")
        if self._in_pieces:
            raise Gone("it had received a part of a reply")
        if self._done.changes > self._persisted_mark.changes:
            raise Gone("it had changed its state, and only its kernel knew the changes")
        if self._input_cutter.is_partial:
            raise Gone("it has received half of a message of its kernel")
        frames = [*self._unanswered_frames.values(), self._output_cutter.partial]
        if any(frame is None for frame in frames):
            raise Gone(f"more than {MAX_KEPT >> 20} MiB of its messages were not answered")
        return b"".join(frame for frame in frames if frame is not None)

    def _take_output(self, message: GuestMessage, frame: bytes | None) -> None:
        match message:
            case Request():
                self._mark(message)
                self._keep(_Key("request", message.id), frame)
            case Record():
                self._done = self._done._replace(records=self._done.records + 1)
                self._keep(_Key("record", self._done.records), frame)
            case Watch():
                self._keep(_Key("watch", message.run), frame)
            case Done():
                self._keep(_Key("done"), frame)

    def _take_input(self, message: HostMessage) -> None:
        match message:
            case Answer():
                self._drop(_Key("request", message.id))
                self._in_pieces.discard(message.id)
                mark = self._marks.pop(message.id, None)
                if mark is not None and message.error is None:
                    self._set_persisted(mark)
            case StreamChunk():
                self._in_pieces.add(message.id)
            case ChildEnded():
                self._drop(_Key("watch", message.run))
            case StartFunction() | StartConversation():
                self._has_begun = True

    def _mark(self, request: Request) -> None:
        changes, records = 0, 0
        if isinstance(request, UseState):
            self._done = self._done._replace(changes=self._done.changes + (request.do in _CHANGING))
            changes = self._done.changes if request.do in _SETTLING else 0
        elif isinstance(request, DURABLE_REQUESTS):
            records = self._done.records
        if changes or records:
            self._marks[request.id] = _Mark(changes, records)

    def _set_persisted(self, mark: _Mark) -> None:
        for each in range(self._persisted_mark.records, mark.records):
            self._drop(_Key("record", each + 1))
        self._persisted_mark = _Mark(*map(max, self._persisted_mark, mark))

    def _keep(self, key: _Key, frame: bytes | None) -> None:
        if frame is not None and self._size + len(frame) > MAX_KEPT:
            frame = None
        self._drop(key)
        self._unanswered_frames[key] = frame
        self._size += len(frame or b"")

    def _drop(self, key: _Key) -> None:
        self._size -= len(self._unanswered_frames.pop(key, None) or b"")


class _Cut(NamedTuple):
    """A complete frame: its control part, and all its bytes if they were to be kept."""

    control: bytes
    whole: bytes | None


class _Cutter:
    """A decoder that cuts a byte stream into frames. It keeps a frame's bytes only if there are at most `max_bytes`."""

    def __init__(self, max_bytes: int) -> None:
        self._most = max_bytes
        self._head = bytearray()  #: of the current frame: its header, its control part, and its body if that is kept
        self._lengths: tuple[int, int] | None = None
        self._body_remaining = 0  #: remaining bytes of a body that is not kept

    @property
    def is_partial(self) -> bool:
        """Return whether a frame has begun and not ended."""
        return bool(self._head)

    @property
    def partial(self) -> bytes | None:
        """The received bytes of the current frame; None if they were not kept."""
        return None if self._lengths is not None and not self._keeps_body else bytes(self._head)

    @property
    def _keeps_body(self) -> bool:
        return self._lengths is not None and _HEADER.size + sum(self._lengths) <= self._most

    def cut(self, data: bytes) -> Iterator[_Cut]:
        """Take bytes; yield the frames that they complete. Raises ProtocolError for bytes that begin no frame."""
        position = 0
        while position < len(data):
            position = self._more(data, position)
            if self._lengths is None and len(self._head) == _HEADER.size:
                control, body = self._lengths = _HEADER.unpack(self._head)
                if not 1 <= control <= MAX_CONTROL or body > MAX_BODY:
                    raise ProtocolError("data that announces no frame")
                self._body_remaining = 0 if self._keeps_body else body
            elif self._lengths is not None and not self._missing and not self._body_remaining:
                head, control = bytes(self._head), self._lengths[0]
                kept_frame = head if self._keeps_body else None
                self._head.clear()
                self._lengths = None
                yield _Cut(head[_HEADER.size : _HEADER.size + control], kept_frame)

    @property
    def _missing(self) -> int:
        """The number of bytes that the head still needs."""
        if self._lengths is None:
            return _HEADER.size - len(self._head)
        control, body = self._lengths
        return _HEADER.size + control + (body if self._keeps_body else 0) - len(self._head)

    def _more(self, data: bytes, position: int) -> int:
        """Take the available bytes of the current frame; return the position of the rest."""
        if missing := self._missing:
            end = min(len(data), position + missing)
            self._head += data[position:end]
            return end
        end = min(len(data), position + self._body_remaining)
        self._body_remaining -= end - position
        return end
