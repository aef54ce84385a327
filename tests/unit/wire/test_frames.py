"""Tests of `wire/frames.py`: whole messages from bytes in any pieces, with at most one message in memory.

Fuzz tests are in `tests/properties`."""

from __future__ import annotations

import random
import struct
import tracemalloc

import pytest

from ramet.core.errors import ProtocolError
from ramet.wire.frames import MAX_BODY, MAX_CONTROL, Frame, FrameReader, pack

MIB = 2**20


def frame_bytes(control: bytes, body: bytes = b"") -> bytes:
    return b"".join(bytes(piece) for piece in pack(control, body))


def feed_in_pieces(reader: FrameReader, data: bytes, size: int) -> list[Frame]:
    """Feed `data` in pieces of `size` bytes, and return the frames."""
    return [frame for at in range(0, len(data), size) for frame in reader.feed(data[at : at + size])]


@pytest.mark.parametrize("size", [1, 2, 7, 8, 9, 64, 10**6])
def test_messages_come_back_as_they_were_packed(size: int) -> None:
    """Messages arrive equal for every size of the pieces."""
    sent_frames = [Frame(b"{}"), Frame(b"x", b"y"), Frame(b"a" * 300, b"b" * 1000), Frame(b"{}", b"\0")]
    reader = FrameReader()

    assert feed_in_pieces(reader, b"".join(frame_bytes(*frame) for frame in sent_frames), size) == sent_frames
    assert not reader.is_partial


def test_a_body_is_sent_without_a_copy() -> None:
    """`pack` returns a view of the same buffer."""
    body = bytearray(b"x" * 100)

    pieces = pack(b"{}", memoryview(body))

    assert len(pieces) == 2
    assert isinstance(pieces[1], memoryview)
    assert pieces[1].obj is body


@pytest.mark.parametrize(
    ("control", "body"),
    [(0, 0), (0, 1), (MAX_CONTROL + 1, 0), (1, MAX_BODY + 1), (2**31, 0), (2**32 - 1, 0), (1, 2**31), (1, 2**32 - 1)],
)
def test_an_unaccepted_length_closes_the_reader(control: int, body: int) -> None:
    """The reader fails at the last byte of the header, and accepts no bytes after that."""
    reader = FrameReader()
    header = struct.pack("!II", control, body)
    assert feed_in_pieces(reader, header[:-1], 1) == []

    with pytest.raises(ProtocolError, match=str(body if control == 1 else control)):
        reader.feed(header[-1:])

    assert not reader.is_partial
    for data in (frame_bytes(b"{}"), b"", b"x"):
        with pytest.raises(ProtocolError, match="closed"):
            reader.feed(data)


def test_lengths_at_the_caps_are_accepted() -> None:
    """Both `pack` and the reader accept the largest message."""
    frame = Frame(b"c" * MAX_CONTROL, bytes(MAX_BODY))
    reader = FrameReader()

    assert feed_in_pieces(reader, frame_bytes(*frame), 256 * 1024) == [frame]


@pytest.mark.parametrize(("control", "body"), [(0, 0), (MAX_CONTROL + 1, 0), (1, MAX_BODY + 1)])
def test_pack_refuses_what_a_reader_would_refuse(control: int, body: int) -> None:
    """The sender gets the error, and the channel stays usable."""
    with pytest.raises(ProtocolError):
        pack(bytes(control), bytes(body))


@pytest.mark.parametrize("body", [0, 3, 100_000])
def test_messages_before_a_bad_header_are_returned_first(body: int) -> None:
    """The messages do not depend on the pieces of the bytes; the next `feed` raises the error."""
    sent_frames = [Frame(b"{}"), Frame(b"x", bytes(body))]
    data = b"".join(frame_bytes(*frame) for frame in sent_frames)
    for position in (0, 1, 9, len(data) - 1):
        reader = FrameReader()

        assert (
            reader.feed(data[:position]) + reader.feed(data[position:] + bytes(8) + frame_bytes(b"{}")) == sent_frames
        )

        assert reader.is_partial
        with pytest.raises(ProtocolError, match="0 bytes"):
            reader.feed(b"")


