"""However bytes are cut, a channel's messages come back as they were packed, or the channel is at an end."""

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


def packed(sent: list[Frame]) -> bytes:
    return b"".join(bytes(piece) for frame in sent for piece in pack(*frame))


@st.composite
def cut(draw: st.DrawFn, data: bytes) -> list[bytes]:
    """`data` in pieces, some of them empty."""
    at = sorted(draw(st.lists(st.integers(0, len(data)), max_size=8)))
    return [data[start:end] for start, end in pairwise([0, *at, len(data)])]


def taken(reader: FrameReader, pieces: list[bytes]) -> tuple[list[Frame], bool]:
    """The messages up to an error, and whether there was one; one more read shows an error that waits."""
    got: list[Frame] = []
    try:
        for piece in [*pieces, b""]:
            got += reader.feed(piece)
    except ProtocolError:
        return got, True
    return got, False


@given(st.lists(frames, max_size=5), st.binary(max_size=7), st.data())
def test_what_was_packed_comes_back_however_it_is_cut(sent: list[Frame], rest: bytes, data: st.DataObject) -> None:
    """In order, each once; what has begun after them is known to be under way."""
    reader = FrameReader()

    assert taken(reader, data.draw(cut(packed(sent) + rest))) == (sent, False)
    assert reader.is_partial == bool(rest)


@given(st.lists(frames, max_size=3), bad_headers, st.binary(max_size=100), st.data())
def test_a_bad_header_ends_the_channel_after_what_came_before_it(
    sent: list[Frame], header: bytes, rest: bytes, data: st.DataObject
) -> None:
    """Whatever follows, and however it is cut; then nothing is taken."""
    reader = FrameReader()

    assert taken(reader, data.draw(cut(packed(sent) + header + rest))) == (sent, True)
    for more in (b"", packed([Frame(b"{}")])):
        with pytest.raises(ProtocolError):
            reader.feed(more)


@given(st.binary(max_size=300), st.data())
def test_any_bytes_mean_the_same_however_they_are_cut(stream: bytes, data: st.DataObject) -> None:
    """Messages or an error; and packing the messages again gives the bytes back."""
    got, is_bad = taken(FrameReader(), data.draw(cut(stream)))

    assert taken(FrameReader(), [stream]) == (got, is_bad)
    assert stream.startswith(packed(got))


@given(st.integers(1, MAX_CONTROL), st.integers(0, MAX_BODY), st.binary(max_size=20))
def test_the_time_of_a_message_grows_with_what_it_announces(control: int, body: int, rest: bytes) -> None:
    """From 10 s to 75 s."""
    reader = FrameReader()

    assert reader.feed(struct.pack("!II", control, body) + rest[: control + body - 1]) == []

    assert reader.is_partial
    assert reader.allowance_s == pytest.approx(10 + (control + body) / 2**20)
    assert 10 <= reader.allowance_s <= 75
