"""Frames over a connection that breaks and is made anew, without any I/O: in order, each once, none lost.

    hello  0x01 | version | uint64 taken in | uint64 acknowledged    the first packet of each side on each connection
    frame  0x02 | uint64 number | uint64 acknowledged | uint32 control length | control | body
    ack    0x03 | uint64 acknowledged                                also the sign of life of a side with nothing to say
    end    0x04 | uint64 last number                                 nothing comes after it

The frames of each direction are numbered from 1. A side keeps what it sent until the other acknowledges it. On a new
connection each tells what it has taken in, and the other goes on behind that. Taking in and acknowledging are two
things: what is acknowledged is never sent again, so a side that must remember acknowledges what it has on disk.

The wire keeps the order of packets and their borders: a WebSocket message is a packet. What a packet says is checked
before it is believed; a peer that breaks a rule gets a ProtocolError, and that is the end of the session.
"""

from __future__ import annotations

import struct
from collections import deque

from ramet.core.errors import Bug, ProtocolError
from ramet.wire.frames import MAX_CONTROL, Frame

VERSION = 1
MAX_KEPT = 8 * 1024 * 1024  #: what one direction may have sent and not had acknowledged, by `weight`
WEIGHT = 128  #: what a frame weighs beside its bytes: a million empty ones are not free to keep

_HELLO, _FRAME, _ACK, _END = 1, 2, 3, 4
_hello = struct.Struct("!BBQQ")
_frame = struct.Struct("!BQQI")
_number = struct.Struct("!BQ")
MAX_PACKET = MAX_KEPT + _frame.size  #: bytes; whoever reads from a wire refuses a longer one before it has come


def buffered_size(frame: Frame) -> int:
    """What a frame takes of `MAX_KEPT`. Raises ProtocolError for one that no session carries."""
    control, body = len(frame.control), len(frame.body)
    if not 1 <= control <= MAX_CONTROL:
        raise ProtocolError(f"a frame's control part has {control} bytes; 1 to {MAX_CONTROL} are accepted")
    if (whole := control + body + WEIGHT) > MAX_KEPT:
        raise ProtocolError(f"a frame has {control + body} bytes; at most {MAX_KEPT - WEIGHT} are accepted")
    return whole


