"""Tests of frames on stdio: a line of JSON, followed by the number of bytes that it announces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.core.errors import ProtocolError
from ramet.wire import command_protocol
from ramet.wire.command_protocol import Chunk, Ready, Turn
from ramet.wire.frames import Frame
from ramet.wire.stdio_frames import MAX_BODY, MAX_LINE, LineReader

bodies = st.lists(st.binary(max_size=200), max_size=5)


@given(bodies, st.lists(st.integers(1, 50), min_size=1))
def test_written_frames_are_read_from_any_pieces(written: list[bytes], cuts: list[int]) -> None:
    """Bodies arrive byte for byte, with their newlines."""
    data = b"".join(
        command_protocol.encode(Turn(turn=number, format="raw"), body) for number, body in enumerate(written, 1)
    )
    reader, frames, at = LineReader(), list[Frame](), 0
    while at < len(data):
        size = cuts[at % len(cuts)]
        frames += reader.feed(data[at : at + size])
        at += size
    assert [frame.body for frame in frames] == written
    assert not reader.is_partial


def test_a_line_begins_with_its_type_and_ends_with_its_size() -> None:
    """A shell script can read such a line."""
    assert command_protocol.encode(Turn(turn=1, format="text"), b"hi") == (
        b'{"type":"turn","turn":1,"format":"text","size":2}\nhi'
    )


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"Loading the model\n", "'Loading the model' arrived where a frame must begin"),
        (b"[1]\n", "arrived where a frame must begin"),
        (b"\n", "arrived where a frame must begin"),
        (b'{"size": -1}\n', "arrived where a frame must begin"),
        (b'{"size": "5"}\n', "arrived where a frame must begin"),
        (b"\xff\xfe\n", "arrived where a frame must begin"),
        (b"[" * 60_000 + b"\n", "arrived where a frame must begin"),
        (b'{"size": %d}\n' % (MAX_BODY + 1), "at most"),
        (b"x" * (MAX_LINE + 1), "no end of a line"),
        (b"x" * MAX_LINE + b"xx\n", "no end of a line"),
    ],
    ids=["words", "list", "empty", "negative", "text", "bytes", "deep", "large", "endless", "long"],
)
def test_bytes_that_are_no_frame_raise_after_the_frames_before_them(data: bytes, reason: str) -> None:
    """The error shows a bounded part of the bytes."""
    frames: list[Frame] = []
    with pytest.raises(ProtocolError, match=reason) as problem:
        frames.extend(LineReader().feed(b'{"type":"ready"}\n' + data))
    assert len(str(problem.value)) < 600
    assert [command_protocol.decode(frame) for frame in frames] == [Ready()]


@pytest.mark.parametrize(
    "line",
    [
        b"{}",
        b'{"type":"teleport"}',
        b'{"type":"chunk"}',
        b'{"type":"chunk","turn":0}',
        b'{"type":"chunk","turn":1,"colour":"red"}',
        b'{"type":"ready","operations":[""]}',
        b'{"type":"ready","operations":"all"}',
    ],
)
def test_an_unknown_message_of_a_program_is_refused(line: bytes) -> None:
    """The vocabulary of messages is closed."""
    with pytest.raises(ProtocolError, match="not a message of a program"):
        command_protocol.decode(Frame(line))


def test_fields_may_stand_in_any_order() -> None:
    """A program may order and space the fields as it likes."""
    (frame,) = LineReader().feed(b' {"size": 2, "turn": 7, "type": "chunk"}\r\nhi')
    assert (command_protocol.decode(frame), frame.body) == (Chunk(turn=7, size=2), b"hi")


def test_error_text_is_bounded_and_safe_for_terminals() -> None:
    """Control characters are replaced, and long texts are cut."""
    assert command_protocol.error_text(b"\x1b[31mred\0\n") == "?[31mred?"
    assert len(command_protocol.error_text(b"x" * 1_000_000)) == 10_000
    assert command_protocol.error_text(b"") == "it failed without a message"
