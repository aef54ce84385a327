"""Tests of `wire/websocket.py` against another implementation, and against frames that no implementation sends."""

from __future__ import annotations

import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.server import ServerProtocol
from websockets.uri import parse_uri

from ramet.core.errors import ProtocolError
from ramet.wire import websocket
from ramet.wire.websocket import BINARY, CLOSE, PING, PONG, Message, MessageReader, check_answer, nonce_of, read_head

MIB = 2**20
SIZES = [0, 1, 125, 126, 65_535, 65_536, 3 * MIB]


def test_a_client_of_another_implementation_works_with_our_server() -> None:
    """The handshake, messages of every length, and fragments pass in both directions."""
    client = ClientProtocol(parse_uri("wss://kernel:1/line"), max_size=4 * MIB)
    client.send_request(client.connect())
    nonce = nonce_of(read_head(b"".join(client.data_to_send())))
    assert nonce is not None
    # With extensions, of which ours agrees to none.
    client.receive_data(websocket.answer(nonce, {"ramet-key": "k"}))
    assert client.handshake_exc is None

    reader = MessageReader(is_server=True, max_size=4 * MIB)
    for size in SIZES:
        client.send_binary(bytes(size))
        assert reader.feed(b"".join(client.data_to_send())) == [Message(BINARY, bytes(size))]
        client.receive_data(websocket.pack(BINARY, b"z" * size))
    client.events_received().pop(0)  # the answer
    client.send_binary(b"a", fin=False)
    client.send_ping(b"p")
    client.send_continuation(b"b", fin=False)
    client.send_continuation(b"c", fin=True)
    assert reader.feed(b"".join(client.data_to_send())) == [Message(PING, b"p"), Message(BINARY, b"abc")]
    client.receive_data(websocket.pack(PING, b"q"))
    assert reader.feed(b"".join(client.data_to_send())) == [Message(PONG, b"q")]
    client.send_close(1000)
    assert reader.feed(b"".join(client.data_to_send()))[0].kind == CLOSE


def test_a_server_of_another_implementation_works_with_our_client() -> None:
    """The handshake and messages of every length pass in both directions."""
    server = ServerProtocol(max_size=4 * MIB)
    nonce = bytes(range(16))
    server.receive_data(websocket.request("kernel:1", "/line", nonce, {"Authorization": "Bearer k"}))
    (request,) = server.events_received()
    assert isinstance(request, Request)
    assert request.headers["Authorization"] == "Bearer k"
    server.send_response(server.accept(request))
    check_answer(read_head(b"".join(server.data_to_send())), nonce)

    reader = MessageReader(is_server=False, max_size=4 * MIB)
    for size in SIZES:
        server.send_binary(b"y" * size)
        assert reader.feed(b"".join(server.data_to_send())) == [Message(BINARY, b"y" * size)]
        server.receive_data(websocket.pack(BINARY, b"x" * size, b"mask"))
        (frame,) = server.events_received()
        assert isinstance(frame, Frame)
        assert (frame.opcode, bytes(frame.data)) == (Opcode.BINARY, b"x" * size)


@given(st.lists(st.tuples(st.sampled_from([BINARY, PING, PONG]), st.binary(max_size=125))), st.booleans(), st.data())
def test_messages_are_read_from_bytes_in_any_pieces(
    sent: list[tuple[int, bytes]], is_server: bool, data: st.DataObject
) -> None:
    """`announced` gives the size of a partial message."""
    stream = b"".join(websocket.pack(kind, each, b"abcd" if is_server else None) for kind, each in sent)
    at = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    reader = MessageReader(is_server=is_server, max_size=125)

    messages_read = [
        message for start, end in pairwise([0, *at, len(stream)]) for message in reader.feed(stream[start:end])
    ]

    assert messages_read == sent
    assert reader.announced_size is None
    reader.feed(websocket.pack(BINARY, b"xyz", b"abcd" if is_server else None)[:-1])
    assert reader.announced_size == 3


