"""Server-sent events are decoded as they were encoded, for any bytes in any pieces."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ramet.core.errors import ProtocolError
from ramet.wire.sse import HEARTBEAT, Parser, ServerSentEvent, encode, encode_numbered

bodies = st.one_of(st.binary(max_size=60), st.text(max_size=40).map(lambda text: text.encode(errors="replace")))
lines = st.lists(st.sampled_from([b"\n", b"\r", b"\r\n", b" ", b":", b"data: x", "ü".encode(), b"\xff", b""]))


@given(st.lists(st.one_of(bodies, lines.map(b"".join))), st.integers(1, 2**40))
@example(["\u00e9".encode()[:1], "\u00e9".encode()[1:]], 1)
@example([b"a\r", b"b"], 9)
def test_numbered_events_are_encoded_as_each_of_them_is(given_bodies: list[bytes], first: int) -> None:
    """Bodies that are no text, or only together, are encoded alike."""
    sent = [encode("chunk", body, f"t:{number}") for number, body in enumerate(given_bodies, first)]

    assert encode_numbered("chunk", given_bodies, "t:", first) == b"".join(sent)


@given(st.lists(st.one_of(bodies, lines.map(b"".join))), st.lists(st.integers(1, 7), min_size=1))
@example([b"", b"\n", b" a", b"\xef\xbb\xbf"], [1])
def test_events_come_back_exactly(given_bodies: list[bytes], cuts: list[int]) -> None:
    """decode(encode(x)) equals x in any pieces, with heartbeats between events."""
    sent = [ServerSentEvent("chunk", body, f"t:{number}") for number, body in enumerate(given_bodies, 1)]
    stream = HEARTBEAT.join(encode(*each) for each in sent)

    parser, at, step = Parser(), 0, 0
    got: list[ServerSentEvent] = []
    while at < len(stream):
        size = cuts[step % len(cuts)]
        got += parser.feed(stream[at : at + size])
        at, step = at + size, step + 1

    assert got == sent


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"], ids=["lf", "cr", "crlf"])
def test_lines_may_end_in_any_way(end: bytes) -> None:
    """Servers may end lines by LF, CR or CRLF, and a CR may arrive before its LF."""
    stream = end.join([b"event: a", b"data:x", b"data:  y", b"", b"data: z", b"", b""])
    parser = Parser()

    got = [event for byte in stream for event in parser.feed(bytes([byte]))]

    assert got == [ServerSentEvent("a", b"x\n y"), ServerSentEvent("message", b"z")]


@pytest.mark.parametrize(
    "piece", [b"data: " + b"x" * 200, b"data: xxxxxxxxxxxxxxxxxxxxxxxxx\n" * 8], ids=["line", "lines"]
)
def test_an_event_above_the_size_limit_is_refused(piece: bytes) -> None:
    """An endless event is refused before it fills the memory."""
    with pytest.raises(ProtocolError, match="more than 100 bytes"):
        list(Parser(max_event=100).feed(piece))


def test_a_base64_event_with_other_data_is_refused() -> None:
    """A broken base64 event raises ProtocolError."""
    with pytest.raises(ProtocolError, match="base64"):
        list(Parser().feed(b"event: chunk-base64\ndata: !\n\n"))
