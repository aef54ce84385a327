"""Frames of a resumable stream arrive once and in order, wherever the connection breaks; a cheating peer is found."""

from __future__ import annotations

import struct
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ramet.core.errors import ProtocolError
from ramet.wire import resumable_stream
from ramet.wire.frames import Frame
from ramet.wire.resumable_stream import MAX_BUFFERED, ResumableStream, buffered_size


def hello(taken: int, acknowledged: int, version: int = resumable_stream.VERSION) -> bytes:
    return struct.pack("!BBQQ", 1, version, taken, acknowledged)


def frame(number: int, acknowledged: int = 0, control: bytes = b"{}", length: int | None = None) -> bytes:
    return struct.pack("!BQQI", 2, number, acknowledged, len(control) if length is None else length) + control


def ack(number: int) -> bytes:
    return struct.pack("!BQ", 3, number)


def end(number: int) -> bytes:
    return struct.pack("!BQ", 4, number)


class Side:
    """End of a line, with the frames that it sent and received."""

    def __init__(self) -> None:
        self.session = ResumableStream()
        self.said = 0
        self.heard: list[Frame] = []
        self.wire: deque[bytes] = deque()  #: packets on their way from here

    def hear(self, packet: bytes) -> None:
        if (came := self.session.feed(packet)) is not None:
            self.heard.append(came)


