"""Tests of streams over a line: in order, whole, and never with more bytes under way than their window."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from ramet.core.errors import ProtocolError
from ramet.isolation.remote.messages import MAX_PIECE, WINDOW, Credit, Data, NodeMessage
from ramet.isolation.remote.streams import Incoming, Outgoing
from tests.support.waiting import eventually


class PostedMessages:
    """Recorder of posted messages."""

    def __init__(self) -> None:
        self.words: list[tuple[NodeMessage, bytes]] = []

    def __call__(self, word: NodeMessage, body: bytes) -> None:
        self.words.append((word, body))

    @property
    def data(self) -> bytes:
        """Return the bytes of all pieces."""
        return b"".join(body for word, body in self.words if isinstance(word, Data))

    @property
    def has_end(self) -> bool:
        """Return whether the last piece was empty."""
        return bool(self.words) and isinstance(self.words[-1][0], Data) and not self.words[-1][1]

    @property
    def credit(self) -> int:
        """Return the sum of granted credit."""
        return sum(word.size for word, _ in self.words if isinstance(word, Credit))


@pytest.fixture
def pipe() -> Iterator[list[int]]:
    ends = list(os.pipe())
    yield ends
    for end in ends:
        if end >= 0:
            os.close(end)


def close_end(ends: list[int], index: int) -> None:
    """Close one end."""
    os.close(ends[index])
    ends[index] = -1


async def test_no_more_bytes_than_the_window_are_sent(pipe: list[int]) -> None:
    """The writer stalls at the window, continues with credit, and the end is sent last."""
    messages = PostedMessages()
    outgoing = Outgoing(pipe[0], 1, 1, messages)
    os.set_blocking(pipe[1], False)
    sent_bytes = 0

    def written() -> bool:
        nonlocal sent_bytes
        try:
            sent_bytes += os.write(pipe[1], bytes(MAX_PIECE))
        except BlockingIOError:
            return len(messages.data) == WINDOW
        return False

    await eventually(written)
    assert max(len(body) for _, body in messages.words) <= MAX_PIECE
    close_end(pipe, 1)
    outgoing.grant(WINDOW)
    await eventually(lambda: messages.has_end)
    assert len(messages.data) == sent_bytes
    outgoing.close()


async def test_credit_for_bytes_that_were_not_sent_is_refused(pipe: list[int]) -> None:
    outgoing = Outgoing(pipe[0], 1, 1, PostedMessages())

    with pytest.raises(ProtocolError):
        outgoing.grant(1)

    outgoing.close()


async def test_earlier_output_is_sent_before_later_channel_data(pipe: list[int]) -> None:
    """Output that was printed before a message of the channel arrives before it."""
    messages, other = PostedMessages(), os.pipe()
    first = Outgoing(pipe[0], 1, 1, messages)
    second = Outgoing(other[0], 1, 0, messages, before=[first])
    os.write(pipe[1], b"printed")
    os.write(other[1], b"said")

    second.drain()

    assert messages.data == b"printedsaid"
    first.close()
    second.close()
    for fd in other:
        os.close(fd)


async def test_received_bytes_are_stored_until_a_target_is_attached(pipe: list[int]) -> None:
    """The bytes are then written, credit follows the writes, and the end is reported once."""
    messages, ends = PostedMessages(), list[None]()
    incoming = Incoming(1, 1, messages, on_end=lambda: ends.append(None))
    pieces = [bytes([at]) * MAX_PIECE for at in range(WINDOW // MAX_PIECE)]
    for piece in pieces:
        incoming.take(piece)
    assert messages.credit == 0
    incoming.attach(pipe[1])
    os.set_blocking(pipe[0], False)
    buffer = bytearray()

    def read() -> bool:
        try:
            buffer.extend(os.read(pipe[0], MAX_PIECE))
        except BlockingIOError:
            return len(buffer) == WINDOW
        return False

    await eventually(read)
    incoming.take(b"")

    assert bytes(buffer) == b"".join(pieces)
    assert messages.credit == WINDOW
    assert ends == [None]


async def test_more_than_the_window_is_refused() -> None:
    incoming = Incoming(1, 1, PostedMessages())
    for _ in range(WINDOW // MAX_PIECE):
        incoming.take(bytes(MAX_PIECE))

    with pytest.raises(ProtocolError):
        incoming.take(b"x")


async def test_bytes_after_the_end_are_refused() -> None:
    incoming = Incoming(1, 1, PostedMessages())
    incoming.take(b"")

    for data in (b"x", b""):
        with pytest.raises(ProtocolError):
            incoming.take(data)


async def test_bytes_for_a_closed_target_are_credited_and_dropped(pipe: list[int]) -> None:
    """The sender can finish."""
    messages, ends = PostedMessages(), list[None]()
    incoming = Incoming(1, 1, messages, on_end=lambda: ends.append(None))
    incoming.attach(pipe[1])
    close_end(pipe, 0)

    for _ in range(10 * WINDOW // MAX_PIECE):
        incoming.take(bytes(MAX_PIECE))
    incoming.take(b"")

    assert messages.credit >= 9 * WINDOW
    assert ends == [None]
