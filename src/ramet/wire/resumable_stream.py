"""Carry frames over reconnecting connections: in order, each exactly once, without loss.

    hello  0x01 | version | uint64 received | uint64 acknowledged     the first packet of each side on each connection
    frame  0x02 | uint64 number | uint64 acknowledged | uint32 control length | control | body
    ack    0x03 | uint64 acknowledged                                also the heartbeat of a side with nothing to send
    end    0x04 | uint64 last number                                 the last packet of a direction

The module does no I/O. The frames of each direction are numbered from 1. A side keeps each sent frame until the peer
acknowledges it. On a new connection each side reports the last number it received, and the peer continues after that
number. Receiving and acknowledging are different: an acknowledged frame is never sent again, so a side that must
persist frames acknowledges only persisted ones.

The connection keeps the order of packets and their boundaries: a WebSocket message is a packet. The contents of a
packet are checked before use. A peer that breaks a rule causes a ProtocolError, and the session ends.
"""

from __future__ import annotations

import struct
from collections import deque

from ramet.core.errors import Bug, ProtocolError
from ramet.wire.frames import MAX_CONTROL, Frame

VERSION = 1
MAX_BUFFERED = 8 * 1024 * 1024  #: limit of sent and unacknowledged data of one direction, by `weight`
FRAME_OVERHEAD = 128  #: overhead of a frame in addition to its bytes: a million empty frames must not be free to keep

_HELLO, _FRAME, _ACK, _END = 1, 2, 3, 4
_hello = struct.Struct("!BBQQ")
_frame = struct.Struct("!BQQI")
_number = struct.Struct("!BQ")
MAX_PACKET = MAX_BUFFERED + _frame.size  #: bytes; a reader refuses a longer packet before receiving it


def buffered_size(frame: Frame) -> int:
    """Return the part of `MAX_BUFFERED` that a frame uses. Raises ProtocolError if no session can carry the frame."""
    control, body = len(frame.control), len(frame.body)
    if not 1 <= control <= MAX_CONTROL:
        raise ProtocolError(f"a frame's control part has {control} bytes; 1 to {MAX_CONTROL} are accepted")
    if (size := control + body + FRAME_OVERHEAD) > MAX_BUFFERED:
        raise ProtocolError(f"a frame has {control + body} bytes; at most {MAX_BUFFERED - FRAME_OVERHEAD} are accepted")
    return size


