"""What was said on a sandbox's channel and may be on no record: enough to say it again to another kernel.

The machine that keeps a sandbox has it, where it outlives the kernel. A request is kept until its answer has come, word
for word; so is the wish to hear of a child's end, and the last word. What needs no answer and goes on record is kept
until something is answered that was asked later, and whose answer says that all before it is there. What an agent has
besides in its kernel's memory alone goes with that kernel: changes of a state that are in no commit, or the beginning
of a reply that it was told piece by piece. Then nobody can go on with it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from ramet.core.errors import Gone, ProtocolError
from ramet.wire import guest_protocol
from ramet.wire.frames import MAX_BODY, MAX_CONTROL
from ramet.wire.guest_protocol import (
    LASTING,
    Answer,
    ChildEnded,
    Done,
    GuestMessage,
    HostMessage,
    Record,
    Request,
    StartConversation,
    StartFunction,
    StreamChunk,
    UseState,
    Watch,
)

MAX_KEPT = 8 * 1024 * 1024  #: bytes of all that is not answered

_HEADER = struct.Struct("!II")
_CHANGING = frozenset(
    {"set", "remove", "checkout", "merge", "drop"}
)  #: of a working copy, or more than once of a store
_SETTLING = frozenset({"commit", "discard"})  #: answered, it leaves nothing in a working copy


class _Key(NamedTuple):
    """What a word is known by: its kind, and its number or whom it asks about."""

    kind: str
    of: int | str = 0


class _Mark(NamedTuple):
    """A moment of a channel: so many changes of the working copy of its state, and so many records."""

    changes: int
    records: int


class ChannelLog:
    """Of one sandbox, from its first word on."""

    def __init__(self) -> None:
        self._said, self._told = _Cutter(MAX_KEPT), _Cutter(0)
        self._open: dict[_Key, bytes | None] = {}  #: in the order in which they were said
        self._size = 0
        self._done = _Mark(0, 0)  #: what it has done that needs no answer
        self._there = _Mark(0, 0)  #: so much of that is on record, or dropped
        self._marks: dict[int, _Mark] = {}  #: what is there once a request is answered
        self._in_pieces: set[int] = set()  #: requests whose answer has begun to come
        self._has_begun = False  #: it was told what to do
        self._never = ""  #: why nobody can ever go on with it

    def said(self, data: bytes) -> None:
        """Bytes from inside, as they go to the kernel."""
        try:
            for control, frame in self._said.cut(data):
                self._take_said(guest_protocol.from_guest(control), frame)
        except ProtocolError as broken:  # The kernel ends it for that.
            self._never = str(broken)

    def told(self, data: bytes) -> None:
        """Bytes from the kernel, as they go inside."""
        try:
            for control, _ in self._told.cut(data):
                self._take_told(guest_protocol.from_host(control))
        except ProtocolError as broken:
            self._never = str(broken)

    def again(self) -> bytes:
        """What another kernel is to hear first; what comes from inside later follows on it.

        Raises Gone: it cannot go on without what its kernel alone knew.
        """
        if self._never:
            raise Gone(self._never)
        if not self._has_begun:
            raise Gone("it had not been told what to do")
        if self._in_pieces:
            raise Gone("a part of a reply to it had come")
        if self._done.changes > self._there.changes:
            raise Gone("it had changed its state, and its kernel alone knew how")
        if self._told.is_partial:
            raise Gone("it has half of a word of its kernel's")
        frames = [*self._open.values(), self._said.partial]
        if any(frame is None for frame in frames):
            raise Gone(f"more than {MAX_KEPT >> 20} MiB of what it had said were not answered")
        return b"".join(frame for frame in frames if frame is not None)

    def _take_said(self, said: GuestMessage, frame: bytes | None) -> None:
        match said:
            case Request():
                self._mark(said)
                self._keep(_Key("request", said.id), frame)
            case Record():
                self._done = self._done._replace(records=self._done.records + 1)
                self._keep(_Key("record", self._done.records), frame)
            case Watch():
                self._keep(_Key("watch", said.run), frame)
            case Done():
                self._keep(_Key("done"), frame)

    def _take_told(self, told: HostMessage) -> None:
        match told:
            case Answer():
                self._drop(_Key("request", told.id))
                self._in_pieces.discard(told.id)
                mark = self._marks.pop(told.id, None)
                if mark is not None and told.error is None:
                    self._is_there(mark)
            case StreamChunk():
                self._in_pieces.add(told.id)
            case ChildEnded():
                self._drop(_Key("watch", told.run))
            case StartFunction() | StartConversation():
                self._has_begun = True

    def _mark(self, request: Request) -> None:
        changes, records = 0, 0
        if isinstance(request, UseState):
            self._done = self._done._replace(changes=self._done.changes + (request.do in _CHANGING))
            changes = self._done.changes if request.do in _SETTLING else 0
        elif isinstance(request, LASTING):
            records = self._done.records
        if changes or records:
            self._marks[request.id] = _Mark(changes, records)

    def _is_there(self, mark: _Mark) -> None:
        for each in range(self._there.records, mark.records):
            self._drop(_Key("record", each + 1))
        self._there = _Mark(*map(max, self._there, mark))

    def _keep(self, key: _Key, frame: bytes | None) -> None:
        if frame is not None and self._size + len(frame) > MAX_KEPT:
            frame = None
        self._drop(key)
        self._open[key] = frame
        self._size += len(frame or b"")

    def _drop(self, key: _Key) -> None:
        self._size -= len(self._open.pop(key, None) or b"")


class _Cut(NamedTuple):
    """A frame that has come: its control part, and all of it as it came if that was to be kept."""

    control: bytes
    whole: bytes | None


class _Cutter:
    """Cuts a stream of bytes into frames, of which it keeps no more than `most` bytes beside the control part."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._head = bytearray()  #: of the frame under way: its header, its control part, and its body if that is kept
        self._lengths: tuple[int, int] | None = None
        self._left = 0  #: bytes of a body that is not kept, to come

    @property
    def is_partial(self) -> bool:
        """Whether a frame has begun and not ended."""
        return bool(self._head)

    @property
    def partial(self) -> bytes | None:
        """What has come of the frame under way; None if that was not kept."""
        return None if self._lengths is not None and not self._keeps else bytes(self._head)

    @property
    def _keeps(self) -> bool:
        return self._lengths is not None and _HEADER.size + sum(self._lengths) <= self._most

    def cut(self, data: bytes) -> Iterator[_Cut]:
        """Take bytes; the frames that they complete. Raises ProtocolError for what begins none."""
        at = 0
        while at < len(data):
            at = self._more(data, at)
            if self._lengths is None and len(self._head) == _HEADER.size:
                control, body = self._lengths = _HEADER.unpack(self._head)
                if not 1 <= control <= MAX_CONTROL or body > MAX_BODY:
                    raise ProtocolError("what announces no frame")
                self._left = 0 if self._keeps else body
            elif self._lengths is not None and not self._missing and not self._left:
                head, control = bytes(self._head), self._lengths[0]
                whole = head if self._keeps else None
                self._head.clear()
                self._lengths = None
                yield _Cut(head[_HEADER.size : _HEADER.size + control], whole)

    @property
    def _missing(self) -> int:
        """Bytes that are to come into the head."""
        if self._lengths is None:
            return _HEADER.size - len(self._head)
        control, body = self._lengths
        return _HEADER.size + control + (body if self._keeps else 0) - len(self._head)

    def _more(self, data: bytes, at: int) -> int:
        """Take what belongs to the frame under way, as far as there is; returns where the rest begins."""
        if missing := self._missing:
            end = min(len(data), at + missing)
            self._head += data[at:end]
            return end
        end = min(len(data), at + self._left)
        self._left -= end - at
        return end