@pytest.mark.parametrize(
    "frame",
    [
        b"\x81\x80mask",  # text
        b"\xc2\x80mask",  # compressed
        b"\x80\x80mask",  # goes on with nothing
        b"\x02\x80mask\x82\x80mask",  # a new one before the end of the one before
        b"\x82\x00",  # not masked
        b"\x09\x80mask",  # a control frame in parts
        b"\x89\xfe\x00\x7e",  # a long one
        b"\x83\x80mask",  # of no kind
        b"\x82\xfe\x00\x7dmask",  # a length that could be shorter
        b"\x82\xff" + struct.pack("!Q", 2**16 - 1),
        b"\x82\xff" + struct.pack("!Q", MIB + 1),  # lengths that are not accepted
        b"\x82\xff" + struct.pack("!Q", 2**31),
        b"\x82\xff" + struct.pack("!Q", 2**64 - 1),
        websocket.pack(BINARY, bytes(MIB - 1), b"mask").replace(b"\x82", b"\x02", 1) + b"\x80\x82mask",
        b"\x02\x80mask" + b"\x00\x80mask" * 1024,  # parts of nothing, without end
    ],
    ids=lambda frame: frame[:10].hex(),
)
def test_a_forbidden_frame_is_refused_at_its_head(frame: bytes) -> None:
    """The reader holds none of the announced bytes."""
    with pytest.raises(ProtocolError):
        MessageReader(is_server=True, max_size=MIB).feed(frame)


def test_a_client_refuses_masked_frames() -> None:
    """A server never masks its frames."""
    with pytest.raises(ProtocolError):
        MessageReader(is_server=False, max_size=MIB).feed(websocket.pack(BINARY, b"x", b"mask"))


VALID_REQUEST = websocket.request("kernel", "/line", bytes(16), {})


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"GET", b"POST"),
        (b"HTTP/1.1", b"HTTP/1.0"),
        (b"Upgrade: websocket", b"Upgrade: h2c"),
        (b"Connection: Upgrade", b"Connection: close"),
        (b"Version: 13", b"Version: 8"),
        (b"AAAA==", b"AA=="),
        (b"Host", b"Hast"),
        (b"\r\n\r\n", b"\r\nContent-Length: 5\r\n\r\n"),
        (b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n"),
    ],
)
def test_a_request_without_a_websocket_upgrade_has_no_nonce(old: bytes, new: bytes) -> None:
    """The head is readable, and asks for something else."""
    assert nonce_of(read_head(VALID_REQUEST)) is not None
    assert nonce_of(read_head(VALID_REQUEST.replace(old, new, 1))) is None


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"GET\r\n\r\n",
        b"GET / HTTP/1.1\r\nA: 1\r\na: 2\r\n\r\n",
        b"GET / HTTP/1.1\r\nA : 1\r\n\r\n",
        b"GET / HTTP/1.1\r\n A: 1\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET / HTTP/1.1\r\nA: \0\r\n\r\n",
        b"GET / HTTP/1.1\nA: 1\n\n\r\n\r\n",
        b"GET / HTTP/1.1\r\nA: \xff\r\n\r\n",
        b"GET / HTTP/1.1\r\nA: " + b"x" * websocket.MAX_HEAD + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nA: 1\r\n",
    ],
    ids=range(11),
)
def test_an_ambiguous_head_is_refused(bad: bytes) -> None:
    """Repeated headers, spaces before a colon, folded lines, bare newlines, and too long heads raise ProtocolError."""
    with pytest.raises(ProtocolError):
        read_head(bad)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"101", b"200"),
        (b"Upgrade: websocket", b"Upgrade: no"),
        (b"Accept: ", b"Accept: x"),
        (b"\r\n\r\n", b"\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\r\n"),
    ],
)
def test_a_client_refuses_an_answer_that_does_not_match_its_request(old: bytes, new: bytes) -> None:
    """Another status, upgrade or key, and an extension that was not asked for, raise ProtocolError."""
    nonce = bytes(16)
    nonce_sent = nonce_of(read_head(websocket.request("kernel", "/line", nonce, {})))
    assert nonce_sent is not None
    good = websocket.answer(nonce_sent, {})
    check_answer(read_head(good), nonce)
    with pytest.raises(ProtocolError):
        check_answer(read_head(good.replace(old, new, 1)), nonce)


def test_a_header_value_cannot_inject_another_header() -> None:
    """A value with a line break raises ProtocolError."""
    with pytest.raises(ProtocolError):
        websocket.request("kernel", "/line", bytes(16), {"A": "1\r\nB: 2"})
