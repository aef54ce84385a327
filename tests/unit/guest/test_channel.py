"""The guest's end of its channel: whole messages, none after the last, and a host that may be gone."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from ramet.core.errors import ProtocolError, RametError
from ramet.guest.channel import Channel
from ramet.wire import frames
from ramet.wire.frames import Frame
from ramet.wire.guest_protocol import message_codec
from ramet.wire.guest_protocol.guest_to_host import Done, Note


class Ends(NamedTuple):
    """Both ends of one channel."""

    host: socket.socket
    guest: socket.socket
    channel: Channel


@pytest.fixture
def channel_ends() -> Iterator[Ends]:
    host, guest = socket.socketpair()
    with host, guest:
        guest.setblocking(False)  # as a backend hands it over, perhaps
        yield Ends(host, guest, Channel(guest))


def test_a_read_stops_at_the_end_of_a_message(channel_ends: Ends) -> None:
    """The next message may be for another reader."""
    channel_ends.host.sendall(b"".join(frames.pack(b"{}", b"body")) + b"more")

    assert channel_ends.channel.read() == Frame(b"{}", b"body")
    assert channel_ends.guest.recv(100) == b"more"


def test_a_message_may_come_in_any_pieces(channel_ends: Ends) -> None:
    """A message without a body may too."""
    data = b"".join(frames.pack(b"{}"))

    def write() -> None:
        for at in range(len(data)):
            channel_ends.host.sendall(data[at : at + 1])

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert channel_ends.channel.read() == Frame(b"{}")
    finally:
        writer.join()


@pytest.mark.parametrize("length", [0, 3, 9])
def test_a_closed_host_gives_no_message(channel_ends: Ends, length: int) -> None:
    """Half a message is none either."""
    channel_ends.host.sendall(b"".join(frames.pack(b"{}", b"body"))[:length])
    channel_ends.host.close()

    assert channel_ends.channel.read() is None


def test_a_too_large_header_raises_a_protocol_error(channel_ends: Ends) -> None:
    """No memory is allocated for the message."""
    channel_ends.host.sendall(b"\xff" * 8)

    with pytest.raises(ProtocolError):
        channel_ends.channel.read()


def test_nothing_is_sent_after_the_last_message(channel_ends: Ends) -> None:
    """A later message raises an error, and no byte of it is written."""
    channel_ends.channel.write_last(Done(ok=True))
    with pytest.raises(RametError, match="has ended"):
        channel_ends.channel.write(message_codec.encode(Note(text="late")))
    channel_ends.guest.close()
    output = b""
    while part := channel_ends.host.recv(100):
        output += part

    assert output == b"".join(frames.pack(message_codec.encode(Done(ok=True))))


def test_sending_to_a_closed_host_raises_an_error(channel_ends: Ends) -> None:
    """The error is RametError."""
    channel_ends.host.close()

    with pytest.raises(RametError, match="the host has closed the channel"):
        channel_ends.channel.write(message_codec.encode(Note(text="x")))


def test_messages_of_many_threads_do_not_mix(channel_ends: Ends) -> None:
    """Long messages arrive whole, too."""
    notes = [message_codec.encode(Note(text=str(number) * 50_000)) for number in range(8)]
    writers = [threading.Thread(target=channel_ends.channel.write, args=(note,)) for note in notes]
    for writer in writers:
        writer.start()
    reader = Channel(channel_ends.host)
    frames_received = [reader.read() for _ in notes]
    for writer in writers:
        writer.join()

    assert sorted(frame.control for frame in frames_received if frame is not None) == sorted(notes)


def test_a_forked_process_is_refused(channel_ends: Ends) -> None:
    """The process id differs from the agent's."""
    child = os.fork()
    if child == 0:
        code = 0
        try:
            channel_ends.channel.check_own()
        except RametError:
            code = 5
        finally:
            os._exit(code)  # whatever happens: a second process must not go on with the tests
    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 5
    channel_ends.channel.check_own()