class ResumableStream:
    """A side of a session. After a ProtocolError, every further packet is refused.

    The class has no clock: the caller decides how long a side waits for the other to reconnect.
    """

    def __init__(self) -> None:
        # incoming
        self.last_received = 0  #: number of the last received frame
        self._last_acknowledged = 0  #: highest number acknowledged by the user
        self._ack_sent = 0  #: acknowledgement last sent to the peer on this connection
        self._unacknowledged_frames: deque[tuple[int, int]] = (
            deque()
        )  #: number and weight of received, unacknowledged frames
        self._unacknowledged_bytes = 0
        # outgoing
        self._last_sent = 0  #: number of the last frame that the user sent
        self._last_written = 0  #: number of the last frame given to this connection
        self._peer_acknowledged = 0  #: highest number that the peer has acknowledged
        self._retained_frames: deque[Frame] = deque()  #: the frames after that number
        self._retained_bytes = 0
        # the connection
        self._is_connected = self._has_sent_hello = self._has_peer_hello = False
        self._is_ending = self._is_broken = False
        self.has_sent_end = False  #: the end packet was given to this connection
        self.has_ended = False  #: the peer has announced its end

    # ---- the user's side --------------------------------------------------------------------------------------------

    def can_send(self, frame: Frame) -> bool:
        """Return whether a frame may be sent now; False: wait for an acknowledgement.

        Raises ProtocolError if it is too large.
        """
        return self._retained_bytes + buffered_size(frame) <= MAX_BUFFERED

    def send(self, frame: Frame) -> None:
        """Add a frame, which is sent as often as needed. The caller must check `can_send` first."""
        if self._is_ending or not self.can_send(frame):
            raise Bug("a frame was sent after the end of the stream, or while the buffer was full")
        self._last_sent += 1
        self._retained_frames.append(frame)
        self._retained_bytes += buffered_size(frame)

    def acknowledge(self, through: int) -> None:
        """Mark frames up to this number as safe here, so that the peer need not resend them.

        A lower number has no effect.
        """
        if through > self.last_received:
            raise Bug(f"frame {through} was acknowledged, but the last received frame is {self.last_received}")
        self._last_acknowledged = max(self._last_acknowledged, through)
        while self._unacknowledged_frames and self._unacknowledged_frames[0][0] <= through:
            self._unacknowledged_bytes -= self._unacknowledged_frames.popleft()[1]

    def end(self) -> None:
        """Announce that no frame follows the sent ones. Idempotent."""
        self._is_ending = True

    # ---- the wire's side --------------------------------------------------------------------------------------------

    def on_connected(self) -> None:
        """Begin a new connection; packets in transit on the previous connection are lost."""
        self._is_connected = True
        self._has_sent_hello = self._has_peer_hello = self.has_sent_end = False

    def next_packet(self, *, alive: bool = False) -> bytes | None:
        """Return the next packet for this connection; None if there is none, or none before the peer's hello.

        With `alive` there is always a packet once both sides have sent their hello.
        """
        if not self._is_connected or self._is_broken:
            return None
        if not self._has_sent_hello:
            self._has_sent_hello, self._ack_sent = True, self._last_acknowledged
            return _hello.pack(_HELLO, VERSION, self.last_received, self._last_acknowledged)
        if not self._has_peer_hello:
            return None
        if self._last_written < self._last_sent:
            control, body = self._retained_frames[self._last_written - self._peer_acknowledged]
            self._last_written, self._ack_sent = self._last_written + 1, self._last_acknowledged
            return b"".join((_frame.pack(_FRAME, self._last_written, self._ack_sent, len(control)), control, body))
        if self._is_ending and not self.has_sent_end:
            self.has_sent_end = True
            return _number.pack(_END, self._last_sent)
        if alive or self._ack_sent < self._last_acknowledged:
            self._ack_sent = self._last_acknowledged
            return _number.pack(_ACK, self._ack_sent)
        return None

    def feed(self, packet: bytes) -> Frame | None:
        """Process a packet of this connection; return the frame in it, if any.

        Raises ProtocolError if a rule is broken.
        """
        if self._is_broken or not self._is_connected:
            raise ProtocolError("a packet arrived after an invalid one, or before a connection existed")
        try:
            return self._handle(packet)
        except ProtocolError:
            self._is_broken = True
            raise

    def _handle(self, packet: bytes) -> Frame | None:
        kind = packet[0] if packet else 0
        if self._has_peer_hello == (kind == _HELLO):
            raise ProtocolError("a connection must begin with a hello, and have no other")
        if kind == _FRAME and len(packet) > _frame.size:
            return self._receive_frame(packet)
        if kind == _HELLO and len(packet) == _hello.size:
            self._receive_hello(packet)
        elif kind == _ACK and len(packet) == _number.size:
            self._apply_ack(_number.unpack(packet)[1])
        elif kind == _END and len(packet) == _number.size:
            if (last := _number.unpack(packet)[1]) != self.last_received:
                raise ProtocolError(
                    f"the end follows frame {last}, but the last received frame is {self.last_received}"
                )
            self.has_ended = True
        else:
            raise ProtocolError(f"a packet of {len(packet)} bytes that begins with {kind} is invalid")
        return None

    def _receive_hello(self, packet: bytes) -> None:
        _, version, received_number, ack_number = _hello.unpack(packet)
        if version != VERSION:
            raise ProtocolError(f"the peer uses version {version} of the protocol, and this side {VERSION}")
        if not ack_number <= received_number <= self._last_sent:
            raise ProtocolError(
                f"the peer received {received_number} frames and acknowledged {ack_number}; {self._last_sent} were sent"
            )
        self._has_peer_hello, self._last_written = True, received_number
        self._apply_ack(ack_number)

    def _receive_frame(self, packet: bytes) -> Frame:
        _, number, ack_number, length = _frame.unpack_from(packet)
        if self.has_ended or number != self.last_received + 1:
            raise ProtocolError(f"frame {number} arrived where {self.last_received + 1} was expected, or after the end")
        body = _frame.size + length
        if len(packet) < body:
            raise ProtocolError(f"a packet of {len(packet)} bytes announces a control part of {length}")
        frame = Frame(packet[_frame.size : body], packet[body:])
        if self._unacknowledged_bytes + (size := buffered_size(frame)) > MAX_BUFFERED:
            raise ProtocolError(f"more than {MAX_BUFFERED} received bytes are not acknowledged")
        self._apply_ack(ack_number)
        self.last_received = number
        self._unacknowledged_frames.append((number, size))
        self._unacknowledged_bytes += size
        return frame

    def _apply_ack(self, ack_number: int) -> None:
        """Remove the kept frames up to this number: the peer has acknowledged them."""
        if ack_number > self._last_written:
            raise ProtocolError(f"frame {ack_number} is acknowledged, but {self._last_written} were sent")
        if ack_number < self._peer_acknowledged:
            raise ProtocolError(
                f"frame {self._peer_acknowledged} was acknowledged before, and now only {ack_number} is"
            )
        while self._peer_acknowledged < ack_number:
            self._peer_acknowledged += 1
            self._retained_bytes -= buffered_size(self._retained_frames.popleft())