class ResumableStream:
    """One side. After a ProtocolError it takes nothing more.

    Has no clock: how long a side waits for the other to come back is the caller's to say.
    """

    def __init__(self) -> None:
        # what comes
        self._taken = 0  #: the number of the last frame that came
        self._acknowledged = 0  #: by the user, through this number
        self._told = 0  #: of that, what the peer was told on this connection
        self._open: deque[tuple[int, int]] = deque()  #: number and weight of what came and is not acknowledged
        self._open_weight = 0
        # what goes
        self._sent = 0  #: the number of the last frame that the user sent
        self._written = 0  #: the number of the last one that was given to this connection
        self._settled = 0  #: the peer has acknowledged through this number
        self._kept: deque[Frame] = deque()  #: those behind that
        self._kept_weight = 0
        # the connection
        self._is_wired = self._has_greeted = self._has_heard = False
        self._is_ending = self._has_said_end = self._has_ended = self._is_broken = False

    # ---- the user's side --------------------------------------------------------------------------------------------

    @property
    def taken(self) -> int:
        """The number of the last frame that has come."""
        return self._taken

    @property
    def is_settled(self) -> bool:
        """Whether the peer has acknowledged all that was sent."""
        return not self._kept

    @property
    def has_said_end(self) -> bool:
        """Whether the end was given to this connection."""
        return self._has_said_end

    @property
    def has_ended(self) -> bool:
        """Whether the peer has said that nothing more comes."""
        return self._has_ended

    def has_room(self, frame: Frame) -> bool:
        """Whether a frame may be sent now; if not, after an acknowledgement. Raises ProtocolError if it never may."""
        return self._kept_weight + buffered_size(frame) <= MAX_KEPT

    def send(self, frame: Frame) -> None:
        """Take over a frame, to be said as often as needed. There must be room for it."""
        if self._is_ending or not self.has_room(frame):
            raise Bug("a frame was sent behind the end of a session, or without room for it")
        self._sent += 1
        self._kept.append(frame)
        self._kept_weight += buffered_size(frame)

    def acknowledge(self, through: int) -> None:
        """What came up to this number is safe here, and need not be said again. A lower one than before is nothing."""
        if through > self._taken:
            raise Bug(f"frame {through} was acknowledged, and the last that came is {self._taken}")
        self._acknowledged = max(self._acknowledged, through)
        while self._open and self._open[0][0] <= through:
            self._open_weight -= self._open.popleft()[1]

    def end(self) -> None:
        """Say that nothing comes after what was sent. Idempotent."""
        self._is_ending = True

    # ---- the wire's side --------------------------------------------------------------------------------------------

    def connected(self) -> None:
        """There is a new connection, on which nothing was said; what was under way on the one before is lost."""
        self._is_wired = True
        self._has_greeted = self._has_heard = self._has_said_end = False

    def next_packet(self, *, alive: bool = False) -> bytes | None:
        """What to say next on this connection; None if there is nothing, or nothing before the peer's hello.

        With `alive` there is always something, once both have greeted.
        """
        if not self._is_wired or self._is_broken:
            return None
        if not self._has_greeted:
            self._has_greeted, self._told = True, self._acknowledged
            return _hello.pack(_HELLO, VERSION, self._taken, self._acknowledged)
        if not self._has_heard:
            return None
        if self._written < self._sent:
            control, body = self._kept[self._written - self._settled]
            self._written, self._told = self._written + 1, self._acknowledged
            return b"".join((_frame.pack(_FRAME, self._written, self._told, len(control)), control, body))
        if self._is_ending and not self._has_said_end:
            self._has_said_end = True
            return _number.pack(_END, self._sent)
        if alive or self._told < self._acknowledged:
            self._told = self._acknowledged
            return _number.pack(_ACK, self._told)
        return None

    def feed(self, packet: bytes) -> Frame | None:
        """Take in a packet of this connection; returns the frame that it brings. Raises ProtocolError."""
        if self._is_broken or not self._is_wired:
            raise ProtocolError("a packet came after a bad one, or before there was a connection")
        try:
            return self._fed(packet)
        except ProtocolError:
            self._is_broken = True
            raise

    def _fed(self, packet: bytes) -> Frame | None:
        kind = packet[0] if packet else 0
        if self._has_heard == (kind == _HELLO):
            raise ProtocolError("a connection begins with a hello, and has no other")
        if kind == _FRAME and len(packet) > _frame.size:
            return self._take(packet)
        if kind == _HELLO and len(packet) == _hello.size:
            self._hear_hello(packet)
        elif kind == _ACK and len(packet) == _number.size:
            self._settle(_number.unpack(packet)[1])
        elif kind == _END and len(packet) == _number.size:
            if (last := _number.unpack(packet)[1]) != self._taken:
                raise ProtocolError(f"the end is behind frame {last}, and the last that came is {self._taken}")
            self._has_ended = True
        else:
            raise ProtocolError(f"a packet of {len(packet)} bytes that begins with {kind} is none")
        return None

    def _hear_hello(self, packet: bytes) -> None:
        _, version, taken, acknowledged = _hello.unpack(packet)
        if version != VERSION:
            raise ProtocolError(f"version {version} of the line is spoken there, and {VERSION} here")
        if not acknowledged <= taken <= self._sent:
            raise ProtocolError(f"there, {taken} frames came and {acknowledged} are safe; {self._sent} were sent")
        self._has_heard, self._written = True, taken
        self._settle(acknowledged)

    def _take(self, packet: bytes) -> Frame:
        _, number, acknowledged, length = _frame.unpack_from(packet)
        if self._has_ended or number != self._taken + 1:
            raise ProtocolError(f"frame {number} came where {self._taken + 1} was due, or behind the end")
        body = _frame.size + length
        if len(packet) < body:
            raise ProtocolError(f"a packet of {len(packet)} bytes announces a control part of {length}")
        frame = Frame(packet[_frame.size : body], packet[body:])
        if self._open_weight + (weighs := buffered_size(frame)) > MAX_KEPT:
            raise ProtocolError(f"more than {MAX_KEPT} bytes came ahead of their acknowledgement")
        self._settle(acknowledged)
        self._taken = number
        self._open.append((number, weighs))
        self._open_weight += weighs
        return frame

    def _settle(self, acknowledged: int) -> None:
        """The peer needs nothing again up to this number."""
        if acknowledged > self._written:
            raise ProtocolError(f"frame {acknowledged} is acknowledged, and {self._written} were said")
        if acknowledged < self._settled:
            raise ProtocolError(f"frame {self._settled} was acknowledged, and now only {acknowledged} is")
        while self._settled < acknowledged:
            self._settled += 1
            self._kept_weight -= buffered_size(self._kept.popleft())
