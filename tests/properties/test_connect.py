"""A request to the proxy has one answer, however it is cut, and a target that every reader understands alike."""

from __future__ import annotations

import ipaddress
import itertools
import socket
from urllib.parse import urlsplit

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ramet.core.errors import ProtocolError
from ramet.wire.client_hello import ClientHelloParser, TunnelStart
from ramet.wire.http_connect import MAX_HEADER_BYTES, ConnectRefusal, RequestReader, Target, parse_target
from tests.support.tls import client_hello, handshake, hello_body, record, server_name

# Pieces that readers of URLs disagree about, in any order.
pieces = st.sampled_from(
    "example org localhost xn-- 127 0 1 010 0x7f 0x 2130706433 255 256 e f ffff fe80 . .. : :: [ ] % %25 %2e @ / \\ # ?"
    " - _ + :80 :443 :0 :080 :65536 \u3002 \uff0e \u212a \u00df \u0661".split(" ")
) | st.sampled_from(" \t\0\r\n")
targets = st.lists(pieces, max_size=9).map("".join) | st.text(max_size=30)
addresses = st.ip_addresses().map(lambda found: f"[{found}]:443" if found.version == 6 else f"{found}:443")
fields = st.sampled_from(
    (b"Host: a:1\r\n,Host: b:2\r\n,A: b\r\n, folded\r\n,C : d\r\n,Content-Length: 1\r\n,A\n,\r,\n,\0,\r\n").split(b",")
) | st.sampled_from([b"A: " + b"b" * 3000 + b"\r\n", b"A: b\r\n" * 40])
lines = st.builds(
    b"%b %b %b".__mod__,
    st.tuples(
        st.sampled_from([b"CONNECT", b"GET", b"connect", b"", b"\x05"]),
        targets.map(lambda text: text.encode("utf-8", "surrogatepass")) | st.just(b"example.org:443"),
        st.sampled_from([b"HTTP/1.1\r\n", b"HTTP/1.0\r\n", b"HTTP/1.1\n", b"HTTP/2.0\r\n", b"HTTP/1.1\r"]),
    ),
)
requests = st.builds(
    lambda line, block, rest: line + b"".join(block) + rest, lines, st.lists(fields, max_size=6), st.binary(max_size=20)
) | st.binary(max_size=200)


def read(chunks: list[bytes]) -> tuple[Target | ConnectRefusal | None, bytes]:
    reader = RequestReader()
    found = None
    for chunk in chunks:
        found = reader.feed(chunk)
    return found, reader.leftover


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    bounds = [0, *sorted(at % (len(data) + 1) for at in cuts), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(bounds)]


@given(requests, st.lists(st.integers(0, 20_000), max_size=8))
@example(b"CONNECT a.b:1 HTTP/1.1\r\n" + b"A: " + b"b" * MAX_HEADER_BYTES + b"\r\n\r\n", [24, MAX_HEADER_BYTES])
@example(b"CONNECT a.b:1 HTTP/1.1\r\n\r\nrest", [24, 25, 26])
@example(b"GET a.b:1 HTTP/1.1\r\n\0", [20])
@example(b"x" * (MAX_HEADER_BYTES - 1) + b"\rx", [MAX_HEADER_BYTES])
def test_how_a_request_is_cut_makes_no_difference(request_bytes: bytes, cuts: list[int]) -> None:
    """A request in any pieces gives the same target or refusal, and the same first bytes of the tunnel."""
    whole = read([request_bytes])

    assert read(cut(request_bytes, cuts)) == whole
    assert read([bytes([byte]) for byte in request_bytes]) == whole


@given(targets | addresses)
@example("0x7f.1:80")
@example("example.org.:443")
@example("[::ffff:127.0.0.1]:80")
def test_every_reader_understands_an_accepted_target_alike(text: str) -> None:
    """`urllib` reads the same host and port, `ipaddress` the same address, and the C library no number in a name."""
    target = parse_target(text)
    if isinstance(target, ConnectRefusal):
        assert target.status == 400
        return
    parts = urlsplit(f"//{text}")
    assert (parts.username, parts.password, parts.path, parts.query, parts.fragment) == (None, None, "", "", "")
    assert parts.hostname is not None
    assert parts.port == target.port
    assert text.isascii()
    if target.is_ip:
        assert ipaddress.ip_address(parts.hostname) == ipaddress.ip_address(target.host)
        assert str(ipaddress.ip_address(target.host)) == target.host
    else:
        assert parts.hostname.removesuffix(".") == target.host
        with pytest.raises(OSError, match="illegal IP address"):
            socket.inet_aton(target.host)
        with pytest.raises(ValueError, match="does not appear to be"):
            ipaddress.ip_address(target.host)
    assert parse_target(target.authority) == target


@given(addresses)
def test_every_address_written_plainly_is_accepted(text: str) -> None:
    """Plain addresses are accepted, so that the property above has examples."""
    assert isinstance(parse_target(text), Target)


names = st.from_regex(r"[a-z]{1,20}(\.[a-z]{1,20}){1,3}", fullmatch=True)


@given(names, st.lists(st.integers(0, 2_000), max_size=8), st.integers(1, 50))
def test_how_a_hello_is_cut_makes_no_difference(name: str, cuts: list[int], size: int) -> None:
    """A TLS hello gives the same server name however it is cut into chunks or records."""
    message = handshake(hello_body(server_name(name.upper().encode())))
    records = b"".join(record(message[at : at + size]) for at in range(0, len(message), size))

    for data in (client_hello(name), records):
        reader = ClientHelloParser()
        found = [reader.feed(chunk) for chunk in cut(data, cuts) if chunk]
        assert found[-1] == TunnelStart(is_tls=True, server_name=name)
        assert reader.buffer == data


@given(st.binary(max_size=200) | st.binary(max_size=200).map(handshake).map(record))
def test_any_bytes_are_a_tunnel_start_or_a_protocol_error(data: bytes) -> None:
    """The parser returns a TunnelStart, or None for too few bytes, or raises ProtocolError and nothing else."""
    try:
        found = ClientHelloParser().feed(data)
    except ProtocolError:
        return
    assert found is None or isinstance(found, TunnelStart)
