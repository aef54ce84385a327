"""Messages of a channel come back as they were packed, however the bytes are cut, or the channel ends."""

from __future__ import annotations

import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.core.errors import ProtocolError
from ramet.wire.frames import MAX_BODY, MAX_CONTROL, Frame, FrameReader, pack

frames = st.builds(Frame, st.binary(min_size=1, max_size=40), st.binary(max_size=60))
BAD = [0, MAX_CONTROL + 1, 2**31, 2**32 - 1]
bad_headers = st.one_of(
    st.tuples(st.sampled_from(BAD), st.sampled_from([0, 1, 2**32 - 1])),
    st.tuples(st.just(1), st.sampled_from([MAX_BODY + 1, 2**31, 2**32 - 1])),
).map(lambda lengths: struct.pack("!II", *lengths))


def pack_all(sent: list[Frame]) -> bytes:
    return b"".join(bytes(piece) for frame in sent for piece in pack(*frame))


@st.composite
def cut(draw: st.DrawFn, data: bytes) -> list[bytes]:
    """Cut `data` into pieces, some of them empty."""
    at = sorted(draw(st.lists(st.integers(0, len(data)), max_size=8)))
    return [data[start:end] for start, end in pairwise([0, *at, len(data)])]


def read_until_error(reader: FrameReader, pieces: list[bytes]) -> tuple[list[Frame], bool]:
    """Return the messages before an error, and whether there was one. One more read shows a pending error."""
    got: list[Frame] = []
    try:
        for piece in [*pieces, b""]:
            got += reader.feed(piece)
    except ProtocolError:
        return got, True
    return got, False


@given(st.lists(frames, max_size=5), st.binary(max_size=7), st.data())
def test_packed_messages_come_back_however_the_bytes_are_cut(
    sent: list[Frame], rest: bytes, data: st.DataObject
) -> None:
    """Messages come back once each and in order. Bytes of an unfinished message set `is_partial`."""
    reader = FrameReader()

    assert read_until_error(reader, data.draw(cut(pack_all(sent) + rest))) == (sent, False)
    assert reader.is_partial == bool(rest)


@given(st.lists(frames, max_size=3), bad_headers, st.binary(max_size=100), st.data())
def test_a_bad_header_ends_the_channel_after_the_messages_before_it(
    sent: list[Frame], header: bytes, rest: bytes, data: st.DataObject
) -> None:
    """Messages before a bad header are read, however the bytes are cut. Every later read raises ProtocolError."""
    reader = FrameReader()

    assert read_until_error(reader, data.draw(cut(pack_all(sent) + header + rest))) == (sent, True)
    for more in (b"", pack_all([Frame(b"{}")])):
        with pytest.raises(ProtocolError):
            reader.feed(more)


@given(st.binary(max_size=300), st.data())
def test_any_bytes_mean_the_same_however_they_are_cut(stream: bytes, data: st.DataObject) -> None:
    """Bytes give the same messages or error however they are cut.

    The packed messages equal the beginning of the bytes.
    """
    got, is_bad = read_until_error(FrameReader(), data.draw(cut(stream)))

    assert read_until_error(FrameReader(), [stream]) == (got, is_bad)
    assert stream.startswith(pack_all(got))


@given(st.integers(1, MAX_CONTROL), st.integers(0, MAX_BODY), st.binary(max_size=20))
def test_the_time_for_a_message_grows_with_its_announced_size(control: int, body: int, rest: bytes) -> None:
    """A message has 10 s to arrive, and one second more for each MiB, at most 75 s."""
    reader = FrameReader()

    assert reader.feed(struct.pack("!II", control, body) + rest[: control + body - 1]) == []

    assert reader.is_partial
    assert reader.allowance_s == pytest.approx(10 + (control + body) / 2**20)
    assert 10 <= reader.allowance_s <= 75