def test_a_partial_message_has_an_allowance_by_its_size() -> None:
    """The allowance from first to last byte is 10 s, plus 1 s for each announced MiB."""
    data = frame_bytes(b"c" * (MIB // 2), bytes(3 * MIB // 2))
    reader = FrameReader()
    assert (reader.is_partial, reader.allowance_s) == (False, 10)

    for at, allowance in ((1, 10), (8, 12), (9, 12), (MIB, 12), (len(data) - 1, 12)):
        reader = FrameReader()
        reader.feed(data[:at])
        assert (reader.is_partial, reader.allowance_s) == (True, allowance)

    assert len(reader.feed(data[-1:])) == 1
    assert (reader.is_partial, reader.allowance_s) == (False, 10)
    reader.feed(b"\0")
    assert (reader.is_partial, reader.allowance_s) == (True, 10)


def test_a_reader_allocates_no_memory_for_announced_bytes() -> None:
    """A header that announces 64 MiB, and the beginning of its body, take less than 1 MiB."""
    tracemalloc.start()
    try:
        readers = [FrameReader() for _ in range(10)]
        for reader in readers:
            reader.feed(struct.pack("!II", 100, MAX_BODY) + b"c" * 1000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < MIB


def test_a_reader_holds_at_most_one_message_and_one_read() -> None:
    """The bound includes the growing buffer of the message; afterwards only the message is held."""
    read_size = 256 * 1024
    control, piece = b"c" * MAX_CONTROL, bytes(read_size)
    head = struct.pack("!II", len(control), MAX_BODY) + control
    reader = FrameReader()
    tracemalloc.start()
    try:
        reader.feed(head)
        for _ in range(MAX_BODY // read_size - 1):
            assert reader.feed(piece) == []
        (frame,) = reader.feed(piece)
        now, peak = tracemalloc.get_traced_memory()
        size = len(frame.body)
        del frame
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert size == MAX_BODY
    # A growing buffer reserves up to an eighth more than it holds.
    assert peak < (MAX_CONTROL + MAX_BODY) * 9 / 8 + 2 * read_size
    assert now < MAX_CONTROL + MAX_BODY + 2 * read_size
    assert after < read_size


def test_random_streams_are_messages_or_an_error() -> None:
    """A second, simple parser judges 3,000 seeded streams; a part of them is well-formed up to a point."""
    chance = random.Random(3)
    lengths = [0, 1, 2, 100, 2**31, 2**32 - 1, MAX_CONTROL, MAX_CONTROL + 1, MAX_BODY, MAX_BODY + 1]
    broken_count = 0
    for _ in range(3_000):
        stream = b"".join(
            frame_bytes(chance.randbytes(chance.randint(1, 50)), chance.randbytes(chance.choice([0, 0, 1, 300])))
            for _ in range(chance.randint(0, 4))
        )
        tail = chance.randrange(3)
        if tail == 1:
            stream += chance.randbytes(chance.randint(0, 40))
        elif tail == 2:
            stream += struct.pack("!II", chance.choice(lengths), chance.choice(lengths)) + chance.randbytes(20)
        expected, is_bad = parse_expected(stream)
        reader, frames_read, error = FrameReader(), [], None
        try:
            at = 0
            while at < len(stream):
                step = chance.choice([1, 3, 8, 50, 1000])
                frames_read += reader.feed(stream[at : at + step])
                at += step
            reader.feed(b"")
        except ProtocolError as problem:
            error = problem
            broken_count += 1
        assert (frames_read, error is not None) == (expected, is_bad)
    assert 500 < broken_count < 2_500


def parse_expected(stream: bytes) -> tuple[list[Frame], bool]:
    """Return the messages of a stream up to its first bad header, and whether it has one."""
    frames: list[Frame] = []
    while len(stream) >= 8:
        control, body = int.from_bytes(stream[:4], "big"), int.from_bytes(stream[4:8], "big")
        if control == 0 or control > MAX_CONTROL or body > MAX_BODY:
            return frames, True
        if len(stream) < 8 + control + body:
            break
        frames.append(Frame(stream[8 : 8 + control], stream[8 + control : 8 + control + body]))
        stream = stream[8 + control + body :]
    return frames, False
