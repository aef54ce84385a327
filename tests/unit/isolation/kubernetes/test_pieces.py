"""Tests of packets on a lossy stream: whole packets arrive, and nothing else does."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.core.errors import ProtocolError
from ramet.isolation.kubernetes.connect import packets as pieces
from ramet.isolation.kubernetes.connect.packets import PacketReader, StdioPacket, pack

_packets = st.lists(st.builds(StdioPacket, st.integers(0, 2**32 - 1), st.binary(min_size=1, max_size=60)), max_size=8)
_packets_of_control_bytes = st.lists(
    st.builds(StdioPacket, st.just(10), st.text("\n\x1b\x01\x02", min_size=1).map(str.encode)), max_size=8
)


def _read(stream: bytes, cuts: list[int]) -> list[StdioPacket]:
    reader, packets = PacketReader(), list[StdioPacket]()
    positions = sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in cuts)})
    for start, end in itertools.pairwise(positions):
        packets += reader.feed(stream[start:end])
    return packets


@given(st.one_of(_packets, _packets_of_control_bytes), st.lists(st.integers(0, 10_000), max_size=10))
def test_packets_are_read_from_a_stream_in_any_pieces(packets: list[StdioPacket], cuts: list[int]) -> None:
    assert _read(b"".join(pack(*each) for each in packets), cuts) == packets


@given(_packets, st.data())
def test_a_lost_part_of_a_stream_loses_only_its_own_packets(packets: list[StdioPacket], data: st.DataObject) -> None:
    """Packets arrive in order, none is invented, and every intact packet is there."""
    lines = [pack(*each) for each in packets]
    stream = b"".join(lines)
    start = data.draw(st.integers(0, len(stream)))
    end = data.draw(st.integers(start, len(stream)))
    ends = [sum(map(len, lines[: at + 1])) for at in range(len(lines))]
    complete_packets = [
        each for each, line, last in zip(packets, lines, ends, strict=True) if last <= start or last - len(line) >= end
    ]

    found = _read(stream[:start] + stream[end:], [])

    rest = iter(packets)
    assert all(each in rest for each in found), "in order, each once, and none that was not said"
    rest = iter(found)
    assert all(each in rest for each in complete_packets), "and none is missing that came whole"


@given(st.binary(max_size=200))
def test_noise_before_a_packet_is_skipped(noise: bytes) -> None:
    assert _read(noise + pack(3, b"after"), [])[-1] == StdioPacket(3, b"after")


def test_an_endless_line_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader does not store a line without an end forever."""
    monkeypatch.setattr(pieces, "_MOST", 100)
    reader = PacketReader()

    with pytest.raises(ProtocolError, match=r"more than 100 bytes"):
        reader.feed(b"x" * 101)