class BreakingLine(RuleBasedStateMachine):
    """Two sides and a wire that loses the last packets under way, in each direction, when it breaks.

    Acknowledgements may be withheld for as long as a side likes.
    """

    @initialize()
    def start(self) -> None:
        self.kernel, self.machine = Side(), Side()
        self.sides = (self.kernel, self.machine)
        self.connect()

    def connect(self) -> None:
        for side in self.sides:
            side.wire.clear()
            side.session.on_connected()

    @rule(
        at=st.integers(0, 1),
        size=st.sampled_from([0, 1, 100, MAX_BUFFERED // 3, MAX_BUFFERED - buffered_size(Frame(b"x" * 20))]),
    )
    def send(self, at: int, size: int) -> None:
        side = self.sides[at]
        packed = Frame(b"%020d" % (side.said + 1), b"z" * size)
        if side.session.can_send(packed):
            side.said += 1
            side.session.send(packed)

    @rule(at=st.integers(0, 1), several=st.integers(1, 5), alive=st.booleans())
    def write(self, at: int, several: int, alive: bool) -> None:
        for _ in range(several):
            if (packet := self.sides[at].session.next_packet(alive=alive)) is not None:
                self.sides[at].wire.append(packet)

    @rule()
    def greet(self) -> None:
        for at in (0, 1, 0, 1):
            self.write(at, 1, False)
            self.deliver(at, 9)

    @rule(at=st.integers(0, 1), several=st.integers(1, 9))
    def deliver(self, at: int, several: int) -> None:
        for _ in range(min(several, len(self.sides[at].wire))):
            self.sides[1 - at].hear(self.sides[at].wire.popleft())

    @rule(at=st.integers(0, 1), back=st.integers(0, 3))
    def acknowledge(self, at: int, back: int) -> None:
        ends = self.sides[at].session
        ends.acknowledge(max(0, ends.last_received - back))

    @rule(arrive=st.tuples(st.integers(0, 5), st.integers(0, 5)))
    def break_off(self, arrive: tuple[int, int]) -> None:
        for at, several in enumerate(arrive):
            self.deliver(at, several)
        self.connect()

    @invariant()
    def every_frame_arrives_once_and_in_order(self) -> None:
        assert [int(each.control) for each in self.kernel.heard] == list(range(1, len(self.kernel.heard) + 1))
        assert [int(each.control) for each in self.machine.heard] == list(range(1, len(self.machine.heard) + 1))

    def teardown(self) -> None:
        """Check that every sent frame arrives and is acknowledged once the wire holds."""
        if not hasattr(self, "sides"):
            return
        self.connect()
        for _ in range(10_000):
            moved = False
            for at, side in enumerate(self.sides):
                self.acknowledge(at, 0)
                self.write(at, 1, False)
                moved = moved or bool(side.wire)
                self.deliver(at, 1)
            if not moved:
                break
        assert len(self.kernel.heard) == self.machine.said
        assert len(self.machine.heard) == self.kernel.said
        assert not self.kernel.session._retained_frames
        assert not self.machine.session._retained_frames


TestBreakingLine = BreakingLine.TestCase


def stream_after_hello(*, sent: int = 0, written: int = 0) -> ResumableStream:
    """Return a stream after the hello of both sides, with so many frames sent and written."""
    mine = ResumableStream()
    mine.on_connected()
    mine.next_packet()
    mine.feed(hello(0, 0))
    for _ in range(sent):
        mine.send(Frame(b"{}"))
    for _ in range(written):
        mine.next_packet()
    return mine


BROKEN_PACKETS = {
    "nothing": [b""],
    "another kind": [b"\x09" + bytes(8)],
    "a hello twice": [hello(0, 0)],
    "a number that jumps": [frame(2)],
    "a number again": [frame(1), frame(1)],
    "number none": [frame(0)],
    "an acknowledgement of what was not written": [ack(3)],
    "one with a frame": [frame(1, acknowledged=3)],
    "one that is taken back": [ack(2), ack(1)],
    "a short frame": [frame(1)[:21]],
    "a control part that is longer than its packet": [frame(1, length=3)],
    "an empty control part": [frame(1, length=0)],
    "a control part of 4 GiB": [frame(1, length=2**32 - 1)],
    "a frame that is too large": [frame(1) + bytes(MAX_BUFFERED)],
    "a control part that is too large": [frame(1, control=bytes(2**20 + 1))],
    "more than may be open": [frame(1) + bytes(MAX_BUFFERED // 2), frame(2) + bytes(MAX_BUFFERED // 2)],
    "an end too late": [end(1)],
    "an end too early": [frame(1), end(0)],
    "a frame behind the end": [end(0), frame(1)],
    "a long acknowledgement": [ack(1) + b"x"],
}


@pytest.mark.parametrize("name", BROKEN_PACKETS)
def test_a_peer_that_breaks_a_rule_is_a_protocol_error(name: str) -> None:
    """A packet that breaks a rule raises ProtocolError. Afterwards the stream neither receives nor sends."""
    *good, bad = BROKEN_PACKETS[name]
    mine = stream_after_hello(sent=3, written=2)
    for each in good:
        mine.feed(each)
    taken = mine.last_received

    with pytest.raises(ProtocolError):
        mine.feed(bad)

    with pytest.raises(ProtocolError):
        mine.feed(ack(2))
    assert mine.next_packet(alive=True) is None
    assert mine.last_received == taken


@pytest.mark.parametrize(
    "bad",
    [frame(1), ack(0), hello(4, 0), hello(1, 2), hello(2, 0), hello(2, 2, version=9), hello(2, 2)[:-1]],
    ids=[
        "a frame",
        "an acknowledgement",
        "took what was not sent",
        "safe before it came",
        "less is safe",
        "version",
        "cut",
    ],
)
def test_a_connection_begins_with_a_possible_hello(bad: bytes) -> None:
    """A missing or impossible hello raises ProtocolError.

    The stream has sent three frames and seen one acknowledged.
    """
    mine = stream_after_hello(sent=3, written=3)
    mine.feed(ack(1))
    mine.on_connected()

    with pytest.raises(ProtocolError):
        mine.feed(bad)


def test_only_a_hello_is_sent_before_the_hello_of_the_peer() -> None:
    """A new connection sends its hello once, and no frame before the peer's hello."""
    mine = ResumableStream()
    mine.send(Frame(b"{}"))
    mine.on_connected()

    assert mine.next_packet() == hello(0, 0)
    assert mine.next_packet(alive=True) is None


def test_a_sender_waits_when_eight_mebibytes_are_not_acknowledged() -> None:
    """An acknowledgement makes room for the next frame. A frame that exceeds the whole buffer raises ProtocolError."""
    mine, half = stream_after_hello(), Frame(b"{}", bytes(MAX_BUFFERED // 2 - 200))
    mine.send(half)
    mine.send(half)

    assert not mine.can_send(half)
    mine.next_packet()
    mine.feed(ack(1))
    assert mine.can_send(half)
    with pytest.raises(ProtocolError):
        mine.can_send(Frame(b"{}", bytes(MAX_BUFFERED)))


@given(st.lists(st.binary(max_size=40), max_size=8))
def test_any_packet_is_accepted_or_a_protocol_error(packets: list[bytes]) -> None:
    """Arbitrary packets raise no other error, and each advances the count of received frames by one at most."""
    mine = stream_after_hello(sent=2, written=1)
    for packet in packets:
        before = mine.last_received
        try:
            mine.feed(packet)
        except ProtocolError:
            return
        assert mine.last_received - before in (0, 1)
